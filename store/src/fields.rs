//! Rows that are read column by column, in the order in which the columns were asked for. A statement that joins several
//! tables has up to a hundred columns: to look for each of them by its name, in each row, took longer than to read them.

use sea_orm::sqlx::{Row as _, ValueRef as _};
use sea_orm::{DbErr, QueryResult, TryGetable};

/// What is read of a table: a row of it, or the part that somebody looks at. Made by [`fields!`].
pub(crate) trait Fields: Sized {
    /// The columns, in the order in which they are read. The first one is never null.
    const COLUMNS: &'static [&'static str];

    /// Reads the next columns.
    fn read(from: &mut Reader<'_>) -> Result<Self, DbErr>;
}

/// Makes a struct [`Fields`] of a table: its fields are named as the columns are.
macro_rules! fields {
    ($row:ty { $($column:ident),+ $(,)? }) => {
        impl $crate::fields::Fields for $row {
            const COLUMNS: &'static [&'static str] = &[$(stringify!($column)),+];

            fn read(from: &mut $crate::fields::Reader<'_>) -> Result<Self, ::sea_orm::DbErr> {
                // Fields of a literal are evaluated as they are written.
                Ok(Self { $($column: from.take()?),+ })
            }
        }
    };
}

pub(crate) use fields;

/// The columns of a table under an alias, as [`Reader::fields`] and [`Reader::joined`] read them.
pub(crate) fn columns<F: Fields>(alias: &str) -> String {
    let columns = F::COLUMNS.iter().map(|column| format!("{alias}.{column}"));
    columns.collect::<Vec<_>>().join(", ")
}

/// A row that is being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    row: &'a QueryResult,
    next: usize,
}

impl<'a> Reader<'a> {
    /// Begins at the first column of a row.
    pub(crate) fn new(row: &'a QueryResult) -> Self {
        Self { row, next: 0 }
    }

    /// The next column. It is passed also if it cannot be read.
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

    /// The next [`columns`], of a table that was joined; none if there was nothing to join.
    pub(crate) fn joined<F: Fields>(&mut self) -> Result<Option<F>, DbErr> {
        if self.is_null()? {
            self.next += F::COLUMNS.len();
            return Ok(None);
        }
        self.fields().map(Some)
    }

    /// Whether there is nothing in the next column.
    fn is_null(&self) -> Result<bool, DbErr> {
        let row = self.row.try_as_pg_row();
        let row = row.ok_or_else(|| DbErr::Type("the row is none of Postgres".to_owned()))?;
        let value = row.try_get_raw(self.next);
        Ok(value
            .map_err(|error| DbErr::Type(error.to_string()))?
            .is_null())
    }
}
