//! Lists that are read page by page.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Failure;
use crate::client::Client;
use crate::excerpt::excerpt_with_caret;
use crate::output::Printer;
use crate::resource::Resource;

/// Maximum page size of the server.
const MAX_PAGE_SIZE: u32 = 100;

/// Options of list commands.
#[derive(Clone, Debug, Default, Args)]
pub struct ListOptions {
    /// List only resources that match this filter, such as `name = "edge" AND NOT has(site)`. OR binds
    /// tighter than AND.
    #[arg(long, value_name = "FILTER", value_parser = NonEmptyStringValueParser::new())]
    filter: Option<String>,
    /// Sort order, such as `name` or `name desc, resourceId` [default: by ID; runs: by start, the
    /// latest first].
    #[arg(long, value_name = "FIELDS", value_parser = NonEmptyStringValueParser::new())]
    order_by: Option<String>,
    #[command(flatten)]
    limit: LimitOptions,
}

/// Options of list commands without a filter.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct LimitOptions {
    /// Maximum number of resources to list [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

impl ListOptions {
    /// The query for these options.
    pub fn query(self) -> Query {
        Query {
            filter: self.filter.map(Filter::from_user),
            order_by: self.order_by,
            limit: self.limit.limit,
            extra_param: None,
        }
    }
}

impl LimitOptions {
    /// The query for these options.
    pub fn query(self) -> Query {
        Query { limit: self.limit, ..Query::default() }
    }
}

/// Query of a list.
#[derive(Clone, Debug, Default)]
pub struct Query {
    filter: Option<Filter>,
    order_by: Option<String>,
    /// Maximum number of resources.
    limit: Option<u32>,
    /// Parameter that only this list accepts.
    extra_param: Option<(&'static str, &'static str)>,
}

impl Query {
    /// A query with a filter.
    pub fn from_filter(filter: Filter) -> Self {
        Self { filter: Some(filter), ..Self::default() }
    }

    /// Adds a condition.
    #[must_use]
    pub fn and_condition(self, condition: &str) -> Self {
        let filter = match self.filter {
            None => Filter::internal(condition),
            Some(filter) => filter.and_condition(condition),
        };
        Self { filter: Some(filter), ..self }
    }

    /// Sets the order, unless the user gave one.
    #[must_use]
    pub fn default_order(self, fields: &str) -> Self {
        let order_by = self.order_by.or_else(|| Some(fields.to_owned()));
        Self { order_by, ..self }
    }

    /// Adds a parameter that only this list accepts.
    #[must_use]
    pub fn with_param(self, name: &'static str, value: &'static str) -> Self {
        Self { extra_param: Some((name, value)), ..self }
    }

    /// Query parameters of one page.
    fn params(&self, size: u32, position: Option<(&'static str, String)>) -> Params {
        let filter = self.filter.as_ref().map(|filter| filter.text.clone());
        let order_by = self.order_by.clone();
        [
            self.extra_param.map(|(name, value)| (name, value.to_owned())),
            filter.map(|text| ("filter", text)),
            order_by.map(|text| ("orderBy", text)),
            Some(("pageSize", size.to_string())),
            position,
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Marks the position of an error in the user's filter or order, if the server reports one.
    fn locate_error(&self, error: &Failure) -> Option<Failure> {
        let Failure::Refused { message, field: Some(field), detail: Some(detail), .. } = error
        else {
            return None;
        };
        let (option, text, before) = match field.as_str() {
            "filter" => {
                let filter = self.filter.as_ref()?;
                ("--filter", filter.user_text.as_ref()?, filter.prefix_chars)
            }
            "orderBy" => ("--order-by", self.order_by.as_ref()?, 0),
            _ => return None,
        };
        let position = detail.position?;
        let before_why = format!("{field}: at {position}: ");
        let why = message.strip_prefix(&before_why).unwrap_or(message);
        let meant = detail.hint.as_ref();
        let meant = meant.map(|suggestion| format!("did you mean `{suggestion}`?"));
        let after_why = meant.as_deref().and_then(|meant| why.strip_suffix(meant));
        let why = after_why.map_or(why, |why| why.trim_end_matches("; "));
        Some(Failure::InvalidExpression {
            option,
            reason: why.to_owned(),
            excerpt: excerpt_with_caret(text, position.saturating_sub(before)),
            hint: meant,
        })
    }
}

/// Marks the position of an error in the user's filter, if the server reports one.
pub fn locate_error(filter: &str, error: Failure) -> Failure {
    let query = Query::from_filter(Filter::from_user(filter.to_owned()));
    query.locate_error(&error).unwrap_or(error)
}

type Params = Vec<(&'static str, String)>;

/// A filter, and the part of it that the user typed.
#[derive(Clone, Debug)]
pub struct Filter {
    text: String,
    user_text: Option<String>,
    /// Number of characters before the part that the user typed.
    prefix_chars: usize,
}

impl Filter {
    /// A filter that the user typed.
    pub fn from_user(text: String) -> Self {
        Self { user_text: Some(text.clone()), text, prefix_chars: 0 }
    }

    /// A filter of the program.
    pub fn internal(text: impl Into<String>) -> Self {
        Self { text: text.into(), user_text: None, prefix_chars: 0 }
    }

    /// Adds a condition.
    fn and_condition(self, condition: &str) -> Self {
        Self {
            text: format!("({}) AND {condition}", self.text),
            prefix_chars: self.prefix_chars + 1,
            ..self
        }
    }
}

/// Condition that a field equals a text; `None` if the text cannot be quoted in a filter.
pub fn equals_condition(field: &str, text: &str) -> Option<String> {
    let fits = |letter: char| !matches!(letter, '"' | '\\' | '*') && !letter.is_control();
    let is_plain = text.len() <= 1_000 && text.chars().all(fits);
    is_plain.then(|| format!("{field} == \"{text}\""))
}

/// Condition that at least one of the conditions holds, in parentheses.
pub fn any_condition(conditions: impl IntoIterator<Item = String>) -> String {
    let all: Vec<_> = conditions.into_iter().collect();
    format!("({})", all.join(" OR "))
}

/// Response of a list request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListResponse {
    total_elements: u64,
    has_next: bool,
    /// Token of the next page; older servers do not send it.
    #[serde(default)]
    next_page_token: String,
    /// Number of resources of the page that the server cannot read.
    #[serde(default)]
    unreadable_elements: u64,
    #[serde(flatten)]
    lists: Map<String, Value>,
}

impl ListResponse {
    /// Takes the resources of the page.
    fn take_items<R: Resource>(&mut self) -> Result<Vec<R>, serde_json::Error> {
        let mut items = Vec::new();
        for key in [R::KIND.list_key].into_iter().chain(R::KIND.second_list_key) {
            let list = self.lists.remove(key).unwrap_or_default();
            items.append(&mut serde_json::from_value(list)?);
        }
        Ok(items)
    }
}

/// The resources of all pages, and the total number on the server.
struct ListResult<R> {
    items: Vec<R>,
    total: u64,
    unreadable: u64,
}

/// Fetches all resources of a query.
pub async fn fetch_all<R: Resource>(client: &Client, query: &Query) -> Result<Vec<R>, Failure> {
    let result = fetch_pages(client, query, |_, _| Ok(())).await?;
    Ok(result.items)
}

/// Fetches all resources of a query, and shows the progress on a terminal.
pub async fn fetch_with_progress<R: Resource>(
    client: &Client,
    query: &Query,
    printer: &mut Printer<'_>,
) -> Result<Vec<R>, Failure> {
    let mut has_progress = false;
    let many = R::KIND.plural;
    let result = fetch_pages(client, query, |read, total| {
        has_progress = true;
        printer.show_progress(&format!("{read} of {total} {many}"))
    })
    .await;
    if has_progress {
        printer.show_progress("")?;
    }
    let result = result?;
    let count = u64::try_from(result.items.len()).unwrap_or(u64::MAX);
    if query.limit.is_some() && count < result.total {
        let total = result.total;
        printer.print_note(&format!("showing {count} of {total} {many}"))?;
    }
    if result.unreadable > 0 {
        let count = result.unreadable;
        printer.print_note(&format!(
            "{count} {many} are missing: the server cannot read them; its log says why"
        ))?;
    }
    Ok(result.items)
}

/// Fetches and prints all resources of a query.
pub async fn fetch_and_print<R: Resource>(
    client: &Client,
    query: &Query,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let items = fetch_with_progress::<R>(client, query, printer).await?;
    printer.print_list(&items)
}

/// Fetches page by page. Reports the number of fetched and of all resources after each page but the
/// last.
async fn fetch_pages<R: Resource>(
    client: &Client,
    query: &Query,
    mut on_page: impl FnMut(usize, u64) -> Result<(), Failure>,
) -> Result<ListResult<R>, Failure> {
    let size = query.limit.map_or(MAX_PAGE_SIZE, |limit| limit.min(MAX_PAGE_SIZE));
    let most = query.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let (mut items, mut unreadable): (Vec<R>, u64) = (Vec::new(), 0);
    let mut position = None;
    for page in 1_u64.. {
        let params = query.params(size, position.take());
        let response = client.get_with_params::<ListResponse>(R::KIND.path, &params).await;
        let mut envelope = response.map_err(|error| query.locate_error(&error).unwrap_or(error))?;
        let more = envelope.take_items::<R>();
        let more = more.map_err(|error| client.unreadable_response(error))?;
        let is_empty = more.is_empty() && envelope.unreadable_elements == 0;
        unreadable += envelope.unreadable_elements;
        items.extend(more);
        let total = envelope.total_elements;
        if items.len() >= most || is_empty || !envelope.has_next {
            items.truncate(most);
            return Ok(ListResult { items, total, unreadable });
        }
        on_page(items.len(), total)?;
        position = Some(match envelope.next_page_token {
            token if token.is_empty() => ("offset", (page * u64::from(size)).to_string()),
            token => ("pageToken", token),
        });
    }
    unreachable!("the loop ends only by return")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_internal_condition_follows_the_typed_filter() {
        let query = ListOptions {
            filter: Some("name = edge OR note = x".to_owned()),
            ..ListOptions::default()
        };
        let query = query.query().and_condition("has(site)").default_order("name");
        assert_eq!(
            query.params(100, None),
            [
                ("filter", "(name = edge OR note = x) AND has(site)".to_owned()),
                ("orderBy", "name".to_owned()),
                ("pageSize", "100".to_owned()),
            ]
        );
    }

    #[test]
    fn only_text_that_can_be_quoted_becomes_a_condition() {
        assert_eq!(equals_condition("name", "edge 'x'"), Some("name == \"edge 'x'\"".to_owned()));
        for bad in ["a\"b", "a\\b", "a*", "a\nb"] {
            assert_eq!(equals_condition("name", bad), None, "{bad:?}");
        }
    }

    #[test]
    fn alternative_conditions_are_put_in_parentheses() {
        let of = |id: &str| format!("resourceId == \"{id}\"");
        let text = any_condition([of("a"), of("b")]);
        assert_eq!(text, "(resourceId == \"a\" OR resourceId == \"b\")");
    }
}
