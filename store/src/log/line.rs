//! The connection of a reader of the change log, used by nothing else. It comes from no pool: after each use a pool asks a
//! connection whether it still leads somewhere, which is a round trip and a task more. Most passes find nothing to read, and
//! would cost twice as much.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::Secret;
use sea_orm::sqlx::postgres::{PgArguments, PgConnectOptions};
use sea_orm::sqlx::query::Query;
use sea_orm::sqlx::{ConnectOptions as _, Error, PgConnection, Postgres};
use sea_orm::{DbErr, QueryResult, RuntimeErr};
use tokio::time::timeout;

use super::no_answer;
use crate::error::StoreError;

/// It sees all projects and changes nothing. What it asks is answered from an index, which no compiled plan makes faster. To
/// plan that would take longer than to do it, so it is planned once, and for the index however few changes there are by then.
const SETTINGS: [(&str, &str); 7] = [
    ("evenkeel.tenant", "*"),
    ("statement_timeout", "2000"),
    ("default_transaction_read_only", "on"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
];

/// How long it may take to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// A connection. In the middle of an answer it is of no more use.
#[derive(Debug)]
pub(super) struct Line(PgConnection);

impl Line {
    /// Connects.
    pub(super) async fn open(url: &Secret) -> Result<Self, StoreError> {
        let options: PgConnectOptions = url.reveal().parse().map_err(unconnected)?;
        let options = options
            .application_name("evenkeel")
            .options(SETTINGS)
            .disable_statement_logging();
        match timeout(CONNECT_WITHIN, options.connect()).await {
            Ok(connected) => connected.map(Self).map_err(unconnected),
            Err(_) => Err(no_answer()),
        }
    }

    /// The rows that answer a statement.
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

fn unconnected(error: Error) -> StoreError {
    DbErr::Conn(RuntimeErr::SqlxError(Arc::new(error))).into()
}
