//! Writes the JSON of lists.

use serde::Serialize;

use crate::problem::Problem;

/// Most bytes that are reserved in advance. The buffer lives until the client has read it.
const MAX_RESERVED_BYTES: usize = 1 << 20;

/// JSON of a response with one or more lists, written incrementally.
#[derive(Debug, Default)]
pub struct ListJson {
    bytes: Vec<u8>,
    has_lists: bool,
    has_items: bool,
    /// Number of resources of the lists that cannot be read.
    unreadable: usize,
}

/// Fields that follow the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListTail {
    /// Number of items in all lists.
    pub total: u64,
    /// Token of the next page, if there is one.
    pub next: Option<String>,
}

impl ListJson {
    pub fn begin(&mut self, key: &str) {
        self.bytes.push(if self.has_lists { b',' } else { b'{' });
        self.bytes.extend_from_slice(format!("\"{key}\":[").as_bytes());
        (self.has_lists, self.has_items) = (true, false);
    }

    /// Appends items. If an item cannot be serialized, the JSON is unusable.
    pub fn push<T: Serialize>(&mut self, items: &[T]) -> Result<(), Problem> {
        let begin = self.bytes.len();
        for (index, item) in items.iter().enumerate() {
            if index == 1 {
                // Estimate: the other items are about as long as the first.
                let one = self.bytes.len() - begin;
                let all = (one + one / 8).saturating_mul(items.len());
                self.bytes.reserve(all.min(MAX_RESERVED_BYTES));
            }
            if self.has_items {
                self.bytes.push(b',');
            }
            serde_json::to_writer(&mut self.bytes, item).map_err(|error| {
                tracing::error!(%error, "cannot serialize an item of a list");
                Problem::internal()
            })?;
            self.has_items = true;
        }
        Ok(())
    }

    /// Counts resources that are in the lists, but cannot be read. The response says how many.
    pub fn count_unreadable(&mut self, count: usize) {
        self.unreadable = self.unreadable.saturating_add(count);
    }

    pub fn end(&mut self) {
        self.bytes.push(b']');
    }

    /// Takes what was written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Ends the response. Tokens contain no characters that JSON must escape.
    pub fn finish(mut self, end: &ListTail) -> Vec<u8> {
        let total = i32::try_from(end.total).unwrap_or(i32::MAX);
        let has_next = end.next.is_some();
        let token = end.next.as_deref().unwrap_or_default();
        let unreadable = match self.unreadable {
            0 => String::new(),
            count => format!(",\"unreadableElements\":{count}"),
        };
        let tail = format!(
            "{}\"totalElements\":{total},\"hasNext\":{has_next},\"nextPageToken\":\"{token}\"{unreadable}}}",
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
    fn a_list_is_written_in_chunks() {
        let mut text = ListJson::default();
        text.begin("hosts");
        let mut written = text.take();
        for chunk in [&[1, 2][..], &[], &[3]] {
            text.push(chunk).expect("JSON");
            written.extend(text.take());
        }
        text.end();
        let end = ListTail { total: 9, next: Some("abc".to_owned()) };
        written.extend(text.finish(&end));
        assert_eq!(
            String::from_utf8(written).expect("text"),
            r#"{"hosts":[1,2,3],"totalElements":9,"hasNext":true,"nextPageToken":"abc"}"#
        );
    }

    #[test]
    fn a_list_reports_how_many_resources_cannot_be_read() {
        let mut text = ListJson::default();
        text.begin("hosts");
        for _ in 0..2 {
            text.count_unreadable(1);
        }
        text.end();
        let end = ListTail { total: 2, next: None };
        assert_eq!(read(&text.finish(&end))["unreadableElements"], 2);
    }

    #[test]
    fn several_lists_follow_each_other() {
        let mut text = ListJson::default();
        for (key, number) in [("single", 1), ("repeated", 2)] {
            text.begin(key);
            text.push(&[number]).expect("JSON");
            text.end();
        }
        let expected = json!({
            "single": [1], "repeated": [2], "totalElements": i32::MAX, "hasNext": false, "nextPageToken": "",
        });
        let end = ListTail { total: u64::MAX, next: None };
        assert_eq!(read(&text.finish(&end)), expected);
    }
}
