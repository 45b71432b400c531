//! REST client for tests.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use reqwest::Client;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::ServiceExt;

/// How long a server may take for a response on a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// A session of a caller. A path that begins with a slash is absolute; any other path is relative to
/// the project of the session.
#[derive(Clone, Debug)]
pub struct RestClient {
    transport: Transport,
    project: String,
    headers: HeaderMap,
}

#[derive(Clone, Debug)]
enum Transport {
    Network { client: Client, address: String },
    Router(Router),
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    /// Status and body; a body that is no JSON becomes a string.
    pub fn json(&self) -> (StatusCode, Value) {
        let json = serde_json::from_str(&self.text);
        (self.status, json.unwrap_or_else(|_| json!(self.text)))
    }
}

/// Chooses the implementation of TLS for this process. reqwest needs one, also without TLS.
pub fn install_tls() {
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
}

impl RestClient {
    /// A session with the server at an address.
    pub fn connect(address: &str, project: &str, token: &str) -> Self {
        install_tls();
        // No idle connections: the next request must not use a connection to a server that was
        // killed.
        let client = Client::builder().no_proxy().pool_max_idle_per_host(0);
        let client = client.timeout(REQUEST_TIMEOUT).build().expect("a client");
        let transport = Transport::Network { client, address: address.to_owned() };
        Self::new(transport, project).with_token(token)
    }

    /// A session with a router in this process, without a token.
    pub fn with_router(router: &Router, project: &str) -> Self {
        Self::new(Transport::Router(router.clone()), project)
    }

    fn new(transport: Transport, project: &str) -> Self {
        Self { transport, project: project.to_owned(), headers: HeaderMap::new() }
    }

    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        self.with_header("authorization", &format!("Bearer {token}"))
    }

    /// The same session with one more header in each request.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.insert(name, value.parse().expect("a header"));
        self
    }

    /// Sends a request.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, reqwest::Error> {
        let path = match path {
            "" => format!("/v1/projects/{}", self.project),
            absolute if absolute.starts_with('/') => absolute.to_owned(),
            path => format!("/v1/projects/{}/{path}", self.project),
        };
        match &self.transport {
            Transport::Router(router) => Ok(self.send_to(router, method, &path, body).await),
            Transport::Network { client, address } => {
                let request = client.request(method, format!("http://{address}{path}"));
                let mut request = request.headers(self.headers.clone());
                if let Some(body) = body {
                    request = request.json(body);
                }
                let response = request.send().await?;
                let (status, headers) = (response.status(), response.headers().clone());
                Ok(Answer { status, headers, text: response.text().await? })
            }
        }
    }

    async fn send_to(
        &self,
        router: &Router,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let json = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder().method(method).uri(path).body(json);
        let mut request = request.expect("a request");
        *request.headers_mut() = self.headers.clone();
        if body.is_some() {
            request
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let response = router.clone().oneshot(request).await.expect("a router never fails");
        let (status, headers) = (response.status(), response.headers().clone());
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        Answer { status, headers, text: String::from_utf8_lossy(&body).into_owned() }
    }

    /// Sends a request that must get a response; `what` is the method and the path.
    pub async fn call(&self, what: &str, body: Option<Value>) -> Answer {
        let (method, path) = what.split_once(' ').unwrap_or((what, ""));
        let method = method.parse().expect("a method");
        self.send(method, path, body.as_ref()).await.expect("an answer")
    }

    /// Sends a request, and returns the status and the body of the response.
    pub async fn request(&self, what: &str, body: Option<Value>) -> (StatusCode, Value) {
        self.call(what, body).await.json()
    }

    /// Sends a request that must succeed, and returns the body of the response.
    pub async fn expect_ok(&self, what: &str, body: Option<Value>) -> Value {
        let (status, answer) = self.request(what, body).await;
        assert_eq!(status, StatusCode::OK, "{what}: {answer}");
        answer
    }

    /// Sends a request that must be refused with this status, and returns the problem, which must
    /// have the members of `expected`.
    pub async fn expect_problem(
        &self,
        what: &str,
        body: Option<Value>,
        status: u16,
        expected: Value,
    ) -> Value {
        let input = body.clone().unwrap_or_default();
        let (actual, problem) = self.request(what, body).await;
        assert_eq!(actual.as_u16(), status, "{what} {input}: {problem}");
        for (member, value) in expected.as_object().into_iter().flatten() {
            assert_eq!(&problem[member], value, "{member} of {what} {input}: {problem}");
        }
        problem
    }

    /// Reads a resource or a list.
    pub async fn get(&self, path: &str) -> Value {
        self.expect_ok(&format!("GET {path}"), None).await
    }

    /// Reads a resource or a list as its type.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> T {
        let answer = self.get(path).await;
        serde_json::from_value(answer).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Creates a resource and returns it.
    pub async fn post(&self, path: &str, body: impl Serialize) -> Value {
        self.expect_ok(&format!("POST {path}"), Some(json!(body))).await
    }

    /// Creates or replaces a resource and returns it.
    pub async fn put(&self, path: &str, body: impl Serialize) -> Value {
        self.expect_ok(&format!("PUT {path}"), Some(json!(body))).await
    }

    /// Changes a resource and returns it.
    pub async fn patch(&self, path: &str, body: impl Serialize) -> Value {
        self.expect_ok(&format!("PATCH {path}"), Some(json!(body))).await
    }

    /// Removes a resource.
    pub async fn delete(&self, path: &str) {
        let answer = self.expect_ok(&format!("DELETE {path}"), None).await;
        assert_eq!(answer, json!({}), "DELETE {path}");
    }
}

/// The id of the resource in a response.
pub fn resource_id(answer: &Value) -> String {
    answer["resourceId"].as_str().expect("an id").to_owned()
}
