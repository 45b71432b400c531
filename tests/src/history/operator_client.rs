//! REST client of an operator. Tries all servers until one answers.

use std::time::Duration;

use evenkeel_simulator::clock::Time;
use reqwest::{Client, Method};
use serde_json::Value;

use super::operator_log::Action;
use super::replicas::machine_time;

/// How long a request is repeated before the test fails.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// A session of an operator in the project `default`.
#[derive(Clone, Debug)]
pub struct OperatorClient {
    client: Client,
    base_urls: Vec<String>,
    token: String,
}

/// Why a request has no result.
#[derive(Clone, Debug)]
pub enum CallError {
    /// The server rejected the request: status and body.
    Refused(u16, String),
    /// It is unknown whether the request took effect.
    Unknown,
}

impl OperatorClient {
    /// Creates a session with these servers.
    pub fn new(addresses: &[String], token: &str) -> Self {
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        // No idle connections: the next request must not use a connection to a server that was killed.
        let client =
            Client::builder().pool_max_idle_per_host(0).timeout(Duration::from_secs(20)).build();
        let base = |address: &String| format!("http://{address}/v1/projects/default");
        Self {
            client: client.expect("a client"),
            base_urls: addresses.iter().map(base).collect(),
            token: token.to_owned(),
        }
    }

    /// Sends a request to one server, once.
    ///
    /// # Errors
    /// The server rejected the request or did not answer.
    pub async fn send(
        &self,
        server: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CallError> {
        let url = format!("{}{path}", self.base_urls[server % self.base_urls.len()]);
        let mut request = self.client.request(method, &url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(|_| CallError::Unknown)?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|_| CallError::Unknown)?;
        match status {
            200 => Ok(serde_json::from_str(&text).unwrap_or(Value::Null)),
            // The request may have taken effect all the same.
            500.. => Err(CallError::Unknown),
            _ => Err(CallError::Refused(status, text)),
        }
    }

    /// Repeats a request that may be repeated, until it is accepted or rejected. Returns the answer and the time span
    /// in which the request took effect.
    ///
    /// # Panics
    /// No server answers for a long time.
    pub async fn until_done(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (Result<Value, CallError>, Action) {
        let requested_at = machine_time();
        let begun = std::time::Instant::now();
        for server in 0.. {
            let answer = self.send(server, method.clone(), path, body).await;
            if !matches!(answer, Err(CallError::Unknown)) {
                let done = Some(machine_time());
                return (answer, Action { requested_at, done_at: done });
            }
            assert!(begun.elapsed() < ANSWER_TIMEOUT, "no server answers {method} {path}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("the loop has no end")
    }

    /// Reads an existing resource.
    ///
    /// # Panics
    /// The resource does not exist, or no server answers in time.
    pub async fn get(&self, path: &str) -> Value {
        let (answer, _) = self.until_done(Method::GET, path, None).await;
        answer.unwrap_or_else(|error| panic!("GET {path}: {error:?}"))
    }

    /// Creates a resource while all servers run, and returns its ID.
    ///
    /// # Panics
    /// The resource cannot be created.
    pub async fn create(&self, path: &str, body: &Value) -> String {
        let created = self.send(0, Method::POST, path, Some(body)).await;
        let created = created.unwrap_or_else(|error| panic!("POST {path} {body}: {error:?}"));
        created["resourceId"].as_str().unwrap_or_default().to_owned()
    }

    /// Current time of the servers' clock.
    pub fn now() -> Time {
        machine_time()
    }
}
