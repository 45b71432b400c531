//! REST client, for tests that act as an operator's script.

use reqwest::{Client, Method};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// A session of an operator in a project.
#[derive(Debug)]
pub struct Rest {
    runtime: Runtime,
    client: Client,
    base: String,
    token: String,
}

impl Rest {
    /// Creates a session with the server at `address` in the project named `project`.
    pub fn new(address: &str, project: &str, token: &str) -> Self {
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        // No idle connections: the next request must not use a connection to a server that was killed.
        let client = Client::builder().pool_max_idle_per_host(0).build();
        let client = client.expect("a client");
        let runtime = Builder::new_current_thread().enable_all().build();
        Self {
            runtime: runtime.expect("a runtime"),
            client,
            base: format!("http://{address}/v1/projects/{project}"),
            token: token.to_owned(),
        }
    }

    /// Reads an object or a list. The path is relative to the project.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.succeed(Method::GET, path, None)
    }

    /// Creates an object and returns it.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Value {
        self.succeed(Method::POST, path, Some(body))
    }

    /// Creates or replaces an object and returns it.
    #[track_caller]
    pub fn put(&self, path: &str, body: &Value) -> Value {
        self.succeed(Method::PUT, path, Some(body))
    }

    /// Changes an object and returns it.
    #[track_caller]
    pub fn patch(&self, path: &str, body: &Value) -> Value {
        self.succeed(Method::PATCH, path, Some(body))
    }

    /// Removes an object.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        self.succeed(Method::DELETE, path, None);
    }

    #[track_caller]
    fn succeed(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let what = format!("{method} {path}");
        let (status, answer) = self.send(method, path, body);
        assert!(status == 200, "{what}: {status} {answer}");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{what}: {error}: {answer}"))
    }

    /// Sends a request. Returns the status and the body of the response.
    #[track_caller]
    pub fn send(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, String) {
        let url = format!("{}{path}", self.base);
        let mut request = self.client.request(method, &url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.runtime.block_on(async {
            let answer = request.send().await.expect("an answer");
            let status = answer.status().as_u16();
            (status, answer.text().await.expect("a body"))
        })
    }
}
