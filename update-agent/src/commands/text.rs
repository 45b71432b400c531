//! What commands print for people.

use std::io::{self, Write};

use chrono::{DateTime, SecondsFormat, Utc};

use crate::model::ImageChange;

/// The order of the units of sizes; each is a thousand of the one before.
const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];

/// An instant in words.
pub fn instant(instant: Option<DateTime<Utc>>) -> String {
    instant.map_or_else(
        || "never".to_owned(),
        |instant| instant.to_rfc3339_opts(SecondsFormat::Secs, true),
    )
}

/// A size in words.
pub fn bytes(bytes: u64) -> String {
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

/// A span of time in words.
pub fn millis(millis: u64) -> String {
    let seconds = millis / 1_000;
    match seconds {
        0 => format!("{millis} ms"),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// An image before and after.
pub fn image(image: &ImageChange) -> String {
    let before = match image.before.as_str() {
        "" => "-",
        before => before,
    };
    format!("{} {before} -> {}", image.profile_name, image.wanted)
}

/// How many things of a kind.
pub fn count(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Prints rows whose cells stand below each other.
pub fn table(rows: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, &width)| format!("{cell:<width$}"))
            .collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_have_the_unit_that_fits() {
        for (size, words) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (999_999, "999.9 kB"),
            (1_000_000, "1.0 MB"),
            (12_345_678, "12.3 MB"),
            (u64::MAX, "18446744.0 TB"),
        ] {
            assert_eq!(bytes(size), words);
        }
        for (span, words) in [
            (7, "7 ms"),
            (59_999, "59 s"),
            (61_000, "1 min 1 s"),
            (3_660_000, "1 h 1 min"),
        ] {
            assert_eq!(millis(span), words);
        }
        assert_eq!(count(1, "package", "packages"), "1 package");
        assert_eq!(count(0, "package", "packages"), "0 packages");
    }

    #[test]
    fn the_cells_of_a_table_stand_below_each_other() {
        let row = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["a", "long", "x"]), row(&["ää", "b"]), row(&[])];
        let mut out = Vec::new();
        table(&rows, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a   long  x\nää  b\n\n");
    }
}
