//! Common behaviour of resources: list, find, change and delete.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, Filter, Query, equals_condition};
use crate::output::{Cell, DetailPage};

/// A resource of a project.
pub trait Resource: Serialize + DeserializeOwned {
    /// Name of its command, such as `custom-config`.
    const COMMAND: &'static str;
    /// Name of one resource.
    const SINGULAR: &'static str;
    /// Name of several resources.
    const PLURAL: &'static str;
    /// Prefix of its IDs, before the dash.
    const ID_PREFIX: &'static str;
    /// Path of the list below the project.
    const PATH: &'static str;
    /// JSON keys of the lists in a list response.
    const LIST_KEYS: &'static [&'static str];
    /// Filter field with the name; `None` if the list has no filter.
    const NAME_FIELD: Option<&'static str> = Some("name");
    /// Hint if it cannot be deleted because it is in use.
    const IN_USE_HINT: Option<&'static str> = None;
    /// Column titles of [`Resource::row`].
    const HEADER: &'static [&'static str];

    /// Whether a text has the form of an ID of this resource.
    fn is_id(text: &str) -> bool {
        is_id(Self::ID_PREFIX, text)
    }
    /// Path of the resource with this ID, below the project.
    fn address(id: &str) -> String {
        format!("{}/{id}", Self::PATH)
    }
    fn id(&self) -> &str;
    /// Its name, which may be ambiguous.
    fn name(&self) -> &str;
    /// Row of a list.
    fn row(&self) -> Vec<Cell>;
    /// Details for a table.
    fn page(&self) -> DetailPage;
}

/// Whether a text has the form of an ID with this prefix.
pub fn is_id(prefix: &str, text: &str) -> bool {
    let digits = text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
    let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == 8 && digits.bytes().all(is_hex))
}

/// Lists candidates with this name. Without a filter, the whole list is read.
async fn list_by_name<R: Resource>(client: &Client, name: &str) -> Result<Vec<R>, Failure> {
    let condition = R::NAME_FIELD.and_then(|field| equals_condition(field, name));
    let query = condition.map(|condition| Query::from_filter(Filter::internal(condition)));
    listing::fetch_all(client, &query.unwrap_or_default()).await
}

/// Resolves an ID or a name to an ID.
pub async fn resolve_id<R: Resource>(client: &Client, text: &str) -> Result<String, Failure> {
    if R::is_id(text) {
        return Ok(text.to_owned());
    }
    refuse_empty::<R>(text)?;
    let matches = list_by_name::<R>(client, text).await?;
    let matches = matches.into_iter().filter(|item| item.name() == text);
    single_id::<R>(text, matches.map(|item| item.id().to_owned()).collect())
}

/// Resolves an optional ID or name to an ID.
pub async fn resolve_optional_id<R: Resource>(
    client: &Client,
    text: Option<&str>,
) -> Result<Option<String>, Failure> {
    match text {
        None => Ok(None),
        Some(text) => resolve_id::<R>(client, text).await.map(Some),
    }
}

/// Finds a resource by its ID or name.
pub async fn find<R: Resource>(client: &Client, text: &str) -> Result<R, Failure> {
    let id = resolve_id::<R>(client, text).await?;
    let response = client.get(&R::address(&id)).await;
    response.map_err(|error| explain_not_found::<R>(error, text))
}

/// Patches the resource with this ID; `text` is the ID or name that the user gave.
pub async fn patch<R: Resource>(
    client: &Client,
    id: &str,
    text: &str,
    body: &impl Serialize,
) -> Result<R, Failure> {
    let changed = client.patch(&R::address(id), body).await;
    changed.map_err(|error| explain_not_found::<R>(error, text))
}

/// Replaces a 404 error by one that names the resource.
pub fn explain_not_found<R: Resource>(error: Failure, text: &str) -> Failure {
    if error.is_not_found() { not_found::<R>(text) } else { error }
}

/// Deletes a resource by its ID or name. Returns its ID.
pub async fn delete<R: Resource>(client: &Client, text: &str) -> Result<String, Failure> {
    let id = resolve_id::<R>(client, text).await?;
    let done = client.delete(&R::address(&id)).await;
    done.map_err(|error| match (&error, R::IN_USE_HINT) {
        (error, _) if error.is_not_found() => not_found::<R>(text),
        (Failure::Refused { code, message, .. }, Some(free)) if code == "FailedPrecondition" => {
            Failure::usage_with(message, free)
        }
        _ => error,
    })?;
    Ok(id)
}

/// Rejects an empty text, because it would match resources without a name.
pub fn refuse_empty<R: Resource>(text: &str) -> Result<(), Failure> {
    if text.trim().is_empty() {
        return Err(Failure::usage_with(
            format!("the ID or name of the {} is empty", R::SINGULAR),
            format!("`evenkeel {} list` lists IDs and names", R::COMMAND),
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
            format!("{many} {} have the name `{text}`", R::PLURAL),
            format!("use one of their IDs: {}", ids.join(", ")),
        )),
    }
}

/// Error for a resource that does not exist.
pub fn not_found<R: Resource>(text: &str) -> Failure {
    Failure::usage_with(
        format!("there is no {} `{text}`", R::SINGULAR),
        format!("`evenkeel {} list` lists all {}", R::COMMAND, R::PLURAL),
    )
}
