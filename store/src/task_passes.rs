//! When passes of tasks began that one replica does for all of them.

use evenkeel_domain::Time;

use crate::error::StoreError;
use crate::tx::{FleetTx, execute, query_one};

/// A task of which one replica does a pass at an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedTask {
    /// The search for runs that no agent reports any more.
    UnattendedRuns,
}

impl SharedTask {
    const fn name(self) -> &'static str {
        match self {
            Self::UnattendedRuns => "unattended_runs",
        }
    }
}

/// When the last recorded pass of a task began, on whatever replica; `None` if there was none.
pub async fn find_last(tx: &FleetTx, task: SharedTask) -> Result<Option<Time>, StoreError> {
    let sql = "SELECT began_at FROM task_passes WHERE task = $1";
    let row = query_one(tx.conn(), sql, [task.name().into()]).await?;
    Ok(row.map(|row| row.try_get_by_index(0)).transpose()?)
}

/// Records that a pass of a task began at a time. A transaction that holds a lease does this right
/// before its commit, so that it writes only for a moment.
pub async fn record(tx: &FleetTx, task: SharedTask, began_at: Time) -> Result<(), StoreError> {
    let sql = "INSERT INTO task_passes (task, began_at) VALUES ($1, $2) \
               ON CONFLICT (task) DO UPDATE SET began_at = excluded.began_at";
    execute(tx.conn(), sql, [task.name().into(), began_at.into()]).await.map(drop)
}
