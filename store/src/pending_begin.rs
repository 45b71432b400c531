//! The begin of a transaction, which must not be dropped halfway.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_kit::Lifecycle;
use sea_orm::{DatabaseConnection, DatabaseTransaction, DbErr, TransactionTrait};
use tokio::time::{Instant, timeout_at};

use crate::shares::SharePermit;

/// For how long after an unanswered begin a released connection may have its transaction. The pool
/// tests a released connection at once and for a shorter time.
const UNANSWERED_BEGIN_TTL: Duration = Duration::from_mins(1);

type BeginFuture = Pin<Box<dyn Future<Output = Result<DatabaseTransaction, DbErr>> + Send>>;

/// When the last begin was given up because the database did not answer. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnansweredBegins(Arc<Mutex<Option<Instant>>>);

impl UnansweredBegins {
    fn record(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a connection that is released now may have a transaction that sqlx does not know.
    pub(crate) fn are_recent(&self) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < UNANSWERED_BEGIN_TTL)
    }
}

/// A transaction that begins, with its permit. If it is dropped, the begin goes on without it until
/// its deadline, and the transaction is rolled back.
///
/// sqlx knows of a transaction only after the answer to `BEGIN`. If it dropped the begin before, the
/// pool would get a connection with an open transaction: a statement outside of transactions would
/// become a part of it, and the next rollback would undo the statement.
///
/// After the deadline the pool gets the connection back, so that a database that does not answer
/// does not occupy it. An answer may still arrive while the pool tests the connection, so
/// [`UnansweredBegins`] make that test look for an open transaction.
pub(crate) struct PendingBegin {
    begin: Option<BeginFuture>,
    permit: Option<SharePermit>,
    deadline: Instant,
    unanswered: UnansweredBegins,
}

impl PendingBegin {
    pub(crate) fn new(
        db: &DatabaseConnection,
        permit: Option<SharePermit>,
        timeout: Duration,
        unanswered: &UnansweredBegins,
    ) -> Self {
        let db = db.clone();
        Self {
            begin: Some(Box::pin(async move { db.begin().await })),
            permit,
            deadline: Instant::now() + timeout,
            unanswered: unanswered.clone(),
        }
    }
}

impl Future for PendingBegin {
    type Output = Result<(DatabaseTransaction, Option<SharePermit>), DbErr>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(begin) = &mut self.begin else {
            return Poll::Pending;
        };
        let Poll::Ready(result) = begin.as_mut().poll(context) else {
            return Poll::Pending;
        };
        self.begin = None;
        Poll::Ready(result.map(|transaction| (transaction, self.permit.take())))
    }
}

impl Drop for PendingBegin {
    fn drop(&mut self) {
        let (begin, permit) = (self.begin.take(), self.permit.take());
        let Some(mut begin) = begin.filter(|_| tokio::runtime::Handle::try_current().is_ok())
        else {
            return;
        };
        let (deadline, unanswered) = (self.deadline, self.unanswered.clone());
        Lifecycle::detach(async move {
            if timeout_at(deadline, &mut begin).await.is_err() {
                // Before the pool gets the connection.
                unanswered.record();
            }
            drop(begin);
            drop(permit);
        });
    }
}
