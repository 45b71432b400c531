//! What is asked of a list.

use evenkeel_domain::filter::{self, Resource};
use evenkeel_store::Tx;
use evenkeel_store::listing::{self as stored, Key, Listing};

use super::few;
use crate::extract::Params;
use crate::problem::Problem;

/// How much of a list is asked for, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many at most; all if not given.
    pub size: Option<u32>,
    /// From where.
    pub start: Start,
}

/// Where a part of a list begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Behind this many.
    Offset(u32),
    /// Where the page before ended.
    Token(String),
}

impl Extent {
    /// Reads the parameters.
    pub fn of(params: &Params) -> Result<Self, Problem> {
        let size = params.number("pageSize", 1, 100)?;
        let offset = params.number("offset", 0, u32::MAX)?;
        let start = match (params.text("pageToken"), offset) {
            (None, offset) => Start::Offset(offset.unwrap_or(0)),
            (Some(_), Some(_)) => {
                let why = "excludes offset: the token says where to go on";
                return Err(Problem::parameter("pageToken", why));
            }
            (Some(_), None) if size.is_none() => {
                return Err(Problem::parameter("pageToken", "needs pageSize"));
            }
            (Some(token), None) => Start::Token(token.to_owned()),
        };
        Ok(Self { size, start })
    }

    /// How many are left out at the beginning, where tokens are numbers.
    pub fn first(&self) -> Result<u32, Problem> {
        match &self.start {
            Start::Offset(offset) => Ok(*offset),
            Start::Token(token) => few::offset_of(token),
        }
    }
}

/// Reads `filter` and `orderBy`.
pub fn listing(resource: Resource, params: &Params) -> Result<Listing, Problem> {
    let filter = params
        .text("filter")
        .map(|text| filter::parse(resource, text))
        .transpose()
        .map_err(|bad| Problem::not_understood("filter", &bad))?;
    let order = params
        .text("orderBy")
        .map(|text| filter::parse_order(resource, text))
        .transpose()
        .map_err(|bad| Problem::not_understood("orderBy", &bad))?;
    Ok(Listing {
        resource,
        filter,
        within: None,
        order: order.unwrap_or_default(),
    })
}

/// Reads the token of a page of this very list.
pub fn key(token: &str, tx: &Tx, listing: &Listing) -> Result<Key, Problem> {
    let key = Key::parse(token).ok_or_else(bad_token)?;
    if stored::is_of(tx, listing, &key)? {
        Ok(key)
    } else {
        Err(bad_token())
    }
}

/// A token that no page of the list has given.
pub fn bad_token() -> Problem {
    let why = "is no token of this list; give the nextPageToken of a page with the same filter and orderBy";
    Problem::parameter("pageToken", why)
}
