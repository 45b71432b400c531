//! A server of a few lines that answers like the real one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// What the double knows and was asked.
#[derive(Clone, Debug, Default)]
pub struct Double {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By path below the project.
    answers: HashMap<String, Vec<(u16, Value)>>,
    asked: Vec<String>,
}

impl Double {
    /// What to answer to `GET compute/hosts` and the like. Several answers are given one after the other, and the last
    /// one again and again. What is answered to a list is answered to a look for a name in it as well.
    pub fn answer(&self, what: &str, body: Value) -> &Self {
        self.answer_with(what, 200, body)
    }

    pub fn answer_with(&self, what: &str, status: u16, body: Value) -> &Self {
        let mut inner = self.inner.lock().expect("no test panics here");
        inner
            .answers
            .entry(what.to_owned())
            .or_default()
            .push((status, body));
        self
    }

    /// What it was asked, with the bodies.
    pub fn asked(&self) -> String {
        self.inner
            .lock()
            .expect("no test panics here")
            .asked
            .join("\n")
    }

    /// Starts it and gives its address.
    #[expect(clippy::disallowed_methods, reason = "the double ends with the test")]
    pub async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("its address");
        let router = Router::new().fallback(respond).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }
}

async fn respond(State(double): State<Double>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let token = parts.headers.get("authorization");
    let is_login = parts.uri.path().starts_with("/realms/");
    if !is_login && token.is_none_or(|token| token != "Bearer good") {
        return problem(401, "Unauthenticated", "the token has expired");
    }
    let path = parts.uri.path().trim_start_matches("/v1/");
    let path = path.strip_prefix("projects/default/").unwrap_or(path);
    let query: Query<Vec<(String, String)>> = Query::try_from_uri(&parts.uri).expect("a query");
    let what = format!("{} {path}", parts.method);
    let (exact, whole) = (
        asked(&what, &query, |_| true),
        asked(&what, &query, is_no_name),
    );
    let body = axum::body::to_bytes(body, 1_000_000).await.expect("a body");
    let text = String::from_utf8_lossy(&body);
    let mut inner = double.inner.lock().expect("no test panics here");
    inner
        .asked
        .push(format!("{exact} {text}").trim_end().to_owned());
    let is_there = inner.answers.contains_key(&exact);
    let what = if is_there { exact } else { whole };
    let Some(answers) = inner.answers.get_mut(&what) else {
        return problem(404, "NotFound", "host_resource not found");
    };
    let (status, body) = if answers.len() > 1 {
        answers.remove(0)
    } else {
        answers[0].clone()
    };
    let status = StatusCode::from_u16(status).expect("a status");
    (status, axum::Json(body)).into_response()
}

/// A question with those of its parameters that are wanted. The usual size of a page, which every list has, is left out.
fn asked(what: &str, query: &[(String, String)], is_wanted: fn(&str) -> bool) -> String {
    let is_usual = |name: &str, value: &str| name == "pageSize" && value == "100";
    let shown = query
        .iter()
        .filter(|(name, value)| !is_usual(name, value) && is_wanted(value))
        .map(|(name, value)| format!("?{name}={value}"));
    format!("{what}{}", shown.collect::<String>())
}

/// A list that is asked for names or ids alone may be answered whole: who asks looks at what comes.
fn is_no_name(value: &str) -> bool {
    !value.contains(" == ")
}

fn problem(status: u16, code: &str, message: &str) -> Response {
    let body = json!({"code": code, "message": message, "status": status});
    (
        StatusCode::from_u16(status).expect("a status"),
        axum::Json(body),
    )
        .into_response()
}
