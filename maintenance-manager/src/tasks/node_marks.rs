//! Marks nodes in batches. Each batch is one transaction.

use evenkeel_domain::Time;
use evenkeel_kit::clock::Clock;
use evenkeel_store::{FleetTx, Store, StoreError};
use tokio_util::sync::CancellationToken;

/// The maximum number of nodes in a batch.
pub(super) const BATCH_SIZE: u32 = 1_000;

/// Finds nodes of all projects and marks them.
pub(super) trait NodeMarker {
    /// Marks at most [`BATCH_SIZE`] nodes that do not have the mark. Returns their number.
    fn mark_batch(
        &self,
        tx: &FleetTx,
        now: Time,
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;
}

/// Marks batches until no node is left, or until the task is stopped. Returns the number of marked
/// nodes. Marks none while the clock of the process differs from the clock of the database.
pub(super) async fn mark_all(
    marker: &impl NodeMarker,
    store: &Store,
    clock: &dyn Clock,
    stopping: &CancellationToken,
) -> Result<usize, StoreError> {
    let mut total = 0;
    loop {
        let Some(now) = store.trusted_time(clock).await? else {
            return Ok(total);
        };
        let tx = store.fleet().await?;
        let count = marker.mark_batch(&tx, now).await?;
        tx.commit().await?;
        total += count;
        if count == 0 || stopping.is_cancelled() {
            return Ok(total);
        }
    }
}
