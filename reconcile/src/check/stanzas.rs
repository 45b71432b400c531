//! Reads databases that consist of stanzas, such as those of dpkg and apt.

use std::io::{self, BufRead};

use crate::files::LineReader;

/// Reads stanzas one at a time, and keeps only some of their fields.
///
/// A field continues on lines that begin with a space. Lines that are neither a field nor a
/// continuation are ignored. Bytes that are not UTF-8 are replaced.
#[derive(Debug)]
pub(super) struct StanzaReader<R> {
    lines: LineReader<R>,
    /// Names in lower case, and their values in the current stanza.
    fields: Vec<(&'static str, String)>,
}

impl<R: BufRead> StanzaReader<R> {
    /// Reads these fields, whose names are in lower case.
    pub fn new(lines: LineReader<R>, names: &[&'static str]) -> Self {
        Self { lines, fields: names.iter().map(|name| (*name, String::new())).collect() }
    }

    /// Reads the next stanza. Returns whether there is one.
    pub fn read_next(&mut self) -> io::Result<bool> {
        for (_, value) in &mut self.fields {
            value.clear();
        }
        let mut has_lines = false;
        let mut last: Option<usize> = None;
        while let Some(line) = self.lines.next_line()? {
            if line.iter().all(u8::is_ascii_whitespace) {
                if has_lines {
                    return Ok(true);
                }
                continue;
            }
            has_lines = true;
            if line.starts_with(b" ") || line.starts_with(b"\t") {
                if let Some(index) = last {
                    let value = &mut self.fields[index].1;
                    value.push('\n');
                    value.push_str(String::from_utf8_lossy(line).trim());
                }
                continue;
            }
            last = None;
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            let is_name = |(field, _): &(&str, String)| name.eq_ignore_ascii_case(field.as_bytes());
            if let Some(index) = self.fields.iter().position(is_name) {
                let field = &mut self.fields[index].1;
                field.clear();
                field.push_str(String::from_utf8_lossy(value).trim());
                last = Some(index);
            }
        }
        Ok(has_lines)
    }

    /// The value of a field of the current stanza; empty if the stanza does not have it.
    pub fn value(&self, name: &str) -> &str {
        let field = self.fields.iter().find(|(field, _)| *field == name);
        field.map_or("", |(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 2] = ["package", "depends"];

    fn read_stanzas(content: &[u8]) -> Vec<[String; 2]> {
        let mut reader = StanzaReader::new(LineReader::new(content), &NAMES);
        let mut stanzas = Vec::new();
        while reader.read_next().unwrap() {
            stanzas.push(NAMES.map(|name| reader.value(name).to_owned()));
        }
        stanzas
    }

    #[test]
    fn fields_continue_on_lines_that_begin_with_a_space() {
        let content = b"\n\nPackage: a\nOther: x\n continues\nDEPENDS: b,\n c\n\n\n \nPackage:d\n";
        assert_eq!(read_stanzas(content), [["a", "b,\nc"], ["d", ""]]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_without_a_panic(content in vec(any::<u8>(), 0..300)) {
            read_stanzas(&content);
        }

        #[test]
        fn damaged_stanzas_are_read_without_a_panic(
            content in "(package|Depends|[ \t:\n\r]|: [a-z]{0,3}|\u{e9}){0,40}"
        ) {
            read_stanzas(content.as_bytes());
        }

        #[test]
        fn stanzas_are_read_as_they_are_written(
            stanzas in vec(("[a-z0-9+.-]{1,9}", "([a-z]([a-z, ()|]{0,9}[a-z])?)?"), 0..6)
        ) {
            let parts = stanzas.iter().map(|(package, depends)| {
                format!("Package: {package}\nX: y\n z\nDepends: {depends}\n\n")
            });
            let content = parts.collect::<Vec<_>>().concat();
            let expected: Vec<_> = stanzas.into_iter().map(|(name, text)| [name, text]).collect();
            prop_assert_eq!(read_stanzas(content.as_bytes()), expected);
        }
    }
}
