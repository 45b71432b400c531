//! A stream that ends with an error where it becomes too long.

use std::io::{self, BufRead, Read};

/// The longest single event, in bytes: a tag, or a text between two.
const LONGEST_EVENT: u64 = 1024 * 1024;

/// A stream of at most so many bytes, of which no single event may be long. So what reads it holds little at a time,
/// whatever comes.
#[derive(Debug)]
pub(super) struct Bounded<R> {
    inner: R,
    left: u64,
    of_event: u64,
    is_over: bool,
}

impl<R> Bounded<R> {
    /// A stream of at most `limit` bytes.
    pub fn new(inner: R, limit: u64) -> Self {
        Self {
            inner,
            left: limit,
            of_event: LONGEST_EVENT,
            is_over: false,
        }
    }

    /// The next event begins.
    pub fn begin_event(&mut self) {
        self.of_event = LONGEST_EVENT;
    }

    /// Whether the whole is too long.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl<R: BufRead> BufRead for Bounded<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let most = self.left.min(self.of_event);
        let all = self.inner.fill_buf()?;
        if most == 0 && !all.is_empty() {
            self.is_over = self.left == 0;
            return Err(io::Error::other("an element or a text is too long"));
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(all.get(..most).unwrap_or(all))
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        let amount = u64::try_from(amount).unwrap_or(u64::MAX);
        self.left = self.left.saturating_sub(amount);
        self.of_event = self.of_event.saturating_sub(amount);
    }
}

impl<R: BufRead> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut from = self.fill_buf()?;
        let amount = from.read(into)?;
        self.consume(amount);
        Ok(amount)
    }
}
