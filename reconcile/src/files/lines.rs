//! Reads files of the machine: lines of databases, and whole files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use super::error::FileError;
use super::folder::RootFolder;

/// Longest line of a database. Longer lines are ignored.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Reads a whole file.
///
/// # Errors
/// It cannot be read, or has more bytes than `max`.
pub(crate) fn read_limited(file: File, max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(max + 1).read_to_end(&mut content)?;
    if u64::try_from(content.len()).is_ok_and(|length| length <= max) {
        return Ok(content);
    }
    Err(io::Error::other(format!("it has more than {max} bytes")))
}

/// Reads lines one at a time, without their line breaks.
#[derive(Debug)]
pub(crate) struct LineReader<R> {
    reader: R,
    line: Vec<u8>,
}

impl<R: BufRead> LineReader<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, line: Vec::new() }
    }

    /// The next line that is not too long; none at the end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        let is_read = self.read_line()?;
        Ok(is_read.then_some(self.line.as_slice()))
    }

    fn read_line(&mut self) -> io::Result<bool> {
        loop {
            self.line.clear();
            let mut limited = (&mut self.reader).take(MAX_LINE_BYTES + 1);
            let length = limited.read_until(b'\n', &mut self.line)?;
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
                return Ok(true);
            }
            if length as u64 <= MAX_LINE_BYTES {
                return Ok(length > 0);
            }
            self.line = Vec::new();
            self.reader.skip_until(b'\n')?;
        }
    }
}

impl RootFolder {
    /// The lines of a file; `None` if it does not exist.
    ///
    /// # Errors
    /// It is no file, or cannot be opened.
    pub(crate) fn open_lines(
        &self,
        path: &str,
    ) -> Result<Option<LineReader<BufReader<File>>>, FileError> {
        Ok(self.open_file(path)?.map(|file| LineReader::new(BufReader::new(file))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn read_lines(content: &[u8]) -> Vec<Vec<u8>> {
        let mut reader = LineReader::new(content);
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line().unwrap() {
            lines.push(line.to_vec());
        }
        lines
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out() {
        let mut content = b"first\n".to_vec();
        content.extend(vec![b'x'; usize::try_from(MAX_LINE_BYTES).unwrap() + 1]);
        content.extend(b"\nlast");
        assert_eq!(read_lines(&content), [b"first".to_vec(), b"last".to_vec()]);
    }

    proptest! {
        #[test]
        fn lines_are_those_between_line_breaks(content in vec(select_byte(), 0..200)) {
            let mut expected: Vec<_> = content.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
            if expected.last().is_some_and(Vec::is_empty) {
                expected.pop();
            }
            prop_assert_eq!(read_lines(&content), expected);
        }
    }

    fn select_byte() -> impl Strategy<Value = u8> {
        proptest::sample::select(vec![b'\n', b'a', b'\r', 0, 0xff])
    }
}
