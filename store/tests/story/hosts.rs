//! Hosts: labels, sites, hardware and counts.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::filter::{self, Resource};
use evenkeel_domain::hardware::{Address, Capacity, Controller, Hardware, Nic, Storage};
use evenkeel_domain::host::{Host, HostState, InvalidationNote, Registration};
use evenkeel_domain::id::HostId;
use evenkeel_domain::location::Metadata;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::hosts::{HostChange, HostSummary, JoinRequest};
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::testing::query_text;
use evenkeel_store::{Conflict, Store, StoreError, changes, hardware, hosts, instances, nodes};

use crate::fixtures::{
    NOON, create_node, create_project, create_site, execute_sql, move_to_site, registration,
    store_with_project, store_with_two_projects,
};

async fn register_host(store: &Store, tenant: TenantId, n: u128) -> Host {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON).await;
    tx.commit().await.expect("committed");
    host.expect("a host")
}

#[tokio::test]
async fn a_host_reads_as_it_was_written() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let announced = Registration::parse("edge", "", "ABC12345", false)
        .and_then(|machine| machine.with_user_lvm_size(60))
        .expect("a registration");
    let host = hosts::register(&tx, &announced, NOON).await.expect("a host");
    assert_eq!((host.user_lvm_size, host.provider), (60, None));
    assert_eq!(host.metadata, Metadata::default());
    let labels = [("rack", "7"), ("example.com/tier", "gold")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let labels = Metadata::parse(labels).expect("labels");
    let change = HostChange { metadata: Some(labels.clone()), ..HostChange::default() };
    let changed = hosts::change(&tx, host.id, &change, NOON).await;
    assert_eq!(changed.expect("changed").metadata, labels);
    let read = hosts::find(&tx, host.id).await.expect("found");
    assert_eq!((read.metadata, read.user_lvm_size), (labels, 60));
}

#[tokio::test]
async fn an_instance_with_the_name_of_its_host_is_renamed_with_it() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let name = |text: &str| Some(Name::parse("name", text).expect("a name"));
    let rename_host = async |text: &str| {
        let change = HostChange { name: name(text), ..HostChange::default() };
        hosts::change(&tx, host.id, &change, NOON).await.expect("renamed");
        instances::find(&tx, instance.id).await.expect("found").name.to_string()
    };
    assert_eq!(rename_host("edge-1").await, "", "the instance has another name");
    let named = InstanceChange { name: name("edge-1"), ..InstanceChange::default() };
    instances::change(&tx, instance.id, &named, NOON).await.expect("renamed");
    assert_eq!(rename_host("edge-1").await, "edge-1");
    assert_eq!(rename_host("edge-2").await, "edge-2");
}

#[tokio::test]
async fn a_decryption_certificate_is_stored_only_for_the_key_of_the_host() {
    const CHECK: &str = "DO $$ BEGIN \
        IF (SELECT decryption_certificate FROM hosts) IS DISTINCT FROM '\\x07'::bytea THEN \
        RAISE 'another certificate is stored'; END IF; END $$";
    let (store, tenant) = store_with_project().await;
    let host = register_host(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let joining = JoinRequest {
        uuid: host.uuid.expect("a UUID"),
        serial: None,
        hostname: "edge".into(),
        public_key: vec![1; 44],
    };
    hosts::record_join(&tx, host.id, &joining, NOON).await.expect("joined");
    let refused = hosts::store_decryption_certificate(&tx, host.id, &[2; 44], &[7]).await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{refused:?}");
    let stored = hosts::store_decryption_certificate(&tx, host.id, &[1; 44], &[7]).await;
    stored.expect("stored");
    tx.commit().await.expect("committed");
    execute_sql(&store, CHECK).await;
}

/// A renewed certificate must not invalidate the cached answers of its node.
#[tokio::test]
async fn a_change_of_each_column_of_a_host_is_recorded_except_its_decryption_certificate() {
    const NOT_RECORDED: &str = "\
        SELECT string_agg(a.attname::text, ' ' ORDER BY a.attname) FROM pg_trigger t \
        JOIN pg_attribute a ON a.attrelid = t.tgrelid AND a.attnum > 0 AND NOT a.attisdropped \
        WHERE t.tgrelid = 'hosts'::regclass AND t.tgname = 'record_change' \
        AND a.attgenerated = '' AND a.attnum <> ALL (t.tgattr::int2[])";
    let (store, _) = store_with_project().await;
    assert_eq!(query_text(&store, NOT_RECORDED).await, "decryption_certificate");
}

#[tokio::test]
async fn a_desired_state_must_be_reachable_from_the_current_state() {
    let (store, tenant) = store_with_project().await;
    let host = register_host(&store, tenant, 1).await.id;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for desired in [HostState::Registered, HostState::Onboarded, HostState::Registered] {
        let host = hosts::set_desired_state(&tx, host, desired, NOON).await.expect("state set");
        assert_eq!((host.desired, host.current), (desired, HostState::Registered));
    }
    let lost = hosts::invalidate(&tx, host, &InvalidationNote::default(), NOON).await;
    assert_eq!(lost.expect("invalidated").current, HostState::Untrusted);
    let refused = hosts::set_desired_state(&tx, host, HostState::Onboarded, NOON).await;
    let Err(StoreError::Conflict(refused)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.to_string(), "host_resource is untrusted and cannot become onboarded");
    let missing = hosts::set_desired_state(&tx, HostId::nth(99), HostState::Onboarded, NOON).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn an_invalidated_host_stays_invalidated() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let running = Status::new("Running", Indication::Idle, NOON);
    hosts::set_status(&tx, host.id, &running).await.expect("status set");
    let note = InvalidationNote::parse("stolen").expect("a note");
    let host = hosts::invalidate(&tx, host.id, &note, NOON).await.expect("invalidated");
    assert_eq!(host.desired, HostState::Untrusted);
    assert_eq!(host.current, HostState::Untrusted);
    assert_eq!(
        (host.note.as_str(), host.status.text.as_str()),
        ("stolen", hosts::INVALIDATED_STATUS)
    );
    assert!(!host.is_trusted());

    let late = Status::new("No Connection", Indication::Error, NOON);
    hosts::set_status(&tx, host.id, &late).await.expect("an answer");
    let read = hosts::find(&tx, host.id).await.expect("found");
    assert_eq!(read, host);
    let back = hosts::set_desired_state(&tx, host.id, HostState::Onboarded, NOON).await;
    assert!(matches!(back, Err(StoreError::Conflict(Conflict::Transition { .. }))));
}

fn nic(name: &str, addresses: &[&str]) -> Nic {
    let address = |address: &&str| Address { address: (*address).to_owned(), ..Address::default() };
    Nic {
        device_name: name.to_owned(),
        ipaddresses: addresses.iter().map(address).collect(),
        ..Nic::default()
    }
}

fn hardware_with_nics(nics: Vec<Nic>) -> Hardware {
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

async fn store_hardware(
    store: &Store,
    host: &Host,
    tenant: TenantId,
    reported: Hardware,
    now: Time,
) -> bool {
    let digest = [u8::try_from(reported.nics.len()).expect("a small number"); 32];
    let tx = store.tenant(tenant).await.expect("a transaction");
    let result = hardware::store_if_changed(&tx, host.id, reported, &digest, now).await;
    tx.commit().await.expect("committed");
    result.expect("an answer")
}

async fn load_hardware(store: &Store, host: &Host, tenant: TenantId) -> Hardware {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut by_host = hardware::find_by_hosts(&tx, &[host.id]).await.expect("read");
    by_host.remove(&host.id).expect("reported hardware")
}

#[tokio::test]
async fn hardware_is_written_only_when_it_changes() {
    let (store, tenant) = store_with_project().await;
    let host = register_host(&store, tenant, 1).await;
    let later = NOON + TimeDelta::hours(1);
    let reported = hardware_with_nics(vec![nic("eth0", &["10.0.0.1/24", "fe80::1/64"])]);
    assert!(store_hardware(&store, &host, tenant, reported.clone(), NOON).await);
    let first = load_hardware(&store, &host, tenant).await;
    let ids: Vec<_> = first.nics[0].ipaddresses.iter().collect();
    assert!(ids.iter().all(|address| address.resource_id.is_some()));
    assert_ne!(ids[0].resource_id, ids[1].resource_id);
    assert_eq!(first.memory_bytes, reported.memory_bytes);
    assert_eq!(first.cpu_threads, u32::MAX);
    assert_eq!(first.controller, Some(Controller::None));
    assert_eq!(first.storages[0].capacity_bytes, Capacity(512 << 30));

    assert!(!store_hardware(&store, &host, tenant, reported, later).await);
    assert_eq!(load_hardware(&store, &host, tenant).await, first);
    let reported = hardware_with_nics(vec![nic("eth0", &["10.0.0.1/24"]), nic("eth1", &[])]);
    assert!(store_hardware(&store, &host, tenant, reported, later).await);
    let second = load_hardware(&store, &host, tenant).await;
    assert_eq!(second.nics[0].ipaddresses, first.nics[0].ipaddresses[..1].to_vec());
    assert_eq!(second.storages, first.storages);
    let times = second.nics[1].timestamps.expect("times");
    assert_eq!((times.created_at, times.updated_at), (later, later));

    let tx = store.tenant(tenant).await.expect("a transaction");
    let logged = changes::list_for_resource(&tx, "host_hardware", host.id.bits()).await;
    let logged: Vec<_> = logged.expect("changes");
    let logged: Vec<_> = logged.iter().map(|change| change.operation.as_str()).collect();
    assert_eq!(logged, ["insert", "update"]);
    let host = hosts::find(&tx, host.id).await.expect("found");
    let serial = host.serial.expect("a serial number");
    assert_eq!(serial.as_str(), "SN0012345");
    hosts::delete(&tx, host.id).await.expect("deleted");
    let left = hardware::find_by_hosts(&tx, &[host.id]).await.expect("read");
    assert!(left.is_empty());
}

#[tokio::test]
async fn address_ids_start_again_after_the_last_number() {
    let (store, tenant) = store_with_project().await;
    let host = register_host(&store, tenant, 1).await;
    let nearly_all = "SELECT setval('ip_address_numbers', 4294967294)";
    store.execute_unprepared(nearly_all).await.expect("set");
    let reported = hardware_with_nics(vec![nic("eth0", &["10.0.0.1/24", "10.0.0.2/24"])]);
    assert!(store_hardware(&store, &host, tenant, reported, NOON).await);
    let stored = load_hardware(&store, &host, tenant).await;
    let addresses = &stored.nics[0].ipaddresses;
    assert!(addresses.iter().all(|one| one.resource_id.is_some()));
}

#[tokio::test]
async fn a_registered_serial_number_stays_and_an_invalid_one_is_ignored() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let uuid = uuid::Uuid::from_u128(1).to_string();
    let announced = Registration::parse("edge", &uuid, "ABC12345", false);
    let first = hosts::register(&tx, &announced.expect("a registration"), NOON).await;
    tx.commit().await.expect("committed");
    let first = first.expect("a host");
    let second = register_host(&store, tenant, 2).await;
    let reported = hardware_with_nics(Vec::new());
    store_hardware(&store, &first, tenant, reported.clone(), NOON).await;
    let invalid_serial =
        Hardware { serial_number: "To Be Filled By O.E.M.".to_owned(), ..reported };
    store_hardware(&store, &second, tenant, invalid_serial, NOON).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let first = hosts::find(&tx, first.id).await.expect("found");
    assert_eq!(first.serial.expect("a serial number").as_str(), "ABC12345");
    let second = hosts::find(&tx, second.id).await.expect("found");
    assert_eq!(second.serial, None);
}

#[tokio::test]
async fn hardware_of_a_missing_host_is_rejected() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let host = register_host(&store, theirs, 1).await;
    let tx = store.tenant(ours).await.expect("a transaction");
    let result =
        hardware::store_if_changed(&tx, host.id, Hardware::default(), &[7; 32], NOON).await;
    assert!(matches!(result, Err(StoreError::NotFound { .. })));
}

async fn host_summary(store: &Store, tenant: TenantId, filter: Option<&str>) -> HostSummary {
    let filter = filter.map(|text| filter::parse_filter(Resource::Host, text).expect("a filter"));
    let tx = store.tenant(tenant).await.expect("a transaction");
    let counted = hosts::summary(&tx, filter.as_ref()).await;
    counted.expect("counted")
}

/// Marks the node of a host as provisioned and sets its update status.
async fn set_running(store: &Store, tenant: TenantId, host: &Host, status: Status) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.provisioned = true;
    node.update_status = status;
    nodes::save(&tx, &node).await.expect("saved");
    tx.commit().await.expect("committed");
}

#[tokio::test]
async fn hosts_are_counted_by_state() {
    let (store, tenant) = store_with_project().await;
    let nothing = HostSummary::default();
    assert_eq!(host_summary(&store, tenant, None).await, nothing);
    let site = create_site(&store, tenant, None).await;
    for n in 1..=4 {
        let (host, _) = create_node(&store, tenant, n).await;
        let (text, indication) = match n {
            1 => ("Update failed", Indication::Error),
            _ => ("No Current Update", Indication::Idle),
        };
        // The fourth node has not connected yet.
        if n < 4 {
            let status = Status::new(text, indication, NOON);
            set_running(&store, tenant, &host, status).await;
            move_to_site(&store, tenant, &host, site.id).await;
        }
    }
    let silent = register_host(&store, tenant, 5).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let lost = Status::new("No Connection", Indication::Error, NOON);
    hosts::set_status(&tx, silent.id, &lost).await.expect("recorded");
    tx.commit().await.expect("committed");
    create_node(&store, create_project(&store, "theirs").await, 6).await;

    let all = HostSummary { total: 5, error: 2, running: 2, unallocated: 2 };
    assert_eq!(host_summary(&store, tenant, None).await, all);
    // The filter is combined as a whole with the conditions of the summary.
    let either = "hostStatus = 'nothing' OR has(site)";
    let at_site = HostSummary { total: 3, error: 1, running: 2, unallocated: 0 };
    assert_eq!(host_summary(&store, tenant, Some(either)).await, at_site);
    let one = format!("resourceId = '{}'", silent.id);
    let lost = HostSummary { total: 1, error: 1, running: 0, unallocated: 1 };
    assert_eq!(host_summary(&store, tenant, Some(&one)).await, lost);
}
