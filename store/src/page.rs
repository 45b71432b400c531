//! Parts of lists.

use sea_orm::{EntityTrait, FromQueryResult, PaginatorTrait, QuerySelect, Select};

use crate::error::StoreError;
use crate::tx::Tx;

/// Which part of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// How many at most; all if not given.
    pub limit: Option<u64>,
    /// How many to leave out at the beginning.
    pub offset: u64,
}

/// A part of a list, and how long the whole is.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed<T> {
    /// The part.
    pub items: Vec<T>,
    /// The length of the whole list.
    pub total: u64,
}

impl<T> Listed<T> {
    /// Whether there is more after this part.
    #[must_use]
    pub fn has_next(&self, page: Page) -> bool {
        page.offset + (self.items.len() as u64) < self.total
    }

    /// The same part with other items.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> Listed<U> {
        Listed {
            items: self.items.into_iter().map(f).collect(),
            total: self.total,
        }
    }
}

/// Reads a part of a list. The list has its order already.
pub(crate) async fn read<E, T>(
    tx: &Tx,
    list: Select<E>,
    page: Page,
) -> Result<Listed<T>, StoreError>
where
    E: EntityTrait,
    E::Model: FromQueryResult + Sized + Send + Sync,
    T: TryFrom<E::Model, Error = StoreError>,
{
    let total = list.clone().count(tx.conn()).await?;
    let mut part = list.offset(page.offset);
    if let Some(limit) = page.limit {
        part = part.limit(limit);
    }
    let rows = part.all(tx.conn()).await?;
    let items = rows
        .into_iter()
        .map(T::try_from)
        .collect::<Result<_, _>>()?;
    Ok(Listed { items, total })
}
