//! The tables that a statement refers to, and the conditions on their projects.

use std::collections::BTreeSet;

use super::tokens::tokenize;

const TENANT_COLUMN: &str = "tenant_id";

/// Words that begin a query in parentheses.
const QUERY_WORDS: [&str; 5] = ["select", "with", "insert", "update", "delete"];

/// Words that follow a table and are no alias of it.
const NO_ALIAS: &str = "and as cross default do end except fetch for full group having inner intersect join left \
                        limit natural offset on or order overriding returning right select set then union using \
                        values where with";

/// The references of a statement to tables of projects.
#[derive(Debug)]
pub(super) struct References<'a> {
    tables: &'a BTreeSet<String>,
    /// The table of each reference.
    names: Vec<String>,
    /// References that a condition limits to given projects.
    limited: BTreeSet<usize>,
    queries: Vec<Query>,
    /// The conditions, each with its query.
    conditions: Vec<(usize, Condition)>,
}

/// A query, or a part of a `UNION`.
#[derive(Debug)]
struct Query {
    /// The query around it, whose tables it may name.
    outer: Option<usize>,
    sources: Vec<Source>,
}

/// A table, a function or a query that a query reads or writes.
#[derive(Debug)]
struct Source {
    alias: String,
    /// The reference, if it is a table of projects.
    reference: Option<usize>,
    /// Whether the query only inserts into it, so that no condition is about it.
    is_insert_target: bool,
}

/// A condition on columns with the project, which have the names of their sources or none.
#[derive(Debug)]
enum Condition {
    Given(Option<String>),
    Equal([Option<String>; 2]),
    /// `USING` with the column of the project.
    Joined,
}

/// What a column belongs to.
#[derive(Clone, Copy, Debug)]
enum ColumnOwner {
    Reference(usize),
    /// A value, a function or a query, whose own tables are checked as well.
    Given,
    Unknown,
}

impl<'a> References<'a> {
    /// Reads a statement.
    pub(super) fn read(sql: &str, tables: &'a BTreeSet<String>) -> Self {
        let mut references = Self {
            tables,
            names: Vec::new(),
            limited: BTreeSet::new(),
            queries: Vec::new(),
            conditions: Vec::new(),
        };
        references.read_query(&tokenize(sql), None);
        references.apply_conditions();
        references
    }

    /// The tables with a reference that no condition limits to given projects.
    pub(super) fn unlimited_tables(&self) -> BTreeSet<&str> {
        let unlimited = self.names.iter().enumerate().filter(|(at, _)| !self.limited.contains(at));
        unlimited.map(|(_, name)| name.as_str()).collect()
    }

    fn read_query(&mut self, tokens: &[String], outer: Option<usize>) {
        self.queries.push(Query { outer, sources: Vec::new() });
        self.read_tokens(self.queries.len() - 1, tokens);
    }

    fn read_tokens(&mut self, query: usize, tokens: &[String]) {
        let mut at = 0;
        while at < tokens.len() {
            let before = at.checked_sub(1).map_or("", |before| word(tokens, before));
            at = match word(tokens, at) {
                "union" | "intersect" | "except" => {
                    let next = at + 1;
                    let is_modified = ["all", "distinct"].contains(&word(tokens, next));
                    let rest = &tokens[next + usize::from(is_modified)..];
                    let outer = self.queries[query].outer;
                    return self.read_query(rest, outer);
                }
                "from" if before != "distinct" => self.read_sources(query, tokens, at + 1),
                "join" => self.read_source(query, tokens, at + 1),
                "update" if !["for", "key", "do"].contains(&before) => {
                    self.read_source(query, tokens, at + 1)
                }
                "into" => self.read_insert_target(query, tokens, at + 1),
                "using" if word(tokens, at + 1) == "(" => {
                    let end = group_end(tokens, at + 1);
                    if tokens[at + 1..end].iter().any(|token| token == TENANT_COLUMN) {
                        self.conditions.push((query, Condition::Joined));
                    }
                    end
                }
                "using" => self.read_sources(query, tokens, at + 1),
                "(" => self.read_group(query, tokens, at),
                TENANT_COLUMN => {
                    self.read_condition(query, tokens, at);
                    at + 1
                }
                _ => at + 1,
            };
        }
    }

    /// Reads parentheses, and returns the position behind them.
    fn read_group(&mut self, query: usize, tokens: &[String], at: usize) -> usize {
        let end = group_end(tokens, at);
        let inner = &tokens[at + 1..end.max(at + 2) - 1];
        if QUERY_WORDS.contains(&word(inner, 0)) {
            self.read_query(inner, Some(query));
        } else {
            self.read_tokens(query, inner);
        }
        end
    }

    /// Reads the sources of a list, and returns the position behind them.
    fn read_sources(&mut self, query: usize, tokens: &[String], at: usize) -> usize {
        let mut at = self.read_source(query, tokens, at);
        while word(tokens, at) == "," {
            at = self.read_source(query, tokens, at + 1);
        }
        at
    }

    fn read_source(&mut self, query: usize, tokens: &[String], mut at: usize) -> usize {
        while ["lateral", "only"].contains(&word(tokens, at)) {
            at += 1;
        }
        let mut name = String::new();
        if word(tokens, at) != "(" {
            (name, at) = read_name(tokens, at);
        }
        if word(tokens, at) == "(" {
            at = self.read_group(query, tokens, at);
        }
        self.add_source(query, name, (tokens, at), false)
    }

    fn read_insert_target(&mut self, query: usize, tokens: &[String], at: usize) -> usize {
        let (name, at) = read_name(tokens, at);
        let at = self.add_source(query, name, (tokens, at), true);
        if word(tokens, at) != "(" {
            return at;
        }
        let end = group_end(tokens, at);
        let inserted = self.queries[query].sources.last().and_then(|source| source.reference);
        if tokens[at..end].iter().any(|token| token == TENANT_COLUMN) {
            self.limited.extend(inserted);
        }
        end
    }

    /// Adds a source with the alias at a position, and returns the position behind the alias.
    fn add_source(
        &mut self,
        query: usize,
        name: String,
        (tokens, at): (&[String], usize),
        is_insert_target: bool,
    ) -> usize {
        let (alias, at) = read_alias(tokens, at);
        let alias = alias.unwrap_or_else(|| name.clone());
        let reference = self.tables.contains(&name).then(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        self.queries[query].sources.push(Source { alias, reference, is_insert_target });
        at
    }

    /// Reads the condition on the column at a position, if there is one.
    fn read_condition(&mut self, query: usize, tokens: &[String], at: usize) {
        let source_of = |at: usize| {
            let is_named = at >= 2 && word(tokens, at - 1) == ".";
            is_named.then(|| tokens[at - 2].clone())
        };
        let column = source_of(at);
        let start = if column.is_some() { at - 2 } else { at };
        let is_right_side = start >= 2
            && tokens[start - 1] == "="
            && ![TENANT_COLUMN, "<", ">", "!"].contains(&word(tokens, start - 2));
        match word(tokens, at + 1) {
            "=" => {
                let right = [at + 2, at + 4];
                let right = right.into_iter().find(|right| {
                    let source = source_of(*right);
                    word(tokens, *right) == TENANT_COLUMN && (source.is_some() == (*right > at + 2))
                });
                let condition = match right {
                    Some(right) => Condition::Equal([column, source_of(right)]),
                    None => Condition::Given(column),
                };
                self.conditions.push((query, condition));
            }
            "in" => self.conditions.push((query, Condition::Given(column))),
            // The condition on two columns was read at the left one.
            _ if is_right_side => self.conditions.push((query, Condition::Given(column))),
            _ => {}
        }
    }

    /// Limits the references of all conditions, and those that are equal to them.
    fn apply_conditions(&mut self) {
        let mut equal = Vec::new();
        for (query, condition) in &self.conditions {
            let owner_of = |column: Option<&str>| self.find_owner(*query, column);
            let group: Vec<ColumnOwner> = match condition {
                Condition::Given(column) => vec![ColumnOwner::Given, owner_of(column.as_deref())],
                Condition::Equal(columns) => {
                    columns.iter().map(|column| owner_of(column.as_deref())).collect()
                }
                Condition::Joined => {
                    self.queries[*query].sources.iter().map(Source::column_owner).collect()
                }
            };
            equal.push(group);
        }
        // Until no reference is added.
        let mut count = usize::MAX;
        while count != self.limited.len() {
            count = self.limited.len();
            for group in &equal {
                let is_limited = group.iter().any(|owner| match owner {
                    ColumnOwner::Reference(at) => self.limited.contains(at),
                    ColumnOwner::Given => true,
                    ColumnOwner::Unknown => false,
                });
                let references = group.iter().filter_map(|owner| match owner {
                    ColumnOwner::Reference(at) => Some(*at),
                    ColumnOwner::Given | ColumnOwner::Unknown => None,
                });
                if is_limited {
                    self.limited.extend(references);
                }
            }
        }
    }

    /// What a column belongs to, from its source if it is named.
    fn find_owner(&self, query: usize, source: Option<&str>) -> ColumnOwner {
        let mut next = Some(query);
        while let Some(Query { outer, sources }) = next.map(|at| &self.queries[at]) {
            let mut matching = sources.iter().filter(|one| match source {
                Some(name) => one.alias == name,
                None => !one.is_insert_target,
            });
            match (source, matching.next()) {
                (Some(_), Some(found)) => return found.column_owner(),
                (None, Some(first)) => {
                    let all = std::iter::once(first).chain(matching);
                    let mut tables = all.filter(|one| one.reference.is_some());
                    return match (tables.next(), tables.next()) {
                        (None, _) => ColumnOwner::Given,
                        (Some(table), None) => table.column_owner(),
                        (Some(_), Some(_)) => ColumnOwner::Unknown,
                    };
                }
                (_, None) => next = *outer,
            }
        }
        ColumnOwner::Unknown
    }
}

impl Source {
    fn column_owner(&self) -> ColumnOwner {
        self.reference.map_or(ColumnOwner::Given, ColumnOwner::Reference)
    }
}

/// The token at a position; empty behind the last one.
fn word(tokens: &[String], at: usize) -> &str {
    tokens.get(at).map_or("", String::as_str)
}

/// The position behind the parentheses that open at a position.
fn group_end(tokens: &[String], at: usize) -> usize {
    let mut depth = 0_usize;
    for (end, token) in tokens.iter().enumerate().skip(at) {
        match token.as_str() {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return end + 1;
        }
    }
    tokens.len()
}

/// The last part of a name with dots, and the position behind it.
fn read_name(tokens: &[String], mut at: usize) -> (String, usize) {
    while word(tokens, at + 1) == "." {
        at += 2;
    }
    (word(tokens, at).to_owned(), at + 1)
}

fn read_alias(tokens: &[String], mut at: usize) -> (Option<String>, usize) {
    if word(tokens, at) == "with" && word(tokens, at + 1) == "ordinality" {
        at += 2;
    }
    if word(tokens, at) == "as" {
        at += 1;
    }
    let name = word(tokens, at);
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_alias = is_name && NO_ALIAS.split(' ').all(|other| other != name);
    if is_alias { (Some(name.to_owned()), at + 1) } else { (None, at) }
}
