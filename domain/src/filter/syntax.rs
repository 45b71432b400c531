//! The grammar: parses tokens into a tree. The only names it knows are `AND`, `OR`, `NOT` and `has`.

use winnow::combinator::{alt, cut_err, opt, separated};
use winnow::error::{AddContext, ErrMode, ParserError};
use winnow::stream::{Stream, TokenSlice};
use winnow::token::any;
use winnow::{ModalResult, Parser, Stateful};

use super::Filter;
use super::error::{BadFilter, excerpt};
use super::token::{KEYWORDS, Operator, Token, TokenKind, plain, tokens};

/// A filter as it was written.
#[derive(Debug)]
pub(super) enum SyntaxNode {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Has(Vec<Atom>),
    Comparison(ComparisonNode),
}

/// A field and the value that it is compared with.
#[derive(Debug)]
pub(super) struct ComparisonNode {
    /// At least one name.
    pub path: Vec<Atom>,
    pub operator: Operator,
    /// Position of the operator.
    pub at: usize,
    pub value: Atom,
}

/// A name or a value.
#[derive(Clone, Debug)]
pub(super) struct Atom {
    pub at: usize,
    /// Without its quotes, with its backslashes.
    pub text: String,
    pub quoted: bool,
}

impl Atom {
    /// The unescaped text, with stars as letters.
    pub fn plain(&self) -> String {
        plain(&self.text)
    }

    /// Whether it is this text without quotes.
    pub fn is_unquoted(&self, text: &str) -> bool {
        !self.quoted && self.text == text
    }
}

/// A field to order by, as it was written.
#[derive(Debug)]
pub(super) struct KeyNode {
    /// At least one name.
    pub path: Vec<Atom>,
    pub descending: bool,
}

pub(super) fn parse_tree(text: &str) -> Result<SyntaxNode, BadFilter> {
    parse_all(text, &tokens(text)?, conjunction, unexpected_token)
}

/// Parses an order: fields separated by commas.
pub(super) fn parse_keys(text: &str) -> Result<Vec<KeyNode>, BadFilter> {
    let tokens = tokens(text)?;
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    parse_all(text, &tokens, key_list, |token| {
        let why = format!("expected a comma, found {}", token_excerpt(token));
        BadFilter::at(token.at, why)
    })
}

type Tokens<'t> = Stateful<TokenSlice<'t, Token>, ParserState>;

type ParseResult<T> = ModalResult<T, BadFilter>;

#[derive(Clone, Copy, Debug)]
struct ParserState {
    /// Number of open parentheses and `NOT`s.
    depth: usize,
    /// Length of the text in characters.
    length: usize,
}

/// Parses all tokens; `left` makes the error for the first token that is left over.
fn parse_all<'t, T>(
    text: &str,
    tokens: &'t [Token],
    read: fn(&mut Tokens<'t>) -> ParseResult<T>,
    left: fn(&Token) -> BadFilter,
) -> Result<T, BadFilter> {
    let mut input = Tokens {
        input: TokenSlice::new(tokens),
        state: ParserState { depth: 0, length: text.chars().count() },
    };
    let parsed = read(&mut input).map_err(|error| match error {
        ErrMode::Cut(bad) | ErrMode::Backtrack(bad) => bad,
        ErrMode::Incomplete(_) => BadFilter::at(position(&input), "unexpected end"),
    })?;
    match input.peek_token() {
        None => Ok(parsed),
        Some(token) => Err(left(token)),
    }
}

fn conjunction(input: &mut Tokens<'_>) -> ParseResult<SyntaxNode> {
    separated(1.., cut_err(disjunction), keyword("AND"))
        .map(|nodes: Vec<SyntaxNode>| join_nodes(nodes, SyntaxNode::All))
        .parse_next(input)
}

/// `OR` binds tighter than `AND`.
fn disjunction(input: &mut Tokens<'_>) -> ParseResult<SyntaxNode> {
    separated(1.., cut_err(term), keyword("OR"))
        .map(|nodes: Vec<SyntaxNode>| join_nodes(nodes, SyntaxNode::Any))
        .parse_next(input)
}

fn join_nodes(mut nodes: Vec<SyntaxNode>, join: fn(Vec<SyntaxNode>) -> SyntaxNode) -> SyntaxNode {
    match nodes.pop() {
        Some(only) if nodes.is_empty() => only,
        last => {
            nodes.extend(last);
            join(nodes)
        }
    }
}

fn term(input: &mut Tokens<'_>) -> ParseResult<SyntaxNode> {
    if opt(alt((keyword("NOT"), symbol(TokenKind::Minus)))).parse_next(input)?.is_some() {
        let node = nested(input, term)?;
        return Ok(SyntaxNode::Not(Box::new(node)));
    }
    alt((group, has, comparison)).parse_next(input)
}

fn group(input: &mut Tokens<'_>) -> ParseResult<SyntaxNode> {
    let opened = position(input);
    symbol(TokenKind::Open).parse_next(input)?;
    let node = nested(input, conjunction)?;
    if opt(symbol(TokenKind::Close)).parse_next(input)?.is_some() {
        return Ok(node);
    }
    Err(ErrMode::Cut(match input.peek_token() {
        None => BadFilter::at(opened, "this parenthesis is not closed"),
        Some(token) => unexpected_token(token),
    }))
}

fn has(input: &mut Tokens<'_>) -> ParseResult<SyntaxNode> {
    (keyword("has"), symbol(TokenKind::Open)).parse_next(input)?;
    let path = path(input, "the name of a related resource").map_err(ErrMode::cut)?;
    cut_err(symbol(TokenKind::Close).context("`)`")).parse_next(input)?;
    Ok(SyntaxNode::Has(path))
}

fn comparison(input: &mut Tokens<'_>) -> ParseResult<SyntaxNode> {
    let path = path(input, "a condition")?;
    let at = position(input);
    let operator = next(|token| match token.kind {
        TokenKind::Operator(operator) => Some(operator),
        _ => None,
    });
    let Some(operator) = opt(operator).parse_next(input)? else {
        return Err(ErrMode::Cut(missing_operator(input, &path)));
    };
    let value = cut_err(value).parse_next(input)?;
    Ok(SyntaxNode::Comparison(ComparisonNode { path, operator, at, value }))
}

/// Names separated by dots. All but the first may be labels, so they may be quoted.
fn path(input: &mut Tokens<'_>, needed: &'static str) -> ParseResult<Vec<Atom>> {
    let name = next(|token| unquoted(token).or_else(|| quoted(token)));
    let first = next(|token| unquoted(token).filter(|atom| !is_keyword(atom)));
    let mut path = vec![first.context(needed).parse_next(input)?];
    let mut name = cut_err(name.context("a name"));
    while opt(symbol(TokenKind::Dot)).parse_next(input)?.is_some() {
        path.push(name.parse_next(input)?);
    }
    Ok(path)
}

fn value(input: &mut Tokens<'_>) -> ParseResult<Atom> {
    if let Some(atom) = opt(next(quoted)).parse_next(input)? {
        return Ok(atom);
    }
    let begin = next(|token| match token.kind {
        TokenKind::Unquoted(_) | TokenKind::Minus => Some(token),
        _ => None,
    });
    let first = begin
        .verify(|token: &Token| !KEYWORDS.iter().any(|keyword| token.is_keyword(keyword)))
        .context("a value")
        .parse_next(input)?;
    let mut atom = Atom {
        at: first.at,
        text: first.unquoted_text().unwrap_or_default().to_owned(),
        quoted: false,
    };
    // Times, addresses and negative numbers are several tokens without a space between them.
    let mut end = first.end;
    while let Some(token) = input.peek_token()
        && token.at == end
        && let Some(more) = token.unquoted_text()
    {
        atom.text.push_str(more);
        end = token.end;
        input.next_token();
    }
    Ok(atom)
}

fn key_list(input: &mut Tokens<'_>) -> ParseResult<Vec<KeyNode>> {
    separated(1.., cut_err(key), symbol(TokenKind::Comma)).parse_next(input)
}

fn key(input: &mut Tokens<'_>) -> ParseResult<KeyNode> {
    let path = path(input, "a field")?;
    let direction = next(|token| match &token.kind {
        TokenKind::Unquoted(text) if text.eq_ignore_ascii_case("asc") => Some(false),
        TokenKind::Unquoted(text) if text.eq_ignore_ascii_case("desc") => Some(true),
        _ => None,
    });
    let descending = opt(direction).parse_next(input)?.unwrap_or(false);
    Ok(KeyNode { path, descending })
}

/// Parses the content of parentheses or of `NOT`. Limits the depth, because the parser recurses on the stack.
fn nested<'t>(
    input: &mut Tokens<'t>,
    read: fn(&mut Tokens<'t>) -> ParseResult<SyntaxNode>,
) -> ParseResult<SyntaxNode> {
    if input.state.depth == Filter::MAX_DEPTH {
        let why = format!("nested deeper than {}", Filter::MAX_DEPTH);
        return Err(ErrMode::Cut(BadFilter::at(position(input), why)));
    }
    input.state.depth += 1;
    let node = read(input)?;
    input.state.depth -= 1;
    Ok(node)
}

/// Parses the next token if `take` accepts it.
fn next<'t, T>(
    take: impl Fn(&'t Token) -> Option<T>,
) -> impl Parser<Tokens<'t>, T, ErrMode<BadFilter>> {
    any.verify_map(take)
}

fn keyword<'t>(keyword: &'static str) -> impl Parser<Tokens<'t>, (), ErrMode<BadFilter>> {
    next(move |token: &'t Token| token.is_keyword(keyword).then_some(()))
}

fn symbol<'t>(kind: TokenKind) -> impl Parser<Tokens<'t>, (), ErrMode<BadFilter>> {
    next(move |token: &'t Token| (token.kind == kind).then_some(()))
}

fn unquoted(token: &Token) -> Option<Atom> {
    match &token.kind {
        TokenKind::Unquoted(text) => Some(Atom { at: token.at, text: text.clone(), quoted: false }),
        _ => None,
    }
}

fn quoted(token: &Token) -> Option<Atom> {
    match &token.kind {
        TokenKind::Quoted(text) => Some(Atom { at: token.at, text: text.clone(), quoted: true }),
        _ => None,
    }
}

fn is_keyword(atom: &Atom) -> bool {
    KEYWORDS.iter().any(|keyword| atom.is_unquoted(keyword))
}

/// Position of the next token.
fn position(input: &Tokens<'_>) -> usize {
    let next = input.peek_token();
    next.map_or(input.state.length, |token| token.at)
}

fn token_excerpt(token: &Token) -> String {
    excerpt(&token.to_string())
}

/// The error for a token that follows a complete condition and is no `AND` or `OR`.
fn unexpected_token(token: &Token) -> BadFilter {
    if token.kind == TokenKind::Close {
        return BadFilter::at(token.at, "there is no `(` for this `)`");
    }
    let keyword = unquoted(token).and_then(|atom| suggest_keyword(&atom));
    let why = "expected AND or OR between two conditions";
    BadFilter::at(token.at, why).with_hint(keyword)
}

/// The error for a path without an operator.
fn missing_operator(input: &Tokens<'_>, path: &[Atom]) -> BadFilter {
    let names: Vec<_> = path.iter().map(|atom| atom.text.as_str()).collect();
    let name = excerpt(&names.join("."));
    if let [only] = path {
        if suggest_keyword(only).is_some() {
            let why = format!("{name} must be written in capitals");
            return BadFilter::at(only.at, why).with_hint(suggest_keyword(only));
        }
        if input.peek_token().is_some_and(|token| token.kind == TokenKind::Open) {
            let why = format!("there is no function {name}");
            return BadFilter::at(only.at, why).with_hint(Some("has".to_owned()));
        }
    }
    let why = format!("expected an operator after {name}: = == != < <= > >= or :");
    BadFilter::at(position(input), why)
}

/// The keyword that was probably meant. `AND`, `OR` and `NOT` are written in capitals.
fn suggest_keyword(atom: &Atom) -> Option<String> {
    let capitals = atom.text.to_ascii_uppercase();
    let is_meant = !atom.quoted && KEYWORDS.contains(&capitals.as_str());
    is_meant.then_some(capitals)
}

impl<'t> ParserError<Tokens<'t>> for BadFilter {
    type Inner = Self;

    fn from_input(input: &Tokens<'t>) -> Self {
        let why = match input.peek_token() {
            Some(token) => format!("unexpected {}", token_excerpt(token)),
            None => "unexpected end".to_owned(),
        };
        Self::at(position(input), why)
    }

    fn into_inner(self) -> Result<Self::Inner, Self> {
        Ok(self)
    }
}

impl<'t> AddContext<Tokens<'t>, &'static str> for BadFilter {
    /// Names what is expected instead.
    fn add_context(
        self,
        input: &Tokens<'t>,
        token_start: &<Tokens<'t> as Stream>::Checkpoint,
        needed: &'static str,
    ) -> Self {
        let mut start = input.clone();
        start.reset(token_start);
        let why = match start.peek_token() {
            Some(token) => format!("expected {needed}, found {}", token_excerpt(token)),
            None => format!("expected {needed}, found the end"),
        };
        Self::at(position(&start), why)
    }
}
