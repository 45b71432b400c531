//! The words and signs of an SQL text.

/// Splits a text into lowercase words and single signs. A text literal becomes the sign `'`, and a
/// name in double quotes its name.
pub(super) fn tokenize(sql: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '\'' => (first.to_string(), literal_length(rest)),
            '"' => read_quoted_name(rest),
            _ if is_word_character(first) => read_word(rest),
            _ => (first.to_string(), first.len_utf8()),
        };
        if !first.is_whitespace() {
            tokens.push(token);
        }
        rest = &rest[length..];
    }
    tokens
}

fn is_word_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn read_word(text: &str) -> (String, usize) {
    let length = text.find(|c: char| !is_word_character(c)).unwrap_or(text.len());
    (text[..length].to_lowercase(), length)
}

fn read_quoted_name(text: &str) -> (String, usize) {
    let name = text[1..].split('"').next().unwrap_or_default();
    (name.to_owned(), text.len().min(name.len() + 2))
}

/// The length of the literal at the start of a text, with its quotes. Two quotes within it stand
/// for one.
fn literal_length(text: &str) -> usize {
    let mut length = 1;
    while let Some(quote) = text[length..].find('\'') {
        length += quote + 1;
        if !text[length..].starts_with('\'') {
            return length;
        }
        length += 1;
    }
    text.len()
}
