//! Builds SQL statements and their parameters.

use evenkeel_domain::filter::Resource;
use evenkeel_domain::text::storable;
use sea_orm::Value;
use uuid::Uuid;

use super::columns::{self, ResourceTable};
use crate::error::StoreError;

/// Builds an SQL statement. The first parameter is the project.
#[derive(Debug)]
pub struct SqlBuilder {
    values: Vec<Value>,
    levels: usize,
    is_wide_search: bool,
    /// Conditions on lowercase columns, each with the equivalent condition on the plain column.
    folded: Vec<(String, String)>,
}

impl SqlBuilder {
    /// A builder for a project.
    pub fn new(tenant: Uuid) -> Self {
        Self::from_values(vec![tenant.into()])
    }

    /// A builder that continues after these values.
    pub const fn from_values(values: Vec<Value>) -> Self {
        Self { values, levels: 0, is_wide_search: false, folded: Vec::new() }
    }

    /// Adds a parameter and returns its placeholder.
    pub fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    /// Adds a text parameter, without characters that the database cannot store.
    pub fn bind_text(&mut self, text: &str) -> String {
        self.bind(storable(text))
    }

    /// Adds a pattern parameter. A pattern has to be searched in all texts.
    pub fn bind_pattern(&mut self, pattern: &str) -> String {
        self.is_wide_search = true;
        self.bind_text(pattern)
    }

    /// Records that the condition reads another resource for each row.
    pub const fn mark_wide_search(&mut self) {
        self.is_wide_search = true;
    }

    /// Whether the statement so far searches in texts or reads other resources.
    pub const fn is_wide_search(&self) -> bool {
        self.is_wide_search
    }

    /// Records a condition on a lowercase column and the equivalent condition on the plain column.
    pub fn record_folded(&mut self, folded: &str, plain: String) {
        self.folded.push((folded.to_owned(), plain));
    }

    /// The text with conditions on plain columns only. The fingerprint of a list must not depend on
    /// how its columns are stored.
    pub fn unfolded(&self, text: &str) -> String {
        let plain = |text: String, (folded, plain): &(String, String)| text.replace(folded, plain);
        self.folded.iter().fold(text.to_owned(), plain)
    }

    /// Adds the table of a resource with a new alias.
    pub fn add_table(&mut self, resource: Resource) -> Level {
        let alias = format!("t{}", self.levels);
        self.levels += 1;
        Level { table: columns::table(resource), alias, is_wide: false }
    }

    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The values of all parameters.
    pub fn into_values(self) -> Vec<Value> {
        self.values
    }
}

/// A table with its alias.
#[derive(Debug)]
pub struct Level {
    pub table: &'static ResourceTable,
    alias: String,
    /// Whether a column of a joined table is used.
    is_wide: bool,
}

impl Level {
    /// Replaces `@` in a text of the column tables by the alias.
    pub fn resolve(&mut self, text: &str) -> String {
        self.is_wide |= text.contains("@x");
        text.replace('@', &self.alias)
    }

    /// Replaces `@` by the alias of this table and `#` by the alias of the other one.
    pub fn resolve_with(&mut self, other: &Self, text: &str) -> String {
        self.resolve(text).replace('#', &other.alias)
    }

    /// The joins of the table, if one of their columns is used.
    pub fn join_clause(&self) -> String {
        if self.is_wide { self.table.joined.replace('@', &self.alias) } else { String::new() }
    }
}

/// A field or edge that no column table has: the column tables and the domain disagree.
pub fn unknown_column(column: &'static str) -> StoreError {
    StoreError::Corrupt { table: "columns of lists", row: 0, column }
}
