//! The tokens of a filter with their positions.

use std::fmt;
use std::iter;

use super::Comparison;
use super::error::BadFilter;

/// The keywords that join or negate conditions.
pub(super) const KEYWORDS: [&str; 3] = ["AND", "OR", "NOT"];

/// Characters of unquoted text besides letters and digits. A dash cannot be the first.
const UNQUOTED_SYMBOLS: &str = "_-*/+@#%";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Position of its first character.
    pub at: usize,
    /// Position after its last character.
    pub end: usize,
    pub kind: TokenKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Unquoted text.
    Unquoted(String),
    /// Quoted text without its quotes, with its backslashes.
    Quoted(String),
    Operator(Operator),
    Dot,
    Comma,
    Open,
    Close,
    Minus,
}

/// The operator between a field and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    /// `=`: contains for texts and ids, otherwise equals.
    Like,
    /// `:`: as `=`, and tests of existence.
    Has,
    /// `==`: equals the whole text.
    Exactly,
    /// `!=`
    Not,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

impl Operator {
    /// The comparison of numbers and times.
    pub const fn comparison(self) -> Comparison {
        match self {
            Self::Like | Self::Has | Self::Exactly => Comparison::Equal,
            Self::Not => Comparison::NotEqual,
            Self::Less => Comparison::Less,
            Self::LessOrEqual => Comparison::LessOrEqual,
            Self::Greater => Comparison::Greater,
            Self::GreaterOrEqual => Comparison::GreaterOrEqual,
        }
    }

    const fn symbol(self) -> &'static str {
        match self {
            Self::Has => ":",
            Self::Exactly => "==",
            other => other.comparison().symbol(),
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol())
    }
}

impl Token {
    /// Whether it is this keyword, without quotes.
    pub fn is_keyword(&self, keyword: &str) -> bool {
        matches!(&self.kind, TokenKind::Unquoted(text) if text == keyword)
    }

    /// The text that the token adds to an unquoted value, such as a time or an address; `None` if it ends the value.
    pub fn unquoted_text(&self) -> Option<&str> {
        match &self.kind {
            TokenKind::Unquoted(text) => Some(text),
            TokenKind::Dot => Some("."),
            TokenKind::Minus => Some("-"),
            TokenKind::Operator(Operator::Has) => Some(":"),
            _ => None,
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            TokenKind::Unquoted(text) | TokenKind::Quoted(text) => f.write_str(text),
            TokenKind::Operator(operator) => f.write_str(operator.symbol()),
            TokenKind::Dot => f.write_str("."),
            TokenKind::Comma => f.write_str(","),
            TokenKind::Open => f.write_str("("),
            TokenKind::Close => f.write_str(")"),
            TokenKind::Minus => f.write_str("-"),
        }
    }
}

/// Splits a text into tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, BadFilter> {
    let mut reader = TokenReader { chars: text.chars().collect(), at: 0 };
    let mut tokens = Vec::new();
    while let Some(token) = reader.next_token()? {
        tokens.push(token);
    }
    Ok(tokens)
}

/// The letters of a text in a filter; `None` for a star that matches any letters. A backslash escapes a quote, a star or
/// a backslash.
pub(super) fn unescape(text: &str) -> impl Iterator<Item = Option<char>> {
    let mut chars = text.chars().peekable();
    iter::from_fn(move || {
        Some(match chars.next()? {
            '*' => None,
            '\\' => Some(chars.next_if(|c| r#"\"'*"#.contains(*c)).unwrap_or('\\')),
            c => Some(c),
        })
    })
}

/// The unescaped text, with stars as letters.
pub(super) fn plain(text: &str) -> String {
    unescape(text).map(|letter| letter.unwrap_or('*')).collect()
}

struct TokenReader {
    chars: Vec<char>,
    at: usize,
}

impl TokenReader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next_token(&mut self) -> Result<Option<Token>, BadFilter> {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
        let at = self.at;
        let Some(first) = self.peek() else {
            return Ok(None);
        };
        self.at += 1;
        let kind = match first {
            '(' => TokenKind::Open,
            ')' => TokenKind::Close,
            '.' => TokenKind::Dot,
            ',' => TokenKind::Comma,
            '-' => TokenKind::Minus,
            '"' | '\'' => self.read_quoted(first)?,
            '=' | '!' | '<' | '>' | ':' => TokenKind::Operator(self.read_operator(first)?),
            c if is_unquoted_char(c) => self.read_unquoted(at),
            c => return Err(unexpected_character(at, c)),
        };
        let end = self.at;
        Ok(Some(Token { at, end, kind }))
    }

    fn read_unquoted(&mut self, from: usize) -> TokenKind {
        while self.peek().is_some_and(is_unquoted_char) {
            self.at += 1;
        }
        TokenKind::Unquoted(self.chars[from..self.at].iter().collect())
    }

    fn read_operator(&mut self, first: char) -> Result<Operator, BadFilter> {
        if first == ':' {
            return Ok(Operator::Has);
        }
        let doubled = self.peek() == Some('=');
        if doubled {
            self.at += 1;
        }
        Ok(match (first, doubled) {
            ('=', true) => Operator::Exactly,
            ('!', true) => Operator::Not,
            ('<', true) => Operator::LessOrEqual,
            ('<', false) => Operator::Less,
            ('>', true) => Operator::GreaterOrEqual,
            ('>', false) => Operator::Greater,
            ('=', false) => Operator::Like,
            (other, _) => return Err(unexpected_character(self.at - 1, other)),
        })
    }

    fn read_quoted(&mut self, quote: char) -> Result<TokenKind, BadFilter> {
        let opened = self.at - 1;
        let mut text = String::new();
        loop {
            let Some(c) = self.peek() else {
                return Err(BadFilter::at(opened, "this quote is not closed"));
            };
            self.at += 1;
            match c {
                c if c == quote => return Ok(TokenKind::Quoted(text)),
                '\0' => return Err(unexpected_character(self.at - 1, c)),
                '\\' => {
                    text.push(c);
                    if let Some(next) = self.peek().filter(|c| matches!(c, '\\' | '"' | '\'')) {
                        text.push(next);
                        self.at += 1;
                    }
                }
                c => text.push(c),
            }
        }
    }
}

fn is_unquoted_char(c: char) -> bool {
    c.is_alphanumeric() || UNQUOTED_SYMBOLS.contains(c)
}

fn unexpected_character(at: usize, c: char) -> BadFilter {
    let hint = match c {
        '&' => Some("AND"),
        '|' => Some("OR"),
        '!' => Some("NOT"),
        '~' => Some("="),
        _ => None,
    };
    BadFilter::at(at, format!("unexpected character {c:?}; put texts in quotes"))
        .with_hint(hint.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind> {
        let tokens = tokens(text).expect("tokens");
        tokens.into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn positions_are_counted_in_characters() {
        let tokens = tokens("näme =  'ü'").expect("tokens");
        let positions: Vec<_> = tokens.iter().map(|token| (token.at, token.end)).collect();
        assert_eq!(positions, [(0, 4), (5, 6), (8, 11)]);
    }

    #[test]
    fn a_dash_is_a_sign_before_a_name_and_a_letter_in_it() {
        let unquoted = |text: &str| TokenKind::Unquoted(text.to_owned());
        assert_eq!(kinds("edge-01"), [unquoted("edge-01")]);
        assert_eq!(kinds("-edge"), [TokenKind::Minus, unquoted("edge")]);
    }

    #[test]
    fn a_quote_is_escaped_by_a_backslash_or_by_the_other_quote() {
        let quoted = |text: &str| TokenKind::Quoted(text.to_owned());
        assert_eq!(kinds(r#"'a"b'"#), [quoted(r#"a"b"#)]);
        assert_eq!(kinds(r#""a\"b""#), [quoted(r#"a\"b"#)]);
        assert_eq!(plain(r#"a\"b\\c\d"#), r#"a"b\c\d"#);
    }

    #[test]
    fn unexpected_characters_are_refused_at_their_position() {
        let refused = |text: &str| tokens(text).expect_err("bad").position;
        assert_eq!(refused("name = 'open"), 7);
        assert_eq!(refused("a && b"), 2);
        assert_eq!(refused("a = b ! c"), 6);
        assert_eq!(refused("a = 'b\0'"), 6);
    }
}
