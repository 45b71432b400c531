//! Seeds a large project quickly: the store creates one resource of each kind, and SQL copies it.

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

/// Number of rows per transaction.
const ROWS_PER_TRANSACTION: u32 = 2_000;

/// Number of runs per instance.
pub const RUNS_PER_INSTANCE: u32 = 2;

/// Number of network interfaces per host.
pub const NICS_PER_HOST: u32 = 2;

/// The public key of all hosts. It is no real key.
pub const PUBLIC_KEY: [u8; 32] = [7; 32];

/// Size of the project. Each host has an instance; a few regions are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectSize {
    /// Number of hosts, at least one.
    pub hosts: u32,
    /// Number of sites, at least one. The hosts are spread evenly over them.
    pub sites: u32,
}

/// The created resources. A host and its instance have the same index, and [`RUNS_PER_INSTANCE`]
/// runs belong to each instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeededProject {
    /// The operating system of all nodes.
    pub os: OsId,
    /// The sites, assigned to the hosts in turn.
    pub sites: Vec<SiteId>,
    pub hosts: Vec<HostId>,
    pub instances: Vec<InstanceId>,
    /// The runs; all of them have ended.
    pub runs: Vec<RunId>,
}

/// The name of the `n`th host.
#[must_use]
pub fn host_name(n: u32) -> String {
    format!("edge-{n:06}")
}

/// The name of the instance on the `n`th host.
#[must_use]
pub fn instance_name(n: u32) -> String {
    format!("node-{n:06}")
}

/// The name of the `n`th run.
#[must_use]
pub fn run_name(n: u32) -> String {
    format!("update {} of edge-{:06}", n % RUNS_PER_INSTANCE, n / RUNS_PER_INSTANCE)
}

/// Seeds an empty project. The nodes have never made contact, so they do not become silent.
///
/// # Errors
/// The database cannot be reached, or a statement times out.
pub async fn seed_project(
    store: &Store,
    tenant: TenantId,
    size: ProjectSize,
    now: Time,
) -> Result<SeededProject, StoreError> {
    seed(store, tenant, size, now, true).await
}

/// Like [`seed_project`], but with hardware and runs for the first host only: for fleets of a
/// million.
///
/// # Errors
/// The database cannot be reached, or a statement times out.
pub async fn seed_nodes(
    store: &Store,
    tenant: TenantId,
    size: ProjectSize,
    now: Time,
) -> Result<SeededProject, StoreError> {
    seed(store, tenant, size, now, false).await
}

async fn seed(
    store: &Store,
    tenant: TenantId,
    size: ProjectSize,
    now: Time,
    with_hardware_and_runs: bool,
) -> Result<SeededProject, StoreError> {
    let tx = store.tenant(tenant).await?;
    let first = first::make(&tx, now).await?;
    tx.commit().await?;
    let mut seeded = SeededProject {
        os: first.os,
        sites: vec![first.site],
        hosts: vec![first.host],
        instances: vec![first.instance],
        runs: vec![first.run],
    };
    for part in batches(size.sites) {
        let tx = store.tenant(tenant).await?;
        seeded.sites.extend(others::sites(&tx, &first, part).await?);
        tx.commit().await?;
    }
    for part in batches(size.hosts) {
        let tx = store.tenant(tenant).await?;
        let hosts = others::hosts(&tx, &first, &seeded.sites, part.clone()).await?;
        if with_hardware_and_runs {
            others::hardware(&tx, &first, &hosts, part.clone()).await?;
        }
        let instances = others::instances(&tx, &first, &hosts, part).await?;
        tx.commit().await?;
        seeded.hosts.extend(hosts);
        seeded.instances.extend(instances);
    }
    let runs = if with_hardware_and_runs { size.hosts.max(1) * RUNS_PER_INSTANCE } else { 1 };
    for part in batches(runs) {
        let tx = store.tenant(tenant).await?;
        let runs = others::runs(&tx, &first, &seeded.instances, part, now).await?;
        tx.commit().await?;
        seeded.runs.extend(runs);
    }
    Ok(seeded)
}

/// Vacuums, analyzes and writes a checkpoint, so that Postgres does not do so during a measurement.
/// `admin` is the URL of a superuser.
///
/// # Errors
/// The database cannot be reached, or a statement times out.
pub async fn vacuum_and_checkpoint(store: &Store, admin: &str) -> Result<(), StoreError> {
    store.db().execute_unprepared("VACUUM (ANALYZE)").await?;
    let admin = connect(admin).await;
    run(&admin, "CHECKPOINT").await;
    Ok(admin.close().await?)
}

/// All indexes from 1 to `count`, in batches of one transaction each.
fn batches(count: u32) -> impl Iterator<Item = Range<u32>> {
    let size = usize::try_from(ROWS_PER_TRANSACTION).unwrap_or(1);
    (1..count).step_by(size).map(move |from| from..count.min(from + ROWS_PER_TRANSACTION))
}

/// The item for an index, in turn.
fn round_robin<T: Copy>(of: &[T], n: u32) -> T {
    let at = usize::try_from(n).unwrap_or(usize::MAX);
    of[at % of.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_first_are_made_in_parts() {
        assert_eq!(batches(0).count(), 0);
        assert_eq!(batches(1).count(), 0);
        let cut: Vec<_> = batches(ROWS_PER_TRANSACTION + 3).collect();
        assert_eq!(cut, [1..2_001, 2_001..2_003]);
    }
}
