//! Database calls with a timeout. The database ends slow statements itself, but a crashed machine
//! or a cut connection sends nothing, so the client needs a timeout of its own.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_kit::Lifecycle;
use futures_util::TryStreamExt;
use sea_orm::{
    ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr,
    Statement, StreamTrait,
};

use crate::cancellation::StatementCanceller;
use crate::error::StoreError;
use crate::shares::SharePermit;

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

/// A transaction with a timeout for each statement. After a timeout it is unusable. If it is
/// dropped while a statement runs, the statement is cancelled.
#[derive(Debug)]
pub(crate) struct BoundedTransaction {
    /// None after its end.
    transaction: Option<DatabaseTransaction>,
    permit: Option<SharePermit>,
    canceller: StatementCanceller,
    timeout: Duration,
    /// The id of the database process; 0 while it is not known.
    backend_pid: AtomicI32,
    /// Number of statements without an answer yet.
    running: AtomicU32,
    /// Whether a statement failed. Postgres then turns a commit into a rollback and reports
    /// success.
    has_failed: AtomicBool,
}

impl BoundedTransaction {
    pub(crate) fn new(
        (transaction, permit): (DatabaseTransaction, Option<SharePermit>),
        canceller: StatementCanceller,
        timeout: Duration,
    ) -> Self {
        Self {
            transaction: Some(transaction),
            permit,
            canceller,
            timeout,
            backend_pid: AtomicI32::default(),
            running: AtomicU32::default(),
            has_failed: AtomicBool::default(),
        }
    }

    /// Sets the id of the database process, which is needed to cancel a statement.
    pub(crate) fn set_backend_pid(&self, pid: i32) {
        self.backend_pid.store(pid, Ordering::Relaxed);
    }

    /// Returns the permit to use a connection of a share, while the transaction goes on.
    pub(crate) fn release_share(&mut self) {
        self.permit = None;
    }

    pub(crate) async fn commit(mut self) -> Result<(), DbErr> {
        if self.has_failed.load(Ordering::Relaxed) {
            let text = "a statement of the transaction failed, so there is nothing to commit";
            return Err(DbErr::Custom(text.to_owned()));
        }
        if self.running.load(Ordering::Relaxed) > 0 {
            let text = "a statement of the transaction was dropped, so its result is unknown";
            return Err(DbErr::Custom(text.to_owned()));
        }
        let transaction = self.transaction.take().ok_or_else(ended_error)?;
        with_timeout(self.timeout, transaction.commit()).await
    }

    /// Ends the transaction without its changes.
    pub(crate) async fn rollback(mut self) -> Result<(), DbErr> {
        let transaction = self.transaction.take().ok_or_else(ended_error)?;
        with_timeout(self.timeout, transaction.rollback()).await
    }

    fn open(&self) -> Result<&DatabaseTransaction, DbErr> {
        self.transaction.as_ref().ok_or_else(ended_error)
    }

    /// Reads the rows of a result as they arrive, while the database still produces the next ones.
    pub(crate) async fn query_map<T>(
        &self,
        stmt: Statement,
        read: impl Fn(&QueryResult) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let rows_read = async {
            let mut rows = self.open()?.stream_raw(stmt).await?;
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
        self.running.fetch_add(1, Ordering::Relaxed);
        let answered = with_timeout(self.timeout, answer).await;
        // Not if the caller is dropped: then the statement goes on. After a timeout, the database
        // has ended it, or cannot be reached.
        self.running.fetch_sub(1, Ordering::Relaxed);
        if answered.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        answered
    }
}

impl Drop for BoundedTransaction {
    fn drop(&mut self) {
        let pid = self.backend_pid.load(Ordering::Relaxed);
        if self.running.load(Ordering::Relaxed) == 0 || pid == 0 {
            return;
        }
        let Some(transaction) = self.transaction.take() else {
            return;
        };
        let (canceller, permit) = (self.canceller.clone(), self.permit.take());
        if tokio::runtime::Handle::try_current().is_ok() {
            Lifecycle::detach(async move {
                canceller.cancel(pid).await;
                // Only now may another request get the connection.
                drop(transaction);
                drop(permit);
            });
        }
    }
}

fn ended_error() -> DbErr {
    DbErr::Custom("the transaction has ended".to_owned())
}

#[async_trait]
impl ConnectionTrait for BoundedTransaction {
    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        self.run(self.open()?.execute_raw(stmt)).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.run(self.open()?.execute_unprepared(sql)).await
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.run(self.open()?.query_one_raw(stmt)).await
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.run(self.open()?.query_all_raw(stmt)).await
    }
}
