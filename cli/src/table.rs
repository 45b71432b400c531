//! Tables as text. A line of a table is never wrapped, so that its IDs and names can be copied: a
//! table that is wider than the terminal loses its least important columns. If even the important
//! ones are too wide, its lines are.

use comfy_table::{Attribute, Cell as TableCell, Color, ColumnConstraint, Table, presets};

use crate::page::{Cell, Tone};

/// Number of spaces between two columns.
const GAP: u16 = 2;

/// Columns of a table, and which of them may be left out.
#[derive(Clone, Debug, Default)]
pub struct Columns<'a> {
    pub titles: Vec<&'a str>,
    /// Titles of the columns that may be left out, the least important first.
    pub optional: Vec<&'a str>,
}

/// Formats a table. Without a width, all columns are shown.
pub fn format_table(
    columns: &Columns<'_>,
    rows: impl IntoIterator<Item = Vec<Cell>>,
    width: Option<u16>,
    colour: bool,
) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    // Otherwise the library looks at the terminal itself.
    table.force_no_tty();
    if colour {
        table.enforce_styling();
    }
    let bold = |title: &&str| TableCell::new(title).add_attribute(Attribute::Bold);
    table.set_header(columns.titles.iter().map(bold));
    for row in rows {
        table.add_row(row.into_iter().map(to_table_cell));
    }
    let widths = table.column_max_content_widths();
    let hidden = hidden_columns(columns, &widths, width);
    let last = (0..widths.len()).rfind(|at| !hidden.contains(at));
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if Some(at) == last { 0 } else { GAP }));
        if hidden.contains(&at) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Positions of the columns that are left out.
fn hidden_columns(columns: &Columns<'_>, widths: &[u16], width: Option<u16>) -> Vec<usize> {
    let mut hidden = Vec::new();
    let Some(width) = width else {
        return hidden;
    };
    let needs = |at: usize| u32::from(widths.get(at).copied().unwrap_or_default()) + u32::from(GAP);
    let mut needed: u32 = (0..widths.len()).map(needs).sum();
    let optional = columns.optional.iter();
    let positions =
        optional.filter_map(|name| columns.titles.iter().position(|title| title == name));
    for at in positions {
        // There is no gap after the last column.
        if needed <= u32::from(width) + u32::from(GAP) {
            break;
        }
        needed -= needs(at);
        hidden.push(at);
    }
    hidden
}

fn to_table_cell(cell: Cell) -> TableCell {
    let output = TableCell::new(cell.text);
    match cell.tone {
        Tone::Plain => output,
        Tone::Good => output.fg(Color::Green),
        Tone::Busy => output.fg(Color::Yellow),
        Tone::Bad => output.fg(Color::Red),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::cells;

    fn columns() -> Columns<'static> {
        Columns {
            titles: vec!["ID", "NAME", "STATE", "START"],
            optional: vec!["START", "STATE", "NAME"],
        }
    }

    fn table(width: Option<u16>, colour: bool) -> Vec<String> {
        let row =
            |id: &str| cells![id, "edge", Cell::toned("failed", Tone::Bad), "2026-03-01T12:00:00Z"];
        format_table(&columns(), [row("host-00000001"), row("host-00000002")], width, colour)
    }

    /// `ID` needs 13 characters, `NAME` 4, `STATE` 6 and `START` 20, with gaps of 2 between them.
    #[test]
    fn columns_give_way_by_width_and_ids_are_never_broken() {
        for (width, titles) in [
            (None, "ID NAME STATE START"),
            (Some(200), "ID NAME STATE START"),
            (Some(49), "ID NAME STATE START"),
            (Some(48), "ID NAME STATE"),
            (Some(27), "ID NAME STATE"),
            (Some(26), "ID NAME"),
            (Some(18), "ID"),
            (Some(1), "ID"),
        ] {
            let lines = table(width, false);
            let header: Vec<_> = lines[0].split_whitespace().collect();
            assert_eq!(header.join(" "), titles, "{width:?}");
            assert_eq!(lines.len(), 3, "{width:?}");
            assert!(lines[1].starts_with("host-00000001"), "{width:?}");
            let longest = lines.iter().map(|line| line.chars().count()).max();
            let fits = width.is_none_or(|width| longest <= Some(usize::from(width.max(13))));
            assert!(fits, "{width:?}: {longest:?}");
        }
    }

    #[test]
    fn a_table_without_optional_columns_overflows() {
        let columns = Columns { titles: vec!["NAME", "DETAIL"], optional: Vec::new() };
        let rows = [cells!["edge", "x".repeat(300)]];
        let lines = format_table(&columns, rows, Some(80), false);
        assert_eq!(lines[1], format!("edge  {}", "x".repeat(300)));
    }

    #[test]
    fn a_table_without_colours_has_no_escape_sequence() {
        for width in [None, Some(80), Some(20)] {
            assert!(table(width, false).iter().all(|line| !line.contains('\u{1b}')), "{width:?}");
            let coloured = table(width, true);
            assert!(coloured[0].contains("\u{1b}[1m"), "{coloured:?}");
        }
    }
}
