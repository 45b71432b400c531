//! Which versions of packages the nodes of a project were told of, and when they were first heard of here: what is new
//! may be kept back until it has been seen for some days.
//!
//! The server's clock counts. What its nodes say of their mirrors is all that is known, so a version is as old as the
//! first word of it in its own project.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::package::FoundVersion;
use sea_orm::Value;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, all, execute, one};

/// A version that was noted within this time is not noted again.
const FRESH: TimeDelta = TimeDelta::days(1);

/// For how long a version is remembered after a node last told of it.
pub const REMEMBERED: TimeDelta = TimeDelta::days(400);

/// The most versions that are taken from a node at once.
pub const MAX_TOLD: usize = 20_000;

/// The most versions that one answer names.
const MAX_SETTLED: i64 = 20_000;

/// The longest name, architecture and version that are remembered, in bytes (Debian's own are far shorter).
const MAX_NAME: usize = 128;
const MAX_ARCHITECTURE: usize = 32;
const MAX_VERSION: usize = 256;

/// Notes that a node told of some versions. Those that are not known yet are first seen now; of the others it is noted
/// at most once a day that they are still told of. What is no version of a package is left out.
///
/// # Errors
/// The database cannot be reached.
pub async fn see(tx: &Tx, versions: &[FoundVersion], now: Time) -> Result<u64, StoreError> {
    let told = noted(versions);
    if told.is_empty() {
        return Ok(0);
    }
    // Rows that are fresh are not even touched, so nodes that say the same at the same time do not wait for each other;
    // and whoever writes does it in one order.
    let sql = "INSERT INTO package_versions (tenant_id, name, architecture, version, first_seen, last_seen) \
               SELECT DISTINCT $1::uuid, t.name, t.architecture, t.version, $5::timestamptz, $5::timestamptz \
               FROM unnest($2::text[], $3::text[], $4::text[]) AS t (name, architecture, version) \
               WHERE NOT EXISTS (SELECT FROM package_versions v WHERE v.tenant_id = $1 AND v.name = t.name \
               AND v.architecture = t.architecture AND v.version = t.version AND v.last_seen > $6) \
               ORDER BY t.name, t.architecture, t.version \
               ON CONFLICT (tenant_id, name, architecture, version) DO UPDATE SET last_seen = excluded.last_seen \
               WHERE package_versions.last_seen <= $6";
    let [names, architectures, numbers] = columns(&told);
    let values = [
        tx.tenant().uuid().into(),
        names,
        architectures,
        numbers,
        now.into(),
        (now - FRESH).into(),
    ];
    execute(tx.conn(), sql, values).await
}

/// Whether one of some versions was never noted, or so long ago that it is soon forgotten although a node still has it. A
/// node tells what it has when that changes, and then a server of an older release may have listened.
///
/// # Errors
/// The database cannot be reached.
pub async fn is_unheard(tx: &Tx, versions: &[FoundVersion], now: Time) -> Result<bool, StoreError> {
    let told = noted(versions);
    if told.is_empty() {
        return Ok(false);
    }
    let sql = "SELECT EXISTS (SELECT FROM unnest($2::text[], $3::text[], $4::text[]) AS t (name, architecture, version) \
               WHERE NOT EXISTS (SELECT FROM package_versions v WHERE v.tenant_id = $1 AND v.name = t.name \
               AND v.architecture = t.architecture AND v.version = t.version AND v.last_seen > $5))";
    let [names, architectures, numbers] = columns(&told);
    let values = [
        tx.tenant().uuid().into(),
        names,
        architectures,
        numbers,
        (now - REMEMBERED / 2).into(),
    ];
    match one(tx.conn(), sql, values).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// Those that are noted: what is no version of a package is left out, and what is too many.
fn noted(versions: &[FoundVersion]) -> Vec<&FoundVersion> {
    let fits = |text: &str, most: usize| (1..=most).contains(&text.len());
    let is_one = |found: &&FoundVersion| {
        fits(&found.name, MAX_NAME)
            && fits(&found.architecture, MAX_ARCHITECTURE)
            && fits(&found.version, MAX_VERSION)
    };
    versions.iter().filter(is_one).take(MAX_TOLD).collect()
}

/// Names, architectures and versions, one array each.
fn columns(told: &[&FoundVersion]) -> [Value; 3] {
    let column = |text: fn(&FoundVersion) -> &String| -> Value {
        let texts: Vec<String> = told.iter().map(|found| text(found).clone()).collect();
        texts.into()
    };
    [
        column(|found| &found.name),
        column(|found| &found.architecture),
        column(|found| &found.version),
    ]
}

/// The versions of some packages that were first heard of at an instant or before, by name, architecture and version.
/// If there are more than an answer can hold, those that were heard of last: they are the ones that are still offered.
///
/// # Errors
/// The database cannot be reached.
pub async fn settled(
    tx: &Tx,
    names: Vec<String>,
    seen_by: Time,
) -> Result<Vec<FoundVersion>, StoreError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT name, architecture, version FROM (SELECT name, architecture, version FROM package_versions \
               WHERE tenant_id = $1 AND name = ANY ($2) AND first_seen <= $3 \
               ORDER BY last_seen DESC, name, architecture, version LIMIT $4) s \
               ORDER BY name, architecture, version";
    let values = [
        tx.tenant().uuid().into(),
        names.into(),
        seen_by.into(),
        MAX_SETTLED.into(),
    ];
    let mut settled = Vec::new();
    for row in all(tx.conn(), sql, values).await? {
        settled.push(FoundVersion {
            name: row.try_get_by_index(0)?,
            architecture: row.try_get_by_index(1)?,
            version: row.try_get_by_index(2)?,
        });
    }
    Ok(settled)
}

/// When time alone changes which of the known versions of some packages are of an age, unheard of, or forgotten, for the
/// first time from now on; none if none is known.
///
/// # Errors
/// The database cannot be reached.
pub async fn steady_until(
    tx: &Tx,
    names: &[String],
    age: TimeDelta,
    now: Time,
) -> Result<Option<Time>, StoreError> {
    let (of_age, heard) = (now - age, now - REMEMBERED / 2);
    let sql = "SELECT min(first_seen) FILTER (WHERE first_seen > $3), min(last_seen) FILTER (WHERE last_seen > $4), \
               min(last_seen) FROM package_versions WHERE tenant_id = $1 AND name = ANY ($2)";
    let values = [
        tx.tenant().uuid().into(),
        names.to_vec().into(),
        of_age.into(),
        heard.into(),
    ];
    let Some(row) = one(tx.conn(), sql, values).await? else {
        return Ok(None);
    };
    let later = |at: usize, by| -> Result<Option<Time>, StoreError> {
        let seen: Option<Time> = row.try_get_by_index(at)?;
        Ok(seen.map(|seen| seen + by))
    };
    let instants = [
        later(0, age)?,
        later(1, REMEMBERED / 2)?,
        later(2, REMEMBERED)?,
    ];
    Ok(instants.into_iter().flatten().min())
}

/// Forgets versions of all projects that no node told of for [`REMEMBERED`], at most so many. Says how many. Safe on
/// several replicas at once.
///
/// # Errors
/// The database cannot be reached.
pub async fn clean(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT tenant_id, name, architecture, version FROM package_versions WHERE last_seen < $1 \
               ORDER BY tenant_id, last_seen LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM package_versions v USING old WHERE v.tenant_id = old.tenant_id AND v.name = old.name \
               AND v.architecture = old.architecture AND v.version = old.version";
    let values = [(now - REMEMBERED).into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}
