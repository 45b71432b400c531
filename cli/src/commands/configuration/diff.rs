//! `evenkeel configuration diff`: the entries and settings in which two documents differ.

use std::path::PathBuf;

use clap::Args;
use evenkeel_configuration::difference::{
    EntryChange, EntryDifference, FieldChange, compare, compare_settings,
};
use evenkeel_configuration::source::is_standard_input;
use serde::Serialize;
use serde_json::Value;

use super::parsed::load_valid;
use super::source::InputFormat;
use crate::options::GlobalOptions;
use crate::output::Printer;
use crate::{Ending, Failure, System};

/// Maximum number of characters of a value that is shown on one line.
const MAX_VALUE_CHARS: usize = 80;

/// Maximum number of old and of new lines of a text that are shown.
const MAX_TEXT_LINES: usize = 40;

const EXAMPLES: &str = "Examples:
  evenkeel configuration diff old.yaml new.yaml
  git show HEAD:web.yaml | evenkeel configuration diff - web.yaml
  evenkeel configuration diff old.yaml new.yaml -o json";

/// Compare two documents by the components and names of their entries.
///
/// Exits with status 0 if the documents are equal, 1 if they differ, and 2 if they cannot be
/// compared. Comments, the order of entries and the formats of the documents do not count; the
/// order of actions does.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Diff {
    /// File with the old document, or `-` for standard input.
    old: PathBuf,
    /// File with the new document, or `-` for standard input.
    new: PathBuf,
    /// Format of both documents; `--format` is the same [default: by the content of each].
    #[arg(long, value_enum, alias = "format", value_name = "FORMAT")]
    input_format: Option<InputFormat>,
}

/// JSON form of the differences.
#[derive(Debug, Serialize)]
struct DocumentDifferences {
    settings: Vec<FieldChange>,
    entries: Vec<EntryDifference>,
}

impl Diff {
    pub fn run(self, globals: &GlobalOptions, system: &mut System<'_>) -> Result<Ending, Failure> {
        let ending = self.compare(globals, system);
        ending.map_err(|failure| Failure::Comparison(Box::new(failure)))
    }

    fn compare(&self, globals: &GlobalOptions, system: &mut System<'_>) -> Result<Ending, Failure> {
        if is_standard_input(&self.old) && is_standard_input(&self.new) {
            return Err(Failure::usage_with(
                "standard input can be only one of the documents",
                "give a file as the other document",
            ));
        }
        let old = load_valid(&self.old, self.input_format, system)?;
        let new = load_valid(&self.new, self.input_format, system)?;
        let differences = DocumentDifferences {
            settings: compare_settings(&old, &new),
            entries: compare(&old, &new),
        };
        let printer = &mut Printer::new(system, globals.output, globals.ids_only);
        differences.print(printer)?;
        let are_equal = differences.settings.is_empty() && differences.entries.is_empty();
        Ok(if are_equal { Ending::Done } else { Ending::DocumentsDiffer })
    }
}

impl DocumentDifferences {
    fn print(&self, printer: &mut Printer<'_>) -> Result<(), Failure> {
        if printer.is_human_readable() {
            for line in self.lines() {
                printer.print_line(&line)?;
            }
            return Ok(());
        }
        if printer.is_ids_only() {
            for name in self.names() {
                printer.print_text(&name)?;
            }
            return Ok(());
        }
        printer.print_data(self)
    }

    /// The settings and entries that differ.
    fn names(&self) -> Vec<String> {
        let settings = self.settings.iter().map(|setting| setting.field.clone());
        let entries = self.entries.iter().map(entry_name);
        settings.chain(entries).collect()
    }

    /// The differences as text: `+` for new, `-` for removed, and `~` for changed.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.settings.iter().flat_map(field_lines).collect();
        for entry in &self.entries {
            let sign = match entry.change {
                EntryChange::Added => '+',
                EntryChange::Removed => '-',
                EntryChange::Changed => '~',
            };
            lines.push(format!("{sign} {}", entry_name(entry)));
            let fields = entry.fields.iter().flat_map(field_lines);
            lines.extend(fields.map(|line| format!("    {line}")));
        }
        lines
    }
}

fn entry_name(entry: &EntryDifference) -> String {
    format!("{} {}", entry.component, escape_controls(&entry.name))
}

fn field_lines(change: &FieldChange) -> Vec<String> {
    let field = escape_controls(&change.field);
    match (&change.old, &change.new) {
        (Some(Value::String(old)), Some(Value::String(new)))
            if has_several_lines(old) || has_several_lines(new) =>
        {
            let mut lines = vec![format!("~ {field}:")];
            lines.extend(text_lines(old, new).into_iter().map(|line| format!("    {line}")));
            lines
        }
        (Some(old), Some(new)) => {
            vec![format!("~ {field}: {} -> {}", format_value(old), format_value(new))]
        }
        (None, Some(new)) => vec![format!("+ {field}: {}", format_value(new))],
        (Some(old), None) => vec![format!("- {field}: {}", format_value(old))],
        (None, None) => Vec::new(),
    }
}

fn has_several_lines(text: &str) -> bool {
    text.trim_end_matches('\n').contains('\n')
}

/// A value as JSON on one line. A long value is cut.
fn format_value(value: &Value) -> String {
    let json = value.to_string();
    let length = json.chars().count();
    if length <= MAX_VALUE_CHARS {
        return escape_controls(&json);
    }
    let start: String = json.chars().take(MAX_VALUE_CHARS).collect();
    format!("{}… ({length} characters)", escape_controls(&start))
}

/// The lines in which two texts differ: all lines between their equal start and their equal end.
fn text_lines(old: &str, new: &str) -> Vec<String> {
    let old: Vec<&str> = old.split('\n').collect();
    let new: Vec<&str> = new.split('\n').collect();
    let start = count_equal(old.iter(), new.iter());
    let (old, new) = (&old[start..], &new[start..]);
    let end = count_equal(old.iter().rev(), new.iter().rev());
    let mut lines = vec![format!("line {}", start + 1)];
    add_lines('-', &old[..old.len() - end], &mut lines);
    add_lines('+', &new[..new.len() - end], &mut lines);
    lines
}

fn count_equal<T: PartialEq>(
    left: impl Iterator<Item = T>,
    right: impl Iterator<Item = T>,
) -> usize {
    left.zip(right).take_while(|(left, right)| left == right).count()
}

fn add_lines(sign: char, texts: &[&str], lines: &mut Vec<String>) {
    let shown = texts.iter().take(MAX_TEXT_LINES);
    lines.extend(shown.map(|text| format!("{sign} {}", escape_controls(text))));
    if texts.len() > MAX_TEXT_LINES {
        lines.push(format!("{sign} … ({} more lines)", texts.len() - MAX_TEXT_LINES));
    }
}

/// Shows control characters as escape sequences, so that a difference in them is visible.
fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && letter != '\t' {
            escaped.extend(letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_several_lines_is_compared_by_lines() {
        assert_eq!(text_lines("a\nb\nc\n", "a\nx\ny\nc\n"), ["line 2", "- b", "+ x", "+ y"]);
        assert_eq!(text_lines("a\na\n", "a\n"), ["line 2", "- a"]);
        assert_eq!(text_lines("a\nb\r\n", "a\nb\n"), ["line 2", "- b\\r", "+ b"]);
        assert_eq!(text_lines("a\nb", "a\nb\n"), ["line 3", "+ "]);
        let long = "x\n".repeat(100);
        assert_eq!(text_lines("a\nb", &long).last().expect("a line"), "+ … (61 more lines)");
    }

    #[test]
    fn a_long_value_is_cut() {
        assert_eq!(format_value(&Value::from("a\u{1b}[31m")), r#""a\u001b[31m""#);
        assert_eq!(format_value(&serde_json::json!(["a", 1])), r#"["a",1]"#);
        let long = format_value(&Value::from("ä".repeat(500)));
        assert!(long.starts_with("\"ää") && long.ends_with("ä… (502 characters)"), "{long}");
    }
}
