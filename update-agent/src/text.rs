//! Formats text.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

/// Units of sizes; each is a thousand times the one before.
const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];

/// Formats an instant; `never` if there is none.
pub fn format_instant(instant: Option<DateTime<Utc>>) -> String {
    instant.map_or_else(
        || "never".to_owned(),
        |instant| instant.to_rfc3339_opts(SecondsFormat::Secs, true),
    )
}

/// Formats a size.
pub fn format_bytes(bytes: u64) -> String {
    if bytes < 1_000 {
        return format!("{bytes} B");
    }
    // In tenths of the unit.
    let mut tenths = bytes / 100;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"kB");
    while tenths >= 10_000 {
        let Some(next) = units.next() else { break };
        tenths /= 1_000;
        unit = next;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

pub fn format_duration(millis: u64) -> String {
    let seconds = millis / 1_000;
    match seconds {
        0 => format!("{millis} ms"),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Formats a number with the singular or the plural of a noun.
pub fn pluralize(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Encodes DER as PEM with this label, for example `CERTIFICATE`.
pub fn encode_pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A text on one line that cannot control a terminal.
pub fn replace_controls(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Prints a value as JSON, for programs.
pub fn print_json(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Prints rows in aligned columns.
pub fn print_table(rows: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells.map(|(cell, &width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_have_a_fitting_unit() {
        for (size, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (999_999, "999.9 kB"),
            (1_000_000, "1.0 MB"),
            (12_345_678, "12.3 MB"),
            (u64::MAX, "18446744.0 TB"),
        ] {
            assert_eq!(format_bytes(size), expected);
        }
        for (span, expected) in
            [(7, "7 ms"), (59_999, "59 s"), (61_000, "1 min 1 s"), (3_660_000, "1 h 1 min")]
        {
            assert_eq!(format_duration(span), expected);
        }
        assert_eq!(pluralize(1, "package", "packages"), "1 package");
        assert_eq!(pluralize(0, "package", "packages"), "0 packages");
    }

    #[test]
    fn the_cells_of_a_table_are_aligned() {
        let row = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["a", "long", "x"]), row(&["ää", "b"]), row(&[])];
        let mut out = Vec::new();
        print_table(&rows, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a   long  x\nää  b\n\n");
    }
}
