//! Lists: their parameters and their responses.
//!
//! Every resource in `evenkeel_domain::filter` is [`Listable`]: the database filters and orders it.
//! The response is a page, or without `pageSize` a stream from a cursor, so that a list of any
//! length needs little memory. Lists that are always short are loaded completely and then cut
//! ([`short_list`]).

mod list_json;
mod query;
pub mod short_list;
mod streaming;

use std::future::Future;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use evenkeel_domain::filter::{Filter, Resource};
use evenkeel_store::Tx;
use evenkeel_store::listing as stored;
use futures_util::future::BoxFuture;
use serde::Serialize;
use utoipa::IntoParams;

use crate::app::ExpensiveListPermit;
use crate::call::Call;
use crate::extract::Params;
use crate::problem::Problem;
use list_json::{ListJson, ListTail};
use query::{ListStart, PageRange};

/// Query parameters of lists with filters.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the values")]
pub struct ListParams {
    /// Filter of at most 4,000 characters, in the language that the section Filters describes: only
    /// matching resources are listed and counted.
    #[param(min_length = 1, max_length = 4000)]
    filter: Option<String>,
    /// Fields of the resource to order by, separated by commas, each with an optional `asc` or
    /// `desc`; every field at most once. Equal resources, and by default all, are ordered by ID.
    #[param(min_length = 1, max_length = 1000)]
    order_by: Option<String>,
    /// Size of a page, from 1 to 100. Without it the response contains the whole list.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// Number of items to skip at the beginning; by default 0.
    #[param(minimum = 0)]
    offset: Option<u32>,
    /// `nextPageToken` of the previous page, to be used with the same `filter` and `orderBy`. It
    /// requires `pageSize` and excludes `offset`.
    #[param(min_length = 1)]
    page_token: Option<String>,
}

/// A resource that can be listed.
pub trait Listable: Send + Sync + 'static {
    /// The resource in filters.
    const RESOURCE: Resource;
    /// Key of the list in the response.
    const KEY: &'static str;
    /// Number of items in memory at once, when a whole list is streamed. Lower for resources that
    /// can be large.
    const CHUNK_SIZE: u32 = 250;
    /// REST form of the resource.
    type Item: Serialize + Send;

    /// Loads the items with these ids, in the same order. Items that cannot be read are omitted.
    fn load(
        &self,
        tx: &Tx,
        ids: &[u32],
    ) -> impl Future<Output = Result<Vec<Self::Item>, Problem>> + Send;
}

/// Object-safe form of [`Listable`].
pub trait ListSource: Send + Sync {
    /// The resource in filters.
    fn resource(&self) -> Resource;

    /// Key of the list in the response.
    fn key(&self) -> &'static str;

    /// Number of items in memory at once.
    fn chunk_size(&self) -> u32;

    /// Loads the items with these ids and writes them, in the same order.
    fn write_items<'a>(
        &'a self,
        tx: &'a Tx,
        ids: &'a [u32],
        text: &'a mut ListJson,
    ) -> BoxFuture<'a, Result<(), Problem>>;
}

impl<L: Listable> ListSource for L {
    fn resource(&self) -> Resource {
        L::RESOURCE
    }

    fn key(&self) -> &'static str {
        L::KEY
    }

    fn chunk_size(&self) -> u32 {
        L::CHUNK_SIZE
    }

    fn write_items<'a>(
        &'a self,
        tx: &'a Tx,
        ids: &'a [u32],
        text: &'a mut ListJson,
    ) -> BoxFuture<'a, Result<(), Problem>> {
        Box::pin(async move {
            let items = self.load(tx, ids).await?;
            // The snapshot contains every resource that it listed.
            text.count_unreadable(ids.len().saturating_sub(items.len()));
            text.push(&items)
        })
    }
}

/// Responds with a list.
pub async fn answer<L: Listable>(
    list: L,
    call: &Call,
    params: &Params,
) -> Result<Response, Problem> {
    let mut request = ListRequest::from_params(vec![Box::new(list)], params)?;
    let tx = request.open(call).await?;
    request.answer(call, tx).await
}

/// Request for one or more lists in one response, each with its own key.
pub struct ListRequest {
    parts: Vec<ListPart>,
    range: PageRange,
    /// Held while the database reads a list with an expensive filter.
    permit: Option<ExpensiveListPermit>,
}

/// One of the lists of a response.
pub struct ListPart {
    /// The resource to list.
    pub rows: Box<dyn ListSource>,
    /// Filter and order.
    pub listing: stored::Listing,
}

impl ListRequest {
    /// Parses the query parameters. Called before the token is verified.
    pub fn from_params(lists: Vec<Box<dyn ListSource>>, params: &Params) -> Result<Self, Problem> {
        let extent = PageRange::from_params(params)?;
        let part = |rows: Box<dyn ListSource>| {
            let listing = query::parse_listing(rows.resource(), params)?;
            Ok::<_, Problem>(ListPart { rows, listing })
        };
        let parts: Result<Vec<ListPart>, Problem> = lists.into_iter().map(part).collect();
        Ok(Self { parts: parts?, range: extent, permit: None })
    }

    /// Opens the transaction that reads the lists. A request with an expensive filter waits for
    /// others before it takes a connection.
    pub async fn open(&mut self, call: &Call) -> Result<Tx, Problem> {
        let costs = self.parts.iter().filter_map(|part| part.listing.filter.as_ref());
        let cost = costs.map(Filter::cost).sum();
        self.permit = wait_for_turn(call, cost).await?;
        call.snapshot().await
    }

    /// The lists of the response.
    pub fn parts(&self) -> &[ListPart] {
        &self.parts
    }

    /// Adds a condition to each list for which `also` returns one. The condition may differ between
    /// pages.
    pub fn narrow(&mut self, mut also: impl FnMut(Resource) -> Option<Filter>) {
        for part in &mut self.parts {
            let filters = [part.listing.within.take(), also(part.rows.resource())];
            let mut filters: Vec<Filter> = filters.into_iter().flatten().collect();
            part.listing.within = match filters.len() {
                0 | 1 => filters.pop(),
                _ => Some(Filter::All(filters)),
            };
        }
    }

    /// Responds with the lists, as the transaction sees them.
    pub async fn answer(self, call: &Call, tx: Tx) -> Result<Response, Problem> {
        match self.range.size {
            Some(size) => self.answer_page(size, tx).await,
            None => streaming::answer(self, call, tx).await,
        }
    }

    /// Responds with a page of each list.
    async fn answer_page(self, size: u32, tx: Tx) -> Result<Response, Problem> {
        let is_joint = self.parts.len() > 1;
        let (mut text, mut total, mut next) = (ListJson::default(), 0, None);
        for part in &self.parts {
            let from = match &self.range.start {
                ListStart::Offset(offset) => stored::PageStart::Offset((*offset).into()),
                ListStart::Token(token) if is_joint => {
                    stored::PageStart::Offset(short_list::parse_offset_token(token)?.into())
                }
                ListStart::Token(token) => {
                    stored::PageStart::After(query::parse_page_token(token, &tx, &part.listing)?)
                }
            };
            let chosen = stored::page(&tx, &part.listing, &from, size.into()).await?;
            text.begin(part.rows.key());
            part.rows.write_items(&tx, &chosen.ids, &mut text).await?;
            text.end();
            total += chosen.total;
            next = next.or(chosen.next);
        }
        let next = match next {
            None => None,
            Some(_) if is_joint => {
                Some(short_list::offset_token(self.range.first_offset()?.saturating_add(size)))
            }
            Some(key) => Some(key.token()),
        };
        let end = ListTail { total, next };
        Ok(json_response(text.finish(&end)))
    }
}

/// Waits for permission to read or count resources with a filter of this cost. None if the filter is
/// not expensive.
pub async fn wait_for_turn(
    call: &Call,
    cost: usize,
) -> Result<Option<ExpensiveListPermit>, Problem> {
    if cost < Filter::EXPENSIVE_COST {
        return Ok(None);
    }
    let permit = call.app.expensive_lists.acquire(&call.list_reader()?).await.ok_or_else(|| {
        Problem::overloaded(if call.app.settings.max_expensive_lists == 0 {
            "this server answers no lists with expensive filters; use a simpler filter, or set rest.max_expensive_lists"
        } else {
            "too many lists with expensive filters are requested; try again in a moment, or use a simpler filter"
        })
    })?;
    Ok(Some(permit))
}

/// A response with JSON that is already serialized.
fn json_response(body: impl Into<Body>) -> Response {
    let media_type = HeaderValue::from_static("application/json");
    let body: Body = body.into();
    ([(CONTENT_TYPE, media_type)], body).into_response()
}
