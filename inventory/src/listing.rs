//! Lists: what is asked for, and how it is told.
//!
//! Everything that has a row in `evenkeel_domain::filter` is [`Listed`]: filtered and ordered by the database, told as a
//! page or, if nobody asks for pages, as a stream from a cursor, so that a list of any length needs little memory. What is
//! always few is cut out of all of it ([`few`]).

mod asked;
pub mod few;
mod text;
mod whole;

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

use crate::call::Call;
use crate::extract::Params;
use crate::problem::Problem;
use crate::{App, Inventory};
use asked::{Extent, Start};
use text::{End, Text};

/// The parameters of every list that can be filtered, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the values"
)]
pub struct ListParams {
    /// Only what this is true of (AIP-160): `name = "edge" AND site.region.name = "south"`. `=` on text is part of it, in
    /// any case; `==` is all of it. `OR` binds tighter than `AND`.
    #[param(min_length = 1, max_length = 4000)]
    filter: Option<String>,
    /// The fields to order by, separated by commas, each with `desc` if it is to fall: `name, hostStatusTimestamp desc`.
    /// By id if it is left out.
    #[param(min_length = 1, max_length = 1000)]
    order_by: Option<String>,
    /// How many to list at most; all if it is left out.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// How many to leave out at the beginning.
    #[param(minimum = 0)]
    offset: Option<u32>,
    /// Where to go on: the `nextPageToken` of the page before, with the same `filter` and `orderBy`. It needs `pageSize` and
    /// excludes `offset`.
    #[param(min_length = 1)]
    page_token: Option<String>,
}

/// What a resource does to be listed.
pub trait Listed: Send + Sync + 'static {
    /// What it is called in filters.
    const RESOURCE: Resource;
    /// What the list is called in the answer.
    const KEY: &'static str;
    /// How many of a whole list are in memory at once: fewer of what can be large.
    const PIECE: u32 = 250;
    /// How it is shown.
    type Item: Serialize + Send;

    /// Shows those with these ids, in the order of the ids. What is gone is left out.
    fn load(
        &self,
        app: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> impl Future<Output = Result<Vec<Self::Item>, Problem>> + Send;
}

/// Something that is [`Listed`], whatever it is.
pub trait Rows: Send + Sync {
    /// What it is called in filters.
    fn resource(&self) -> Resource;

    /// What the list is called in the answer.
    fn key(&self) -> &'static str;

    /// How many of a whole list are in memory at once.
    fn piece(&self) -> u32;

    /// Adds those with these ids to a text, in the order of the ids.
    fn tell<'a>(
        &'a self,
        app: &'a Inventory,
        tx: &'a Tx,
        ids: &'a [u32],
        text: &'a mut Text,
    ) -> BoxFuture<'a, Result<(), Problem>>;
}

impl<L: Listed> Rows for L {
    fn resource(&self) -> Resource {
        L::RESOURCE
    }

    fn key(&self) -> &'static str {
        L::KEY
    }

    fn piece(&self) -> u32 {
        L::PIECE
    }

    fn tell<'a>(
        &'a self,
        app: &'a Inventory,
        tx: &'a Tx,
        ids: &'a [u32],
        text: &'a mut Text,
    ) -> BoxFuture<'a, Result<(), Problem>> {
        Box::pin(async move {
            let items = self.load(app, tx, ids).await?;
            text.push(&items)
        })
    }
}

/// Answers with a list.
pub async fn answer<L: Listed>(
    list: L,
    app: &App,
    call: &Call,
    params: &Params,
) -> Result<Response, Problem> {
    let wanted = Wanted::of(vec![Box::new(list)], params)?;
    let tx = app.snapshot(call).await?;
    wanted.answer(app, call, tx).await
}

/// Lists that are told in one answer, each with its own key.
pub struct Wanted {
    parts: Vec<Part>,
    extent: Extent,
}

/// One of the lists of an answer.
pub struct Part {
    /// What is listed.
    pub rows: Box<dyn Rows>,
    /// Which of it, in which order.
    pub listing: stored::Listing,
}

impl Wanted {
    /// Reads what is asked for, before anybody is asked who asks.
    pub fn of(lists: Vec<Box<dyn Rows>>, params: &Params) -> Result<Self, Problem> {
        let extent = Extent::of(params)?;
        let part = |rows: Box<dyn Rows>| {
            let listing = asked::listing(rows.resource(), params)?;
            Ok::<_, Problem>(Part { rows, listing })
        };
        let parts: Result<Vec<Part>, Problem> = lists.into_iter().map(part).collect();
        Ok(Self {
            parts: parts?,
            extent,
        })
    }

    /// The lists.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Adds a condition to each list that has one. It is not asked for but found out, and may differ from page to page.
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

    /// Answers with what is asked for, as one transaction sees it.
    pub async fn answer(self, app: &App, call: &Call, tx: Tx) -> Result<Response, Problem> {
        match self.extent.size {
            Some(size) => self.page(size, app, tx).await,
            None => whole::answer(self.parts, self.extent.first()?, app, call, tx).await,
        }
    }

    /// A page of each list.
    async fn page(self, size: u32, app: &App, tx: Tx) -> Result<Response, Problem> {
        let is_joint = self.parts.len() > 1;
        let (mut text, mut total, mut next) = (Text::default(), 0, None);
        for part in &self.parts {
            let from = match &self.extent.start {
                Start::Offset(offset) => stored::From::Offset((*offset).into()),
                Start::Token(token) if is_joint => {
                    stored::From::Offset(few::offset_of(token)?.into())
                }
                Start::Token(token) => stored::From::After(asked::key(token, &tx, &part.listing)?),
            };
            let chosen = stored::page(&tx, &part.listing, &from, size.into()).await?;
            text.begin(part.rows.key());
            part.rows.tell(app, &tx, &chosen.ids, &mut text).await?;
            text.end();
            total += chosen.total;
            next = next.or(chosen.next);
        }
        let next = match next {
            None => None,
            Some(_) if is_joint => Some(few::token(self.extent.first()?.saturating_add(size))),
            Some(key) => Some(key.token()),
        };
        let end = End { total, next };
        Ok(json(text.finish(&end)))
    }
}

/// An answer of JSON that is written already.
fn json(body: impl Into<Body>) -> Response {
    let media_type = HeaderValue::from_static("application/json");
    let body: Body = body.into();
    ([(CONTENT_TYPE, media_type)], body).into_response()
}
