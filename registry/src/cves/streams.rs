//! Reader for bzip2 data that consists of one or more streams.

use std::io::{self, Read};

use bzip2::bufread::BzDecoder;

/// Maximum number of streams. Parallel compressors write one stream per 900 kB, so the largest
/// allowed document has fewer. An empty stream has 14 bytes but each needs a new decoder, so
/// reading many of them is slow.
const MAX_STREAMS: usize = 4_096;

/// Decompressed content of all streams.
pub(super) struct MultiStreamReader<'a> {
    decoder: BzDecoder<&'a [u8]>,
    started: usize,
}

impl<'a> MultiStreamReader<'a> {
    /// Reads the streams in `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self { decoder: BzDecoder::new(body), started: 1 }
    }
}

impl Read for MultiStreamReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.decoder.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            // The decoder stops at the end of its stream.
            let rest = *self.decoder.get_ref();
            if rest.is_empty() {
                return Ok(0);
            }
            if self.started == MAX_STREAMS {
                let why = format!("it consists of more than {MAX_STREAMS} bzip2 streams");
                return Err(io::Error::other(why));
            }
            self.started += 1;
            self.decoder = BzDecoder::new(rest);
        }
    }
}
