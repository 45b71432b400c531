//! Removes old changes from the log.

use evenkeel_domain::Time;
use evenkeel_domain::change_seal::{ChangeClass, ChangeRetention};
use sea_orm::Value;

use crate::error::StoreError;
use crate::tx::{FleetTx, query_one};

/// Which changes may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalLimits {
    pub retention: ChangeRetention,
    /// The current time.
    pub now: Time,
    /// The number of changes of each class, and of seals, that one call removes. Changes are rounded up to those that one
    /// pass of the sealing has sealed.
    pub max_changes: u32,
}

/// Removes changes of all projects that were sealed longer ago than their retention, and seals without changes that are older
/// than all retentions. Returns their number. Readers that have not read the changes notice. Replicas take turns.
pub async fn prune(tx: &FleetTx, limits: RemovalLimits) -> Result<u64, StoreError> {
    let mut total = 0;
    for class in [ChangeClass::Server, ChangeClass::Users] {
        let Some(before) = limits.retention.removed_before(class, limits.now) else {
            continue;
        };
        let sql = "SELECT remove_sealed_changes($1, $2, $3)";
        let of_users = class == ChangeClass::Users;
        let values = [of_users.into(), before.into(), i64::from(limits.max_changes).into()];
        total += call_removal(tx, sql, values).await?;
    }
    if let Some(before) = limits.retention.seals_removed_before(limits.now) {
        let values = [before.into(), i64::from(limits.max_changes).into()];
        total += call_removal(tx, "SELECT remove_old_seals($1, $2)", values).await?;
    }
    Ok(total)
}

async fn call_removal(
    tx: &FleetTx,
    sql: &str,
    values: impl IntoIterator<Item = Value>,
) -> Result<u64, StoreError> {
    let removed: i64 = match query_one(tx.conn(), sql, values).await? {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    Ok(removed.cast_unsigned())
}
