//! A reader that fails when its input is too long.

use std::io::{self, BufRead, Read};

/// Longest single XML event in bytes: a tag, or the text between two tags.
const MAX_EVENT_BYTES: u64 = 1024 * 1024;

/// A reader with a limit on the total length and on the length of a single XML event, so the XML
/// parser needs little memory.
#[derive(Debug)]
pub(super) struct BoundedReader<R> {
    inner: R,
    remaining: u64,
    event_remaining: u64,
    is_exceeded: bool,
}

impl<R> BoundedReader<R> {
    /// Limits `inner` to `limit` bytes in total.
    pub fn new(inner: R, limit: u64) -> Self {
        Self { inner, remaining: limit, event_remaining: MAX_EVENT_BYTES, is_exceeded: false }
    }

    /// Starts the next event.
    pub fn begin_event(&mut self) {
        self.event_remaining = MAX_EVENT_BYTES;
    }

    /// Whether the input exceeds the total limit.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }
}

impl<R: BufRead> BufRead for BoundedReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let limit = self.remaining.min(self.event_remaining);
        let all = self.inner.fill_buf()?;
        if limit == 0 && !all.is_empty() {
            self.is_exceeded = self.remaining == 0;
            return Err(io::Error::other("an element or a text is too long"));
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(all.get(..limit).unwrap_or(all))
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        let amount = u64::try_from(amount).unwrap_or(u64::MAX);
        self.remaining = self.remaining.saturating_sub(amount);
        self.event_remaining = self.event_remaining.saturating_sub(amount);
    }
}

impl<R: BufRead> Read for BoundedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut from = self.fill_buf()?;
        let amount = from.read(into)?;
        self.consume(amount);
        Ok(amount)
    }
}
