//! Which part of a list is asked for.

use evenkeel_store::{Listed, Page};
use utoipa::IntoParams;

use crate::extract::Params;
use crate::problem::Problem;

/// The parameters of every list, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the values"
)]
pub struct ListParams {
    /// How many to list at most; all if it is left out.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// How many to leave out at the beginning.
    #[param(minimum = 0)]
    offset: Option<u32>,
}

/// Which part of a list is asked for.
pub fn page(params: &Params) -> Result<Page, Problem> {
    Ok(Page {
        limit: params.number("pageSize", 1, 100)?.map(u64::from),
        offset: params.number("offset", 0, u32::MAX)?.unwrap_or(0).into(),
    })
}

/// The envelope of a list: how many there are in all, and whether there are more.
pub fn envelope<T>(listed: &Listed<T>, page: Page) -> (i32, bool) {
    let total = i32::try_from(listed.total).unwrap_or(i32::MAX);
    (total, listed.has_next(page))
}
