//! The size of an entry in a document.

use std::io::{self, Write};

use crate::document::Entry;

/// Bytes of the canonical JSON of an entry. They are counted while a document grows, so that large
/// profiles do not use memory beyond the limit of a document.
pub(super) fn json_length(entry: &Entry) -> usize {
    let mut counter = ByteCounter::default();
    serde_json::to_writer(&mut counter, entry).expect("an entry has only text keys");
    counter.bytes
}

#[derive(Debug, Default)]
struct ByteCounter {
    bytes: usize,
}

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Desired, SysctlState};
    use crate::revision::to_canonical_json;

    #[test]
    fn the_length_is_that_of_the_canonical_json() {
        let text: String = ('\0'..='\u{7f}').chain(['é', '\u{2028}', '😀']).collect();
        let desired = Desired::Sysctl(SysctlState { value: text.clone() });
        let entry = Entry { name: text, desired };
        assert_eq!(json_length(&entry), to_canonical_json(&entry).len());
    }
}
