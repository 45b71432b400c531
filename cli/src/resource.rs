//! What all resources have in common.

use chrono::{DateTime, Utc};
use evenkeel_api::timestamps::Timestamps;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::page::{Cell, DetailPage};
use crate::time::format_age;

/// Names of a kind of resources, and where the REST API has them.
#[derive(Clone, Copy, Debug)]
pub struct ResourceKind {
    /// Name of its command, such as `custom-config`.
    pub command: &'static str,
    /// Name of one resource.
    pub singular: &'static str,
    /// Name of several resources.
    pub plural: &'static str,
    /// Argument that names a resource, such as `CONFIG`.
    pub argument: &'static str,
    /// Name of the resource in the help of this argument.
    pub argument_noun: &'static str,
    /// Prefix of its IDs, before the dash.
    pub id_prefix: &'static str,
    /// Path of the list below the project.
    pub path: &'static str,
    /// JSON key of the list in a list response.
    pub list_key: &'static str,
    /// JSON key of a second list in a list response.
    pub second_list_key: Option<&'static str>,
    /// Filter field with the name; `None` if the list has no filter.
    pub name_field: Option<&'static str>,
    /// Hint if it cannot be deleted because it is in use.
    pub in_use_hint: Option<&'static str>,
    /// Titles of the first columns: the ID and, if it has one, the name.
    pub key_titles: &'static [&'static str],
    /// Titles of [`Resource::columns`].
    pub titles: &'static [&'static str],
    /// Titles of [`Resource::wide_columns`].
    pub wide_titles: &'static [&'static str],
    /// Titles of the columns that a narrow terminal lacks, the least important first. If empty,
    /// columns are left out from the right, except the first ones.
    pub optional_titles: &'static [&'static str],
    /// Whether lists show the age.
    pub has_age: bool,
}

/// Title of the column with the age.
const AGE: &str = "AGE";

impl ResourceKind {
    /// A kind whose paths, keys and prefix are its plural and its singular. The other fields are
    /// given with the functional update syntax.
    pub const fn new(argument: &'static str, singular: &'static str, plural: &'static str) -> Self {
        Self {
            command: singular,
            singular,
            plural,
            argument,
            argument_noun: singular,
            id_prefix: singular,
            path: plural,
            list_key: plural,
            second_list_key: None,
            name_field: Some("name"),
            in_use_hint: None,
            key_titles: &["ID", "NAME"],
            titles: &[],
            wide_titles: &[],
            optional_titles: &[],
            has_age: true,
        }
    }
}

/// A resource of a project.
pub trait Resource: Serialize + DeserializeOwned {
    const KIND: ResourceKind;

    /// Its ID, and its name, which may be ambiguous.
    fn key(&self) -> [&str; 2];
    /// Columns of a list, after the ID and the name.
    fn columns(&self) -> Vec<Cell>;
    /// Columns that a list has only with `--output wide`.
    fn wide_columns(&self) -> Vec<Cell> {
        Vec::new()
    }
    /// Times of creation and last change, for the age.
    fn timestamps(&self) -> Option<&Timestamps> {
        None
    }
    /// Time since which the age counts.
    fn created_at(&self) -> Option<DateTime<Utc>> {
        self.timestamps().map(|times| times.created_at)
    }
    /// Adds the details to a page that has the ID and the name.
    fn add_details(&self, _page: &mut DetailPage) {}

    /// Adds the columns to a page, for resources whose pages begin with them.
    fn add_columns(&self, page: &mut DetailPage) {
        for (title, cell) in Self::KIND.titles.iter().zip(self.columns()) {
            page.field(&title.to_lowercase(), cell);
        }
    }

    fn id(&self) -> &str {
        self.key()[0]
    }

    fn name(&self) -> &str {
        self.key()[1]
    }

    /// Whether a text has the form of an ID of this resource.
    fn is_id(text: &str) -> bool {
        is_id(Self::KIND.id_prefix, text)
    }

    /// Path of the resource with this ID, below the project.
    fn address(id: &str) -> String {
        format!("{}/{id}", Self::KIND.path)
    }

    /// Column titles of [`Resource::list_row`].
    fn header(is_wide: bool) -> Vec<&'static str> {
        let kind = Self::KIND;
        let age: &[_] = if kind.has_age { &[AGE] } else { &[] };
        let wide = if is_wide { kind.wide_titles } else { &[] };
        [kind.key_titles, kind.titles, age, wide].concat()
    }

    /// Titles of the columns that a narrow terminal lacks, the least important first.
    fn optional_titles() -> Vec<&'static str> {
        match Self::KIND.optional_titles {
            [] => [AGE].iter().chain(Self::KIND.titles.iter().rev()).copied().collect(),
            titles => titles.to_vec(),
        }
    }

    /// Row of a list.
    fn list_row(&self, now: DateTime<Utc>, is_wide: bool) -> Vec<Cell> {
        let mut row = self.row();
        if Self::KIND.has_age {
            let age = self.created_at().map(|created_at| format_age(created_at, now));
            row.push(Cell::from(age.unwrap_or_default()));
        }
        if is_wide {
            row.extend(self.wide_columns());
        }
        row
    }

    /// The ID, the name and the columns.
    fn row(&self) -> Vec<Cell> {
        let keys = self.key().into_iter().take(Self::KIND.key_titles.len());
        keys.map(Cell::from).chain(self.columns()).collect()
    }

    /// Details for a table.
    fn page(&self) -> DetailPage {
        let mut page = DetailPage::default();
        for (title, value) in Self::KIND.key_titles.iter().zip(self.key()) {
            page.field(&title.to_lowercase(), value);
        }
        self.add_details(&mut page);
        page
    }
}

/// Whether a text has the form of an ID with this prefix.
pub fn is_id(prefix: &str, text: &str) -> bool {
    let digits = text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
    let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == 8 && digits.bytes().all(is_hex))
}

/// Replaces a 404 error by one that names the resource.
pub fn explain_not_found<R: Resource>(error: Failure, text: &str) -> Failure {
    if error.is_not_found() { not_found::<R>(text) } else { error }
}

/// Rejects an empty text, because it would match resources without a name.
pub fn refuse_empty<R: Resource>(text: &str) -> Result<(), Failure> {
    if text.trim().is_empty() {
        return Err(Failure::usage_with(
            format!("the ID or name of the {} is empty", R::KIND.singular),
            format!("`evenkeel {} list` lists IDs and names", R::KIND.command),
        ));
    }
    Ok(())
}

/// The only ID, or an error if there is none or more than one.
pub fn single_id<R: Resource>(text: &str, mut ids: Vec<String>) -> Result<String, Failure> {
    match ids.len() {
        1 => Ok(ids.remove(0)),
        0 => Err(not_found::<R>(text)),
        many => Err(Failure::usage_with(
            format!("{many} {} have the name `{text}`", R::KIND.plural),
            format!("use one of their IDs: {}", ids.join(", ")),
        )),
    }
}

/// Error for a resource that does not exist.
pub fn not_found<R: Resource>(text: &str) -> Failure {
    Failure::usage_with(
        format!("there is no {} `{text}`", R::KIND.singular),
        format!("`evenkeel {} list` lists all {}", R::KIND.command, R::KIND.plural),
    )
}
