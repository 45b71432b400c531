//! A large project, quickly: one of everything as the store itself makes it, and many others like it.

mod copies;
mod first;
mod others;

use std::ops::Range;

use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, InstanceId, OsId, RunId, SiteId};
use evenkeel_domain::tenant::TenantId;
use sea_orm::ConnectionTrait;

use super::{connect, run};
use crate::error::StoreError;
use crate::pool::Store;

/// How many are made in one transaction.
const BATCH: u32 = 2_000;

/// How many runs an instance has.
pub const RUNS_EACH: u32 = 2;

/// How many network interfaces a host has.
pub const NICS_EACH: u32 = 2;

/// How large a project is made. Each host has an instance; there are a few regions besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Hosts; at least one is made.
    pub hosts: u32,
    /// Sites, which have about as many hosts each; at least one is made.
    pub sites: u32,
}

/// What was made. What belongs together stands in the same place: a host and its instance, and [`RUNS_EACH`] runs for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    /// What all of them run.
    pub os: OsId,
    /// The sites; a host stands at the one that comes in its turn.
    pub sites: Vec<SiteId>,
    /// The hosts.
    pub hosts: Vec<HostId>,
    /// The instances.
    pub instances: Vec<InstanceId>,
    /// The runs, all of them over.
    pub runs: Vec<RunId>,
}

/// What the `n`th host is called.
#[must_use]
pub fn host_name(n: u32) -> String {
    format!("edge-{n:06}")
}

/// What the instance on the `n`th host is called.
#[must_use]
pub fn instance_name(n: u32) -> String {
    format!("node-{n:06}")
}

/// What the `n`th run is called.
#[must_use]
pub fn run_name(n: u32) -> String {
    format!("update {} of edge-{:06}", n % RUNS_EACH, n / RUNS_EACH)
}

/// Fills an empty project. Nodes were never heard, so that none falls silent.
///
/// # Errors
/// The database cannot be reached, or is not given the time that it needs.
pub async fn project(
    store: &Store,
    tenant: TenantId,
    size: Size,
    now: Time,
) -> Result<Filled, StoreError> {
    filled(store, tenant, size, now, true).await
}

/// The same without hardware and runs, but for those of the first host: for fleets of a million.
///
/// # Errors
/// The database cannot be reached, or is not given the time that it needs.
pub async fn nodes(
    store: &Store,
    tenant: TenantId,
    size: Size,
    now: Time,
) -> Result<Filled, StoreError> {
    filled(store, tenant, size, now, false).await
}

async fn filled(
    store: &Store,
    tenant: TenantId,
    size: Size,
    now: Time,
    whole: bool,
) -> Result<Filled, StoreError> {
    let tx = store.tenant(tenant).await?;
    let first = first::make(&tx, now).await?;
    tx.commit().await?;
    let mut filled = Filled {
        os: first.os,
        sites: vec![first.site],
        hosts: vec![first.host],
        instances: vec![first.instance],
        runs: vec![first.run],
    };
    for part in parts(size.sites) {
        let tx = store.tenant(tenant).await?;
        filled.sites.extend(others::sites(&tx, &first, part).await?);
        tx.commit().await?;
    }
    for part in parts(size.hosts) {
        let tx = store.tenant(tenant).await?;
        let hosts = others::hosts(&tx, &first, &filled.sites, part.clone()).await?;
        if whole {
            others::hardware(&tx, &first, &hosts, part.clone()).await?;
        }
        let instances = others::instances(&tx, &first, &hosts, part).await?;
        tx.commit().await?;
        filled.hosts.extend(hosts);
        filled.instances.extend(instances);
    }
    let runs = if whole {
        size.hosts.max(1) * RUNS_EACH
    } else {
        1
    };
    for part in parts(runs) {
        let tx = store.tenant(tenant).await?;
        let runs = others::runs(&tx, &first, &filled.instances, part, now).await?;
        tx.commit().await?;
        filled.runs.extend(runs);
    }
    Ok(filled)
}

/// Lets Postgres see how the data lies and write it down, so that it does neither while something is measured. `admin` is
/// the URL of its superuser.
///
/// # Errors
/// The database cannot be reached, or is not given the time that it needs.
pub async fn settle(store: &Store, admin: &str) -> Result<(), StoreError> {
    store.db.execute_unprepared("VACUUM (ANALYZE)").await?;
    let admin = connect(admin).await;
    run(&admin, "CHECKPOINT").await;
    Ok(admin.close().await?)
}

/// All after the first of so many, in parts that one transaction makes.
fn parts(count: u32) -> impl Iterator<Item = Range<u32>> {
    let size = usize::try_from(BATCH).unwrap_or(1);
    (1..count)
        .step_by(size)
        .map(move |from| from..count.min(from + BATCH))
}

/// The one that comes in its turn.
fn in_turn<T: Copy>(of: &[T], n: u32) -> T {
    let at = usize::try_from(n).unwrap_or(usize::MAX);
    of[at % of.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_first_are_made_in_parts() {
        assert_eq!(parts(0).count(), 0);
        assert_eq!(parts(1).count(), 0);
        let cut: Vec<_> = parts(BATCH + 3).collect();
        assert_eq!(cut, [1..2_001, 2_001..2_003]);
    }
}
