//! Server-sent events of a stream of changes.

use std::fmt::Display;

use axum::body::Bytes;
use serde::Serialize;

use crate::problem::Problem;

/// The first bytes of a stream: a comment, and the time in milliseconds after which a browser connects
/// again.
pub const FIRST_BYTES: &[u8] = b": changes\nretry: 1000\n\n";

/// Events as the bytes of a stream.
#[derive(Debug, Default)]
pub struct EventText(Vec<u8>);

impl EventText {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The text without spare room: a client that does not read keeps many of them in memory.
    pub fn into_bytes(self) -> Bytes {
        self.0.into_boxed_slice().into()
    }

    /// Adds a change. If it cannot be serialized, the text is unusable.
    pub fn push_change(&mut self, id: &impl Display, data: &impl Serialize) -> Result<(), Problem> {
        self.0.extend_from_slice(format!("event: change\nid: {id}\ndata: ").as_bytes());
        // JSON of this form has no line breaks.
        serde_json::to_writer(&mut self.0, data).map_err(|error| {
            tracing::error!(%error, "a change cannot be converted to JSON");
            Problem::internal()
        })?;
        self.0.extend_from_slice(b"\n\n");
        Ok(())
    }
}

/// An event that only moves the cursor of a client.
pub fn bookmark(id: &impl Display) -> Bytes {
    format!("event: bookmark\nid: {id}\ndata: {{}}\n\n").into()
}

/// The last event of a stream.
pub fn end(reason: &str) -> Bytes {
    format!("event: end\ndata: {{\"reason\":\"{reason}\"}}\n\n").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_has_one_line_of_data() {
        let mut text = EventText::default();
        text.push_change(&"c1", &json!({"note": "two\nlines"})).expect("JSON");
        let expected = "event: change\nid: c1\ndata: {\"note\":\"two\\nlines\"}\n\n";
        assert_eq!(text.into_bytes(), expected.as_bytes());
        assert_eq!(bookmark(&"c2"), "event: bookmark\nid: c2\ndata: {}\n\n".as_bytes());
        assert_eq!(end("access"), "event: end\ndata: {\"reason\":\"access\"}\n\n".as_bytes());
    }
}
