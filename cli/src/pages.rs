//! Lists, page by page.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Failure;
use crate::client::Client;
use crate::excerpt::caret;
use crate::resource::Resource;
use crate::view::Printer;

/// How many things a page has: the server gives no more at once.
const PAGE: u32 = 100;

/// Which of them to list, in which order, and how many.
#[derive(Clone, Debug, Default, Args)]
pub struct ListOptions {
    /// Only what fits, such as `name = "edge" AND NOT has(site)`. OR binds tighter than AND.
    #[arg(long, value_name = "FILTER", value_parser = NonEmptyStringValueParser::new())]
    filter: Option<String>,
    /// In which order, such as `name` or `name desc, resourceId` [default: by id].
    #[arg(long, value_name = "FIELDS", value_parser = NonEmptyStringValueParser::new())]
    order_by: Option<String>,
    #[command(flatten)]
    most: Limit,
}

/// How many to list.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Limit {
    /// How many to list at most [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

impl ListOptions {
    /// The part of a list that they ask for.
    pub fn query(self) -> Query {
        Query {
            filter: self.filter.map(Filter::typed),
            order_by: self.order_by,
            limit: self.most.limit,
            also: None,
        }
    }
}

impl Limit {
    /// The part of a list that it asks for.
    pub fn query(self) -> Query {
        Query {
            limit: self.limit,
            ..Query::default()
        }
    }
}

/// Which part of a list is wanted.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only what fits.
    filter: Option<Filter>,
    /// In which order.
    order_by: Option<String>,
    /// How many at most.
    limit: Option<u32>,
    /// A parameter that only this list knows.
    also: Option<(&'static str, &'static str)>,
}

impl Query {
    /// What fits a filter.
    pub fn of(filter: Filter) -> Self {
        Self {
            filter: Some(filter),
            ..Self::default()
        }
    }

    /// The same with one more condition.
    #[must_use]
    pub fn and(self, condition: &str) -> Self {
        let filter = match self.filter {
            None => Filter::own(condition),
            Some(filter) => filter.and(condition),
        };
        Self {
            filter: Some(filter),
            ..self
        }
    }

    /// The same in this order, unless another one was asked for.
    #[must_use]
    pub fn by(self, fields: &str) -> Self {
        let order_by = self.order_by.or_else(|| Some(fields.to_owned()));
        Self { order_by, ..self }
    }

    /// The same with a parameter that only this list knows.
    #[must_use]
    pub fn with(self, name: &'static str, value: &'static str) -> Self {
        Self {
            also: Some((name, value)),
            ..self
        }
    }

    /// The parameters of one page.
    fn params(&self, size: u32, place: Option<(&'static str, String)>) -> Params {
        let filter = self.filter.as_ref().map(|filter| filter.text.clone());
        let order_by = self.order_by.clone();
        [
            self.also.map(|(name, value)| (name, value.to_owned())),
            filter.map(|text| ("filter", text)),
            order_by.map(|text| ("orderBy", text)),
            Some(("pageSize", size.to_string())),
            place,
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Shows where in the text that a person typed the server stopped to understand, if that is what it says.
    fn misread(&self, error: &Failure) -> Option<Failure> {
        let Failure::Refused {
            message,
            field: Some(field),
            detail: Some(detail),
            ..
        } = error
        else {
            return None;
        };
        let (option, text, before) = match field.as_str() {
            "filter" => {
                let filter = self.filter.as_ref()?;
                ("--filter", filter.typed.as_ref()?, filter.before)
            }
            "orderBy" => ("--order-by", self.order_by.as_ref()?, 0),
            _ => return None,
        };
        let position = detail.position?;
        let before_why = format!("{field}: at {position}: ");
        let why = message.strip_prefix(&before_why).unwrap_or(message);
        let meant = detail.hint.as_ref();
        let meant = meant.map(|word| format!("did you mean `{word}`?"));
        let after_why = meant.as_deref().and_then(|meant| why.strip_suffix(meant));
        let why = after_why.map_or(why, |why| why.trim_end_matches("; "));
        Some(Failure::Misread {
            option,
            why: why.to_owned(),
            place: caret(text, position.saturating_sub(before)),
            hint: meant,
        })
    }
}

/// Shows where in a filter that a person typed the server stopped to understand, if that is what it says.
pub fn misread(filter: &str, error: Failure) -> Failure {
    let query = Query::of(Filter::typed(filter.to_owned()));
    query.misread(&error).unwrap_or(error)
}

type Params = Vec<(&'static str, String)>;

/// A filter, and which part of it a person typed.
#[derive(Clone, Debug)]
pub struct Filter {
    text: String,
    typed: Option<String>,
    /// How many letters stand before what was typed.
    before: usize,
}

impl Filter {
    /// One that a person typed.
    pub fn typed(text: String) -> Self {
        Self {
            typed: Some(text.clone()),
            text,
            before: 0,
        }
    }

    /// One of our own.
    pub fn own(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            typed: None,
            before: 0,
        }
    }

    /// The same with one more condition.
    fn and(self, condition: &str) -> Self {
        Self {
            text: format!("({}) AND {condition}", self.text),
            before: self.before + 1,
            ..self
        }
    }
}

/// The condition that a field has exactly this text; none if the text cannot stand in a filter.
pub fn exactly(field: &str, text: &str) -> Option<String> {
    let fits = |letter: char| !matches!(letter, '"' | '\\' | '*') && !letter.is_control();
    let is_plain = text.len() <= 1_000 && text.chars().all(fits);
    is_plain.then(|| format!("{field} == \"{text}\""))
}

/// The condition that one of these conditions holds, in parentheses.
pub fn any(conditions: impl IntoIterator<Item = String>) -> String {
    let all: Vec<_> = conditions.into_iter().collect();
    format!("({})", all.join(" OR "))
}

/// What the server says of a page.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    total_elements: u64,
    has_next: bool,
    /// Where the next page begins; older servers do not say.
    #[serde(default)]
    next_page_token: String,
    #[serde(flatten)]
    lists: Map<String, Value>,
}

impl Envelope {
    /// The things of the page.
    fn items<R: Resource>(&mut self) -> Result<Vec<R>, serde_json::Error> {
        let mut items = Vec::new();
        for key in R::KEYS {
            let list = self.lists.remove(*key).unwrap_or_default();
            items.append(&mut serde_json::from_value(list)?);
        }
        Ok(items)
    }
}

/// What was found, and how many there are in all.
struct Found<R> {
    items: Vec<R>,
    total: u64,
}

/// Every thing that is wanted.
pub async fn all<R: Resource>(client: &Client, query: &Query) -> Result<Vec<R>, Failure> {
    let found = walk(client, query, |_, _| Ok(())).await?;
    Ok(found.items)
}

/// Every thing that is wanted; a person at a terminal is told how far it is.
pub async fn read<R: Resource>(
    client: &Client,
    query: &Query,
    printer: &mut Printer<'_>,
) -> Result<Vec<R>, Failure> {
    let mut is_told = false;
    let many = R::MANY;
    let found = walk(client, query, |read, total| {
        is_told = true;
        printer.progress(&format!("{read} of {total} {many}"))
    })
    .await;
    if is_told {
        printer.progress("")?;
    }
    let found = found?;
    let shown = u64::try_from(found.items.len()).unwrap_or(u64::MAX);
    if query.limit.is_some() && shown < found.total {
        let total = found.total;
        printer.note(&format!("these are {shown} of {total} {many}"))?;
    }
    Ok(found.items)
}

/// Lists what is wanted.
pub async fn show<R: Resource>(
    client: &Client,
    query: &Query,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let items = read::<R>(client, query, printer).await?;
    printer.list(&items)
}

/// Goes from page to page, and tells after each but the last one how many were read and how many there are.
async fn walk<R: Resource>(
    client: &Client,
    query: &Query,
    mut tell: impl FnMut(usize, u64) -> Result<(), Failure>,
) -> Result<Found<R>, Failure> {
    let size = query.limit.map_or(PAGE, |limit| limit.min(PAGE));
    let most = query.limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    });
    let mut items: Vec<R> = Vec::new();
    let mut place = None;
    for page in 1_u64.. {
        let params = query.params(size, place.take());
        let asked = client.get_with::<Envelope>(R::PATH, &params).await;
        let mut envelope = asked.map_err(|error| query.misread(&error).unwrap_or(error))?;
        let more = envelope.items::<R>();
        let more = more.map_err(|error| client.unreadable(error))?;
        let is_empty = more.is_empty();
        items.extend(more);
        let total = envelope.total_elements;
        if items.len() >= most || is_empty || !envelope.has_next {
            items.truncate(most);
            return Ok(Found { items, total });
        }
        tell(items.len(), total)?;
        place = Some(match envelope.next_page_token {
            token if token.is_empty() => ("offset", (page * u64::from(size)).to_string()),
            token => ("pageToken", token),
        });
    }
    unreachable!("one could count for ever")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_ours_stands_behind_what_a_person_typed() {
        let query = ListOptions {
            filter: Some("name = edge OR note = x".to_owned()),
            ..ListOptions::default()
        };
        let query = query.query().and("has(site)").by("name");
        assert_eq!(
            query.params(100, None),
            [
                (
                    "filter",
                    "(name = edge OR note = x) AND has(site)".to_owned()
                ),
                ("orderBy", "name".to_owned()),
                ("pageSize", "100".to_owned()),
            ]
        );
    }

    #[test]
    fn only_what_can_be_quoted_is_asked_for() {
        assert_eq!(
            exactly("name", "edge 'x'"),
            Some("name == \"edge 'x'\"".to_owned())
        );
        for bad in ["a\"b", "a\\b", "a*", "a\nb"] {
            assert_eq!(exactly("name", bad), None, "{bad:?}");
        }
    }

    #[test]
    fn one_of_several_conditions_stands_in_parentheses() {
        let of = |id: &str| format!("resourceId == \"{id}\"");
        let text = any([of("a"), of("b")]);
        assert_eq!(text, "(resourceId == \"a\" OR resourceId == \"b\")");
    }
}
