//! The copies, and how they differ from the first resources.

use std::ops::Range;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::hardware::Nic;
use evenkeel_domain::id::{HostId, InstanceId, IpAddressId, RunId, SiteId};
use evenkeel_domain::run::FailureKind;
use serde_json::{Value, json};
use uuid::Uuid;

use super::copies::{CopyTable, copy, numbers};
use super::first::SeedTemplates;
use super::{NICS_PER_HOST, RUNS_PER_INSTANCE, host_name, instance_name, round_robin, run_name};
use crate::error::StoreError;
use crate::tx::Tx;

const SITES: CopyTable = table("sites", "id");
const HOSTS: CopyTable = table("hosts", "id");
const HARDWARE: CopyTable = table("host_hardware", "host_id");
const INSTANCES: CopyTable = table("instances", "id");
const NODES: CopyTable = table("node_states", "instance_id");
const RUNS: CopyTable = table("update_runs", "id");
const EVENTS: CopyTable = table("run_events", "run_id");

const fn table(name: &'static str, key: &'static str) -> CopyTable {
    CopyTable { name, key }
}

/// The name of the `n`th site.
pub fn site_name(n: u32) -> String {
    format!("site-{n:04}")
}

/// The UUID of the `n`th host.
pub fn uuid(n: u32) -> Uuid {
    Uuid::from_u128(0x4000_8000_0000_0000_0000 + u128::from(n))
}

/// The serial number of the `n`th host.
pub fn serial(n: u32) -> String {
    format!("SN{n:08}")
}

/// The hardware address of an interface of the `n`th host.
pub fn mac(n: u32, nic: u32) -> String {
    let [_, a, b, c] = n.to_be_bytes();
    format!("52:54:{nic:02x}:{a:02x}:{b:02x}:{c:02x}")
}

/// The address of an interface of the `n`th host.
pub fn address(n: u32, nic: u32) -> String {
    let [.., b, c] = n.to_be_bytes();
    format!("10.{nic}.{b}.{c}/16")
}

/// The attempt id of the `n`th run.
pub fn attempt(n: u32) -> Uuid {
    Uuid::from_u128(u128::from(n) + 1)
}

/// Start and end of the `n`th run, within the last ten days.
pub fn times(n: u32, now: Time) -> (Time, Time) {
    let started = now - TimeDelta::minutes(10 + i64::from(n % 14_000));
    (started, started + TimeDelta::minutes(5))
}

/// Creates sites.
pub async fn sites(
    tx: &Tx,
    first: &SeedTemplates,
    part: Range<u32>,
) -> Result<Vec<SiteId>, StoreError> {
    let numbers = numbers(tx, "site_numbers", part.len()).await?;
    let ids: Vec<_> = numbers.into_iter().map(SiteId::nth).collect();
    let differences = part.zip(&ids).map(|(n, id)| {
        json!({
            "id": id.bits().cast_signed(),
            "name": site_name(n),
            "region_id": round_robin(&first.regions, n).bits().cast_signed(),
        })
    });
    copy(tx, SITES, first.site.bits(), differences).await?;
    Ok(ids)
}

/// Creates hosts.
pub async fn hosts(
    tx: &Tx,
    first: &SeedTemplates,
    sites: &[SiteId],
    part: Range<u32>,
) -> Result<Vec<HostId>, StoreError> {
    let numbers = numbers(tx, "host_numbers", part.len()).await?;
    let ids: Vec<_> = numbers.into_iter().map(HostId::nth).collect();
    let differences = part.zip(&ids).map(|(n, id)| {
        json!({
            "id": id.bits().cast_signed(),
            "name": host_name(n),
            "hostname": host_name(n),
            "uuid": uuid(n),
            "serial": serial(n),
            "site_id": round_robin(sites, n).bits().cast_signed(),
            "metadata": [{"key": "rack", "value": format!("r{:02}", n % 40)}],
        })
    });
    copy(tx, HOSTS, first.host.bits(), differences).await?;
    Ok(ids)
}

/// Creates the hardware of hosts.
pub async fn hardware(
    tx: &Tx,
    first: &SeedTemplates,
    hosts: &[HostId],
    part: Range<u32>,
) -> Result<(), StoreError> {
    let each = usize::try_from(NICS_PER_HOST).unwrap_or(1);
    let addresses = numbers(tx, "ip_address_numbers", part.len() * each).await?;
    let differences = part.zip(hosts).zip(addresses.chunks(each)).map(|((n, host), addresses)| {
        json!({
            "host_id": host.bits().cast_signed(),
            "serial_number": serial(n),
            "nics": nics(first, n, addresses),
        })
    });
    copy(tx, HARDWARE, first.host.bits(), differences).await
}

fn nics(first: &SeedTemplates, n: u32, addresses: &[u32]) -> Vec<Nic> {
    let numbered = first.nics.iter().zip(0_u32..).zip(addresses);
    let nic = |((nic, index), number): ((&Nic, u32), &u32)| {
        let mut nic = nic.clone();
        nic.mac_addr = mac(n, index);
        for entry in &mut nic.ipaddresses {
            entry.resource_id = Some(IpAddressId::nth(*number));
            entry.address = address(n, index);
        }
        nic
    };
    numbered.map(nic).collect()
}

/// Creates the instances of hosts, with the state of their nodes.
pub async fn instances(
    tx: &Tx,
    first: &SeedTemplates,
    hosts: &[HostId],
    part: Range<u32>,
) -> Result<Vec<InstanceId>, StoreError> {
    let numbers = numbers(tx, "instance_numbers", part.len()).await?;
    let ids: Vec<_> = numbers.into_iter().map(InstanceId::nth).collect();
    let differences = part.zip(hosts).zip(&ids).map(|((n, host), id)| {
        json!({
            "id": id.bits().cast_signed(),
            "host_id": host.bits().cast_signed(),
            "name": instance_name(n),
        })
    });
    copy(tx, INSTANCES, first.instance.bits(), differences).await?;
    let differences = ids.iter().map(|id| json!({"instance_id": id.bits().cast_signed()}));
    copy(tx, NODES, first.instance.bits(), differences).await?;
    Ok(ids)
}

/// Creates runs of instances, with their history.
pub async fn runs(
    tx: &Tx,
    first: &SeedTemplates,
    instances: &[InstanceId],
    part: Range<u32>,
    now: Time,
) -> Result<Vec<RunId>, StoreError> {
    let numbers = numbers(tx, "run_numbers", part.len()).await?;
    let ids: Vec<_> = numbers.into_iter().map(RunId::nth).collect();
    let differences = part
        .zip(&ids)
        .map(|(n, id)| run(n, *id, round_robin(instances, n / RUNS_PER_INSTANCE), now));
    copy(tx, RUNS, first.run.bits(), differences).await?;
    let differences = ids.iter().map(|id| json!({"run_id": id.bits().cast_signed()}));
    copy(tx, EVENTS, first.run.bits(), differences).await?;
    Ok(ids)
}

/// One in ten runs has failed.
fn run(n: u32, id: RunId, of: InstanceId, now: Time) -> Value {
    let (started, ended) = times(n, now);
    let mut run = json!({
        "id": id.bits().cast_signed(),
        "instance_id": of.bits().cast_signed(),
        "name": run_name(n),
        "attempt": attempt(n),
        "started_at": started,
        "state_since": ended,
        "ended_at": ended,
    });
    if n % 10 == 9 {
        run["state"] = json!("failed");
        run["changed"] = Value::Null;
        run["failure_kind"] = json!(FailureKind::Apply.name());
        run["failure"] = json!("a script failed");
    }
    run
}
