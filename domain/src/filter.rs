//! The language of filters and orders: AIP-160 with the ancestor's habits (northbound section 2).
//!
//! A filter is read in three steps: into tokens, into a tree that knows only the grammar, and into a [`Filter`] whose
//! every name and value fits the schema of its [`Resource`]. Whoever has a `Filter` need not check it again.
//!
//! - `OR` binds tighter than `AND`; `NOT` or `-` before a condition or parentheses turns it round.
//! - `=` on texts and ids looks for a part, whatever the case; `*` stands for any letters. `==` and `!=` mean the whole.
//! - `:` means `=`, but `site:*` asks whether something is there and `metadata:city` whether there is a label.
//! - A path leads over at most [`Filter::MAX_EDGES`] edges. Through an edge that is not there every test is false;
//!   through one that leads to many, one of them is enough.
//! - Within quotes a backslash takes the meaning from a quote, a star or a backslash; else it is a letter.

mod bad;
mod check;
mod order;
mod pattern;
mod schema;
mod show;
mod syntax;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;

pub use self::bad::BadFilter;
pub use self::order::{OrderKey, parse_order};
pub use self::pattern::Pattern;
pub use self::schema::{Edge, Enumeration, Field, FieldKind, Resource};
use crate::Time;

/// What of a list is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Each of them holds; without any it always holds.
    All(Vec<Self>),
    /// One of them holds; without any it never holds.
    Any(Vec<Self>),
    /// It does not hold.
    Not(Box<Self>),
    /// A field is as wanted.
    Test(Test),
    /// There is a resource at the end of the path, which is never empty.
    Exists(Path),
    /// The labels at the end of the path are as wanted.
    Label {
        /// The way to the resource; empty for the listed one itself.
        path: Path,
        /// The label's name, with its prefix if it has one.
        key: String,
        /// What is wanted of it.
        condition: LabelCondition,
    },
}

/// The way from a listed resource to another one.
pub type Path = Vec<&'static Edge>;

/// A field at the end of a path is as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The way to the resource; empty for the listed one itself.
    pub path: Path,
    /// Its field.
    pub field: &'static Field,
    /// What is wanted of it.
    pub condition: Condition,
}

/// What is wanted of a field. Each kind of field has its own conditions; [`Condition::Unset`] is for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A text or id has the pattern somewhere, whatever the case.
    Contains(Pattern),
    /// A text or id is exactly this.
    Exactly(String),
    /// A text or id is set and is not exactly this; with an empty text, it is only set.
    Not(String),
    /// Nothing is set: no value, an empty text or `unspecified`. A zero is a number.
    Unset,
    /// An enumeration has the value with this name, as the database calls it.
    Is(&'static str),
    /// An enumeration has another value.
    IsNot(&'static str),
    /// A number compares so; one that is not set counts as 0, as it is shown.
    Number(Comparison, i64),
    /// It is true or not; what is not set is not true.
    Truth(bool),
    /// A time compares so; one that is not set never does.
    Time(Comparison, Time),
}

/// How two values compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

impl Comparison {
    /// Every way to compare.
    pub const ALL: &[Self] = &[
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessOrEqual,
        Self::Greater,
        Self::GreaterOrEqual,
    ];

    /// How it is written.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

/// What is wanted of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelCondition {
    /// It is there.
    Present,
    /// It is there with exactly this value.
    Is(String),
    /// It is there with another value.
    IsNot(String),
}

impl Filter {
    /// The greatest length in characters.
    pub const MAX: usize = 4_000;

    /// How deep parentheses and `NOT` may be nested.
    pub const MAX_DEPTH: usize = 64;

    /// How many edges a path may have.
    pub const MAX_EDGES: usize = 5;

    /// What is at the end of a path that begins at a resource has one of these ids.
    #[must_use]
    pub fn id_in<I: fmt::Display>(
        resource: Resource,
        path: &[&'static Edge],
        ids: impl IntoIterator<Item = I>,
    ) -> Self {
        let end = path.last().map_or(resource, |edge| edge.to);
        let field = end.field("resource_id");
        let tests = ids.into_iter().filter_map(|id| {
            Some(Self::Test(Test {
                path: path.to_vec(),
                field: field?,
                condition: Condition::Exactly(id.to_string()),
            }))
        });
        Self::Any(tests.collect())
    }
}

/// Reads a filter for a list of this resource.
///
/// # Errors
/// Says where the first thing stands that cannot be, and what would be right.
pub fn parse(resource: Resource, text: &str) -> Result<Filter, BadFilter> {
    bad::check_length(text, Filter::MAX)?;
    check::filter(resource, syntax::tree(text)?)
}
