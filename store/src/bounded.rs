//! Bounded waits for the database. The database itself ends what takes too long; but a machine that is gone and a line that
//! was cut say nothing, and nobody else would end the wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use sea_orm::{
    ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr,
    Statement, StreamTrait,
};

use crate::error::StoreError;

/// Waits for an answer of the database. One that does not come counts as a database that is away.
pub(crate) async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, DbErr>>,
) -> Result<T, DbErr> {
    let silent = |_| {
        let text = format!("the database has said nothing for {patience:?}");
        DbErr::Conn(RuntimeErr::Internal(text))
    };
    tokio::time::timeout(patience, answer)
        .await
        .map_err(silent)?
}

/// A transaction that waits for each of its answers for a bounded time. After one that did not come it is of no use.
#[derive(Debug)]
pub(crate) struct Bounded {
    open: DatabaseTransaction,
    /// In milliseconds.
    patience: AtomicU64,
    /// Whether a statement failed: then Postgres rolls back whatever it is told, and calls a commit good.
    spoilt: AtomicBool,
}

impl Bounded {
    pub(crate) fn new(open: DatabaseTransaction, patience: Duration) -> Self {
        let bounded = Self {
            open,
            patience: AtomicU64::default(),
            spoilt: AtomicBool::default(),
        };
        bounded.wait_for(patience);
        bounded
    }

    /// Waits longer from here on: the database was told to take its time.
    pub(crate) fn wait_for(&self, patience: Duration) {
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.patience.store(millis, Ordering::Relaxed);
    }

    pub(crate) async fn commit(self) -> Result<(), DbErr> {
        if self.spoilt.load(Ordering::Relaxed) {
            let text = "a statement of the transaction failed, so there is nothing to commit";
            return Err(DbErr::Custom(text.to_owned()));
        }
        within(self.patience(), self.open.commit()).await
    }

    /// What each row of an answer says. It is read as soon as it is there: while the database is still at the next ones.
    pub(crate) async fn each<T>(
        &self,
        stmt: Statement,
        read: impl Fn(&QueryResult) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let reading = async {
            let mut rows = self.open.stream_raw(stmt).await?;
            let mut found = Vec::new();
            while let Some(row) = rows.try_next().await? {
                found.push(read(&row));
            }
            Ok(found)
        };
        self.answer(reading).await?.into_iter().collect()
    }

    /// Waits for the answer to a statement.
    async fn answer<T>(&self, answer: impl Future<Output = Result<T, DbErr>>) -> Result<T, DbErr> {
        let answered = within(self.patience(), answer).await;
        if answered.is_err() {
            self.spoilt.store(true, Ordering::Relaxed);
        }
        answered
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }
}

#[async_trait]
impl ConnectionTrait for Bounded {
    fn get_database_backend(&self) -> DbBackend {
        ConnectionTrait::get_database_backend(&self.open)
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        self.answer(self.open.execute_raw(stmt)).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.answer(self.open.execute_unprepared(sql)).await
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.answer(self.open.query_one_raw(stmt)).await
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.answer(self.open.query_all_raw(stmt)).await
    }
}
