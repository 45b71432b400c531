//! What is shown of resources: cells of tables, and pages with details.

use evenkeel_api::status::StatusIndication;
use evenkeel_api::timestamps::Timestamps;

use crate::time::format_optional_time;

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

/// Meaning of a cell, which determines its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Busy,
    Bad,
}

impl Cell {
    /// A cell with a tone.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        let text: String = text.into();
        Self { text: or_dash(sanitize_text(&text)), tone }
    }

    /// A cell with a status, in the colour of its indication.
    pub fn status(text: &str, indication: StatusIndication) -> Self {
        Self::toned(text, indication.into())
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// The cells of a row.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$($crate::page::Cell::from($cell)),*] };
}
pub(crate) use cells;

/// Removes control characters. Many texts come from nodes and servers, which must not control the
/// terminal.
#[must_use]
pub fn sanitize_text(text: &str) -> String {
    let shows = |letter: &char| matches!(letter, '\n' | '\t') || !letter.is_control();
    text.chars().filter(shows).collect()
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

impl From<StatusIndication> for Tone {
    fn from(indication: StatusIndication) -> Self {
        use StatusIndication as I;
        match indication {
            I::Unspecified => Self::Plain,
            I::Error => Self::Bad,
            I::InProgress => Self::Busy,
            I::Idle => Self::Good,
        }
    }
}

/// Details of one resource: fields, then tables.
#[derive(Clone, Debug, Default)]
pub struct DetailPage {
    pub fields: Vec<(String, Cell)>,
    pub tables: Vec<DetailTable>,
}

impl DetailPage {
    /// Adds a field.
    pub fn field(&mut self, name: &str, value: impl Into<Cell>) -> &mut Self {
        self.fields.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a field unless the value is empty.
    pub fn field_if(&mut self, name: &str, value: &str) -> &mut Self {
        if !value.is_empty() {
            self.field(name, value);
        }
        self
    }

    /// Adds the time of creation.
    pub fn created(&mut self, timestamps: Option<&Timestamps>) -> &mut Self {
        let created_at = timestamps.map(|times| times.created_at);
        self.field("created", format_optional_time(created_at))
    }

    /// Adds a table unless it is empty.
    pub fn table(
        &mut self,
        title: &'static str,
        header: &'static [&'static str],
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> &mut Self {
        let rows: Vec<_> = rows.into_iter().collect();
        if !rows.is_empty() {
            self.tables.push(DetailTable { title, header, rows });
        }
        self
    }
}

#[derive(Clone, Debug)]
pub struct DetailTable {
    pub title: &'static str,
    pub header: &'static [&'static str],
    pub rows: Vec<Vec<Cell>>,
}
