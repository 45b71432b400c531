//! The text of a list.

use serde::Serialize;

use crate::problem::Problem;

/// The most room that is made ahead for items, in bytes: the text lives until its client has taken it.
const MOST_AHEAD: usize = 1 << 20;

/// The text of an answer with one list or several, as far as it is written.
#[derive(Debug, Default)]
pub struct Text {
    bytes: Vec<u8>,
    has_lists: bool,
    has_items: bool,
}

/// What stands behind the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// How many there are in all.
    pub total: u64,
    /// The token of the next page, if there is one.
    pub next: Option<String>,
}

impl Text {
    /// Begins a list.
    pub fn begin(&mut self, key: &str) {
        self.bytes.push(if self.has_lists { b',' } else { b'{' });
        self.bytes
            .extend_from_slice(format!("\"{key}\":[").as_bytes());
        (self.has_lists, self.has_items) = (true, false);
    }

    /// Adds items. If one of them cannot be shown, the text is of no use any more.
    pub fn push<T: Serialize>(&mut self, items: &[T]) -> Result<(), Problem> {
        let begin = self.bytes.len();
        for (place, item) in items.iter().enumerate() {
            if place == 1 {
                // The others are about as long as the first.
                let one = self.bytes.len() - begin;
                let all = (one + one / 8).saturating_mul(items.len());
                self.bytes.reserve(all.min(MOST_AHEAD));
            }
            if self.has_items {
                self.bytes.push(b',');
            }
            serde_json::to_writer(&mut self.bytes, item).map_err(|error| {
                tracing::error!(%error, "an item of a list cannot be shown");
                Problem::internal()
            })?;
            self.has_items = true;
        }
        Ok(())
    }

    /// Ends the list.
    pub fn end(&mut self) {
        self.bytes.push(b']');
    }

    /// What is written since it was last taken.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Ends the answer. A token is text without anything that JSON would have to escape.
    pub fn finish(mut self, end: &End) -> Vec<u8> {
        let total = i32::try_from(end.total).unwrap_or(i32::MAX);
        let has_next = end.next.is_some();
        let token = end.next.as_deref().unwrap_or_default();
        let tail = format!(
            "{}\"totalElements\":{total},\"hasNext\":{has_next},\"nextPageToken\":\"{token}\"}}",
            if self.has_lists { ',' } else { '{' }
        );
        self.bytes.extend_from_slice(tail.as_bytes());
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    #[test]
    fn a_list_is_written_in_pieces() {
        let mut text = Text::default();
        text.begin("hosts");
        let mut whole = text.take();
        for piece in [&[1, 2][..], &[], &[3]] {
            text.push(piece).expect("JSON");
            whole.extend(text.take());
        }
        text.end();
        let end = End {
            total: 9,
            next: Some("abc".to_owned()),
        };
        whole.extend(text.finish(&end));
        assert_eq!(
            String::from_utf8(whole).expect("text"),
            r#"{"hosts":[1,2,3],"totalElements":9,"hasNext":true,"nextPageToken":"abc"}"#
        );
    }

    #[test]
    fn several_lists_stand_side_by_side() {
        let mut text = Text::default();
        for (key, number) in [("single", 1), ("repeated", 2)] {
            text.begin(key);
            text.push(&[number]).expect("JSON");
            text.end();
        }
        let wanted = json!({
            "single": [1], "repeated": [2], "totalElements": i32::MAX, "hasNext": false, "nextPageToken": "",
        });
        let end = End {
            total: u64::MAX,
            next: None,
        };
        assert_eq!(read(&text.finish(&end)), wanted);
    }
}
