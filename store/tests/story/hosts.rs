//! Hosts: their labels, where they should stand, what they are made of, and how many there are.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::filter::{self, Resource};
use evenkeel_domain::hardware::{Address, Capacity, Controller, Hardware, Nic, Storage};
use evenkeel_domain::host::{Host, HostState, Note, Registration};
use evenkeel_domain::id::HostId;
use evenkeel_domain::place::Metadata;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::hosts::{HostChange, HostSummary};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Conflict, Store, StoreError, changes, hardware, hosts, nodes};

use crate::house::{NOON, node, project, registration, site, stands_at};

async fn registered(store: &Store, tenant: TenantId, n: u128) -> Host {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON).await;
    tx.commit().await.expect("committed");
    host.expect("a host")
}

#[tokio::test]
async fn a_host_reads_as_it_was_written() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let announced = Registration::parse("edge", "", "ABC12345", false)
        .and_then(|machine| machine.with_user_lvm_size(60))
        .expect("a registration");
    let host = hosts::register(&tx, &announced, NOON)
        .await
        .expect("a host");
    assert_eq!((host.user_lvm_size, host.provider), (60, None));
    assert_eq!(host.metadata, Metadata::default());
    let labels = [("rack", "7"), ("example.com/tier", "gold")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let labels = Metadata::parse(labels).expect("labels");
    let change = HostChange {
        metadata: Some(labels.clone()),
        ..HostChange::default()
    };
    let changed = hosts::change(&tx, host.id, &change, NOON).await;
    assert_eq!(changed.expect("changed").metadata, labels);
    let read = hosts::find(&tx, host.id).await.expect("there");
    assert_eq!((read.metadata, read.user_lvm_size), (labels, 60));
}

#[tokio::test]
async fn a_host_is_wanted_only_where_it_can_come_to_stand() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let host = registered(&store, tenant, 1).await.id;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for wanted in [
        HostState::Registered,
        HostState::Onboarded,
        HostState::Registered,
    ] {
        let host = hosts::want(&tx, host, wanted, NOON).await.expect("wanted");
        assert_eq!(
            (host.desired, host.current),
            (wanted, HostState::Registered)
        );
    }
    let refused = hosts::invalidate(&tx, host, &Note::default(), NOON).await;
    let Err(StoreError::Conflict(refused)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(
        refused.to_string(),
        "host_resource is registered and cannot become untrusted"
    );
    let missing = hosts::want(&tx, HostId::nth(99), HostState::Onboarded, NOON).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn a_host_that_was_invalidated_stays_so() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let running = Status::new("Running", Indication::Idle, NOON);
    hosts::set_status(&tx, host.id, &running)
        .await
        .expect("it runs");
    let note = Note::parse("stolen").expect("a note");
    let host = hosts::invalidate(&tx, host.id, &note, NOON)
        .await
        .expect("invalidated");
    assert_eq!(host.desired, HostState::Untrusted);
    assert_eq!(host.current, HostState::Untrusted);
    assert_eq!(
        (host.note.as_str(), host.status.text.as_str()),
        ("stolen", hosts::INVALIDATED)
    );
    assert!(!host.is_trusted());

    let late = Status::new("No Connection", Indication::Error, NOON);
    hosts::set_status(&tx, host.id, &late)
        .await
        .expect("an answer");
    let read = hosts::find(&tx, host.id).await.expect("there");
    assert_eq!(read, host);
    let back = hosts::want(&tx, host.id, HostState::Onboarded, NOON).await;
    assert!(matches!(
        back,
        Err(StoreError::Conflict(Conflict::Transition { .. }))
    ));
}

fn nic(name: &str, addresses: &[&str]) -> Nic {
    let address = |address: &&str| Address {
        address: (*address).to_owned(),
        ..Address::default()
    };
    Nic {
        device_name: name.to_owned(),
        ipaddresses: addresses.iter().map(address).collect(),
        ..Nic::default()
    }
}

fn machine(nics: Vec<Nic>) -> Hardware {
    let disk = Storage {
        device_name: "sda".to_owned(),
        capacity_bytes: Capacity(512 << 30),
        ..Storage::default()
    };
    Hardware {
        serial_number: "SN0012345".to_owned(),
        memory_bytes: 16 << 30,
        cpu_threads: u32::MAX,
        controller: Some(Controller::None),
        storages: vec![disk],
        nics,
        ..Hardware::default()
    }
}

async fn keep(store: &Store, host: &Host, tenant: TenantId, said: Hardware, now: Time) -> bool {
    let digest = [u8::try_from(said.nics.len()).expect("few"); 32];
    let tx = store.tenant(tenant).await.expect("a transaction");
    let kept = hardware::keep(&tx, host.id, said, &digest, now).await;
    tx.commit().await.expect("committed");
    kept.expect("an answer")
}

async fn known(store: &Store, host: &Host, tenant: TenantId) -> Hardware {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut known = hardware::of_hosts(&tx, &[host.id]).await.expect("read");
    known.remove(&host.id).expect("it said so")
}

#[tokio::test]
async fn what_a_host_is_made_of_is_written_only_when_it_says_something_else() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let host = registered(&store, tenant, 1).await;
    let later = NOON + TimeDelta::hours(1);
    let said = machine(vec![nic("eth0", &["10.0.0.1/24", "fe80::1/64"])]);
    assert!(keep(&store, &host, tenant, said.clone(), NOON).await);
    let first = known(&store, &host, tenant).await;
    let ids: Vec<_> = first.nics[0].ipaddresses.iter().collect();
    assert!(ids.iter().all(|address| address.resource_id.is_some()));
    assert_ne!(ids[0].resource_id, ids[1].resource_id);
    assert_eq!(first.memory_bytes, said.memory_bytes);
    assert_eq!(first.cpu_threads, u32::MAX);
    assert_eq!(first.controller, Some(Controller::None));
    assert_eq!(first.storages[0].capacity_bytes, Capacity(512 << 30));

    assert!(!keep(&store, &host, tenant, said, later).await);
    assert_eq!(known(&store, &host, tenant).await, first);
    let said = machine(vec![nic("eth0", &["10.0.0.1/24"]), nic("eth1", &[])]);
    assert!(keep(&store, &host, tenant, said, later).await);
    let second = known(&store, &host, tenant).await;
    assert_eq!(
        second.nics[0].ipaddresses,
        first.nics[0].ipaddresses[..1].to_vec()
    );
    assert_eq!(second.storages, first.storages);
    let times = second.nics[1].timestamps.expect("times");
    assert_eq!((times.created_at, times.updated_at), (later, later));

    let tx = store.tenant(tenant).await.expect("a transaction");
    let noted = changes::of(&tx, "host_hardware", host.id.bits()).await;
    let noted: Vec<_> = noted.expect("changes");
    let noted: Vec<_> = noted
        .iter()
        .map(|change| change.operation.as_str())
        .collect();
    assert_eq!(noted, ["insert", "update"]);
    let host = hosts::find(&tx, host.id).await.expect("there");
    let serial = host.serial.expect("its own");
    assert_eq!(serial.as_str(), "SN0012345");
    hosts::delete(&tx, host.id).await.expect("deleted");
    let left = hardware::of_hosts(&tx, &[host.id]).await.expect("read");
    assert!(left.is_empty());
}

#[tokio::test]
async fn numbers_of_addresses_begin_again_when_all_were_given() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let host = registered(&store, tenant, 1).await;
    let nearly_all = "SELECT setval('ip_address_numbers', 4294967294)";
    store.unprepared(nearly_all).await.expect("set");
    let said = machine(vec![nic("eth0", &["10.0.0.1/24", "10.0.0.2/24"])]);
    assert!(keep(&store, &host, tenant, said, NOON).await);
    let known = known(&store, &host, tenant).await;
    let addresses = &known.nics[0].ipaddresses;
    assert!(addresses.iter().all(|one| one.resource_id.is_some()));
}

#[tokio::test]
async fn a_serial_number_that_was_registered_stays_and_one_that_makes_no_sense_is_no_one() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let uuid = uuid::Uuid::from_u128(1).to_string();
    let announced = Registration::parse("edge", &uuid, "ABC12345", false);
    let first = hosts::register(&tx, &announced.expect("a registration"), NOON).await;
    tx.commit().await.expect("committed");
    let first = first.expect("a host");
    let second = registered(&store, tenant, 2).await;
    let said = machine(Vec::new());
    keep(&store, &first, tenant, said.clone(), NOON).await;
    let nobody = Hardware {
        serial_number: "To Be Filled By O.E.M.".to_owned(),
        ..said
    };
    keep(&store, &second, tenant, nobody, NOON).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let first = hosts::find(&tx, first.id).await.expect("there");
    assert_eq!(first.serial.expect("one").as_str(), "ABC12345");
    let second = hosts::find(&tx, second.id).await.expect("there");
    assert_eq!(second.serial, None);
}

#[tokio::test]
async fn what_no_host_says_is_not_kept() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let host = registered(&store, theirs, 1).await;
    let tx = store.tenant(ours).await.expect("a transaction");
    let kept = hardware::keep(&tx, host.id, Hardware::default(), &[7; 32], NOON).await;
    assert!(matches!(kept, Err(StoreError::NotFound { .. })));
}

async fn counted(store: &Store, tenant: TenantId, filter: Option<&str>) -> HostSummary {
    let filter = filter.map(|text| filter::parse(Resource::Host, text).expect("a filter"));
    let tx = store.tenant(tenant).await.expect("a transaction");
    let counted = hosts::summary(&tx, filter.as_ref()).await;
    counted.expect("counted")
}

/// The node on a host runs, and shows a status.
async fn runs(store: &Store, tenant: TenantId, host: &Host, status: Status) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.provisioned = true;
    node.update_status = status;
    nodes::save(&tx, &node).await.expect("saved");
    tx.commit().await.expect("committed");
}

#[tokio::test]
async fn hosts_are_counted_by_how_they_are() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let nothing = HostSummary::default();
    assert_eq!(counted(&store, tenant, None).await, nothing);
    let site = site(&store, tenant, None).await;
    for n in 1..=4 {
        let (host, _) = node(&store, tenant, n).await;
        let (text, indication) = match n {
            1 => ("Update failed", Indication::Error),
            _ => ("No Current Update", Indication::Idle),
        };
        // The fourth has not spoken yet.
        if n < 4 {
            let status = Status::new(text, indication, NOON);
            runs(&store, tenant, &host, status).await;
            stands_at(&store, tenant, &host, site.id).await;
        }
    }
    let silent = registered(&store, tenant, 5).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let lost = Status::new("No Connection", Indication::Error, NOON);
    hosts::set_status(&tx, silent.id, &lost)
        .await
        .expect("noted");
    tx.commit().await.expect("committed");
    node(&store, project(&store, "theirs").await, 6).await;

    let all = HostSummary {
        total: 5,
        error: 2,
        running: 2,
        unallocated: 2,
    };
    assert_eq!(counted(&store, tenant, None).await, all);
    // The condition counts as a whole, whatever it is made of.
    let either = "hostStatus = 'nothing' OR has(site)";
    let placed = HostSummary {
        total: 3,
        error: 1,
        running: 2,
        unallocated: 0,
    };
    assert_eq!(counted(&store, tenant, Some(either)).await, placed);
    let one = format!("resourceId = '{}'", silent.id);
    let lost = HostSummary {
        total: 1,
        error: 1,
        running: 0,
        unallocated: 1,
    };
    assert_eq!(counted(&store, tenant, Some(&one)).await, lost);
}
