//! Shows answers: as a table for people, as JSON or YAML for programs.

use std::io::{Read, Write};

use comfy_table::{Attribute, Color, ContentArrangement, Table, presets};
use evenkeel_api::timestamps::Timestamps;
use serde::Serialize;

use crate::args::Format;
use crate::resource::Resource;
use crate::time::show_option;
use crate::tree::Branch;
use crate::{Environment, Failure, World};

/// One place of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

/// How a place of a table is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Busy,
    Bad,
}

impl Cell {
    /// A text with a tone.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        let text: String = text.into();
        Self {
            text: or_dash(harmless(&text)),
            tone,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// A text as a terminal can take it: much of what is shown are the words of nodes and servers, and they must not move the
/// cursor.
#[must_use]
pub fn harmless(text: &str) -> String {
    let shows = |letter: &char| matches!(letter, '\n' | '\t') || !letter.is_control();
    text.chars().filter(shows).collect()
}

fn or_dash(text: String) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}

impl From<evenkeel_api::status::StatusIndication> for Tone {
    fn from(indication: evenkeel_api::status::StatusIndication) -> Self {
        use evenkeel_api::status::StatusIndication as I;
        match indication {
            I::Unspecified => Self::Plain,
            I::Error => Self::Bad,
            I::InProgress => Self::Busy,
            I::Idle => Self::Good,
        }
    }
}

/// What a person reads of one thing: named values, then tables.
#[derive(Clone, Debug, Default)]
pub struct Page {
    fields: Vec<(&'static str, Cell)>,
    tables: Vec<PageTable>,
}

impl Page {
    /// Adds a named value.
    pub fn field(&mut self, name: &'static str, value: impl Into<Cell>) -> &mut Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds a named value unless it is empty.
    pub fn field_if(&mut self, name: &'static str, value: &str) -> &mut Self {
        if !value.is_empty() {
            self.field(name, value);
        }
        self
    }

    /// Adds when it was made.
    pub fn created(&mut self, timestamps: Option<&Timestamps>) -> &mut Self {
        let created_at = timestamps.map(|times| times.created_at);
        self.field("created", show_option(created_at))
    }

    /// Adds a table unless it is empty.
    pub fn table(
        &mut self,
        title: &'static str,
        header: &'static [&'static str],
        rows: Vec<Vec<Cell>>,
    ) -> &mut Self {
        if !rows.is_empty() {
            self.tables.push(PageTable {
                title,
                header,
                rows,
            });
        }
        self
    }
}

#[derive(Clone, Debug)]
struct PageTable {
    title: &'static str,
    header: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

/// Shows answers in the form that was asked for.
pub struct Printer<'a> {
    out: &'a mut dyn Write,
    notes: &'a mut dyn Write,
    input: &'a mut dyn Read,
    format: Format,
    quiet: bool,
    environment: &'a Environment,
}

impl std::fmt::Debug for Printer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printer")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl<'a> Printer<'a> {
    /// Shows answers on the output of this world.
    pub fn new(world: &'a mut World<'_>, format: Format, quiet: bool) -> Self {
        Self {
            out: &mut *world.out,
            notes: &mut *world.notes,
            input: &mut *world.input,
            format,
            quiet,
            environment: &world.environment,
        }
    }

    /// Whether somebody is there to answer a question.
    pub fn may_ask(&self) -> bool {
        self.environment.interactive
    }

    /// Asks a question that is answered with yes or no. No answer is no.
    pub fn ask(&mut self, question: &str) -> Result<bool, Failure> {
        write!(self.notes, "{question} [y/N] ")?;
        self.notes.flush()?;
        let mut answer = Vec::new();
        let mut byte = [0];
        while answer.len() < 100 && self.input.read(&mut byte)? == 1 && byte[0] != b'\n' {
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer).trim().to_lowercase();
        Ok(matches!(answer.as_str(), "y" | "yes"))
    }

    /// Says on a terminal how far something is, in place of what was said before. Nothing takes that away.
    pub fn progress(&mut self, text: &str) -> Result<(), Failure> {
        if self.environment.interactive {
            write!(self.notes, "\r\x1b[K{text}")?;
            self.notes.flush()?;
        }
        Ok(())
    }

    /// Says something to people that is no part of the answer.
    pub fn note(&mut self, text: &str) -> Result<(), Failure> {
        if self.is_for_people() {
            writeln!(self.notes, "note: {text}")?;
        }
        Ok(())
    }

    /// Whether a person reads along.
    pub fn is_for_people(&self) -> bool {
        self.format == Format::Table && !self.quiet
    }

    /// Whether only ids are wanted.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Shows many things that are no [`Resource`].
    pub fn rows(
        &mut self,
        items: &impl Serialize,
        names: &[&str],
        header: &[&str],
        rows: Vec<Vec<Cell>>,
    ) -> Result<(), Failure> {
        if self.quiet {
            for name in names {
                writeln!(self.out, "{name}")?;
            }
            return Ok(());
        }
        if self.format == Format::Table {
            return self.table(header, rows);
        }
        self.data(items)
    }

    /// Shows many things.
    pub fn list<R: Resource>(&mut self, items: &[R]) -> Result<(), Failure> {
        if self.quiet {
            for item in items {
                writeln!(self.out, "{}", item.id())?;
            }
            return Ok(());
        }
        if self.format != Format::Table {
            return self.data(&items);
        }
        if items.is_empty() {
            writeln!(self.out, "no {}", R::MANY)?;
            return Ok(());
        }
        self.table(R::HEADER, items.iter().map(Resource::row).collect())
    }

    /// Shows what lies in what.
    pub fn tree(
        &mut self,
        items: &impl Serialize,
        ids: &[&str],
        roots: &[Branch],
    ) -> Result<(), Failure> {
        if self.quiet {
            for id in ids {
                writeln!(self.out, "{id}")?;
            }
            return Ok(());
        }
        if self.format != Format::Table {
            return self.data(items);
        }
        for (before, words) in Branch::lines(roots) {
            let words: Vec<_> = words.iter().map(|word| self.paint(word)).collect();
            writeln!(self.out, "{before}{}", words.join("  "))?;
        }
        Ok(())
    }

    /// Shows one thing.
    pub fn one<R: Resource>(&mut self, item: &R) -> Result<(), Failure> {
        self.page(item, item.id(), &item.page())
    }

    /// Shows one thing as this page, or its id alone.
    pub fn page(&mut self, item: &impl Serialize, id: &str, page: &Page) -> Result<(), Failure> {
        if self.quiet {
            writeln!(self.out, "{id}")?;
            return Ok(());
        }
        if self.format != Format::Table {
            return self.data(item);
        }
        let width = page
            .fields
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        for (name, value) in &page.fields {
            let text = self.paint(value);
            writeln!(self.out, "{name:<width$}  {text}")?;
        }
        for table in &page.tables {
            writeln!(self.out, "\n{}", table.title)?;
            self.table(table.header, table.rows.clone())?;
        }
        Ok(())
    }

    /// Says that something was done to a thing.
    pub fn done(&mut self, word: &str, id: &str, deed: &str) -> Result<(), Failure> {
        if self.quiet {
            writeln!(self.out, "{id}")?;
        } else if self.format == Format::Table {
            writeln!(self.out, "{word} {id} {deed}")?;
        } else {
            self.data(&serde_json::json!({ "resourceId": id, "result": deed }))?;
        }
        Ok(())
    }

    /// Shows a line, if a person reads along.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        if self.is_for_people() {
            writeln!(self.out, "{}", harmless(text))?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Shows a text as it is.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.out, "{text}")?;
        Ok(())
    }

    /// Shows a value for programs.
    pub fn data(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = if self.format == Format::Yaml {
            serde_saphyr::to_string(value).map_err(|error| Failure::Form(Box::new(error)))?
        } else {
            serde_json::to_string_pretty(value).map_err(|error| Failure::Form(Box::new(error)))?
        };
        writeln!(self.out, "{}", text.trim_end())?;
        Ok(())
    }

    fn paint(&self, cell: &Cell) -> String {
        let code = match cell.tone {
            _ if !self.environment.colour => return cell.text.clone(),
            Tone::Plain => return cell.text.clone(),
            Tone::Good => 32,
            Tone::Busy => 33,
            Tone::Bad => 31,
        };
        format!("\x1b[{code}m{}\x1b[0m", cell.text)
    }

    fn table(&mut self, header: &[&str], rows: Vec<Vec<Cell>>) -> Result<(), Failure> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if self.environment.terminal {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        } else {
            table.force_no_tty();
        }
        if self.environment.colour {
            table.enforce_styling();
        }
        let bold = |title: &&str| comfy_table::Cell::new(title).add_attribute(Attribute::Bold);
        table.set_header(header.iter().map(bold));
        for row in rows {
            table.add_row(row.into_iter().map(coloured));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        for line in table.lines() {
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn coloured(cell: Cell) -> comfy_table::Cell {
    let shown = comfy_table::Cell::new(cell.text);
    match cell.tone {
        Tone::Plain => shown,
        Tone::Good => shown.fg(Color::Green),
        Tone::Busy => shown.fg(Color::Yellow),
        Tone::Bad => shown.fg(Color::Red),
    }
}
