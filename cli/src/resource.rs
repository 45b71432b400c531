//! What all things have in common that can be listed, looked up and deleted.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::client::Client;
use crate::pages::{self, Filter, Query, exactly};
use crate::view::{Cell, Page};

/// A thing of a project.
pub trait Resource: Serialize + DeserializeOwned {
    /// What it is called on the command line.
    const NOUN: &'static str;
    /// What one is called.
    const WORD: &'static str;
    /// What many are called.
    const MANY: &'static str;
    /// What stands before the dash of its id.
    const PREFIX: &'static str;
    /// Where they are listed.
    const PATH: &'static str;
    /// Under which names the answer lists them.
    const KEYS: &'static [&'static str];
    /// The field with its name, as filters have it; none if their list takes no filter.
    const NAMED_BY: Option<&'static str> = Some("name");
    /// What to do when it cannot be deleted because something needs it.
    const FREE: Option<&'static str> = None;
    /// The titles of [`Resource::row`].
    const HEADER: &'static [&'static str];

    /// Whether a text has the form of its ids.
    fn is_id(text: &str) -> bool {
        is_id(Self::PREFIX, text)
    }
    /// Where the one with this id is.
    fn address(id: &str) -> String {
        format!("{}/{id}", Self::PATH)
    }
    /// Its id.
    fn id(&self) -> &str;
    /// Its name, which need not be unique.
    fn name(&self) -> &str;
    /// What a list shows of it.
    fn row(&self) -> Vec<Cell>;
    /// What a person reads of it.
    fn page(&self) -> Page;
}

/// Whether a text has the form of the ids of a kind.
pub fn is_id(prefix: &str, text: &str) -> bool {
    let digits = text
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('-'));
    let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == 8 && digits.bytes().all(is_hex))
}

/// Everything that may have this name; a list that takes no filter is read whole.
async fn named<R: Resource>(client: &Client, name: &str) -> Result<Vec<R>, Failure> {
    let condition = R::NAMED_BY.and_then(|field| exactly(field, name));
    let query = condition.map(|condition| Query::of(Filter::own(condition)));
    pages::all(client, &query.unwrap_or_default()).await
}

/// The id of the thing that a person means by an id or a name.
pub async fn id_of<R: Resource>(client: &Client, text: &str) -> Result<String, Failure> {
    if R::is_id(text) {
        return Ok(text.to_owned());
    }
    refuse_empty::<R>(text)?;
    let named = named::<R>(client, text).await?;
    let named = named.into_iter().filter(|item| item.name() == text);
    only::<R>(text, named.map(|item| item.id().to_owned()).collect())
}

/// The id of the thing that a person may have meant, if one was.
pub async fn optional_id_of<R: Resource>(
    client: &Client,
    text: Option<&str>,
) -> Result<Option<String>, Failure> {
    match text {
        None => Ok(None),
        Some(text) => id_of::<R>(client, text).await.map(Some),
    }
}

/// The thing that a person means by an id or a name, in full.
pub async fn find<R: Resource>(client: &Client, text: &str) -> Result<R, Failure> {
    let id = id_of::<R>(client, text).await?;
    let found = client.get(&R::address(&id)).await;
    found.map_err(|error| gone::<R>(error, text))
}

/// Changes the thing with this id, which a person calls so.
pub async fn change<R: Resource>(
    client: &Client,
    id: &str,
    text: &str,
    body: &impl Serialize,
) -> Result<R, Failure> {
    let changed = client.patch(&R::address(id), body).await;
    changed.map_err(|error| gone::<R>(error, text))
}

/// Says that there is no such thing, if that is what the server says.
pub fn gone<R: Resource>(error: Failure, text: &str) -> Failure {
    if error.is_not_found() {
        nothing::<R>(text)
    } else {
        error
    }
}

/// Deletes the thing that a person means and answers with its id.
pub async fn delete<R: Resource>(client: &Client, text: &str) -> Result<String, Failure> {
    let id = id_of::<R>(client, text).await?;
    let done = client.delete(&R::address(&id)).await;
    done.map_err(|error| match (&error, R::FREE) {
        (error, _) if error.is_not_found() => nothing::<R>(text),
        (Failure::Refused { code, message, .. }, Some(free)) if code == "FailedPrecondition" => {
            Failure::usage_with(message, free)
        }
        _ => error,
    })?;
    Ok(id)
}

/// An empty text means nothing: things without a name must not be found by it.
pub fn refuse_empty<R: Resource>(text: &str) -> Result<(), Failure> {
    if text.trim().is_empty() {
        return Err(Failure::usage_with(
            format!("an empty text means no {}", R::WORD),
            format!("`evenkeel {} list` shows the ids and names", R::NOUN),
        ));
    }
    Ok(())
}

/// The only id of these, or what is wrong with them.
pub fn only<R: Resource>(text: &str, mut ids: Vec<String>) -> Result<String, Failure> {
    match ids.len() {
        1 => Ok(ids.remove(0)),
        0 => Err(nothing::<R>(text)),
        many => Err(Failure::usage_with(
            format!("{many} {} are called `{text}`", R::MANY),
            format!("say which by its id: {}", ids.join(", ")),
        )),
    }
}

/// Says that there is no such thing.
pub fn nothing<R: Resource>(text: &str) -> Failure {
    Failure::usage_with(
        format!("there is no {} `{text}`", R::WORD),
        format!("`evenkeel {} list` shows what there is", R::NOUN),
    )
}
