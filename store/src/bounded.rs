//! Database calls with a timeout. The database ends slow statements itself, but a crashed machine
//! or a cut connection sends nothing, so the client needs a timeout of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use sea_orm::{
    ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr,
    Statement, StreamTrait,
};

use crate::error::StoreError;

/// Waits for an answer of the database. A timeout counts as a lost connection.
pub(crate) async fn with_timeout<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, DbErr>>,
) -> Result<T, DbErr> {
    let silent = |_| {
        let text = format!("the database has not answered for {timeout:?}");
        DbErr::Conn(RuntimeErr::Internal(text))
    };
    tokio::time::timeout(timeout, answer).await.map_err(silent)?
}

/// A transaction with a timeout for each statement. After a timeout it is unusable.
#[derive(Debug)]
pub(crate) struct BoundedTransaction {
    transaction: DatabaseTransaction,
    timeout: Duration,
    /// Whether a statement failed. Postgres then turns a commit into a rollback and reports
    /// success.
    has_failed: AtomicBool,
}

impl BoundedTransaction {
    pub(crate) fn new(open: DatabaseTransaction, timeout: Duration) -> Self {
        Self { transaction: open, timeout, has_failed: AtomicBool::default() }
    }

    pub(crate) async fn commit(self) -> Result<(), DbErr> {
        if self.has_failed.load(Ordering::Relaxed) {
            let text = "a statement of the transaction failed, so there is nothing to commit";
            return Err(DbErr::Custom(text.to_owned()));
        }
        with_timeout(self.timeout, self.transaction.commit()).await
    }

    /// Ends the transaction without its changes.
    pub(crate) async fn rollback(self) -> Result<(), DbErr> {
        with_timeout(self.timeout, self.transaction.rollback()).await
    }

    /// Reads the rows of a result as they arrive, while the database still produces the next ones.
    pub(crate) async fn query_map<T>(
        &self,
        stmt: Statement,
        read: impl Fn(&QueryResult) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let rows_read = async {
            let mut rows = self.transaction.stream_raw(stmt).await?;
            let mut results = Vec::new();
            while let Some(row) = rows.try_next().await? {
                results.push(read(&row));
            }
            Ok(results)
        };
        self.run(rows_read).await?.into_iter().collect()
    }

    /// Waits for the answer to a statement.
    async fn run<T>(&self, answer: impl Future<Output = Result<T, DbErr>>) -> Result<T, DbErr> {
        let answered = with_timeout(self.timeout, answer).await;
        if answered.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        answered
    }
}

#[async_trait]
impl ConnectionTrait for BoundedTransaction {
    fn get_database_backend(&self) -> DbBackend {
        ConnectionTrait::get_database_backend(&self.transaction)
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        self.run(self.transaction.execute_raw(stmt)).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.run(self.transaction.execute_unprepared(sql)).await
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.run(self.transaction.query_one_raw(stmt)).await
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.run(self.transaction.query_all_raw(stmt)).await
    }
}
