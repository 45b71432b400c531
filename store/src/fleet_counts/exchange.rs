//! Sends counts of the fleet from the replica that read them to all replicas, as a notification of
//! the database. A lost notification does no harm: a replica whose counts are old reads them
//! itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgListener;

use super::FleetCounts;
use crate::address::DatabaseAddress;
use crate::error::StoreError;
use crate::log::{RETRY_INTERVAL, connect_listener, receive_payload};
use crate::pool::Store;
use crate::tx::{FleetTx, execute};

/// The notification channel of counts.
const CHANNEL: &str = "evenkeel_fleet_counts";

/// Counts, and how long it took to read them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedCounts {
    pub counts: FleetCounts,
    #[serde(with = "milliseconds")]
    pub took: Duration,
}

/// Sends counts to all listeners when the transaction is committed.
pub async fn publish_counts(tx: &FleetTx, published: &PublishedCounts) -> Result<(), StoreError> {
    // About 1 kB; a notification may have 8 kB.
    let payload = serde_json::to_string(published).expect("names and numbers are valid JSON");
    let sql = "SELECT pg_notify($1, $2)";
    execute(tx.conn(), sql, [CHANNEL.into(), payload.into()]).await.map(drop)
}

/// Receives counts on a connection of its own.
#[derive(Debug)]
pub struct FleetCountsListener {
    address: DatabaseAddress,
    /// None until the first use and after a failure.
    listener: Option<PgListener>,
}

/// A listener for counts, which connects when it is used.
#[must_use]
pub fn listen_for_counts(store: &Store) -> FleetCountsListener {
    FleetCountsListener { address: store.address.clone(), listener: None }
}

impl FleetCountsListener {
    /// Waits for the next counts. Keeps waiting while the database is down. A payload that this
    /// release cannot read is skipped.
    pub async fn next(&mut self) -> PublishedCounts {
        loop {
            if let Some(listener) = &mut self.listener {
                match receive_payload(listener).await {
                    Ok(payload) => match serde_json::from_str(&payload) {
                        Ok(published) => return published,
                        Err(_) => continue,
                    },
                    Err(_) => self.listener = None,
                }
            }
            match connect_listener(&self.address, CHANNEL).await {
                Ok(listener) => self.listener = Some(listener),
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }
}

mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(length: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::fleet_counts::{HOST_STATUSES, NodeCounts};

    #[test]
    fn the_longest_counts_fit_into_a_notification() {
        let names = |names: &[&str]| -> BTreeMap<String, u64> {
            names.iter().map(|name| ((*name).to_owned(), u64::MAX)).collect()
        };
        let states = [
            "downloading",
            "staged",
            "applying",
            "rebooting",
            "verifying",
            "reverting",
            "succeeded",
            "failed",
            "reverted",
            "cancelled",
            "abandoned",
        ];
        let counts = FleetCounts {
            projects: u64::MAX,
            hosts: names(&HOST_STATUSES),
            nodes: NodeCounts {
                total: u64::MAX,
                with_updates: u64::MAX,
                with_security_updates: u64::MAX,
                requiring_reboot: u64::MAX,
                security_updates: u64::MAX,
            },
            open_runs: names(&states),
            ended_runs: names(&states),
            stored_runs: u64::MAX,
            stopped_assignments: u64::MAX,
            expiring_credentials: names(&["join_token", "operator_token"]),
        };
        let published = PublishedCounts { counts, took: Duration::from_millis(1_234) };
        let payload = serde_json::to_string(&published).unwrap();
        assert!(payload.len() < 4_000, "{}", payload.len());
        assert_eq!(serde_json::from_str::<PublishedCounts>(&payload).unwrap(), published);
    }

    /// While servers are upgraded, they send counts to each other.
    #[test]
    fn counts_of_another_release_are_read() {
        let payload = r#"{"counts":{"projects":3,"moons":1,"nodes":{"total":2}},"took":5}"#;
        let published: PublishedCounts = serde_json::from_str(payload).unwrap();
        assert_eq!((published.counts.projects, published.counts.nodes.total), (3, 2));
    }
}
