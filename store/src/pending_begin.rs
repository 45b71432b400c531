//! The begin of a transaction, which must not be dropped halfway.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_kit::Lifecycle;
use sea_orm::{DatabaseConnection, DatabaseTransaction, DbErr, TransactionTrait};
use tokio::time::timeout;

use crate::shares::SharePermit;

/// How long a begin without a caller goes on. After that, the pool gets the connection back and
/// closes it, because it does not answer.
const ABANDONED_BEGIN_TIMEOUT: Duration = Duration::from_secs(30);

type BeginFuture = Pin<Box<dyn Future<Output = Result<DatabaseTransaction, DbErr>> + Send>>;

/// A transaction that begins, with its permit. If it is dropped, the begin goes on without it, and
/// the transaction is rolled back.
///
/// sqlx knows of a transaction only after the answer to `BEGIN`. If it dropped the begin before, the
/// pool would get a connection with an open transaction: a statement outside of transactions would
/// become a part of it, and the next rollback would undo the statement.
pub(crate) struct PendingBegin {
    begin: Option<BeginFuture>,
    permit: Option<SharePermit>,
}

impl PendingBegin {
    pub(crate) fn new(db: &DatabaseConnection, permit: Option<SharePermit>) -> Self {
        let db = db.clone();
        Self { begin: Some(Box::pin(async move { db.begin().await })), permit }
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
        let Some(begin) = begin.filter(|_| tokio::runtime::Handle::try_current().is_ok()) else {
            return;
        };
        Lifecycle::detach(async move {
            drop(timeout(ABANDONED_BEGIN_TIMEOUT, begin).await);
            drop(permit);
        });
    }
}
