//! Prints results as a table, JSON or YAML.

use std::fmt::Display;
use std::io::{Read, Write};

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::options::OutputFormat;
use crate::page::{Cell, DetailPage, Tone, sanitize_text};
use crate::resource::Resource;
use crate::table::{Columns, format_table};
use crate::tree::Branch;
use crate::{Environment, Failure, System};

/// Prints results in the selected format.
pub struct Printer<'a> {
    out: &'a mut dyn Write,
    notes: &'a mut dyn Write,
    input: &'a mut dyn Read,
    format: OutputFormat,
    ids_only: bool,
    environment: &'a Environment,
    now: DateTime<Utc>,
    /// Number of characters of the shown progress.
    progress_chars: usize,
}

impl std::fmt::Debug for Printer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printer").field("format", &self.format).finish_non_exhaustive()
    }
}

impl<'a> Printer<'a> {
    /// Prints to the streams of `system`.
    pub fn new(system: &'a mut System<'_>, format: OutputFormat, ids_only: bool) -> Self {
        Self {
            out: &mut *system.out,
            notes: &mut *system.notes,
            input: &mut *system.input,
            format,
            ids_only,
            environment: &system.environment,
            now: system.clock.now(),
            progress_chars: 0,
        }
    }

    /// Whether the user can answer prompts.
    pub fn is_interactive(&self) -> bool {
        self.environment.interactive
    }

    /// Asks for a confirmation. The default is no.
    pub fn confirm(&mut self, question: &str) -> Result<bool, Failure> {
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

    /// Asks whether to delete something. Without a terminal, it must be confirmed with `--yes`.
    pub fn confirm_deletion(&mut self, concerned: &str) -> Result<(), Failure> {
        if !self.is_interactive() {
            return Err(Failure::usage_with(
                format!("this deletes {concerned}"),
                "add --yes to confirm",
            ));
        }
        if self.confirm(&format!("delete {concerned}?"))? {
            return Ok(());
        }
        Err(Failure::usage("nothing was done"))
    }

    /// Shows the progress on a terminal, in place of the last one. An empty text clears it.
    pub fn show_progress(&mut self, text: &str) -> Result<(), Failure> {
        if self.environment.interactive {
            // Spaces replace the rest of the last text: an escape sequence might not be wanted.
            let last = self.progress_chars;
            let end = if text.is_empty() { "\r" } else { "" };
            write!(self.notes, "\r{text:<last$}{end}")?;
            self.notes.flush()?;
            self.progress_chars = text.chars().count();
        }
        Ok(())
    }

    /// Prints a note to standard error, unless the output is for programs.
    pub fn print_note(&mut self, text: &str) -> Result<(), Failure> {
        if self.is_human_readable() {
            writeln!(self.notes, "note: {text}")?;
        }
        Ok(())
    }

    /// Whether the output is a table for people.
    pub fn is_human_readable(&self) -> bool {
        self.format.is_table() && !self.ids_only
    }

    /// The current time.
    pub fn now(&self) -> DateTime<Utc> {
        self.now
    }

    /// Whether to print all columns of a list.
    pub fn is_wide(&self) -> bool {
        self.format == OutputFormat::Wide && !self.ids_only
    }

    /// Width of the terminal that tables must fit, if there is one.
    pub fn table_width(&self) -> Option<u16> {
        self.environment.width.filter(|_| self.is_human_readable() && !self.is_wide())
    }

    /// Whether to print only IDs.
    pub fn is_ids_only(&self) -> bool {
        self.ids_only
    }

    /// Prints rows of items that are no [`Resource`].
    pub fn print_rows(
        &mut self,
        items: &impl Serialize,
        names: impl IntoIterator<Item = impl Display>,
        header: &[&str],
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Result<(), Failure> {
        if self.ids_only {
            for name in names {
                writeln!(self.out, "{name}")?;
            }
            return Ok(());
        }
        if self.format.is_table() {
            let titles = header.to_vec();
            return self.print_table(&Columns { titles, ..Columns::default() }, rows);
        }
        self.print_data(items)
    }

    /// Prints a list of resources.
    pub fn print_list<R: Resource>(&mut self, items: &[R]) -> Result<(), Failure> {
        if self.ids_only {
            for item in items {
                writeln!(self.out, "{}", item.id())?;
            }
            return Ok(());
        }
        if !self.format.is_table() {
            return self.print_data(&items);
        }
        if items.is_empty() {
            writeln!(self.out, "no {}", R::KIND.plural)?;
            return Ok(());
        }
        let (now, is_wide) = (self.now, self.is_wide());
        self.print_list_rows::<R>(items.iter().map(|item| item.list_row(now, is_wide)))
    }

    /// Prints the rows of a list as a table.
    pub fn print_list_rows<R: Resource>(
        &mut self,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Result<(), Failure> {
        let titles = R::header(self.is_wide());
        self.print_table(&Columns { titles, optional: R::optional_titles() }, rows)
    }

    /// Prints trees.
    pub fn print_tree(
        &mut self,
        items: &impl Serialize,
        ids: &[&str],
        roots: &[Branch],
    ) -> Result<(), Failure> {
        if self.ids_only {
            for id in ids {
                writeln!(self.out, "{id}")?;
            }
            return Ok(());
        }
        if !self.format.is_table() {
            return self.print_data(items);
        }
        for (before, cells) in Branch::lines(roots) {
            let cells: Vec<_> = cells.iter().map(|cell| self.paint(cell)).collect();
            writeln!(self.out, "{before}{}", cells.join("  "))?;
        }
        Ok(())
    }

    /// Prints a resource.
    pub fn print_resource<R: Resource>(&mut self, item: &R) -> Result<(), Failure> {
        self.print_page(item, item.id(), &item.page())
    }

    /// Prints a page, or only the ID.
    pub fn print_page(
        &mut self,
        item: &impl Serialize,
        id: &str,
        page: &DetailPage,
    ) -> Result<(), Failure> {
        if self.ids_only {
            writeln!(self.out, "{id}")?;
            return Ok(());
        }
        if !self.format.is_table() {
            return self.print_data(item);
        }
        let width = page.fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in &page.fields {
            let text = self.paint(value);
            writeln!(self.out, "{name:<width$}  {text}")?;
        }
        for table in &page.tables {
            writeln!(self.out, "\n{}", table.title)?;
            let titles = table.header.to_vec();
            let columns = Columns { titles, ..Columns::default() };
            self.print_table(&columns, table.rows.clone())?;
        }
        Ok(())
    }

    /// Prints the result of an action on a resource.
    pub fn print_result(&mut self, noun: &str, id: &str, deed: &str) -> Result<(), Failure> {
        if self.ids_only {
            writeln!(self.out, "{id}")?;
        } else if self.format.is_table() {
            writeln!(self.out, "{noun} {id} {deed}")?;
        } else {
            self.print_data(&serde_json::json!({ "resourceId": id, "result": deed }))?;
        }
        Ok(())
    }

    /// Prints a line, unless the output is for programs.
    pub fn print_line(&mut self, text: &str) -> Result<(), Failure> {
        if self.is_human_readable() {
            writeln!(self.out, "{}", sanitize_text(text))?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Prints a text in every format, and sends it on at once.
    pub fn print_text(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.out, "{text}")?;
        self.out.flush()?;
        Ok(())
    }

    /// Prints one of several values as JSON or as a document of YAML, and sends it on at once.
    pub fn print_document(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        if self.format == OutputFormat::Yaml {
            writeln!(self.out, "---")?;
        }
        self.print_data(value)?;
        self.out.flush()?;
        Ok(())
    }

    /// Prints a value as JSON or YAML.
    pub fn print_data(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = if self.format == OutputFormat::Yaml {
            serde_saphyr::to_string(value)
                .map_err(|error| Failure::Serialization(Box::new(error)))?
        } else {
            serde_json::to_string_pretty(value)
                .map_err(|error| Failure::Serialization(Box::new(error)))?
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

    fn print_table(
        &mut self,
        columns: &Columns<'_>,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Result<(), Failure> {
        let width = self.table_width();
        for line in format_table(columns, rows, width, self.environment.colour) {
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }
}
