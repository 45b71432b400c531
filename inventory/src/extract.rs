//! Extractors that reject a request with a problem document.

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
use evenkeel_kit::{OffloadShare, offload};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::problem::Problem;
use members::members;

/// Path parameters.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(Problem))]
pub struct Path<T>(pub T);

/// JSON body of a request or a response.
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
        let bytes = read_body(request, state).await?;
        let parse = || {
            let object = parse_object(&bytes)?;
            check_read_only::<T>(&object)?;
            parse_input(object)
        };
        offload(OffloadShare::Rest, bytes.len(), parse).await.map(Self)
    }
}

/// JSON body that changes only the fields that it names.
#[derive(Debug)]
pub struct Patch<T> {
    /// Values of the fields.
    pub body: T,
    /// All fields that the body names, including those that are null or read-only.
    pub fields: Map<String, Value>,
}

impl<S: Send + Sync, T: Input> FromRequest<S> for Patch<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = read_body(request, state).await?;
        let parse = || {
            let object = parse_object(&bytes)?;
            check_read_only::<T>(&object)?;
            check_changes_something::<T>(&object)?;
            let fields = object.as_object().cloned().unwrap_or_default();
            Ok(Self { body: parse_input(object)?, fields })
        };
        offload(OffloadShare::Rest, bytes.len(), parse).await
    }
}

/// Partial update of a resource (PATCH).
#[derive(Debug)]
pub struct Change<T> {
    fields: Map<String, Value>,
    marker: PhantomData<fn() -> T>,
}

impl<S: Send + Sync, T: Input + Default + Serialize> FromRequest<S> for Change<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let has_mask = has_field_mask(request.uri().query());
        let bytes = read_body(request, state).await?;
        let parse = || {
            let object = parse_object(&bytes)?;
            check_read_only::<T>(&object)?;
            if !has_mask {
                check_changes_something::<T>(&object)?;
            }
            let object = T::without_read_only(object);
            let fields = object.as_object().cloned().unwrap_or_default();
            let change = Self { fields, marker: PhantomData };
            // The form is checked before the token, so before the current resource can be read.
            change.apply_to(&T::default(), None)?;
            Ok(change)
        };
        offload(OffloadShare::Rest, bytes.len(), parse).await
    }
}

impl<T: Input + Serialize> Change<T> {
    /// The current resource with the changes applied. Changes the fields of the mask, or without a
    /// mask those that the body names. Fields that are null, or missing although the mask names
    /// them, are cleared.
    pub fn apply_to(&self, now: &T, mask: Option<&str>) -> Result<T, Problem> {
        let current = serde_json::to_value(now).map_err(|error| {
            tracing::error!(%error, "a resource cannot be converted to its input form");
            Problem::internal()
        })?;
        let Value::Object(mut merged) = current else {
            return Err(Problem::internal());
        };
        let masked = mask.map(|mask| mask.split(',').map(|name| name.trim().to_owned()));
        let names: Vec<String> = match masked {
            Some(masked) => masked.collect(),
            None => self.fields.keys().cloned().collect(),
        };
        if mask.is_some() {
            check_mask::<T>(&names)?;
        }
        for name in names {
            match self.fields.get(&name) {
                None | Some(Value::Null) => merged.remove(&name),
                Some(value) => merged.insert(name, value.clone()),
            };
        }
        parse_input(Value::Object(merged))
    }
}

/// Checks that the mask names only known fields, and one that can be changed. Other fields are
/// accepted and ignored.
fn check_mask<T: Input>(names: &[String]) -> Result<(), Problem> {
    let writable = members::<T>();
    let is_known = |name: &str| writable.contains(&name) || T::READ_ONLY.contains(&name);
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        let why = format!("there is no field `{name}`");
        return Err(Problem::parameter("fieldMask", why));
    }
    match names.first() {
        Some(name) if names.iter().all(|name| is_fixed::<T>(name)) => {
            Err(Problem::parameter("fieldMask", unchangeable(name)))
        }
        _ => Ok(()),
    }
}

/// Whether a change cannot change a field.
fn is_fixed<T: Input>(name: &str) -> bool {
    T::READ_ONLY.contains(&name) || T::CREATE_ONLY.contains(&name)
}

fn unchangeable(name: &str) -> String {
    format!("`{name}` cannot be changed, and the request names no other field")
}

fn check_read_only<T: Input>(body: &Value) -> Result<(), Problem> {
    match T::invalid_read_only(body) {
        None => Ok(()),
        Some((field, why)) => Err(Problem::invalid(field, why)),
    }
}

/// Refuses a change that names only fields that cannot be changed: a client that sends it expects
/// something to happen.
fn check_changes_something<T: Input>(body: &Value) -> Result<(), Problem> {
    let mut names = body.as_object().into_iter().flatten().map(|(name, _)| name);
    let Some(first) = names.clone().next() else {
        return Ok(());
    };
    if names.all(|name| is_fixed::<T>(name)) {
        return Err(Problem::invalid(first, unchangeable(first)));
    }
    Ok(())
}

/// Whether a query has a mask, which may clear fields that the body does not name.
fn has_field_mask(query: Option<&str>) -> bool {
    let mut pairs = query.unwrap_or_default().split('&');
    pairs.any(|pair| pair.split('=').next() == Some("fieldMask"))
}

/// Reads the body of a request.
async fn read_body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    check_media_type(request.headers())?;
    Ok(Bytes::from_request(request, state).await?)
}

/// Parses the JSON object of a body.
fn parse_object(bytes: &[u8]) -> Result<Value, Problem> {
    check_text(bytes)?;
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Problem::malformed("the body is not a JSON object"))
    }
}

/// Checks that a body is printable text. JSON has escapes for control characters.
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

/// Whether a character is a control character other than tab and line ends.
fn is_unprintable(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t')
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let media_type = value.to_str().unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        Ok(())
    } else {
        let why = format!("the body must be application/json, not `{essence}`");
        Err(Problem::malformed(why))
    }
}

/// Reads the input. As in EIM's JSON, `null` means the same as a missing field.
fn parse_input<T: Input>(object: Value) -> Result<T, Problem> {
    let mut object = T::without_read_only(object);
    if let Value::Object(members) = &mut object {
        members.retain(|_, value| !value.is_null());
    }
    serde_path_to_error::deserialize(object).map_err(|error| {
        let why = error.inner().to_string();
        let path = error.path().to_string();
        match path.as_str() {
            "." => match first_quoted_name(&why) {
                // serde's message names the unknown or missing field.
                Some(field) => Problem::invalid(&field, &why),
                None => Problem::malformed(why),
            },
            path => Problem::invalid(path, &why),
        }
    })
}

/// The first name between backticks.
fn first_quoted_name(text: &str) -> Option<String> {
    text.split('`').nth(1).map(str::to_owned)
}

/// Query parameters. Empty and repeated parameters are rejected.
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
    /// Text of a parameter.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Number of a parameter.
    pub fn number(&self, name: &str, least: u32, most: u32) -> Result<Option<u32>, Problem> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        match number {
            Some(number) => Ok(Some(number)),
            None => {
                Err(Problem::parameter(name, format!("must be a number from {least} to {most}")))
            }
        }
    }

    /// Boolean of a parameter; false if it is missing.
    pub fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::parameter(name, "must be `true` or `false`")),
        }
    }

    /// Rejects parameters that the list does not support, because ignoring them would give a wrong
    /// result.
    pub fn reject(&self, names: &[&str]) -> Result<(), Problem> {
        match names.iter().find(|name| self.0.contains_key(**name)) {
            None => Ok(()),
            Some(name) => Err(Problem::parameter(name, "this list does not support the parameter")),
        }
    }
}
