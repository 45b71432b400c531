//! Writes filters and orders as text that parses to the same value.

use std::fmt::{self, Display, Formatter, Write as _};

use chrono::SecondsFormat;

use super::{
    Comparison, Edge, FieldCondition, FieldKind, FieldTest, Filter, FilterField, LabelCondition,
    OrderKey, Pattern,
};
use crate::Time;

impl Display for Filter {
    /// Writes one canonical form, so that equal texts are equal filters. `ALWAYS` and `NEVER` stand for the two filters
    /// that the language cannot express.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl Filter {
    /// Writes the filter, in parentheses if it has parts and is within another filter.
    fn write(&self, f: &mut Formatter<'_>, is_within: bool) -> fmt::Result {
        match self {
            Self::All(parts) | Self::Any(parts) => match parts.as_slice() {
                [] if matches!(self, Self::All(_)) => f.write_str("ALWAYS"),
                [] => f.write_str("NEVER"),
                [only] => only.write(f, is_within),
                [first, more @ ..] if is_within => {
                    f.write_char('(')?;
                    self.write_parts(f, first, more)?;
                    f.write_char(')')
                }
                [first, more @ ..] => self.write_parts(f, first, more),
            },
            Self::Not(part) => {
                f.write_str("NOT ")?;
                part.write(f, true)
            }
            Self::Test(test) => test.fmt(f),
            Self::Exists(path) => {
                let names: Vec<_> = path.iter().map(|edge| edge.wire_name()).collect();
                write!(f, "has({})", names.join("."))
            }
            Self::Label { path, key, condition } => {
                write_path(f, path)?;
                write_label(f, key, condition)
            }
        }
    }

    fn write_parts(&self, f: &mut Formatter<'_>, first: &Self, more: &[Self]) -> fmt::Result {
        let operator = match self {
            Self::Any(_) => " OR ",
            _ => " AND ",
        };
        first.write(f, true)?;
        for part in more {
            f.write_str(operator)?;
            part.write(f, true)?;
        }
        Ok(())
    }
}

impl Display for FieldTest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_path(f, &self.path)?;
        f.write_str(&self.field.wire_name())?;
        match &self.condition {
            FieldCondition::Contains(pattern) => write!(f, " = {pattern}"),
            FieldCondition::Exactly(text) => write!(f, " == {}", QuotedText(text)),
            FieldCondition::Not(text) => write!(f, " != {}", QuotedText(text)),
            FieldCondition::Unset => f.write_str(" = null"),
            FieldCondition::Is(name) => write!(f, " = {}", wire_value(self.field, name)),
            FieldCondition::IsNot(name) => write!(f, " != {}", wire_value(self.field, name)),
            FieldCondition::Number(comparison, number) => write!(f, " {comparison} {number}"),
            FieldCondition::Bool(value) => write!(f, " = {value}"),
            FieldCondition::Time(comparison, time) => {
                write!(f, " {comparison} ")?;
                write_time(f, self.field, *time)
            }
            FieldCondition::Version(comparison, version) => {
                write!(f, " {comparison} \"{version}\"")
            }
        }
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol())
    }
}

impl Display for Pattern {
    /// Writes it in quotes.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let quote = quote_for(self.pieces().iter().map(String::as_str));
        f.write_char(quote)?;
        for (n, piece) in self.pieces().iter().enumerate() {
            if n > 0 {
                f.write_char('*')?;
            }
            write_escaped(f, piece, &['\\', '*', quote])?;
        }
        f.write_char(quote)
    }
}

impl Display for OrderKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field.wire_name())?;
        f.write_str(if self.descending { " desc" } else { "" })
    }
}

/// A text in the kind of quotes that needs fewer backslashes.
struct QuotedText<'a>(&'a str);

impl Display for QuotedText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let quote = quote_for([self.0]);
        f.write_char(quote)?;
        write_escaped(f, self.0, &['\\', quote])?;
        f.write_char(quote)
    }
}

fn quote_for<'a>(texts: impl IntoIterator<Item = &'a str>) -> char {
    let (mut single, mut double) = (false, false);
    for text in texts {
        single |= text.contains('\'');
        double |= text.contains('"');
    }
    if double && !single { '\'' } else { '"' }
}

fn write_escaped(f: &mut Formatter<'_>, text: &str, special: &[char]) -> fmt::Result {
    for c in text.chars() {
        if special.contains(&c) {
            f.write_char('\\')?;
        }
        f.write_char(c)?;
    }
    Ok(())
}

fn write_path(f: &mut Formatter<'_>, path: &[&'static Edge]) -> fmt::Result {
    for edge in path {
        write!(f, "{}.", edge.wire_name())?;
    }
    Ok(())
}

fn write_label(f: &mut Formatter<'_>, key: &str, condition: &LabelCondition) -> fmt::Result {
    let key = QuotedText(key);
    match condition {
        LabelCondition::Present => write!(f, "metadata:{key}"),
        LabelCondition::Is(value) => write!(f, "metadata.{key} = {}", QuotedText(value)),
        LabelCondition::IsNot(value) => write!(f, "metadata.{key} != {}", QuotedText(value)),
    }
}

fn write_time(f: &mut Formatter<'_>, field: &FilterField, time: Time) -> fmt::Result {
    let is_whole = time.timestamp_subsec_nanos() == 0 && time.timestamp() != 0;
    if field.kind == FieldKind::UnixSeconds && is_whole {
        return write!(f, "{}", time.timestamp());
    }
    let text = time.to_rfc3339_opts(SecondsFormat::AutoSi, true);
    write!(f, "\"{text}\"")
}

/// The wire form of a value.
fn wire_value(field: &FilterField, name: &str) -> String {
    match field.kind {
        FieldKind::Enumeration(values) => values.wire_value(name),
        _ => name.to_owned(),
    }
}
