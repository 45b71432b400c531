//! What is packed by bzip2, in one stream or in several, one behind the other.

use std::io::{self, Read};

use bzip2::bufread::BzDecoder;

/// How many streams are read. What packs on several processors makes one of each 900 kB, so the largest document has
/// fewer. A stream with nothing in it has 14 bytes, and memory is prepared for each, so many of them take long.
const MOST_STREAMS: usize = 4_096;

/// The content of all streams.
pub(super) struct Streams<'a> {
    decoder: BzDecoder<&'a [u8]>,
    begun: usize,
}

impl<'a> Streams<'a> {
    /// What is packed in `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            decoder: BzDecoder::new(body),
            begun: 1,
        }
    }
}

impl Read for Streams<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.decoder.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            // The decoder stops behind its stream.
            let rest = *self.decoder.get_ref();
            if rest.is_empty() {
                return Ok(0);
            }
            if self.begun == MOST_STREAMS {
                let why = format!("it is packed in more than {MOST_STREAMS} streams");
                return Err(io::Error::other(why));
            }
            self.begun += 1;
            self.decoder = BzDecoder::new(rest);
        }
    }
}
