//! Reads and writes the rows of `change_seals`, and reads changes with all columns that seals cover.

use chrono::SecondsFormat;
use evenkeel_domain::Time;
use evenkeel_domain::change_seal::{ChainHead, RecordedChange, Seal, SealDigest, SealedChanges};
use evenkeel_domain::tenant::TenantId;
use sea_orm::{QueryResult, Value};
use serde_json::json;
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::{FleetTx, execute, query_all};

const TABLE: &str = "change_seals";

/// Reads at most `limit` changes with numbers from after the first to the second, of one project or of all, in the order of
/// their numbers.
pub(super) async fn read_changes(
    tx: &FleetTx,
    project: Option<TenantId>,
    (after, up_to): (i64, i64),
    limit: usize,
) -> Result<Vec<(TenantId, RecordedChange)>, StoreError> {
    let of_project = if project.is_some() { "AND c.tenant_id = $3" } else { "" };
    // LIMIT is no parameter: a cached generic plan would assume a tenth of the log.
    let sql = format!(
        "SELECT c.tenant_id, c.seq, c.xid::text::bigint, c.at, c.kind, c.id, c.operation, c.scope_level, c.scope_id, \
         c.actor, c.request_id, c.client_address, c.before::text, c.after::text FROM change_log c \
         WHERE c.seq > $1 AND c.seq <= $2 {of_project} ORDER BY c.seq LIMIT {limit}"
    );
    let mut values: Vec<Value> = vec![after.into(), up_to.into()];
    values.extend(project.map(|project| Value::from(project.uuid())));
    let rows = query_all(tx.conn(), sql, values).await?;
    rows.iter().map(change_from_row).collect()
}

fn change_from_row(row: &QueryResult) -> Result<(TenantId, RecordedChange), StoreError> {
    let tenant: Uuid = row.try_get_by_index(0)?;
    let change = RecordedChange {
        number: row.try_get_by_index(1)?,
        transaction: row.try_get_by_index(2)?,
        at: row.try_get_by_index(3)?,
        kind: row.try_get_by_index(4)?,
        id: row.try_get_by_index(5)?,
        operation: row.try_get_by_index(6)?,
        scope_level: row.try_get_by_index(7)?,
        scope_id: row.try_get_by_index(8)?,
        actor: row.try_get_by_index(9)?,
        request_id: row.try_get_by_index(10)?,
        client_address: row.try_get_by_index(11)?,
        before: row.try_get_by_index(12)?,
        after: row.try_get_by_index(13)?,
    };
    Ok((TenantId::new(tenant), change))
}

/// The position of a seal in the order in which they are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct SealPosition {
    pub(super) up_to: i64,
    pub(super) tenant: TenantId,
    pub(super) number: i64,
}

impl SealPosition {
    /// Before all seals.
    pub(super) const START: Self =
        Self { up_to: i64::MIN, tenant: TenantId::new(Uuid::nil()), number: i64::MIN };

    pub(super) const fn after(seal: &Seal) -> Self {
        Self { up_to: seal.up_to, tenant: seal.tenant, number: seal.number }
    }
}

/// Reads at most `limit` seals after a position: of one project in the order of their numbers, or of all projects in the order
/// of the changes. Each order has an index.
pub(super) async fn read_seals(
    tx: &FleetTx,
    project: Option<TenantId>,
    after: SealPosition,
    limit: usize,
) -> Result<Vec<Seal>, StoreError> {
    let (condition, order, values): (_, _, [Value; 2]) = match project {
        Some(project) => (
            "s.tenant_id = $1 AND s.number > $2",
            "s.number",
            [project.uuid().into(), after.number.into()],
        ),
        None => (
            "(s.up_to, s.tenant_id) > ($1, $2)",
            "s.up_to, s.tenant_id",
            [after.up_to.into(), after.tenant.uuid().into()],
        ),
    };
    let sql = format!(
        "SELECT s.tenant_id, s.number, s.encoding, s.above, s.up_to, s.changes_by_users, s.digest_by_users, \
         s.changes_by_server, s.digest_by_server, s.first_at, s.last_at, s.sealed_at, s.previous, s.digest \
         FROM change_seals s WHERE {condition} ORDER BY {order} LIMIT {limit}"
    );
    let rows = query_all(tx.conn(), sql, values).await?;
    rows.iter().map(seal_from_row).collect()
}

fn seal_from_row(row: &QueryResult) -> Result<Seal, StoreError> {
    let tenant: Uuid = row.try_get_by_index(0)?;
    let previous: Option<Vec<u8>> = row.try_get_by_index(12)?;
    Ok(Seal {
        tenant: TenantId::new(tenant),
        number: row.try_get_by_index(1)?,
        encoding: row.try_get_by_index(2)?,
        above: row.try_get_by_index(3)?,
        up_to: row.try_get_by_index(4)?,
        by_users: sealed_changes_from_row(row, 5)?,
        by_server: sealed_changes_from_row(row, 7)?,
        first_at: row.try_get_by_index(9)?,
        last_at: row.try_get_by_index(10)?,
        sealed_at: row.try_get_by_index(11)?,
        previous: previous.as_deref().map(parse_digest).transpose()?,
        digest: parse_digest(&row.try_get_by_index::<Vec<u8>>(13)?)?,
    })
}

/// The number in a column and the digest in the next one.
fn sealed_changes_from_row(row: &QueryResult, at: usize) -> Result<SealedChanges, StoreError> {
    let count: i32 = row.try_get_by_index(at)?;
    let digest: Vec<u8> = row.try_get_by_index(at + 1)?;
    Ok(SealedChanges { count: count.cast_unsigned(), digest: parse_digest(&digest)? })
}

fn parse_digest(bytes: &[u8]) -> Result<SealDigest, StoreError> {
    let corrupt = |_| StoreError::Corrupt { table: TABLE, row: 0, column: "digest" };
    <[u8; 32]>::try_from(bytes).map(SealDigest::new).map_err(corrupt)
}

/// The ends of the chains of projects. A project without seals is left out.
pub(super) async fn read_heads(
    tx: &FleetTx,
    projects: &[TenantId],
) -> Result<Vec<(TenantId, ChainHead)>, StoreError> {
    let ids: Vec<Uuid> = projects.iter().map(|project| project.uuid()).collect();
    let sql = "SELECT p.id, s.number, s.up_to, s.digest FROM unnest($1::uuid[]) p (id) CROSS JOIN LATERAL (\
               SELECT h.number, h.up_to, h.digest FROM change_seals h WHERE h.tenant_id = p.id \
               ORDER BY h.number DESC LIMIT 1) s";
    let rows = query_all(tx.conn(), sql, [ids.into()]).await?;
    rows.iter().map(head_from_row).collect()
}

fn head_from_row(row: &QueryResult) -> Result<(TenantId, ChainHead), StoreError> {
    let tenant: Uuid = row.try_get_by_index(0)?;
    let digest: Vec<u8> = row.try_get_by_index(3)?;
    let head = ChainHead {
        number: row.try_get_by_index(1)?,
        up_to: row.try_get_by_index(2)?,
        digest: parse_digest(&digest)?,
    };
    Ok((TenantId::new(tenant), head))
}

/// Writes seals, in one statement.
pub(super) async fn insert_seals(tx: &FleetTx, seals: &[Seal]) -> Result<(), StoreError> {
    let text = |at: Time| at.to_rfc3339_opts(SecondsFormat::Micros, true);
    let row = |seal: &Seal| {
        json!({
            "tenant_id": seal.tenant.uuid(),
            "number": seal.number,
            "encoding": seal.encoding,
            "above": seal.above,
            "up_to": seal.up_to,
            "changes_by_users": seal.by_users.count,
            "digest_by_users": seal.by_users.digest.to_string(),
            "changes_by_server": seal.by_server.count,
            "digest_by_server": seal.by_server.digest.to_string(),
            "first_at": text(seal.first_at),
            "last_at": text(seal.last_at),
            "sealed_at": text(seal.sealed_at),
            "previous": seal.previous.map(|digest| digest.to_string()),
            "digest": seal.digest.to_string(),
        })
    };
    let rows: serde_json::Value = seals.iter().map(row).collect();
    let sql = "INSERT INTO change_seals (tenant_id, number, encoding, above, up_to, changes_by_users, digest_by_users, \
               changes_by_server, digest_by_server, first_at, last_at, sealed_at, previous, digest) \
               SELECT s.tenant_id, s.number, s.encoding, s.above, s.up_to, s.changes_by_users, \
               decode(s.digest_by_users, 'hex'), s.changes_by_server, decode(s.digest_by_server, 'hex'), \
               s.first_at, s.last_at, s.sealed_at, decode(s.previous, 'hex'), decode(s.digest, 'hex') \
               FROM jsonb_to_recordset($1::jsonb) AS s (tenant_id uuid, number bigint, encoding smallint, above bigint, \
               up_to bigint, changes_by_users integer, digest_by_users text, changes_by_server integer, \
               digest_by_server text, first_at timestamptz, last_at timestamptz, sealed_at timestamptz, \
               previous text, digest text)";
    execute(tx.conn(), sql, [rows.into()]).await.map(drop)
}
