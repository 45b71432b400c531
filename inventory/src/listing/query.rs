//! Query parameters of lists.

use evenkeel_domain::filter::{self, Resource};
use evenkeel_store::Tx;
use evenkeel_store::listing::{self as stored, Listing, PageKey};

use super::short_list;
use crate::extract::Params;
use crate::problem::Problem;

/// Requested part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// Size of the page. None for the whole list.
    pub size: Option<u32>,
    /// Start of the part.
    pub start: ListStart,
}

/// Start of the requested part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListStart {
    /// After this number of items.
    Offset(u32),
    /// After the previous page.
    Token(String),
}

impl PageRange {
    /// Parses the parameters.
    pub fn from_params(params: &Params) -> Result<Self, Problem> {
        let size = params.number("pageSize", 1, 100)?;
        let offset = params.number("offset", 0, u32::MAX)?;
        let start = match (params.text("pageToken"), offset) {
            (None, offset) => ListStart::Offset(offset.unwrap_or(0)),
            (Some(_), Some(_)) => {
                let why = "excludes offset: the token contains the start of the page";
                return Err(Problem::parameter("pageToken", why));
            }
            (Some(_), None) if size.is_none() => {
                return Err(Problem::parameter("pageToken", "needs pageSize"));
            }
            (Some(token), None) => ListStart::Token(token.to_owned()),
        };
        Ok(Self { size, start })
    }

    /// Number of skipped items, for lists whose tokens are offsets.
    pub fn first_offset(&self) -> Result<u32, Problem> {
        match &self.start {
            ListStart::Offset(offset) => Ok(*offset),
            ListStart::Token(token) => short_list::parse_offset_token(token),
        }
    }
}

/// Parses `filter` and `orderBy`.
pub fn parse_listing(resource: Resource, params: &Params) -> Result<Listing, Problem> {
    let filter = params
        .text("filter")
        .map(|text| filter::parse_filter(resource, text))
        .transpose()
        .map_err(|bad| Problem::invalid_expression("filter", &bad))?;
    let order = params
        .text("orderBy")
        .map(|text| filter::parse_order(resource, text))
        .transpose()
        .map_err(|bad| Problem::invalid_expression("orderBy", &bad))?;
    Ok(Listing { resource, filter, within: None, order: order.unwrap_or_default() })
}

/// Parses the token of a page of this list.
pub fn parse_page_token(token: &str, tx: &Tx, listing: &Listing) -> Result<PageKey, Problem> {
    let key = PageKey::parse(token).ok_or_else(invalid_page_token)?;
    if stored::key_matches(tx, listing, &key)? { Ok(key) } else { Err(invalid_page_token()) }
}

/// The token was not issued for this list.
pub fn invalid_page_token() -> Problem {
    let why = "is not a token of this list; use the nextPageToken of a page with the same filter and orderBy";
    Problem::parameter("pageToken", why)
}
