//! An operator's desk: REST at any of the servers, again and again until one answers.

use std::time::Duration;

use evenkeel_simulator::clock::Time;
use reqwest::{Client, Method};
use serde_json::Value;

use super::book::Step;
use super::replicas::machine_time;

/// How long a question is asked again before the test gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// A session of an operator in the project `default`.
#[derive(Clone, Debug)]
pub struct Desk {
    client: Client,
    bases: Vec<String>,
    token: String,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// The server refused.
    Refused(u16, String),
    /// Nobody knows whether it happened.
    Unsure,
}

impl Desk {
    /// A session with these servers.
    pub fn new(addresses: &[String], token: &str) -> Self {
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        // A server that was killed must not leave a connection behind that the next question is sent on.
        let client = Client::builder()
            .pool_max_idle_per_host(0)
            .timeout(Duration::from_secs(20))
            .build();
        let base = |address: &String| format!("http://{address}/v1/projects/default");
        Self {
            client: client.expect("a client"),
            bases: addresses.iter().map(base).collect(),
            token: token.to_owned(),
        }
    }

    /// Asks one server once.
    ///
    /// # Errors
    /// It refused, or did not answer.
    pub async fn ask(
        &self,
        server: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Trouble> {
        let url = format!("{}{path}", self.bases[server % self.bases.len()]);
        let mut request = self.client.request(method, &url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(|_| Trouble::Unsure)?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|_| Trouble::Unsure)?;
        match status {
            200 => Ok(serde_json::from_str(&text).unwrap_or(Value::Null)),
            // It may have happened all the same.
            500.. => Err(Trouble::Unsure),
            _ => Err(Trouble::Refused(status, text)),
        }
    }

    /// Asks for something that may be asked twice, until it is done or refused. Returns the answer and the stretch of
    /// time in which it happened.
    ///
    /// # Panics
    /// No server answers for a long time.
    pub async fn until_done(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (Result<Value, Trouble>, Step) {
        let asked = machine_time();
        let begun = std::time::Instant::now();
        for server in 0.. {
            let answer = self.ask(server, method.clone(), path, body).await;
            if !matches!(answer, Err(Trouble::Unsure)) {
                let done = Some(machine_time());
                return (answer, Step { asked, done });
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "no server answers {method} {path}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("one could count for ever")
    }

    /// Reads something that is there.
    ///
    /// # Panics
    /// It is not there, or no server answers for a long time.
    pub async fn get(&self, path: &str) -> Value {
        let (answer, _) = self.until_done(Method::GET, path, None).await;
        answer.unwrap_or_else(|trouble| panic!("GET {path}: {trouble:?}"))
    }

    /// Makes something while all servers are there, and returns its id.
    ///
    /// # Panics
    /// It cannot be made.
    pub async fn make(&self, path: &str, body: &Value) -> String {
        let made = self.ask(0, Method::POST, path, Some(body)).await;
        let made = made.unwrap_or_else(|trouble| panic!("POST {path} {body}: {trouble:?}"));
        made["resourceId"].as_str().unwrap_or_default().to_owned()
    }

    /// The instant from which an answer counts.
    pub fn now() -> Time {
        machine_time()
    }
}
