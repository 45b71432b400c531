//! Reads server-sent events.

use std::time::Duration;

use reqwest::Response;
use tokio::time::timeout;

/// How long the server may send nothing. It sends a bookmark every 15 s.
const READ_TIMEOUT: Duration = Duration::from_secs(45);

/// Maximum length of an event, in bytes.
const MAX_EVENT_BYTES: usize = 4 * 1024 * 1024;

/// An event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    pub name: String,
    /// Position of the stream after the event; empty if the event has none.
    pub id: String,
    pub data: String,
}

/// A stream of events.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    buffer: EventBuffer,
}

impl EventStream {
    pub fn new(response: Response) -> Self {
        Self { response, buffer: EventBuffer::default() }
    }

    /// The next event; none when the stream has ended or the connection is lost.
    pub async fn next(&mut self) -> Option<ServerEvent> {
        loop {
            if let Some(event) = self.buffer.take() {
                return Some(event);
            }
            let received = timeout(READ_TIMEOUT, self.response.chunk()).await.ok()?;
            self.buffer.0.extend_from_slice(&received.ok()??);
            if self.buffer.0.len() > MAX_EVENT_BYTES {
                return None;
            }
        }
    }
}

/// What was received and is no complete event yet.
#[derive(Debug, Default)]
struct EventBuffer(Vec<u8>);

impl EventBuffer {
    /// The next complete event. Skips comments and settings.
    fn take(&mut self) -> Option<ServerEvent> {
        while let Some(end) = self.0.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = self.0.drain(..end + 2).collect();
            let event = parse_event(&String::from_utf8_lossy(&block));
            if event.is_some() {
                return event;
            }
        }
        None
    }
}

/// Parses the lines of an event; none if they have no data.
fn parse_event(block: &str) -> Option<ServerEvent> {
    let mut event = ServerEvent::default();
    let mut has_data = false;
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut event.name),
            "id" => value.clone_into(&mut event.id),
            "data" => {
                if has_data {
                    event.data.push('\n');
                }
                event.data.push_str(value);
                has_data = true;
            }
            _ => {}
        }
    }
    has_data.then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_from_any_parts() {
        let text = ": comment\nretry: 1000\n\nevent: change\nid: c1\ndata: {\"a\":\"\u{e4}\"}\n\n\
                    event: end\ndata: one\ndata: two\n\nevent: late";
        let expected = [
            ServerEvent {
                name: "change".into(),
                id: "c1".into(),
                data: "{\"a\":\"\u{e4}\"}".into(),
            },
            ServerEvent { name: "end".into(), id: String::new(), data: "one\ntwo".into() },
        ];
        for size in [1, 3, 1_000] {
            let (mut buffer, mut events) = (EventBuffer::default(), Vec::new());
            for part in text.as_bytes().chunks(size) {
                buffer.0.extend_from_slice(part);
                events.extend(std::iter::from_fn(|| buffer.take()));
            }
            assert_eq!(events, expected, "{size}");
            assert_eq!(buffer.0, b"event: late");
        }
    }
}
