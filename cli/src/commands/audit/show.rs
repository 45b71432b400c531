//! `evenkeel audit show`: one change.

use evenkeel_api::change::ChangeResource;
use serde_json::Value;

use super::{ChangeSource, actor, object, what};
use crate::Failure;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::time::format_time;

pub async fn run(
    id: &str,
    source: &ChangeSource<'_>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let change = source.change(id).await;
    let change = change.map_err(|error| {
        if error.is_not_found() {
            Failure::usage_with(
                format!("there is no change `{id}`"),
                "`evenkeel audit` lists changes with their IDs; the server deletes old ones",
            )
        } else {
            error
        }
    })?;
    printer.print_page(&change, &change.change_id, &build_page(&change))
}

fn build_page(change: &ChangeResource) -> DetailPage {
    let mut page = DetailPage::default();
    page.field("change", change.change_id.as_str())
        .field("time", format_time(change.time))
        .field("actor", actor(change))
        .field("what", what(change))
        .field("object", object(change))
        .field_if("request", &change.request_id)
        .field_if("address", &change.client_address);
    if change.rows_omitted {
        page.field("rows", "too long to be shown");
    }
    page.table("Fields", &["FIELD", "BEFORE", "AFTER"], changed_fields(change));
    page
}

/// The fields that differ, by name.
fn changed_fields(change: &ChangeResource) -> Vec<Vec<Cell>> {
    let members = |row: Option<&Value>| row.and_then(Value::as_object).cloned().unwrap_or_default();
    let (before, after) = (members(change.before.as_ref()), members(change.after.as_ref()));
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differs = |name: &&String| before.get(*name) != after.get(*name);
    let row = |name: &String| {
        cells![name.as_str(), value_text(before.get(name)), value_text(after.get(name))]
    };
    names.into_iter().filter(differs).map(row).collect()
}

/// A value as text; empty if there is none.
fn value_text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_fields_that_differ_are_shown() {
        let change = ChangeResource {
            before: Some(json!({"name": "a", "note": "same", "site_id": 7, "gone": true})),
            after: Some(json!({"name": "b", "note": "same", "site_id": null, "new": [1]})),
            ..ChangeResource::default()
        };
        let rows: Vec<Vec<String>> = changed_fields(&change)
            .into_iter()
            .map(|row| row.into_iter().map(|cell| cell.text).collect())
            .collect();
        let expected =
            [["gone", "true", "-"], ["name", "a", "b"], ["new", "-", "[1]"], ["site_id", "7", "-"]];
        assert_eq!(rows, expected);
    }
}
