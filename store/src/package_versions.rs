//! Package versions that the nodes of a project reported, and when each was first reported: new
//! versions can be held back for some days.
//!
//! Ages use the clock of the server. The only source is what the nodes of a project report of their mirrors, and a node
//! may report versions that do not exist. So the age of a version starts when a second node reports it. For the node
//! that reported it first, it starts with that report: a node affects only itself.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::package::ObservedVersion;
use sea_orm::Value;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, execute, query_all, query_one};

/// The time of the last report of a version is written at most once per interval.
const RECORD_INTERVAL: TimeDelta = TimeDelta::days(1);

/// How long a version is kept after its last report.
pub const VERSION_TTL: TimeDelta = TimeDelta::days(400);

/// Maximum number of versions that are read from one report.
pub const MAX_VERSIONS_PER_REPORT: usize = 20_000;

/// Maximum number of versions in an answer.
const MAX_VERSIONS_PER_ANSWER: i64 = 20_000;

/// Maximum number of versions of a package that one node was the first to report. Of more, those that
/// were reported last are kept.
pub const MAX_VERSIONS_PER_NODE: u32 = 100;

/// Length limits in bytes of stored names, architectures and versions (Debian's are far shorter).
const MAX_NAME_BYTES: usize = 128;
const MAX_ARCHITECTURE_BYTES: usize = 32;
const MAX_VERSION_BYTES: usize = 256;

/// A version `v` that only another node than `$7` has reported.
const UNCONFIRMED_SQL: &str =
    "(v.confirmed_at IS NULL AND v.reported_by IS NOT NULL AND v.reported_by <> $7)";

/// Records the versions that a node reported. An unknown version is first seen now. A version that
/// only another node has reported is confirmed now. Otherwise the last report of a known version is
/// written at most once a day. Invalid versions are skipped. Returns the number of written versions.
pub async fn record_seen(
    tx: &Tx,
    reporter: InstanceId,
    versions: &[ObservedVersion],
    now: Time,
) -> Result<u64, StoreError> {
    let valid = valid_versions(versions);
    if valid.is_empty() {
        return Ok(0);
    }
    // Recently recorded rows are not touched, so nodes with the same report do not wait for each
    // other. All writers use the same order.
    let sql = format!(
        "INSERT INTO package_versions AS v (tenant_id, name, architecture, version, first_seen, last_seen, reported_by) \
         SELECT DISTINCT $1::uuid, t.name, t.architecture, t.version, $5::timestamptz, $5::timestamptz, $7::integer \
         FROM unnest($2::text[], $3::text[], $4::text[]) AS t (name, architecture, version) \
         WHERE NOT EXISTS (SELECT FROM package_versions v WHERE v.tenant_id = $1 AND v.name = t.name \
         AND v.architecture = t.architecture AND v.version = t.version AND v.last_seen > $6 AND NOT {UNCONFIRMED_SQL}) \
         ORDER BY t.name, t.architecture, t.version \
         ON CONFLICT (tenant_id, name, architecture, version) DO UPDATE \
         SET last_seen = greatest(v.last_seen, excluded.last_seen), \
         confirmed_at = CASE WHEN {UNCONFIRMED_SQL} THEN excluded.last_seen ELSE v.confirmed_at END \
         WHERE v.last_seen <= $6 OR {UNCONFIRMED_SQL} \
         RETURNING v.name, v.reported_by = $7 AND v.first_seen = $5"
    );
    let [names, architectures, numbers] = columns(&valid);
    let values = [
        tx.tenant().uuid().into(),
        names,
        architectures,
        numbers,
        now.into(),
        (now - RECORD_INTERVAL).into(),
        reporter.bits().cast_signed().into(),
    ];
    let written = query_all(tx.conn(), sql, values).await?;
    let mut new_names: Vec<String> = Vec::new();
    for row in &written {
        // Versions of before the columns existed have no reporter.
        let is_new: Option<bool> = row.try_get_by_index(1)?;
        if is_new == Some(true) {
            new_names.push(row.try_get_by_index(0)?);
        }
    }
    new_names.sort_unstable();
    new_names.dedup();
    if !new_names.is_empty() {
        delete_excess(tx, reporter, new_names).await?;
    }
    Ok(written.len() as u64)
}

/// Deletes the versions of packages that a node reported first beyond [`MAX_VERSIONS_PER_NODE`].
async fn delete_excess(
    tx: &Tx,
    reporter: InstanceId,
    names: Vec<String>,
) -> Result<(), StoreError> {
    // Another transaction that confirms one of them may wait for this one, so this one does not wait.
    let sql = "DELETE FROM package_versions WHERE ctid = ANY (ARRAY(SELECT v.ctid FROM package_versions v \
               JOIN (SELECT name, architecture, version, row_number() OVER (PARTITION BY name, architecture \
               ORDER BY last_seen DESC, first_seen DESC, version) AS rank FROM package_versions \
               WHERE tenant_id = $1 AND name = ANY ($2) AND reported_by = $3) r \
               ON v.name = r.name AND v.architecture = r.architecture AND v.version = r.version \
               WHERE v.tenant_id = $1 AND r.rank > $4 FOR UPDATE OF v SKIP LOCKED))";
    let values = [
        tx.tenant().uuid().into(),
        names.into(),
        reporter.bits().cast_signed().into(),
        i64::from(MAX_VERSIONS_PER_NODE).into(),
    ];
    execute(tx.conn(), sql, values).await?;
    Ok(())
}

/// Whether one of these versions was never recorded, or will soon be deleted although a node still
/// has it. Nodes report their versions only when they change, possibly to a server of an older
/// release that did not record them.
pub async fn has_unrecorded(
    tx: &Tx,
    versions: &[ObservedVersion],
    now: Time,
) -> Result<bool, StoreError> {
    let valid = valid_versions(versions);
    if valid.is_empty() {
        return Ok(false);
    }
    let sql = "SELECT EXISTS (SELECT FROM unnest($2::text[], $3::text[], $4::text[]) AS t (name, architecture, version) \
               WHERE NOT EXISTS (SELECT FROM package_versions v WHERE v.tenant_id = $1 AND v.name = t.name \
               AND v.architecture = t.architecture AND v.version = t.version AND v.last_seen > $5))";
    let [names, architectures, numbers] = columns(&valid);
    let values =
        [tx.tenant().uuid().into(), names, architectures, numbers, (now - VERSION_TTL / 2).into()];
    match query_one(tx.conn(), sql, values).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// The versions to record, without invalid ones and those above the limit.
fn valid_versions(versions: &[ObservedVersion]) -> Vec<&ObservedVersion> {
    let is_within = |text: &str, max_bytes: usize| (1..=max_bytes).contains(&text.len());
    let is_valid = |version: &&ObservedVersion| {
        is_within(&version.name, MAX_NAME_BYTES)
            && is_within(&version.architecture, MAX_ARCHITECTURE_BYTES)
            && is_within(&version.version, MAX_VERSION_BYTES)
    };
    versions.iter().filter(is_valid).take(MAX_VERSIONS_PER_REPORT).collect()
}

/// Names, architectures and versions as one array each.
fn columns(versions: &[&ObservedVersion]) -> [Value; 3] {
    let column = |text: fn(&ObservedVersion) -> &String| -> Value {
        let texts: Vec<String> = versions.iter().map(|version| text(version).clone()).collect();
        texts.into()
    };
    [
        column(|version| &version.name),
        column(|version| &version.architecture),
        column(|version| &version.version),
    ]
}

/// Since when a version is known to the node in a parameter of the query; null if only another node
/// has reported it.
fn known_at_sql(node: usize) -> String {
    format!(
        "CASE WHEN reported_by IS NULL OR reported_by = ${node} THEN first_seen ELSE confirmed_at END"
    )
}

/// The versions of these packages that a node knows since a time or longer, by name, architecture
/// and version. Above the limit of an answer, those that each node reported last: they are still
/// offered, and a node that reports many does not displace those of others.
pub async fn list_known_since(
    tx: &Tx,
    node: InstanceId,
    names: Vec<String>,
    since: Time,
) -> Result<Vec<ObservedVersion>, StoreError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT name, architecture, version FROM (SELECT name, architecture, version, last_seen, \
         row_number() OVER (PARTITION BY name, architecture, reported_by ORDER BY last_seen DESC, version) AS rank \
         FROM package_versions WHERE tenant_id = $1 AND name = ANY ($2) AND {} <= $3 \
         ORDER BY rank, last_seen DESC, name, architecture, version LIMIT $4) s \
         ORDER BY name, architecture, version",
        known_at_sql(5)
    );
    let values = [
        tx.tenant().uuid().into(),
        names.into(),
        since.into(),
        MAX_VERSIONS_PER_ANSWER.into(),
        node.bits().cast_signed().into(),
    ];
    let mut versions = Vec::new();
    for row in query_all(tx.conn(), sql, values).await? {
        versions.push(ObservedVersion {
            name: row.try_get_by_index(0)?,
            architecture: row.try_get_by_index(1)?,
            version: row.try_get_by_index(2)?,
        });
    }
    Ok(versions)
}

/// The next time at which time alone changes which versions of these packages a node knows for an
/// age, need to be recorded again, or are deleted; none if no version is recorded.
pub async fn steady_until(
    tx: &Tx,
    node: InstanceId,
    names: &[String],
    age: TimeDelta,
    now: Time,
) -> Result<Option<Time>, StoreError> {
    let (age_limit, record_limit) = (now - age, now - VERSION_TTL / 2);
    let sql = format!(
        "SELECT min(known_at) FILTER (WHERE known_at > $3), min(last_seen) FILTER (WHERE last_seen > $4), \
         min(last_seen) FROM (SELECT {} AS known_at, last_seen FROM package_versions \
         WHERE tenant_id = $1 AND name = ANY ($2)) s",
        known_at_sql(5)
    );
    let values = [
        tx.tenant().uuid().into(),
        names.to_vec().into(),
        age_limit.into(),
        record_limit.into(),
        node.bits().cast_signed().into(),
    ];
    let Some(row) = query_one(tx.conn(), sql, values).await? else {
        return Ok(None);
    };
    let later = |at: usize, by| -> Result<Option<Time>, StoreError> {
        let time: Option<Time> = row.try_get_by_index(at)?;
        Ok(time.map(|time| time + by))
    };
    let instants = [later(0, age)?, later(1, VERSION_TTL / 2)?, later(2, VERSION_TTL)?];
    Ok(instants.into_iter().flatten().min())
}

/// Deletes at most `limit` versions of all projects without a report for [`VERSION_TTL`]. Returns
/// their number. Safe on several replicas at once.
pub async fn delete_expired(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT tenant_id, name, architecture, version FROM package_versions WHERE last_seen < $1 \
               ORDER BY tenant_id, last_seen LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM package_versions v USING old WHERE v.tenant_id = old.tenant_id AND v.name = old.name \
               AND v.architecture = old.architecture AND v.version = old.version";
    let values = [(now - VERSION_TTL).into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}
