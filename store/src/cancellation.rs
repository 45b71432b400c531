//! Cancels the statement of a request that was dropped. Otherwise it would run, and occupy its
//! connection, until its timeout.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::address::DatabaseAddress;
use crate::error::StoreError;
use crate::session::{
    SessionSettings, connection_error, open_session, timeout_error, wait_for_close,
};

/// The process of another database server may have the same id, after a failover.
const CANCEL_SQL: &str = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
                          WHERE pid = $1 AND usename = current_user AND datname = current_database()";

/// Cancels statements over a separate connection, because all connections of the pool may be in
/// use. The connection is opened at the first use. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StatementCanceller(Arc<CancellerInner>);

#[derive(Debug)]
struct CancellerInner {
    address: DatabaseAddress,
    settings: SessionSettings,
    /// How long to wait for a free session, and how long for an answer of the database.
    timeout: Duration,
    session: Mutex<Option<PgConnection>>,
}

impl StatementCanceller {
    /// The timeout is longer than that of the database for a statement. Otherwise a cancellation
    /// that no caller waits for any more could hit the statement of the next request.
    pub(crate) fn new(
        address: DatabaseAddress,
        settings: SessionSettings,
        timeout: Duration,
    ) -> Self {
        Self(Arc::new(CancellerInner { address, settings, timeout, session: Mutex::default() }))
    }

    /// Cancels the statement that a process of the database runs. The caller keeps the connection
    /// of the process meanwhile; otherwise the statement of another request could be cancelled.
    pub(crate) async fn cancel(&self, backend_pid: i32) {
        if let Err(error) = self.try_cancel(backend_pid).await {
            tracing::debug!(%error, "cannot cancel a statement");
        }
    }

    async fn try_cancel(&self, backend_pid: i32) -> Result<(), StoreError> {
        let CancellerInner { address, settings, session, .. } = &*self.0;
        let slot = timeout(self.0.timeout, session.lock()).await;
        let mut slot = slot.map_err(|_| timeout_error())?;
        // Taken, so that a session that fails or is left in the middle of an answer is closed.
        if let Some(mut session) = slot.take() {
            // An error shows that the session has ended since it was used last.
            if self.send(&mut session, backend_pid).await?.is_ok() {
                *slot = Some(session);
                return Ok(());
            }
        }
        let mut session = open_session(address, settings, self.0.timeout).await?;
        self.send(&mut session, backend_pid).await?.map_err(connection_error)?;
        *slot = Some(session);
        Ok(())
    }

    /// Sends the cancellation. The outer error means that there is no answer in time.
    async fn send(
        &self,
        session: &mut PgConnection,
        backend_pid: i32,
    ) -> Result<Result<(), sqlx::Error>, StoreError> {
        let cancelling = sqlx::query(CANCEL_SQL).bind(backend_pid).execute(session);
        let answer = timeout(self.0.timeout, cancelling).await;
        Ok(answer.map_err(|_| timeout_error())?.map(drop))
    }

    /// Closes the connection.
    pub(crate) async fn close(&self) {
        if let Some(session) = self.0.session.lock().await.take() {
            wait_for_close(session.close()).await;
        }
    }
}
