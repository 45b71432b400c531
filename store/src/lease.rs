//! Leases: work that only one replica does at a time.

use crate::error::StoreError;
use crate::pool::Store;
use crate::tx::{FleetTx, execute, query_one};

/// The first half of the keys of leases. Advisory locks with two keys are separate from those with
/// one, which projects use.
const LEASE_LOCK_SPACE: i32 = 7032;

/// How long a holder may be silent before it loses its lease, in milliseconds. The database ends
/// its transaction then.
const LEASE_IDLE_TIMEOUT_MS: &str = "60000";

/// Work of which one replica does a pass at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    RunTimeouts = 1,
    FleetCounts = 4,
}

impl Store {
    /// Takes a lease; none if another replica has it. The transaction holds the lease until it ends
    /// and must be used at least once a minute. It must not write, except right before its commit:
    /// an open writer delays the readers of the change log.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn try_lease(&self, lease: Lease) -> Result<Option<FleetTx>, StoreError> {
        let tx = self.fleet().await?;
        let sql = "SELECT pg_try_advisory_xact_lock($1, $2)";
        let row = query_one(tx.conn(), sql, [LEASE_LOCK_SPACE.into(), (lease as i32).into()]);
        let is_free = match row.await? {
            Some(row) => row.try_get_by_index::<bool>(0)?,
            None => false,
        };
        if !is_free {
            return Ok(None);
        }
        let sql = "SELECT set_config('idle_in_transaction_session_timeout', $1, true)";
        execute(tx.conn(), sql, [LEASE_IDLE_TIMEOUT_MS.into()]).await?;
        Ok(Some(tx))
    }
}
