//! Proof that a reader of the change log sees changes. Each process counts up one number through its pool.
//! Row-level security shows the number to sessions of all projects only, like the changes of all
//! projects. So a reader that sees it could have seen every change that was committed earlier: its
//! session has the scope, and it is connected to the same database as the pool.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::check::IncompatibleDatabase;
use crate::error::StoreError;
use crate::pool::Store;

/// A heartbeat that was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heartbeat {
    number: i64,
    /// The transaction that sent it. It was committed durably, so no transaction id up to this one
    /// is assigned again after a crash of the database.
    pub(super) xid: u64,
    /// An instant before the commit.
    pub(super) at: Instant,
}

/// The last heartbeat of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastHeartbeat(Arc<Mutex<Option<Heartbeat>>>);

impl LastHeartbeat {
    pub(super) fn get(&self) -> Option<Heartbeat> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, heartbeat: Heartbeat) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(heartbeat);
    }
}

impl Heartbeat {
    /// Checks that a pass that began after this heartbeat has seen it.
    ///
    /// # Errors
    /// It has not.
    pub(super) fn check_seen(self, number: Option<i64>) -> Result<(), IncompatibleDatabase> {
        if number.is_some_and(|number| self.number <= number) {
            Ok(())
        } else {
            Err(IncompatibleDatabase::HeartbeatNotSeen)
        }
    }
}

/// Sends a heartbeat. Readers of this process must see it from then on.
pub async fn send_heartbeat(store: &Store) -> Result<(), StoreError> {
    let at = Instant::now();
    let sql = "SELECT send_log_heartbeat(), pg_current_xact_id()::text::bigint";
    let row = store.query_alone(sql).await?;
    let xid = row.try_get_by_index::<i64>(1)?.cast_unsigned();
    store.last_heartbeat.set(Heartbeat { number: row.try_get_by_index(0)?, xid, at });
    Ok(())
}
