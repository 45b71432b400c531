//! The grammar: tokens become a tree. It knows no names but `AND`, `OR`, `NOT` and `has`.

use winnow::combinator::{alt, cut_err, opt, separated};
use winnow::error::{AddContext, ErrMode, ParserError};
use winnow::stream::{Stream, TokenSlice};
use winnow::token::any;
use winnow::{ModalResult, Parser, Stateful};

use super::Filter;
use super::bad::{BadFilter, excerpt};
use super::token::{KEYWORDS, Kind, Operator, Token, plain, tokens};

/// What is wanted, as it was written.
#[derive(Debug)]
pub(super) enum Node {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Has(Vec<Word>),
    Comparison(Comparison),
}

/// A field and what it is compared with.
#[derive(Debug)]
pub(super) struct Comparison {
    /// At least one.
    pub path: Vec<Word>,
    pub operator: Operator,
    /// Where the operator stands.
    pub at: usize,
    pub value: Word,
}

/// A name or a value.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub at: usize,
    /// Without its quotes, with its backslashes.
    pub text: String,
    pub quoted: bool,
}

impl Word {
    /// What it means, if a star is a letter.
    pub fn plain(&self) -> String {
        plain(&self.text)
    }

    /// Whether it is this word without quotes.
    pub fn is(&self, text: &str) -> bool {
        !self.quoted && self.text == text
    }
}

/// A field to order by, as it was written.
#[derive(Debug)]
pub(super) struct Key {
    /// At least one.
    pub path: Vec<Word>,
    pub descending: bool,
}

/// Reads a filter.
pub(super) fn tree(text: &str) -> Result<Node, BadFilter> {
    whole(text, &tokens(text)?, all, beside)
}

/// Reads an order: fields with commas between them.
pub(super) fn keys(text: &str) -> Result<Vec<Key>, BadFilter> {
    let tokens = tokens(text)?;
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    whole(text, &tokens, keys_of, |token| {
        let why = format!("a comma is needed here, not {}", shown(token));
        BadFilter::at(token.at, why)
    })
}

type Tokens<'t> = Stateful<TokenSlice<'t, Token>, State>;

type Read<T> = ModalResult<T, BadFilter>;

#[derive(Clone, Copy, Debug)]
struct State {
    /// How many parentheses and `NOT` are open.
    depth: usize,
    /// The length of the text.
    length: usize,
}

/// Reads all tokens; `left` says what is wrong with the first one that is left over.
fn whole<'t, T>(
    text: &str,
    tokens: &'t [Token],
    read: fn(&mut Tokens<'t>) -> Read<T>,
    left: fn(&Token) -> BadFilter,
) -> Result<T, BadFilter> {
    let mut input = Tokens {
        input: TokenSlice::new(tokens),
        state: State {
            depth: 0,
            length: text.chars().count(),
        },
    };
    let found = read(&mut input).map_err(|error| match error {
        ErrMode::Cut(bad) | ErrMode::Backtrack(bad) => bad,
        ErrMode::Incomplete(_) => BadFilter::at(position(&input), "it ends too early"),
    })?;
    match input.peek_token() {
        None => Ok(found),
        Some(token) => Err(left(token)),
    }
}

fn all(input: &mut Tokens<'_>) -> Read<Node> {
    separated(1.., cut_err(any_of), word("AND"))
        .map(|nodes: Vec<Node>| joined(nodes, Node::All))
        .parse_next(input)
}

/// `OR` binds tighter than `AND`.
fn any_of(input: &mut Tokens<'_>) -> Read<Node> {
    separated(1.., cut_err(term), word("OR"))
        .map(|nodes: Vec<Node>| joined(nodes, Node::Any))
        .parse_next(input)
}

fn joined(mut nodes: Vec<Node>, join: fn(Vec<Node>) -> Node) -> Node {
    match nodes.pop() {
        Some(only) if nodes.is_empty() => only,
        last => {
            nodes.extend(last);
            join(nodes)
        }
    }
}

fn term(input: &mut Tokens<'_>) -> Read<Node> {
    if opt(alt((word("NOT"), sign(Kind::Minus))))
        .parse_next(input)?
        .is_some()
    {
        let node = deeper(input, term)?;
        return Ok(Node::Not(Box::new(node)));
    }
    alt((group, has, comparison)).parse_next(input)
}

fn group(input: &mut Tokens<'_>) -> Read<Node> {
    let opened = position(input);
    sign(Kind::Open).parse_next(input)?;
    let node = deeper(input, all)?;
    if opt(sign(Kind::Close)).parse_next(input)?.is_some() {
        return Ok(node);
    }
    Err(ErrMode::Cut(match input.peek_token() {
        None => BadFilter::at(opened, "this parenthesis is not closed"),
        Some(token) => beside(token),
    }))
}

fn has(input: &mut Tokens<'_>) -> Read<Node> {
    (word("has"), sign(Kind::Open)).parse_next(input)?;
    let path = path(input, "what could be there").map_err(ErrMode::cut)?;
    cut_err(sign(Kind::Close).context("`)`")).parse_next(input)?;
    Ok(Node::Has(path))
}

fn comparison(input: &mut Tokens<'_>) -> Read<Node> {
    let path = path(input, "a condition")?;
    let at = position(input);
    let operator = next(|token| match token.kind {
        Kind::Operator(operator) => Some(operator),
        _ => None,
    });
    let Some(operator) = opt(operator).parse_next(input)? else {
        return Err(ErrMode::Cut(incomparable(input, &path)));
    };
    let value = cut_err(value).parse_next(input)?;
    Ok(Node::Comparison(Comparison {
        path,
        operator,
        at,
        value,
    }))
}

/// Names with dots between them. All but the first may be labels, so they may stand in quotes.
fn path(input: &mut Tokens<'_>, needed: &'static str) -> Read<Vec<Word>> {
    let name = next(|token| unquoted(token).or_else(|| quoted(token)));
    let first = next(|token| unquoted(token).filter(|word| !is_keyword(word)));
    let mut path = vec![first.context(needed).parse_next(input)?];
    let mut name = cut_err(name.context("a name"));
    while opt(sign(Kind::Dot)).parse_next(input)?.is_some() {
        path.push(name.parse_next(input)?);
    }
    Ok(path)
}

fn value(input: &mut Tokens<'_>) -> Read<Word> {
    if let Some(word) = opt(next(quoted)).parse_next(input)? {
        return Ok(word);
    }
    let begin = next(|token| match token.kind {
        Kind::Word(_) | Kind::Minus => Some(token),
        _ => None,
    });
    let first = begin
        .verify(|token: &Token| !KEYWORDS.iter().any(|word| token.is_word(word)))
        .context("a value")
        .parse_next(input)?;
    let mut word = Word {
        at: first.at,
        text: first.unquoted().unwrap_or_default().to_owned(),
        quoted: false,
    };
    // Times, addresses and negative numbers are several tokens without a space between them.
    let mut end = first.end;
    while let Some(token) = input.peek_token()
        && token.at == end
        && let Some(more) = token.unquoted()
    {
        word.text.push_str(more);
        end = token.end;
        input.next_token();
    }
    Ok(word)
}

fn keys_of(input: &mut Tokens<'_>) -> Read<Vec<Key>> {
    separated(1.., cut_err(key), sign(Kind::Comma)).parse_next(input)
}

fn key(input: &mut Tokens<'_>) -> Read<Key> {
    let path = path(input, "a field")?;
    let direction = next(|token| match &token.kind {
        Kind::Word(word) if word.eq_ignore_ascii_case("asc") => Some(false),
        Kind::Word(word) if word.eq_ignore_ascii_case("desc") => Some(true),
        _ => None,
    });
    let descending = opt(direction).parse_next(input)?.unwrap_or(false);
    Ok(Key { path, descending })
}

/// Reads something within parentheses or behind `NOT`, of which there cannot be too many: the stack has an end.
fn deeper<'t>(input: &mut Tokens<'t>, read: fn(&mut Tokens<'t>) -> Read<Node>) -> Read<Node> {
    if input.state.depth == Filter::MAX_DEPTH {
        let why = format!("nested deeper than {}", Filter::MAX_DEPTH);
        return Err(ErrMode::Cut(BadFilter::at(position(input), why)));
    }
    input.state.depth += 1;
    let node = read(input)?;
    input.state.depth -= 1;
    Ok(node)
}

/// The next token, if it is what is looked for.
fn next<'t, T>(
    take: impl Fn(&'t Token) -> Option<T>,
) -> impl Parser<Tokens<'t>, T, ErrMode<BadFilter>> {
    any.verify_map(take)
}

fn word<'t>(word: &'static str) -> impl Parser<Tokens<'t>, (), ErrMode<BadFilter>> {
    next(move |token: &'t Token| token.is_word(word).then_some(()))
}

fn sign<'t>(kind: Kind) -> impl Parser<Tokens<'t>, (), ErrMode<BadFilter>> {
    next(move |token: &'t Token| (token.kind == kind).then_some(()))
}

fn unquoted(token: &Token) -> Option<Word> {
    match &token.kind {
        Kind::Word(text) => Some(Word {
            at: token.at,
            text: text.clone(),
            quoted: false,
        }),
        _ => None,
    }
}

fn quoted(token: &Token) -> Option<Word> {
    match &token.kind {
        Kind::Quoted(text) => Some(Word {
            at: token.at,
            text: text.clone(),
            quoted: true,
        }),
        _ => None,
    }
}

fn is_keyword(word: &Word) -> bool {
    KEYWORDS.iter().any(|keyword| word.is(keyword))
}

/// Where the next token begins.
fn position(input: &Tokens<'_>) -> usize {
    let next = input.peek_token();
    next.map_or(input.state.length, |token| token.at)
}

fn shown(token: &Token) -> String {
    excerpt(&token.to_string())
}

/// A token that stands behind a whole condition and joins nothing.
fn beside(token: &Token) -> BadFilter {
    if token.kind == Kind::Close {
        return BadFilter::at(token.at, "there is no `(` for this `)`");
    }
    let keyword = unquoted(token).and_then(|word| keyword_meant(&word));
    let why = "a condition ends before this; write AND or OR between two of them";
    BadFilter::at(token.at, why).hinting(keyword)
}

/// A path that is compared with nothing.
fn incomparable(input: &Tokens<'_>, path: &[Word]) -> BadFilter {
    let names: Vec<_> = path.iter().map(|word| word.text.as_str()).collect();
    let name = excerpt(&names.join("."));
    if let [only] = path {
        if keyword_meant(only).is_some() {
            let why = format!("{name} means nothing in small letters");
            return BadFilter::at(only.at, why).hinting(keyword_meant(only));
        }
        if input
            .peek_token()
            .is_some_and(|token| token.kind == Kind::Open)
        {
            let why = format!("there is no function {name}");
            return BadFilter::at(only.at, why).hinting(Some("has".to_owned()));
        }
    }
    let why = format!("after {name} a comparison is needed: = == != < <= > >= or :");
    BadFilter::at(position(input), why)
}

/// `AND`, `OR` and `NOT` are written in capitals.
fn keyword_meant(word: &Word) -> Option<String> {
    let capitals = word.text.to_ascii_uppercase();
    let is_meant = !word.quoted && KEYWORDS.contains(&capitals.as_str());
    is_meant.then_some(capitals)
}

impl<'t> ParserError<Tokens<'t>> for BadFilter {
    type Inner = Self;

    fn from_input(input: &Tokens<'t>) -> Self {
        let why = match input.peek_token() {
            Some(token) => format!("{} cannot stand here", shown(token)),
            None => "something is missing at the end".to_owned(),
        };
        Self::at(position(input), why)
    }

    fn into_inner(self) -> Result<Self::Inner, Self> {
        Ok(self)
    }
}

impl<'t> AddContext<Tokens<'t>, &'static str> for BadFilter {
    /// Says what is needed instead.
    fn add_context(
        self,
        input: &Tokens<'t>,
        token_start: &<Tokens<'t> as Stream>::Checkpoint,
        needed: &'static str,
    ) -> Self {
        let mut start = input.clone();
        start.reset(token_start);
        let why = match start.peek_token() {
            Some(token) => format!("{needed} is needed here, not {}", shown(token)),
            None => format!("{needed} is missing at the end"),
        };
        Self::at(position(&start), why)
    }
}
