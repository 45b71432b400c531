//! The dedicated connection of a reader of the change log. It does not come from a pool: after each
//! use a pool tests the connection, which costs another round trip and a task. Most passes find
//! nothing to read and would cost twice as much.

use std::sync::Arc;
use std::time::Duration;

use sea_orm::{DbErr, QueryResult, RuntimeErr};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres};

use crate::address::DatabaseAddress;
use crate::error::StoreError;
use crate::session::{SessionSettings, TENANT_SETTING, open_session};

/// The session sees all projects and is read-only. Its queries use an index, and planning would
/// take longer than running them, so the plan is made once, with an index even if the log is still
/// short. Compiling such a plan does not pay off.
const SETTINGS: [(&str, &str); 7] = [
    (TENANT_SETTING, "*"),
    ("statement_timeout", "2000"),
    ("default_transaction_read_only", "on"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
];

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection. It is unusable while an answer is unread.
#[derive(Debug)]
pub(super) struct LogConnection(PgConnection);

impl LogConnection {
    pub(super) async fn open(address: &DatabaseAddress) -> Result<Self, StoreError> {
        let settings = SessionSettings::new(SETTINGS);
        open_session(address, &settings, CONNECT_TIMEOUT).await.map(Self)
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn rows(
        &mut self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<QueryResult>, StoreError> {
        match statement.fetch_all(&mut self.0).await {
            Ok(rows) => Ok(rows.into_iter().map(QueryResult::from).collect()),
            Err(error) => Err(DbErr::Query(RuntimeErr::SqlxError(Arc::new(error))).into()),
        }
    }
}
