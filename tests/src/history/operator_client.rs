//! REST client of an operator. Tries all servers until one answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_simulator::clock::Time;
use evenkeel_test_support::RestClient;
use reqwest::Method;
use serde_json::Value;

use super::operator_log::Action;
use super::replicas::machine_time;

/// How long a request is repeated before the test fails.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// How long one server may take for an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// One of this number of repeatable requests first goes to the server with a shifted clock.
const REQUESTS_PER_SHIFTED_REQUEST: usize = 3;

/// A session of an operator in the project `default`.
#[derive(Clone, Debug)]
pub struct OperatorClient {
    servers: Vec<RestClient>,
    /// A session with the server with a shifted clock, and whether it may be called now.
    shifted: Option<(RestClient, Arc<AtomicBool>)>,
    /// Number of repeatable requests.
    requests: Arc<AtomicUsize>,
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
        let connect = |address: &String| RestClient::connect(address, "default", token);
        Self {
            servers: addresses.iter().map(connect).collect(),
            shifted: None,
            requests: Arc::default(),
        }
    }

    /// The same session, which also calls a server with a shifted clock while it may.
    #[must_use]
    pub fn with_shifted_server(self, session: (RestClient, Arc<AtomicBool>)) -> Self {
        Self { shifted: Some(session), ..self }
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
        send_to(&self.servers[server % self.servers.len()], method, path, body).await
    }

    /// Sends a request to the server with a shifted clock, if it is its turn.
    async fn send_to_shifted(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CallError> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let is_turn = number.is_multiple_of(REQUESTS_PER_SHIFTED_REQUEST);
        let shifted = self.shifted.as_ref().filter(|_| is_turn);
        match shifted.filter(|(_, is_open)| is_open.load(Ordering::SeqCst)) {
            Some((server, _)) => send_to(server, method, path, body).await,
            None => Err(CallError::Unknown),
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
        let answer = self.send_to_shifted(method.clone(), path, body).await;
        // A server whose clock is behind refuses tokens that were issued in its future.
        if !matches!(answer, Err(CallError::Unknown | CallError::Refused(401, _))) {
            return (answer, Action { requested_at, done_at: Some(machine_time()) });
        }
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

/// Sends a request to a server, once.
async fn send_to(
    server: &RestClient,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, CallError> {
    let sent = tokio::time::timeout(REQUEST_TIMEOUT, server.send(method, path, body)).await;
    let Ok(Ok(answer)) = sent else { return Err(CallError::Unknown) };
    match answer.status.as_u16() {
        200 => Ok(answer.json().1),
        // The request may have taken effect all the same.
        500.. => Err(CallError::Unknown),
        status => Err(CallError::Refused(status, answer.text)),
    }
}
