//! The language of filters and orders: AIP-160 with EIM's extensions.
//!
//! A filter is parsed in three steps: into tokens, into a tree that knows only the grammar, and into a [`Filter`] whose
//! names and values all fit the schema of its [`Resource`]. A `Filter` needs no further checks.
//!
//! - `OR` binds tighter than `AND`; `NOT` or `-` before a condition or parentheses negates it.
//! - `=` on texts and ids searches for a substring and ignores case; `*` matches any letters. `==` and `!=` compare the
//!   whole text.
//! - `:` means `=`, but `site:*` tests whether a resource exists and `metadata:city` whether there is a label.
//! - A path has at most [`Filter::MAX_EDGES`] edges. A test behind an edge without a resource is false; a test behind an
//!   edge to many resources is true if one of them matches.
//! - Within quotes a backslash escapes a quote, a star or a backslash; otherwise it is a letter.

mod check;
mod cost;
mod display;
mod error;
mod order;
mod pattern;
mod schema;
mod syntax;
#[cfg(test)]
mod tests;
mod token;
mod version;

use std::fmt;

pub use self::error::BadFilter;
pub use self::order::{OrderKey, parse_order};
pub use self::pattern::Pattern;
pub use self::schema::{Edge, Enumeration, FieldKind, FilterField, Resource};
pub use self::version::VersionNumbers;
use crate::Time;

/// A filter of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of the filters match; always true if empty.
    All(Vec<Self>),
    /// At least one of the filters matches; always false if empty.
    Any(Vec<Self>),
    /// The filter does not match.
    Not(Box<Self>),
    /// A field fulfils a condition.
    Test(FieldTest),
    /// There is a resource at the end of the path, which is never empty.
    Exists(EdgePath),
    /// The labels at the end of the path fulfil a condition.
    Label {
        /// Path to the resource; empty for the listed one itself.
        path: EdgePath,
        /// Name of the label, with its prefix if it has one.
        key: String,
        condition: LabelCondition,
    },
}

/// The path from a listed resource to another one.
pub type EdgePath = Vec<&'static Edge>;

/// A condition for a field at the end of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTest {
    /// Path to the resource; empty for the listed one itself.
    pub path: EdgePath,
    /// Field of that resource.
    pub field: &'static FilterField,
    pub condition: FieldCondition,
}

/// A condition for a field. Each kind of field has its own conditions; [`FieldCondition::Unset`] is for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldCondition {
    /// A text or id contains the pattern, ignoring case.
    Contains(Pattern),
    /// A text or id equals this text.
    Exactly(String),
    /// A text or id is set and differs from this text; with an empty text, it is only set.
    Not(String),
    /// The field has no value, an empty text or `unspecified`. A zero is a value.
    Unset,
    /// An enumeration has the value with this name, as the database stores it.
    Is(&'static str),
    /// An enumeration has another value.
    IsNot(&'static str),
    /// Compares a number; one that is not set counts as 0, as it is displayed.
    Number(Comparison, i64),
    /// A boolean has this value; one that is not set is false.
    Bool(bool),
    /// Compares a time; one that is not set never matches.
    Time(Comparison, Time),
    /// Compares the numbers at the beginning of a version by size; a text without them never matches.
    Version(Comparison, VersionNumbers),
}

/// A comparison of two values.
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
    pub const ALL: &[Self] = &[
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessOrEqual,
        Self::Greater,
        Self::GreaterOrEqual,
    ];

    /// The symbol in the filter language.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelCondition {
    /// The label exists.
    Present,
    /// The label exists with exactly this value.
    Is(String),
    /// The label exists with another value.
    IsNot(String),
}

impl Filter {
    /// Maximum length in characters.
    pub const MAX_CHARS: usize = 4_000;

    /// Maximum nesting depth of parentheses and `NOT`.
    pub const MAX_DEPTH: usize = 64;

    /// Maximum number of edges of a path.
    pub const MAX_EDGES: usize = 5;

    /// A filter that matches if the resource at the end of the path has one of these ids.
    #[must_use]
    pub fn id_in<I: fmt::Display>(
        resource: Resource,
        path: &[&'static Edge],
        ids: impl IntoIterator<Item = I>,
    ) -> Self {
        let end = path.last().map_or(resource, |edge| edge.to);
        let field = end.field("resource_id");
        let tests = ids.into_iter().filter_map(|id| {
            Some(Self::Test(FieldTest {
                path: path.to_vec(),
                field: field?,
                condition: FieldCondition::Exactly(id.to_string()),
            }))
        });
        Self::Any(tests.collect())
    }
}

/// Parses a filter for a list of this resource.
///
/// # Errors
/// Gives the position and the reason of the first error, and a suggestion if there is one. A filter that costs the
/// database more than [`Filter::MAX_COST`] is refused at its start.
pub fn parse_filter(resource: Resource, text: &str) -> Result<Filter, BadFilter> {
    error::check_length(text, Filter::MAX_CHARS)?;
    let filter = check::check_filter(resource, syntax::parse_tree(text)?)?;
    error::check_cost(filter.cost(), Filter::MAX_COST)?;
    Ok(filter)
}
