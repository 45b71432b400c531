//! Reads rows by column position. A statement that joins several tables has up to a hundred
//! columns; looking each of them up by name took longer than reading them.

use sea_orm::{DbErr, QueryResult, TryGetable};
use sqlx::{Row as _, ValueRef as _};

/// The columns of a table that a query reads: all of a row or a part of it. Implemented by
/// [`fields!`].
pub(crate) trait Fields: Sized {
    /// The columns, in the order in which they are read. The first one is never null.
    const COLUMNS: &'static [&'static str];

    /// Reads the next columns.
    fn read(from: &mut RowReader<'_>) -> Result<Self, DbErr>;
}

/// Implements [`Fields`] for a struct whose fields are named like the columns.
macro_rules! fields {
    ($row:ty { $($column:ident),+ $(,)? }) => {
        impl $crate::fields::Fields for $row {
            const COLUMNS: &'static [&'static str] = &[$(stringify!($column)),+];

            fn read(from: &mut $crate::fields::RowReader<'_>) -> Result<Self, ::sea_orm::DbErr> {
                // Rust evaluates the fields of a struct literal in the written order.
                Ok(Self { $($column: from.take()?),+ })
            }
        }
    };
}

pub(crate) use fields;

/// The columns of a table under an alias, as [`RowReader::fields`] and [`RowReader::joined`] read
/// them.
pub(crate) fn columns<F: Fields>(alias: &str) -> String {
    let columns = F::COLUMNS.iter().map(|column| format!("{alias}.{column}"));
    columns.collect::<Vec<_>>().join(", ")
}

/// Reads a row column by column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowReader<'a> {
    row: &'a QueryResult,
    next: usize,
}

impl<'a> RowReader<'a> {
    /// Starts at the first column of a row.
    pub(crate) fn new(row: &'a QueryResult) -> Self {
        Self { row, next: 0 }
    }

    /// The next column. The reader moves on even if the column cannot be read.
    pub(crate) fn take<T: TryGetable>(&mut self) -> Result<T, DbErr> {
        let column = self.next;
        self.next += 1;
        self.row.try_get_by_index(column)
    }

    /// The next [`columns`].
    pub(crate) fn fields<F: Fields>(&mut self) -> Result<F, DbErr> {
        let behind = self.next + F::COLUMNS.len();
        let read = F::read(self);
        self.next = behind;
        read
    }

    /// The next [`columns`], of an outer join; none if no row was joined.
    pub(crate) fn joined<F: Fields>(&mut self) -> Result<Option<F>, DbErr> {
        if self.is_null()? {
            self.next += F::COLUMNS.len();
            return Ok(None);
        }
        self.fields().map(Some)
    }

    /// Whether the next column is null.
    fn is_null(&self) -> Result<bool, DbErr> {
        let row = self.row.try_as_pg_row();
        let row =
            row.ok_or_else(|| DbErr::Type("the row does not come from Postgres".to_owned()))?;
        let value = row.try_get_raw(self.next);
        Ok(value.map_err(|error| DbErr::Type(error.to_string()))?.is_null())
    }
}
