//! Removes comments and literals from Rust text, so that a rule sees identifiers only.

/// The text with comments and the insides of literals replaced by spaces. Line numbers do not change.
pub fn only_code(text: &str) -> String {
    let mut reader = Reader { rest: text, out: String::with_capacity(text.len()) };
    while !reader.rest.is_empty() {
        reader.step();
    }
    reader.out
}

/// Marks an item as code of tests.
const TEST_ONLY: &str = "#[cfg(test)]";

/// The part of a file before its tests: before the first item that is only for tests. The
/// declaration of a module in another file does not count, because other code follows it.
pub fn before_tests(text: &str) -> &str {
    let marks = text.match_indices(TEST_ONLY).map(|(at, _)| at);
    let mut tests = marks.filter(|at| !declares_module_file(&text[at + TEST_ONLY.len()..]));
    tests.next().map_or(text, |at| &text[..at])
}

/// Whether the text begins with `mod name;`.
fn declares_module_file(text: &str) -> bool {
    let (item, rest) = text.split_at(text.find([';', '{']).unwrap_or(text.len()));
    rest.starts_with(';') && item.split_whitespace().rev().nth(1) == Some("mod")
}

struct Reader<'a> {
    rest: &'a str,
    out: String,
}

impl Reader<'_> {
    fn step(&mut self) {
        if self.rest.starts_with("//") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.blank(end);
        } else if self.rest.starts_with("/*") {
            let end = self.rest.find("*/").map_or(self.rest.len(), |at| at + 2);
            self.blank(end);
        } else if let Some(end) = raw_string(self.rest) {
            if self.out.ends_with(is_name) {
                self.copy(1);
            } else {
                self.blank(end);
            }
        } else if self.rest.starts_with('"') {
            let end = closing_quote(&self.rest[1..], '"').map_or(self.rest.len(), |at| at + 2);
            self.blank(end);
        } else if let Some(end) = character(self.rest) {
            self.blank(end);
        } else {
            let first = self.rest.chars().next().map_or(1, char::len_utf8);
            self.copy(first);
        }
    }

    fn copy(&mut self, bytes: usize) {
        self.out.push_str(&self.rest[..bytes]);
        self.rest = &self.rest[bytes..];
    }

    fn blank(&mut self, bytes: usize) {
        let blanked = self.rest[..bytes].chars();
        self.out.extend(blanked.map(|c| if c == '\n' { '\n' } else { ' ' }));
        self.rest = &self.rest[bytes..];
    }
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

/// Length of the raw string at the beginning of the text.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let inside = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begun = text.len() - inside.len();
    Some(inside.find(&end).map_or(text.len(), |at| begun + at + end.len()))
}

/// Position of the closing quote, counted from the inside of the literal.
fn closing_quote(inside: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return Some(at);
        }
    }
    None
}

/// Length of the character literal at the beginning of the text. A lifetime is not a literal.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let mut chars = inside.chars();
    let first = chars.next()?;
    let is_literal = first == '\\' || chars.next() == Some('\'');
    is_literal.then(|| closing_quote(inside, '\'').map(|at| at + 2)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = "let a = \"tonic \\\" axum\"; // sea_orm\nlet b = r#\"reqwest \"x\"\"#; /* prost\n */ let c = '\"'; tokio";
        let code = only_code(text);
        for name in ["tonic", "axum", "sea_orm", "reqwest", "prost"] {
            assert!(!code.contains(name), "{name} in {code}");
        }
        assert!(code.contains("let c =") && code.ends_with("tokio"));
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn a_declaration_of_a_test_module_does_not_end_the_code() {
        let code = "mod a;\n#[cfg(test)]\npub(crate) mod tests;\nuse crate::b;\n";
        let tests = "#[cfg(test)]\nmod tests { use crate::c; }\n";
        assert_eq!(before_tests(&format!("{code}{tests}")), code);
        assert_eq!(before_tests("#[cfg(test)]\nuse crate::mod_c;\nmod d;\n"), "");
        assert_eq!(before_tests(code), code);
    }

    #[test]
    fn a_lifetime_opens_no_literal() {
        let code = only_code("fn f<'a>(x: &'a str, y: &'a str) { tonic(x, 'b', '\\'') }");
        assert!(code.contains("tonic") && !code.contains("'b'"));
    }

    #[test]
    fn a_name_that_ends_in_r_opens_no_raw_string() {
        assert!(only_code("writer\"x\"; axum").contains("writer"));
        assert!(only_code("writer\"x\"; axum").ends_with("axum"));
    }
}
