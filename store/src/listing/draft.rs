//! SQL that is being written: its text and the values of its parameters.

use evenkeel_domain::filter::Resource;
use evenkeel_domain::text::storable;
use sea_orm::Value;
use uuid::Uuid;

use super::columns::{self, Table};
use crate::error::StoreError;

/// What is written so far. The first parameter is the project.
#[derive(Debug)]
pub struct Draft {
    values: Vec<Value>,
    levels: usize,
    looks_far: bool,
    /// What was written of texts that are kept in small letters, and what would stand there if they were not.
    folded: Vec<(String, String)>,
}

impl Draft {
    /// One for a project.
    pub fn new(tenant: Uuid) -> Self {
        Self::from_values(vec![tenant.into()])
    }

    /// One that goes on where another one ended.
    pub const fn from_values(values: Vec<Value>) -> Self {
        Self {
            values,
            levels: 0,
            looks_far: false,
            folded: Vec::new(),
        }
    }

    /// A parameter with this value.
    pub fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    /// A parameter with this text, as a database can keep it.
    pub fn bind_text(&mut self, text: &str) -> String {
        self.bind(storable(text))
    }

    /// A parameter with a pattern. What has it is found by looking into all texts.
    pub fn bind_pattern(&mut self, pattern: &str) -> String {
        self.looks_far = true;
        self.bind_text(pattern)
    }

    /// Notes that another resource is looked at for each row.
    pub const fn look_beyond(&mut self) {
        self.looks_far = true;
    }

    /// Whether what is written so far looks for parts of texts or at other resources.
    pub const fn looks_far(&self) -> bool {
        self.looks_far
    }

    /// Notes what was written of a text that is kept in small letters, and what would stand there if it were not.
    pub fn note_folded(&mut self, folded: &str, plain: String) {
        self.folded.push((folded.to_owned(), plain));
    }

    /// A text that was written, as if no text were kept in small letters: what lists are known by does not change with how
    /// they are kept.
    pub fn unfolded(&self, text: &str) -> String {
        let plain = |text: String, (folded, plain): &(String, String)| text.replace(folded, plain);
        self.folded.iter().fold(text.to_owned(), plain)
    }

    /// The table of a resource, under a name of its own.
    pub fn level(&mut self, resource: Resource) -> Level {
        let alias = format!("t{}", self.levels);
        self.levels += 1;
        Level {
            table: columns::table(resource),
            alias,
            is_wide: false,
        }
    }

    /// The values of the parameters so far.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The values of all parameters.
    pub fn into_values(self) -> Vec<Value> {
        self.values
    }
}

/// A table under a name of its own.
#[derive(Debug)]
pub struct Level {
    /// The table.
    pub table: &'static Table,
    alias: String,
    /// Whether something of the joined table is used.
    is_wide: bool,
}

impl Level {
    /// A text of the tables of columns, with the name in place of the `@`.
    pub fn put(&mut self, text: &str) -> String {
        self.is_wide |= text.contains("@x.");
        text.replace('@', &self.alias)
    }

    /// The same for a text that ties this table (`@`) to another one (`#`).
    pub fn tie(&mut self, other: &Self, text: &str) -> String {
        self.put(text).replace('#', &other.alias)
    }

    /// What is joined to the table, if something of that was used.
    pub fn joined(&self) -> String {
        if self.is_wide {
            self.table.joined.replace('@', &self.alias)
        } else {
            String::new()
        }
    }
}

/// A field or edge that no table knows: the tables and the domain disagree.
pub fn unknown(column: &'static str) -> StoreError {
    StoreError::Corrupt {
        table: "columns of lists",
        row: 0,
        column,
    }
}
