//! Lists that are always short: loaded completely, then cut.

use utoipa::IntoParams;

use super::query::{PageRange, invalid_page_token};
use crate::extract::Params;
use crate::problem::Problem;

/// Query parameters of lists without filters.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the values")]
pub struct PageParams {
    /// Size of a page, from 1 to 100. Without it the response contains the whole list.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// Number of items to skip at the beginning; by default 0.
    #[param(minimum = 0)]
    offset: Option<u32>,
    /// `nextPageToken` of the previous page. It requires `pageSize` and excludes `offset`.
    #[param(min_length = 1)]
    page_token: Option<String>,
}

/// Requested part of a short list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageQuery {
    size: Option<u32>,
    offset: u32,
}

/// Part of a short list, with the fields of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage<T> {
    /// Items of the part.
    pub items: Vec<T>,
    /// Number of items in the whole list.
    pub total_elements: i32,
    /// Whether more items follow.
    pub has_next: bool,
    /// Token of the next part; empty if there is none.
    pub next_page_token: String,
}

impl PageQuery {
    /// Parses the parameters. Rejects `filter` and `orderBy`, which these lists do not support.
    pub fn from_params(params: &Params) -> Result<Self, Problem> {
        params.reject(&["filter", "orderBy"])?;
        let extent = PageRange::from_params(params)?;
        Ok(Self { size: extent.size, offset: extent.first_offset()? })
    }

    /// Cuts the requested part out of the whole list.
    pub fn paginate<T>(self, all: Vec<T>) -> ListPage<T> {
        let total = all.len();
        let first = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let size = self.size.and_then(|size| usize::try_from(size).ok());
        let rest = all.into_iter().skip(first);
        let items: Vec<T> = rest.take(size.unwrap_or(usize::MAX)).collect();
        let has_next = first.saturating_add(items.len()) < total;
        let next = self.offset.saturating_add(self.size.unwrap_or(0));
        ListPage {
            items,
            total_elements: i32::try_from(total).unwrap_or(i32::MAX),
            has_next,
            next_page_token: if has_next { offset_token(next) } else { String::new() },
        }
    }
}

/// Prefix of the offset in a token.
const OFFSET_TOKEN_PREFIX: &str = "from-";

/// Token of the part that skips this number of items.
pub fn offset_token(offset: u32) -> String {
    format!("{OFFSET_TOKEN_PREFIX}{offset}")
}

/// Number of skipped items of a token.
pub fn parse_offset_token(token: &str) -> Result<u32, Problem> {
    let number = token.strip_prefix(OFFSET_TOKEN_PREFIX).map(str::parse);
    number.and_then(Result::ok).ok_or_else(invalid_page_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paginated(size: Option<u32>, offset: u32) -> ListPage<u32> {
        PageQuery { size, offset }.paginate((0..5).collect())
    }

    #[test]
    fn a_page_reports_whether_more_items_follow() {
        let page = paginated(Some(2), 1);
        assert_eq!(page.items, [1, 2]);
        assert_eq!((page.total_elements, page.has_next), (5, true));
        assert_eq!(parse_offset_token(&page.next_page_token).ok(), Some(3));
    }

    #[test]
    fn the_last_page_has_no_next_token() {
        for (size, offset, items) in [(None, 0, 5), (Some(3), 2, 3), (Some(1), 9, 0), (None, 9, 0)]
        {
            let page = paginated(size, offset);
            assert_eq!(page.items.len(), items, "{size:?} {offset}");
            assert_eq!((page.has_next, page.next_page_token.as_str()), (false, ""));
        }
    }

    #[test]
    fn foreign_tokens_are_rejected() {
        for token in ["", "3", "from-", "from--1", "from-99999999999"] {
            assert!(parse_offset_token(token).is_err(), "{token}");
        }
    }
}
