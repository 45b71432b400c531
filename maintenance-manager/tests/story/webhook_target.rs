//! A webhook in the process of the test.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_kit::Lifecycle;
use ring::hmac;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a webhook does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookBehavior {
    /// Answers with this status.
    Status(u16),
    /// Answers with 429, and with this number of seconds as `Retry-After`.
    RetryAfter(u32),
    /// Answers with a redirect to the metadata service of clouds.
    Redirect,
    /// Never answers.
    Hang,
    /// Accepts the message as soon as the behavior is another one.
    Wait,
}

/// A message that a webhook has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    pub id: String,
    pub timestamp: String,
    pub signature: String,
    pub body: String,
}

impl ReceivedMessage {
    /// Verifies the signature as a receiver does.
    pub fn is_signed_with(&self, secret: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let signed = format!("{}.{}.{}", self.id, self.timestamp, self.body);
        let tag = self.signature.strip_prefix("v1,").and_then(|tag| STANDARD.decode(tag).ok());
        tag.is_some_and(|tag| hmac::verify(&key, signed.as_bytes(), &tag).is_ok())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

#[derive(Debug)]
struct WebhookState {
    behavior: WebhookBehavior,
    received: Vec<ReceivedMessage>,
    accepted: Vec<String>,
}

/// A webhook on this machine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WebhookTarget {
    pub url: String,
    state: Arc<Mutex<WebhookState>>,
}

impl WebhookTarget {
    pub async fn start(behavior: WebhookBehavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = WebhookState { behavior, received: Vec::new(), accepted: Vec::new() };
        let target =
            Self { url: format!("http://{address}/hook"), state: Arc::new(Mutex::new(state)) };
        let serving = target.clone();
        Lifecycle::detach(async move {
            while let Ok((connection, _)) = listener.accept().await {
                Lifecycle::detach(serving.clone().serve(connection));
            }
        });
        target
    }

    pub fn set_behavior(&self, behavior: WebhookBehavior) {
        self.state.lock().expect("the state").behavior = behavior;
    }

    fn behavior(&self) -> WebhookBehavior {
        self.state.lock().expect("the state").behavior
    }

    /// All messages, also those that were not accepted.
    pub fn received(&self) -> Vec<ReceivedMessage> {
        self.state.lock().expect("the state").received.clone()
    }

    /// The ids of the messages that were answered with a status from 200 to 299, in their order.
    pub fn accepted(&self) -> Vec<String> {
        self.state.lock().expect("the state").accepted.clone()
    }

    async fn serve(self, mut connection: TcpStream) {
        let Some(message) = read_message(&mut connection).await else {
            return;
        };
        let behavior = {
            let mut state = self.state.lock().expect("the state");
            if matches!(state.behavior, WebhookBehavior::Status(200..=299)) {
                state.accepted.push(message.id.clone());
            }
            state.received.push(message);
            state.behavior
        };
        let answer = match behavior {
            WebhookBehavior::Status(status) => {
                format!("HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            }
            WebhookBehavior::RetryAfter(seconds) => format!(
                "HTTP/1.1 429 Answer\r\nretry-after: {seconds}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            ),
            WebhookBehavior::Redirect => "HTTP/1.1 307 Temporary Redirect\r\n\
                location: http://169.254.169.254/latest/meta-data/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                .to_owned(),
            WebhookBehavior::Wait => {
                while self.behavior() == WebhookBehavior::Wait {
                    tokio::task::yield_now().await;
                }
                "HTTP/1.1 204 Answer\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
            }
            WebhookBehavior::Hang => {
                // Waits until the client closes the connection.
                _ = connection.read(&mut [0; 1]).await;
                return;
            }
        };
        _ = connection.write_all(answer.as_bytes()).await;
    }
}

/// Reads one request.
async fn read_message(connection: &mut TcpStream) -> Option<ReceivedMessage> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).ok()?;
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned()).unwrap_or_default()
    };
    let length: usize = header("content-length").parse().ok()?;
    while bytes.len() < head_end + 4 + length {
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(ReceivedMessage {
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
        body: String::from_utf8(bytes[head_end + 4..].to_vec()).ok()?,
    })
}
