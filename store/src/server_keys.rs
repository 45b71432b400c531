//! Fingerprints of the keys that all servers on this database share.

use evenkeel_domain::Time;

use crate::error::StoreError;
use crate::tx::{FleetTx, execute, query_one};

/// A key that all servers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedKey {
    /// Signs credentials of nodes.
    Nodes,
    /// Signs tokens of operators.
    Operators,
    /// The certificate authority of the listeners for nodes.
    Authority,
}

impl SharedKey {
    const fn name(self) -> &'static str {
        match self {
            // The only key of earlier releases.
            Self::Nodes => "signing",
            Self::Operators => "operators",
            Self::Authority => "authority",
        }
    }
}

/// The recorded fingerprint; none if no server has recorded one.
pub async fn find(tx: &FleetTx, key: SharedKey) -> Result<Option<String>, StoreError> {
    let sql = "SELECT fingerprint FROM server_keys WHERE kind = $1";
    let row = query_one(tx.conn(), sql, [key.name().into()]).await?;
    Ok(row.map(|row| row.try_get_by_index(0)).transpose()?)
}

/// Records a fingerprint unless one is recorded. Returns the recorded one: of two servers that start
/// at once, both get the same.
pub async fn record_first(
    tx: &FleetTx,
    key: SharedKey,
    fingerprint: &str,
    now: Time,
) -> Result<String, StoreError> {
    let sql = "INSERT INTO server_keys (kind, fingerprint, recorded_at) VALUES ($1, $2, $3) \
               ON CONFLICT (kind) DO NOTHING";
    execute(tx.conn(), sql, [key.name().into(), fingerprint.into(), now.into()]).await?;
    find(tx, key).await?.ok_or(StoreError::NotFound { what: "server_keys" })
}

/// Records a fingerprint in place of the recorded one.
pub async fn replace(
    tx: &FleetTx,
    key: SharedKey,
    fingerprint: &str,
    now: Time,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO server_keys (kind, fingerprint, recorded_at) VALUES ($1, $2, $3) \
               ON CONFLICT (kind) DO UPDATE SET fingerprint = excluded.fingerprint, \
               recorded_at = excluded.recorded_at";
    execute(tx.conn(), sql, [key.name().into(), fingerprint.into(), now.into()]).await.map(drop)
}
