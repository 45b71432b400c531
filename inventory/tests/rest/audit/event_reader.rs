//! Reads a stream of server-sent events.

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::time::timeout;

use super::DEADLINE;
use crate::test_server::{Caller, TestServer};

/// An event of a stream.
#[derive(Clone, Debug)]
pub struct StreamEvent {
    pub name: String,
    /// Empty for the last event.
    pub id: String,
    pub data: Value,
}

pub struct EventReader {
    body: Body,
    /// What was received and is no complete event yet.
    received: String,
}

impl EventReader {
    /// Requests a stream of `ours`; `query` follows `watch=true`.
    pub async fn request(
        server: &TestServer,
        caller: Caller,
        query: &str,
        last_event: Option<&str>,
    ) -> Response<Body> {
        let path = format!("/v1/projects/ours/changes?watch=true{query}");
        Self::request_path(server, caller, &path, last_event).await
    }

    /// Requests a stream by its path.
    pub async fn request_path(
        server: &TestServer,
        caller: Caller,
        path: &str,
        last_event: Option<&str>,
    ) -> Response<Body> {
        let token = server.token(caller).expect("a token");
        let request = Request::get(path).header(header::AUTHORIZATION, format!("Bearer {token}"));
        let request = last_event.into_iter().fold(request, |r, id| r.header("last-event-id", id));
        server.send(request.body(Body::empty()).expect("a request")).await
    }

    /// Opens a stream that must not be refused.
    pub async fn open(
        server: &TestServer,
        caller: Caller,
        query: &str,
        last_event: Option<&str>,
    ) -> Self {
        let response = Self::request(server, caller, query, last_event).await;
        assert_eq!(response.status(), StatusCode::OK, "{query} after {last_event:?}");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no", "no proxy holds events back");
        Self::new(response)
    }

    pub fn new(response: Response<Body>) -> Self {
        Self { body: response.into_body(), received: String::new() }
    }

    /// The next event; none at the end of the stream.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            if let Some((block, rest)) = self.received.split_once("\n\n") {
                let event = parse_event(block);
                let rest = rest.to_owned();
                self.received = rest;
                match event {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let frame = timeout(DEADLINE, self.body.frame()).await.expect("a frame")?;
            let bytes = frame.expect("the stream does not break").into_data().expect("data");
            self.received.push_str(std::str::from_utf8(&bytes).expect("a text"));
        }
    }

    /// The next change, after any bookmarks.
    pub async fn next_change(&mut self) -> StreamEvent {
        loop {
            let event = self.next().await.expect("the stream does not end");
            if event.name == "change" {
                return event;
            }
        }
    }

    /// The reason in the last event.
    pub async fn end_reason(&mut self) -> String {
        loop {
            let event = self.next().await.expect("a reason before the end");
            if event.name == "end" {
                assert!(self.next().await.is_none(), "it is the last event");
                return event.data["reason"].as_str().expect("a reason").to_owned();
            }
        }
    }
}

/// Parses the lines of an event; none if they are only comments and settings.
fn parse_event(block: &str) -> Option<StreamEvent> {
    let field = |name: &str| {
        let prefix = format!("{name}: ");
        block.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
    };
    let data = field("data")?;
    Some(StreamEvent {
        name: field("event").expect("a name"),
        id: field("id").unwrap_or_default(),
        data: serde_json::from_str(&data).expect("JSON"),
    })
}
