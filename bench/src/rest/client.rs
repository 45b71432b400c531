//! An HTTP client that keeps one connection open.

use std::time::{Duration, Instant};

use anyhow::ensure;
use reqwest::{Method, Response};
use serde_json::Value;

use crate::bench_harness::BenchHarness;

const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// Timeout of a request for a full list.
const FULL_LIST_TIMEOUT: Duration = Duration::from_mins(10);

/// A request to the REST API.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
}

impl RequestSpec {
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), query: Vec::new(), body: None }
    }

    pub fn post(path: impl Into<String>, body: Value) -> Self {
        Self { method: Method::POST, body: Some(body), ..Self::get(path) }
    }

    pub fn patch(path: impl Into<String>, body: Value) -> Self {
        Self { method: Method::PATCH, body: Some(body), ..Self::get(path) }
    }

    pub fn put(path: impl Into<String>, body: Value) -> Self {
        Self { method: Method::PUT, body: Some(body), ..Self::get(path) }
    }

    pub fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    /// Adds a query parameter.
    pub fn with_query(mut self, name: &'static str, value: impl ToString) -> Self {
        self.query.push((name, value.to_string()));
        self
    }
}

/// An operator's session over one connection.
pub struct RestClient {
    http: reqwest::Client,
    base: String,
    token: String,
}

impl RestClient {
    /// Opens a session with the first server of a harness.
    pub fn open_session(harness: &BenchHarness) -> anyhow::Result<Self> {
        let token = std::fs::read_to_string(harness.data_dir().join("operator-token"))?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .pool_max_idle_per_host(1)
            .timeout(REQUEST_TIMEOUT)
            .build()?;
        Ok(Self {
            http,
            base: format!("http://{}/v1/projects/default", harness.address("rest")?),
            token: token.trim().to_owned(),
        })
    }

    /// Sends a request. Returns the time until the complete answer has arrived, and the answer.
    pub async fn send(&self, spec: &RequestSpec) -> anyhow::Result<(Duration, Vec<u8>)> {
        let request = self.build_request(spec).build()?;
        let began = Instant::now();
        let response = self.http.execute(request).await?;
        let status = response.status();
        let answer = response.bytes().await?;
        let took = began.elapsed();
        ensure!(
            status.is_success(),
            "{} {:?}: {status} {}",
            spec.path,
            spec.query,
            String::from_utf8_lossy(&answer)
        );
        Ok((took, answer.into()))
    }

    /// Sends a request whose answer is too long for memory. Returns the response without its body.
    pub async fn send_streaming(&self, spec: &RequestSpec) -> anyhow::Result<Response> {
        let request = self.build_request(spec).timeout(FULL_LIST_TIMEOUT);
        Ok(request.send().await?.error_for_status()?)
    }

    fn build_request(&self, spec: &RequestSpec) -> reqwest::RequestBuilder {
        let url = format!("{}{}", self.base, spec.path);
        let request =
            self.http.request(spec.method.clone(), url).bearer_auth(&self.token).query(&spec.query);
        match &spec.body {
            Some(body) => request.json(body),
            None => request,
        }
    }
}
