//! Extractors that reject with a problem document.

mod members;

use std::collections::HashMap;
use std::marker::PhantomData;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use evenkeel_api::Input;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::problem::Problem;
use members::members;

/// The ids of the path.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(Problem))]
pub struct Path<T>(pub T);

/// A body of JSON, asked or answered.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<S: Send + Sync, T: Input> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        object(request, state).await.and_then(read).map(Self)
    }
}

/// A body of JSON that changes only what it names.
#[derive(Debug)]
pub struct Patch<T> {
    /// The values.
    pub body: T,
    /// All that the body names, also what is null or cannot be changed.
    pub given: Map<String, Value>,
}

impl<S: Send + Sync, T: Input> FromRequest<S> for Patch<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let object = object(request, state).await?;
        let given = object.as_object().cloned().unwrap_or_default();
        let body = read(object)?;
        Ok(Self { body, given })
    }
}

/// A change of what a resource is to what the body names.
#[derive(Debug)]
pub struct Change<T> {
    names: Map<String, Value>,
    of: PhantomData<fn() -> T>,
}

impl<S: Send + Sync, T: Input + Default + Serialize> FromRequest<S> for Change<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let object = T::without_read_only(object(request, state).await?);
        let change = Self {
            names: object.as_object().cloned().unwrap_or_default(),
            of: PhantomData,
        };
        // The form is judged before who asks, so before it is known what is there.
        change.over(&T::default(), None)?;
        Ok(change)
    }
}

impl<T: Input + Serialize> Change<T> {
    /// What the resource should be: what it is now, with the fields of the mask, else with those that the body names, as
    /// the body has them. What is null there, or not there and in the mask, is emptied.
    pub fn over(&self, now: &T, mask: Option<&str>) -> Result<T, Problem> {
        let whole = serde_json::to_value(now).map_err(|error| {
            tracing::error!(%error, "a resource cannot be shown as it is asked for");
            Problem::internal()
        })?;
        let Value::Object(mut whole) = whole else {
            return Err(Problem::internal());
        };
        let masked = mask.map(|mask| mask.split(',').map(|name| name.trim().to_owned()));
        let names: Vec<String> = match masked {
            Some(masked) => masked.collect(),
            None => self.names.keys().cloned().collect(),
        };
        if mask.is_some() {
            check_mask::<T>(&names)?;
        }
        for name in names {
            match self.names.get(&name) {
                None | Some(Value::Null) => whole.remove(&name),
                Some(value) => whole.insert(name, value.clone()),
            };
        }
        read(Value::Object(whole))
    }
}

/// A mask names nothing that no answer has either. What an answer has and nobody may write stays as it is.
fn check_mask<T: Input>(names: &[String]) -> Result<(), Problem> {
    let known = members::<T>();
    let is_known = |name: &str| known.contains(&name) || T::READ_ONLY.contains(&name);
    match names.iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let why = format!("there is no field `{name}`");
            Err(Problem::parameter("fieldMask", why))
        }
    }
}

/// The JSON object in a body.
async fn object<S: Send + Sync>(request: Request, state: &S) -> Result<Value, Problem> {
    check_media_type(request.headers())?;
    let bytes = Bytes::from_request(request, state).await?;
    check_text(&bytes)?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Problem::malformed("the body is not a JSON object"))
    }
}

/// A body is printable text. Control characters stand in it only as JSON writes them.
fn check_text(bytes: &[u8]) -> Result<(), Problem> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Problem::malformed(format!("the body is not text: {error}")))?;
    match text.char_indices().find(|(_, c)| is_unprintable(*c)) {
        None => Ok(()),
        Some((at, c)) => {
            let why = format!("the body is not printable: {c:?} at byte {at}");
            Err(Problem::malformed(why))
        }
    }
}

/// Whether a character has no business in text. What ends lines has.
fn is_unprintable(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t')
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(given) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let given = given.to_str().unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        Ok(())
    } else {
        let why = format!("the body must be application/json, not `{essence}`");
        Err(Problem::malformed(why))
    }
}

/// What is null counts as left out, as the ancestor's JSON has it.
fn read<T: Input>(object: Value) -> Result<T, Problem> {
    let mut object = T::without_read_only(object);
    if let Value::Object(members) = &mut object {
        members.retain(|_, value| !value.is_null());
    }
    serde_path_to_error::deserialize(object).map_err(|error| {
        let why = error.inner().to_string();
        let path = error.path().to_string();
        match path.as_str() {
            "." => match quoted(&why) {
                // An unknown or missing field is named by the message itself.
                Some(field) => Problem::invalid(&field, &why),
                None => Problem::malformed(why),
            },
            path => Problem::invalid(path, &why),
        }
    })
}

/// The first name between backticks.
fn quoted(text: &str) -> Option<String> {
    text.split('`').nth(1).map(str::to_owned)
}

/// The parameters behind the question mark. None is empty, none is given twice.
#[derive(Debug)]
pub struct Params(HashMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        type Pairs = axum::extract::Query<Vec<(String, String)>>;
        let pairs = Pairs::from_request_parts(parts, state).await?.0;
        let mut params = HashMap::new();
        for (name, value) in pairs {
            if value.is_empty() {
                return Err(Problem::parameter(&name, "a parameter must not be empty"));
            }
            if value.contains(is_unprintable) {
                return Err(Problem::parameter(&name, "must be printable text"));
            }
            if params.contains_key(&name) {
                return Err(Problem::parameter(&name, "the parameter is given twice"));
            }
            params.insert(name, value);
        }
        Ok(Self(params))
    }
}

impl Params {
    /// The text of a parameter.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The number of a parameter.
    pub fn number(&self, name: &str, least: u32, most: u32) -> Result<Option<u32>, Problem> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text
            .parse()
            .ok()
            .filter(|number| (least..=most).contains(number));
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(Problem::parameter(
                name,
                format!("must be a number from {least} to {most}"),
            )),
        }
    }

    /// The truth of a parameter, false if it is not given.
    pub fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::parameter(name, "must be `true` or `false`")),
        }
    }

    /// Refuses parameters that would change the answer if they were understood.
    pub fn refuse(&self, names: &[&str]) -> Result<(), Problem> {
        match names.iter().find(|name| self.0.contains_key(**name)) {
            None => Ok(()),
            Some(name) => Err(Problem::parameter(
                name,
                "this list does not support the parameter",
            )),
        }
    }
}
