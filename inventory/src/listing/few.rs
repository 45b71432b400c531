//! Lists of what is always few: a part of all of it.

use utoipa::IntoParams;

use super::asked::{Extent, bad_token};
use crate::extract::Params;
use crate::problem::Problem;

/// The parameters of a list that cannot be filtered, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the values"
)]
pub struct PageParams {
    /// How many to list at most; all if it is left out.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// How many to leave out at the beginning.
    #[param(minimum = 0)]
    offset: Option<u32>,
    /// Where to go on: the `nextPageToken` of the page before. It needs `pageSize` and excludes `offset`.
    #[param(min_length = 1)]
    page_token: Option<String>,
}

/// Which part of few things is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    size: Option<u32>,
    offset: u32,
}

/// A part of few things, with what its list says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Few<T> {
    /// The part.
    pub items: Vec<T>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind it.
    pub has_next: bool,
    /// The token of the next part; empty if there is none.
    pub next_page_token: String,
}

impl Page {
    /// Reads what is asked for. These lists know neither filters nor orders.
    pub fn of(params: &Params) -> Result<Self, Problem> {
        params.refuse(&["filter", "orderBy"])?;
        let extent = Extent::of(params)?;
        Ok(Self {
            size: extent.size,
            offset: extent.first()?,
        })
    }

    /// The part that is asked for.
    pub fn of_all<T>(self, all: Vec<T>) -> Few<T> {
        let total = all.len();
        let first = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let size = self.size.and_then(|size| usize::try_from(size).ok());
        let rest = all.into_iter().skip(first);
        let items: Vec<T> = rest.take(size.unwrap_or(usize::MAX)).collect();
        let has_next = first.saturating_add(items.len()) < total;
        let next = self.offset.saturating_add(self.size.unwrap_or(0));
        Few {
            items,
            total_elements: i32::try_from(total).unwrap_or(i32::MAX),
            has_next,
            next_page_token: if has_next { token(next) } else { String::new() },
        }
    }
}

/// What stands before the number in a token.
const TOKEN: &str = "from-";

/// The token of a part that leaves out this many.
pub fn token(offset: u32) -> String {
    format!("{TOKEN}{offset}")
}

/// How many a part leaves out, by its token.
pub fn offset_of(token: &str) -> Result<u32, Problem> {
    let number = token.strip_prefix(TOKEN).map(str::parse);
    number.and_then(Result::ok).ok_or_else(bad_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(size: Option<u32>, offset: u32) -> Few<u32> {
        Page { size, offset }.of_all((0..5).collect())
    }

    #[test]
    fn a_part_says_what_comes_behind_it() {
        let few = part(Some(2), 1);
        assert_eq!(few.items, [1, 2]);
        assert_eq!((few.total_elements, few.has_next), (5, true));
        assert_eq!(offset_of(&few.next_page_token).ok(), Some(3));
    }

    #[test]
    fn behind_the_last_there_is_nothing() {
        for (size, offset, items) in [(None, 0, 5), (Some(3), 2, 3), (Some(1), 9, 0), (None, 9, 0)]
        {
            let few = part(size, offset);
            assert_eq!(few.items.len(), items, "{size:?} {offset}");
            assert_eq!((few.has_next, few.next_page_token.as_str()), (false, ""));
        }
    }

    #[test]
    fn only_our_tokens_are_tokens() {
        for token in ["", "3", "from-", "from--1", "from-99999999999"] {
            assert!(offset_of(token).is_err(), "{token}");
        }
    }
}
