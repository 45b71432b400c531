//! Ids of new resources.

use evenkeel_domain::id::HostId;
use sea_orm::{ConnectionTrait, QueryResult};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::error::StoreError;
use crate::pool::Store;
use crate::session::select_texts;
use crate::tx::query_one;

/// The code of the error that a function does not exist.
const UNDEFINED_FUNCTION: &str = "42883";

/// Lets all ids jump ahead if the database was restored or has failed over since it assigned the
/// last id. Every new connection calls this before it is used, because a failover ends all
/// connections. Does nothing before the first migration, and while the database is read-only.
pub(crate) async fn protect(session: &mut PgConnection) -> Result<(), sqlx::Error> {
    match select_texts(session, vec!["protect_ids(false)::text".to_owned()]).await {
        Ok(epochs) => {
            if let Some(epoch) = epochs.into_iter().flatten().next() {
                tracing::warn!(
                    epoch,
                    "the database was restored, copied or has failed over: ids jump ahead, so that no id is assigned twice"
                );
            }
            Ok(())
        }
        Err(sqlx::Error::Database(error))
            if error.code().as_deref() == Some(UNDEFINED_FUNCTION) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

impl Store {
    /// Lets all ids jump ahead if the database has not assigned the id of this host yet. Such a
    /// host shows that the database has lost its last changes, so the id must come from a
    /// credential that this installation has signed: it signs credentials only for hosts that it
    /// has created.
    ///
    /// # Errors
    /// The database cannot be reached or written.
    pub async fn protect_ids_after(&self, host: HostId) -> Result<(), StoreError> {
        // Refused nodes may call often.
        let _permit = self.acquire_share(None).await?;
        let sql = format!("SELECT protect_ids(false, {})", host.number());
        let row = self.query_alone(AssertSqlSafe(sql)).await?;
        if let Some(epoch) = row.try_get_by_index::<Option<i32>>(0)? {
            tracing::error!(
                epoch,
                %host,
                "a node has a credential for a host that the database has not created yet: the database has lost its last \
                 changes, as after the restore of a backup; ids jump ahead, so that no id is assigned twice"
            );
        }
        Ok(())
    }

    /// Lets all ids jump ahead, after a restore that the database does not show. Returns how often
    /// they have jumped so far, plus one.
    ///
    /// # Errors
    /// The database cannot be reached or written.
    pub async fn advance_ids(&self) -> Result<i32, StoreError> {
        let row = self.query_alone("SELECT protect_ids(true)").await?;
        Ok(row.try_get_by_index(0)?)
    }
}

/// The next number of a sequence.
pub(crate) async fn next(db: &impl ConnectionTrait, sequence: &str) -> Result<u32, StoreError> {
    let row = query_one(db, "SELECT nextval($1::regclass)", [sequence.into()]).await?;
    row.map_or(Ok(0), |row| number_at(&row, 0))
}

/// The sequence number in a column of a row.
pub(crate) fn number_at(row: &QueryResult, index: usize) -> Result<u32, StoreError> {
    let number: i64 = row.try_get_by_index(index)?;
    u32::try_from(number).map_err(|_| StoreError::Corrupt {
        table: "sequence",
        row: 0,
        column: "nextval",
    })
}
