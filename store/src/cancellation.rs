//! Cancels the statement of a request that was dropped. Otherwise it would run, and occupy its
//! connection, until its timeout.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::address::DatabaseAddress;
use crate::error::StoreError;
use crate::session::{SessionSettings, connection_error, open_session};

/// Limit for the cancellation of a statement, including the wait for others.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// The process of another database server may have the same id, after a failover.
const CANCEL_SQL: &str = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
                          WHERE pid = $1 AND usename = current_user AND datname = current_database()";

/// Cancels statements over a connection of its own, because all of the pool may be in use. It is
/// opened when it is needed first. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StatementCanceller(Arc<CancellerInner>);

#[derive(Debug)]
struct CancellerInner {
    address: DatabaseAddress,
    settings: SessionSettings,
    session: Mutex<Option<PgConnection>>,
}

impl StatementCanceller {
    pub(crate) fn new(address: DatabaseAddress, settings: SessionSettings) -> Self {
        Self(Arc::new(CancellerInner { address, settings, session: Mutex::default() }))
    }

    /// Cancels the statement that a process of the database runs. The caller keeps the connection
    /// of the process meanwhile; otherwise the statement of another request could be cancelled.
    pub(crate) async fn cancel(&self, backend_pid: i32) {
        match timeout(CANCEL_TIMEOUT, self.try_cancel(backend_pid)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "cannot cancel a statement"),
            Err(_) => tracing::debug!("cancelling a statement took too long"),
        }
    }

    async fn try_cancel(&self, backend_pid: i32) -> Result<(), StoreError> {
        let mut slot = self.0.session.lock().await;
        // Taken, so that a session that fails or is left in the middle of an answer is closed.
        let mut session = match slot.take() {
            Some(session) => session,
            None => open_session(&self.0.address, &self.0.settings, CANCEL_TIMEOUT).await?,
        };
        let cancelling = sqlx::query(CANCEL_SQL).bind(backend_pid).execute(&mut session);
        cancelling.await.map_err(connection_error)?;
        *slot = Some(session);
        Ok(())
    }

    /// Closes the connection.
    pub(crate) async fn close(&self) {
        if let Some(session) = self.0.session.lock().await.take() {
            // An error while closing has no consequences.
            session.close().await.ok();
        }
    }
}
