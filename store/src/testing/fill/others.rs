//! All others: in what they differ from the first.

use std::ops::Range;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::hardware::Nic;
use evenkeel_domain::id::{HostId, InstanceId, IpAddressId, RunId, SiteId};
use evenkeel_domain::run::FailureKind;
use serde_json::{Value, json};
use uuid::Uuid;

use super::copies::{Table, copy, numbers};
use super::first::First;
use super::{NICS_EACH, RUNS_EACH, host_name, in_turn, instance_name, run_name};
use crate::error::StoreError;
use crate::tx::Tx;

const SITES: Table = table("sites", "id");
const HOSTS: Table = table("hosts", "id");
const HARDWARE: Table = table("host_hardware", "host_id");
const INSTANCES: Table = table("instances", "id");
const NODES: Table = table("node_states", "instance_id");
const RUNS: Table = table("update_runs", "id");
const EVENTS: Table = table("run_events", "run_id");

const fn table(name: &'static str, key: &'static str) -> Table {
    Table { name, key }
}

/// What the `n`th site is called.
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

/// What the `n`th attempt is called by its agent.
pub fn attempt(n: u32) -> Uuid {
    Uuid::from_u128(u128::from(n) + 1)
}

/// When the `n`th run began and ended: within the last ten days.
pub fn times(n: u32, now: Time) -> (Time, Time) {
    let started = now - TimeDelta::minutes(10 + i64::from(n % 14_000));
    (started, started + TimeDelta::minutes(5))
}

/// Makes sites.
pub async fn sites(tx: &Tx, first: &First, part: Range<u32>) -> Result<Vec<SiteId>, StoreError> {
    let numbers = numbers(tx, "site_numbers", part.len()).await?;
    let made: Vec<_> = numbers.into_iter().map(SiteId::nth).collect();
    let differences = part.zip(&made).map(|(n, id)| {
        json!({
            "id": id.bits().cast_signed(),
            "name": site_name(n),
            "region_id": in_turn(&first.regions, n).bits().cast_signed(),
        })
    });
    copy(tx, SITES, first.site.bits(), differences).await?;
    Ok(made)
}

/// Makes hosts.
pub async fn hosts(
    tx: &Tx,
    first: &First,
    sites: &[SiteId],
    part: Range<u32>,
) -> Result<Vec<HostId>, StoreError> {
    let numbers = numbers(tx, "host_numbers", part.len()).await?;
    let made: Vec<_> = numbers.into_iter().map(HostId::nth).collect();
    let differences = part.zip(&made).map(|(n, id)| {
        json!({
            "id": id.bits().cast_signed(),
            "name": host_name(n),
            "hostname": host_name(n),
            "uuid": uuid(n),
            "serial": serial(n),
            "site_id": in_turn(sites, n).bits().cast_signed(),
            "metadata": [{"key": "rack", "value": format!("r{:02}", n % 40)}],
        })
    });
    copy(tx, HOSTS, first.host.bits(), differences).await?;
    Ok(made)
}

/// Says what hosts are made of.
pub async fn hardware(
    tx: &Tx,
    first: &First,
    hosts: &[HostId],
    part: Range<u32>,
) -> Result<(), StoreError> {
    let each = usize::try_from(NICS_EACH).unwrap_or(1);
    let addresses = numbers(tx, "ip_address_numbers", part.len() * each).await?;
    let differences = part
        .zip(hosts)
        .zip(addresses.chunks(each))
        .map(|((n, host), addresses)| {
            json!({
                "host_id": host.bits().cast_signed(),
                "serial_number": serial(n),
                "nics": nics(first, n, addresses),
            })
        });
    copy(tx, HARDWARE, first.host.bits(), differences).await
}

fn nics(first: &First, n: u32, addresses: &[u32]) -> Vec<Nic> {
    let numbered = first.nics.iter().zip(0_u32..).zip(addresses);
    let nic = |((nic, place), number): ((&Nic, u32), &u32)| {
        let mut nic = nic.clone();
        nic.mac_addr = mac(n, place);
        for one in &mut nic.ipaddresses {
            one.resource_id = Some(IpAddressId::nth(*number));
            one.address = address(n, place);
        }
        nic
    };
    numbered.map(nic).collect()
}

/// Makes the instances of hosts, with what is known of their nodes.
pub async fn instances(
    tx: &Tx,
    first: &First,
    hosts: &[HostId],
    part: Range<u32>,
) -> Result<Vec<InstanceId>, StoreError> {
    let numbers = numbers(tx, "instance_numbers", part.len()).await?;
    let made: Vec<_> = numbers.into_iter().map(InstanceId::nth).collect();
    let differences = part.zip(hosts).zip(&made).map(|((n, host), id)| {
        json!({
            "id": id.bits().cast_signed(),
            "host_id": host.bits().cast_signed(),
            "name": instance_name(n),
        })
    });
    copy(tx, INSTANCES, first.instance.bits(), differences).await?;
    let differences = made
        .iter()
        .map(|id| json!({"instance_id": id.bits().cast_signed()}));
    copy(tx, NODES, first.instance.bits(), differences).await?;
    Ok(made)
}

/// Makes runs of instances, with their history.
pub async fn runs(
    tx: &Tx,
    first: &First,
    instances: &[InstanceId],
    part: Range<u32>,
    now: Time,
) -> Result<Vec<RunId>, StoreError> {
    let numbers = numbers(tx, "run_numbers", part.len()).await?;
    let made: Vec<_> = numbers.into_iter().map(RunId::nth).collect();
    let differences = part
        .zip(&made)
        .map(|(n, id)| run(n, *id, in_turn(instances, n / RUNS_EACH), now));
    copy(tx, RUNS, first.run.bits(), differences).await?;
    let differences = made
        .iter()
        .map(|id| json!({"run_id": id.bits().cast_signed()}));
    copy(tx, EVENTS, first.run.bits(), differences).await?;
    Ok(made)
}

/// One of ten failed.
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
