//! A client with one connection that it keeps.

use std::time::{Duration, Instant};

use anyhow::ensure;
use reqwest::{Method, Response};
use serde_json::Value;

use crate::station::Station;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long a whole list may take.
const LONG_PATIENCE: Duration = Duration::from_mins(10);

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
}

impl Asked {
    /// For one thing, or for a list.
    pub fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            query: Vec::new(),
            body: None,
        }
    }

    /// To make something.
    pub fn post(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: Method::POST,
            body: Some(body),
            ..Self::get(path)
        }
    }

    /// To change something.
    pub fn patch(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: Method::PATCH,
            body: Some(body),
            ..Self::get(path)
        }
    }

    /// To put something in its place.
    pub fn put(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: Method::PUT,
            body: Some(body),
            ..Self::get(path)
        }
    }

    /// To take something away.
    pub fn delete(path: impl Into<String>) -> Self {
        Self {
            method: Method::DELETE,
            ..Self::get(path)
        }
    }

    /// With a parameter.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.query.push((name, value.to_string()));
        self
    }
}

/// An operator's session over one connection.
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: String,
}

impl Client {
    /// A session with the server of a station.
    pub fn of(station: &Station) -> anyhow::Result<Self> {
        let token = std::fs::read_to_string(station.data().join("operator-token"))?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .pool_max_idle_per_host(1)
            .timeout(PATIENCE)
            .build()?;
        Ok(Self {
            http,
            base: format!("http://{}/v1/projects/default", station.address("rest")?),
            token: token.trim().to_owned(),
        })
    }

    /// How long it takes until the whole answer is there, and the answer.
    pub async fn ask(&self, asked: &Asked) -> anyhow::Result<(Duration, Vec<u8>)> {
        let request = self.request(asked).build()?;
        let began = Instant::now();
        let response = self.http.execute(request).await?;
        let status = response.status();
        let answer = response.bytes().await?;
        let took = began.elapsed();
        ensure!(
            status.is_success(),
            "{} {:?}: {status} {}",
            asked.path,
            asked.query,
            String::from_utf8_lossy(&answer)
        );
        Ok((took, answer.into()))
    }

    /// The beginning of an answer that is too long to be kept.
    pub async fn open(&self, asked: &Asked) -> anyhow::Result<Response> {
        let request = self.request(asked).timeout(LONG_PATIENCE);
        Ok(request.send().await?.error_for_status()?)
    }

    fn request(&self, asked: &Asked) -> reqwest::RequestBuilder {
        let url = format!("{}{}", self.base, asked.path);
        let request = self
            .http
            .request(asked.method.clone(), url)
            .bearer_auth(&self.token)
            .query(&asked.query);
        match &asked.body {
            Some(body) => request.json(body),
            None => request,
        }
    }
}
