//! Requests that are alike for all resources: find, create, change and delete.

use std::marker::PhantomData;

use clap::error::Error as ClapError;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, Filter, ListOptions, Query, equals_condition};
use crate::output::Printer;
use crate::resource::{Resource, explain_not_found, not_found, refuse_empty, single_id};

/// Argument that names a resource by its ID or its name.
#[derive(Clone, Debug)]
pub struct ResourceArg<R> {
    text: String,
    resource: PhantomData<R>,
}

impl<R: Resource> Args for ResourceArg<R> {
    fn augment_args(command: Command) -> Command {
        let name = R::KIND.name_field.unwrap_or("name");
        let argument = Arg::new(R::KIND.argument)
            .help(format!("ID or {name} of the {}", R::KIND.argument_noun))
            .required(true);
        command.arg(argument)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: Resource> FromArgMatches for ResourceArg<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, ClapError> {
        let text = matches.get_one::<String>(R::KIND.argument).cloned().unwrap_or_default();
        Ok(Self { text, resource: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), ClapError> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<R: Resource> ResourceArg<R> {
    /// The text as the user gave it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Prints the resource.
    pub async fn print(&self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        printer.print_resource(&find::<R>(client, &self.text).await?)
    }

    /// Deletes the resource.
    pub async fn delete(&self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let id = delete::<R>(client, &self.text).await?;
        printer.print_result(R::KIND.singular, &id, "deleted")
    }
}

/// Prints the resources that the options select.
pub async fn list<R: Resource>(
    options: ListOptions,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    listing::fetch_and_print::<R>(client, &options.query(), printer).await
}

/// Creates a resource and prints it.
pub async fn create<R: Resource>(
    body: &impl Serialize,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let created: R = client.post(R::KIND.path, body).await?;
    printer.print_resource(&created)
}

/// Lists candidates with this name. Without a filter, the whole list is read.
async fn list_by_name<R: Resource>(client: &Client, name: &str) -> Result<Vec<R>, Failure> {
    let condition = R::KIND.name_field.and_then(|field| equals_condition(field, name));
    let query = condition.map(|condition| Query::from_filter(Filter::internal(condition)));
    listing::fetch_all(client, &query.unwrap_or_default()).await
}

/// Option to give a name that another resource already has.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct DuplicateOption {
    /// Accept a name that another resource of this kind already has. Commands can then name neither
    /// of them, only use their IDs.
    #[arg(long)]
    allow_duplicate: bool,
}

impl DuplicateOption {
    /// Refuses a name that another resource than `own_id` has. The server accepts it.
    pub async fn check<R: Resource>(
        self,
        client: &Client,
        name: &str,
        own_id: Option<&str>,
    ) -> Result<(), Failure> {
        if self.allow_duplicate || name.is_empty() {
            return Ok(());
        }
        let same = list_by_name::<R>(client, name).await?;
        let is_other = |item: &&R| item.name() == name && Some(item.id()) != own_id;
        match same.iter().find(is_other) {
            None => Ok(()),
            Some(other) => Err(Failure::usage_with(
                format!("the {} {} already has the name `{name}`", R::KIND.singular, other.id()),
                "choose another name, or add --allow-duplicate",
            )),
        }
    }
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

/// Deletes a resource by its ID or name. Returns its ID.
pub async fn delete<R: Resource>(client: &Client, text: &str) -> Result<String, Failure> {
    let id = resolve_id::<R>(client, text).await?;
    let done = client.delete(&R::address(&id)).await;
    done.map_err(|error| match (&error, R::KIND.in_use_hint) {
        (error, _) if error.is_not_found() => not_found::<R>(text),
        (Failure::Refused { code, message, .. }, Some(free)) if code == "FailedPrecondition" => {
            Failure::usage_with(message, free)
        }
        _ => error,
    })?;
    Ok(id)
}

/// The fields of a resource to change, as the body of a PATCH request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PatchBody(Map<String, Value>);

impl PatchBody {
    /// Sets a field, if there is a value. A null is a value.
    pub fn set(&mut self, field: &str, value: Option<impl Into<Value>>) -> &mut Self {
        self.0.extend(value.map(|value| (field.to_owned(), value.into())));
        self
    }

    /// Whether no field changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
