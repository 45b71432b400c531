//! A fake server with prepared responses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The responses and the received requests of the fake server.
#[derive(Clone, Debug, Default)]
pub struct FakeServer {
    inner: Arc<Mutex<FakeServerState>>,
}

#[derive(Debug, Default)]
struct FakeServerState {
    /// By method and path below the project.
    answers: HashMap<String, Vec<(u16, Value)>>,
    requests: Vec<String>,
}

impl FakeServer {
    /// Sets the response to a request such as `GET compute/hosts`. Several responses are sent one after
    /// the other, and the last one repeatedly. The response to a list also answers lookups by name;
    /// without one, a lookup finds nothing and is not recorded.
    pub fn answer(&self, what: &str, body: Value) -> &Self {
        self.answer_with(what, 200, body)
    }

    pub fn answer_with(&self, what: &str, status: u16, body: Value) -> &Self {
        let mut inner = self.inner.lock().expect("no test panics here");
        inner.answers.entry(what.to_owned()).or_default().push((status, body));
        self
    }

    /// The received requests with their bodies.
    pub fn requests(&self) -> String {
        self.inner.lock().expect("no test panics here").requests.join("\n")
    }

    /// Starts the server and returns its address.
    #[expect(clippy::disallowed_methods, reason = "the server ends with the test")]
    pub async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let router = Router::new().fallback(respond).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }
}

async fn respond(State(server): State<FakeServer>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let token = parts.headers.get("authorization");
    let is_login = parts.uri.path().starts_with("/realms/") || parts.uri.path() == "/v1/login";
    // A token of an identity provider is good if its signature is.
    let is_good =
        token.is_some_and(|token| token == "Bearer good" || token.as_bytes().ends_with(b".good"));
    if !is_login && !is_good {
        return problem(401, "Unauthenticated", "the token has expired");
    }
    let path = parts.uri.path().trim_start_matches("/v1/");
    let path = path.strip_prefix("projects/default/").unwrap_or(path);
    let query: Query<Vec<(String, String)>> = Query::try_from_uri(&parts.uri).expect("a query");
    let what = format!("{} {path}", parts.method);
    let (exact, without_lookups) =
        (format_request(&what, &query, |_| true), format_request(&what, &query, is_no_lookup));
    let body = axum::body::to_bytes(body, 1_000_000).await.expect("a body");
    let text = String::from_utf8_lossy(&body);
    let mut inner = server.inner.lock().expect("no test panics here");
    let is_there = inner.answers.contains_key(&exact);
    // A lookup without a prepared response finds nothing.
    if !is_there && exact != without_lookups && !inner.answers.contains_key(&without_lookups) {
        return axum::Json(empty_lists()).into_response();
    }
    inner.requests.push(format!("{exact} {text}").trim_end().to_owned());
    let what = if is_there { exact } else { without_lookups };
    let Some(answers) = inner.answers.get_mut(&what) else {
        return problem(404, "NotFound", "host_resource not found");
    };
    let (status, body) = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
    let status = StatusCode::from_u16(status).expect("a status");
    match body {
        // A text is sent as it is.
        Value::String(text) => (status, text).into_response(),
        body => (status, axum::Json(body)).into_response(),
    }
}

/// An empty list of each resource that commands look up by name.
fn empty_lists() -> Value {
    json!({
        "regions": [], "sites": [], "hosts": [], "instances": [], "osUpdatePolicies": [],
        "OperatingSystemResources": [], "singleSchedules": [], "repeatedSchedules": [],
        "providers": [], "customConfigs": [], "localAccounts": [], "osUpdateRuns": [],
        "totalElements": 0, "hasNext": false,
    })
}

/// Formats a request with some of its parameters. The default page size is omitted.
fn format_request(what: &str, query: &[(String, String)], include: fn(&str) -> bool) -> String {
    let is_usual = |name: &str, value: &str| name == "pageSize" && value == "100";
    let params = query
        .iter()
        .filter(|(name, value)| !is_usual(name, value) && include(value))
        .map(|(name, value)| format!("?{name}={value}"));
    format!("{what}{}", params.collect::<String>())
}

/// Whether a parameter is no lookup by name or ID. A lookup may be answered with the whole list,
/// because the client filters the result.
fn is_no_lookup(value: &str) -> bool {
    !value.contains(" == ")
}

fn problem(status: u16, code: &str, message: &str) -> Response {
    let body = json!({"code": code, "message": message, "status": status});
    (StatusCode::from_u16(status).expect("a status"), axum::Json(body)).into_response()
}
