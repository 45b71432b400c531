//! The tokens of a filter, each with its place.

use std::fmt;
use std::iter;

use super::Comparison;
use super::bad::BadFilter;

/// The words that join conditions.
pub(super) const KEYWORDS: [&str; 3] = ["AND", "OR", "NOT"];

/// What a word may have besides letters and digits. A dash cannot be the first.
const IN_WORDS: &str = "_-*/+@#%";

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Where it begins, in characters.
    pub at: usize,
    /// Where it has ended.
    pub end: usize,
    /// What it is.
    pub kind: Kind,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Without quotes.
    Word(String),
    /// Within quotes, with its backslashes.
    Quoted(String),
    /// Between a field and a value.
    Operator(Operator),
    Dot,
    Comma,
    Open,
    Close,
    Minus,
}

/// What stands between a field and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    /// `=`: contains where that makes sense, else equals.
    Like,
    /// `:`: as `=`, and more.
    Has,
    /// `==`: equals, whole and exactly.
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
    /// How it compares numbers and times.
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
    /// Whether it is this word, without quotes.
    pub fn is_word(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Word(text) if text == word)
    }

    /// What it adds to a value without quotes, such as a time or an address; none if it ends it.
    pub fn unquoted(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(text) => Some(text),
            Kind::Dot => Some("."),
            Kind::Minus => Some("-"),
            Kind::Operator(Operator::Has) => Some(":"),
            _ => None,
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Word(text) | Kind::Quoted(text) => f.write_str(text),
            Kind::Operator(operator) => f.write_str(operator.symbol()),
            Kind::Dot => f.write_str("."),
            Kind::Comma => f.write_str(","),
            Kind::Open => f.write_str("("),
            Kind::Close => f.write_str(")"),
            Kind::Minus => f.write_str("-"),
        }
    }
}

/// Cuts a text into tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, BadFilter> {
    let mut reader = Reader {
        chars: text.chars().collect(),
        at: 0,
    };
    let mut tokens = Vec::new();
    while let Some(token) = reader.token()? {
        tokens.push(token);
    }
    Ok(tokens)
}

/// The letters of a text that stands in a filter; none for a star that means any letters. A backslash takes the meaning
/// from a quote, a star or a backslash after it.
pub(super) fn letters(text: &str) -> impl Iterator<Item = Option<char>> {
    let mut chars = text.chars().peekable();
    iter::from_fn(move || {
        Some(match chars.next()? {
            '*' => None,
            '\\' => Some(chars.next_if(|c| r#"\"'*"#.contains(*c)).unwrap_or('\\')),
            c => Some(c),
        })
    })
}

/// What a text that stands in a filter means, if a star is a letter.
pub(super) fn plain(text: &str) -> String {
    letters(text).map(|letter| letter.unwrap_or('*')).collect()
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn token(&mut self) -> Result<Option<Token>, BadFilter> {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
        let at = self.at;
        let Some(first) = self.peek() else {
            return Ok(None);
        };
        self.at += 1;
        let kind = match first {
            '(' => Kind::Open,
            ')' => Kind::Close,
            '.' => Kind::Dot,
            ',' => Kind::Comma,
            '-' => Kind::Minus,
            '"' | '\'' => self.quoted(first)?,
            '=' | '!' | '<' | '>' | ':' => Kind::Operator(self.operator(first)?),
            c if is_of_word(c) => self.word(at),
            c => return Err(meaningless(at, c)),
        };
        let end = self.at;
        Ok(Some(Token { at, end, kind }))
    }

    fn word(&mut self, from: usize) -> Kind {
        while self.peek().is_some_and(is_of_word) {
            self.at += 1;
        }
        Kind::Word(self.chars[from..self.at].iter().collect())
    }

    fn operator(&mut self, first: char) -> Result<Operator, BadFilter> {
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
            (other, _) => return Err(meaningless(self.at - 1, other)),
        })
    }

    fn quoted(&mut self, quote: char) -> Result<Kind, BadFilter> {
        let opened = self.at - 1;
        let mut text = String::new();
        loop {
            let Some(c) = self.peek() else {
                return Err(BadFilter::at(opened, "this quote is not closed"));
            };
            self.at += 1;
            match c {
                c if c == quote => return Ok(Kind::Quoted(text)),
                '\0' => return Err(meaningless(self.at - 1, c)),
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

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || IN_WORDS.contains(c)
}

fn meaningless(at: usize, c: char) -> BadFilter {
    let hint = match c {
        '&' => Some("AND"),
        '|' => Some("OR"),
        '!' => Some("NOT"),
        '~' => Some("="),
        _ => None,
    };
    BadFilter::at(at, format!("{c:?} means nothing here; put texts in quotes"))
        .hinting(hint.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        let tokens = tokens(text).expect("tokens");
        tokens.into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn places_are_counted_in_characters() {
        let tokens = tokens("näme =  'ü'").expect("tokens");
        let places: Vec<_> = tokens.iter().map(|token| (token.at, token.end)).collect();
        assert_eq!(places, [(0, 4), (5, 6), (8, 11)]);
    }

    #[test]
    fn a_dash_is_a_sign_before_a_word_and_a_letter_in_it() {
        let word = |text: &str| Kind::Word(text.to_owned());
        assert_eq!(kinds("edge-01"), [word("edge-01")]);
        assert_eq!(kinds("-edge"), [Kind::Minus, word("edge")]);
    }

    #[test]
    fn either_quote_may_stand_in_the_other_or_after_a_backslash() {
        let quoted = |text: &str| Kind::Quoted(text.to_owned());
        assert_eq!(kinds(r#"'a"b'"#), [quoted(r#"a"b"#)]);
        assert_eq!(kinds(r#""a\"b""#), [quoted(r#"a\"b"#)]);
        assert_eq!(plain(r#"a\"b\\c\d"#), r#"a"b\c\d"#);
    }

    #[test]
    fn what_means_nothing_is_refused_where_it_stands() {
        let refused = |text: &str| tokens(text).expect_err("bad").position;
        assert_eq!(refused("name = 'open"), 7);
        assert_eq!(refused("a && b"), 2);
        assert_eq!(refused("a = b ! c"), 6);
        assert_eq!(refused("a = 'b\0'"), 6);
    }
}
