//! A project with some of every resource, in the database and in the oracle.

mod schedule_rows;

use std::collections::HashMap;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::custom_config::{CustomConfig, CustomConfigSpec};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::hardware::{
    Address, Capacity, Controller, Hardware, Link, LinkState, Nic, Storage, Usb,
};
use evenkeel_domain::host::{Host, Registration};
use evenkeel_domain::id::{InstanceId, OsId, PolicyId};
use evenkeel_domain::instance::{FactsSummary, Instance, InstanceKind, NewInstance};
use evenkeel_domain::local_account::{LocalAccount, LocalAccountSpec};
use evenkeel_domain::location::{Metadata, Region, RegionSpec, Site, SiteSpec};
use evenkeel_domain::os::{OsKind, OsProfile, OsSpec, SecurityFeature};
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec, UpdatePolicy};
use evenkeel_domain::provider::{Provider, ProviderKind, ProviderSpec, ProviderVendor};
use evenkeel_domain::run::{
    AttemptId, CancelCause, Evidence, Failure, FailureKind, HeldBackCount, Origin, RunEvent,
    RunEventRecord, RunReport, RunTimeouts, UpdateRun,
};
use evenkeel_domain::schedule::{
    Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, SingleSpec, Zone,
};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::runs::{RunOpening, Subject};
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::{
    Store, Tx, contacts, custom_configs, hardware, hosts, instances, local_accounts, nodes,
    os_profiles, policies, providers, regions, runs, sites,
};
use uuid::Uuid;

use crate::fixtures::{NOON, bookworm, contact, create_project, numbered_record};
use crate::listing_model as model;
use crate::listing_oracle::ListingOracle;
use schedule_rows::{create_schedules, set_providers};

/// Resources that have a list of their own.
pub const LISTED_RESOURCES: &[Resource] = &[
    Resource::Region,
    Resource::Site,
    Resource::Host,
    Resource::Instance,
    Resource::Os,
    Resource::Policy,
    Resource::Run,
    Resource::SingleSchedule,
    Resource::RepeatedSchedule,
    Resource::Provider,
    Resource::CustomConfig,
    Resource::LocalAccount,
];

const NAMES: &[&str] = &["", "edge", "Edge 1", "edge-01", "shop_2", "Shop: 10/b", "a.b"];

fn nth_name(n: usize) -> Name {
    Name::parse("name", NAMES[n % NAMES.len()]).expect("a name")
}

/// Times a few microseconds apart, some within the same second.
fn nth_time(n: usize) -> Time {
    NOON + TimeDelta::microseconds(i64::try_from(n).expect("a small number") * 400_001)
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a small number")
}

fn nth_labels(n: usize) -> Metadata {
    let label = |key: &str, value: String| (key.to_owned(), value);
    let mut labels = Vec::new();
    if !n.is_multiple_of(3) {
        labels.push(label("city", ["ulm", "bonn"][n % 2].to_owned()));
    }
    if n.is_multiple_of(2) {
        labels.push(label("example.com/rack", (n % 4).to_string()));
    }
    Metadata::parse(labels).expect("labels")
}

/// One of several values, and sometimes none.
fn nth_or_none<T: Copy>(of: &[T], n: usize) -> Option<T> {
    of.get(n % (of.len() + 1)).copied()
}

pub async fn create_listing_project(store: &Store) -> (TenantId, ListingOracle) {
    let tenant = create_project(store, "ours").await;
    // Resources of another project must not appear in any list.
    let theirs = create_project(store, "theirs").await;
    let tx = store.tenant(theirs).await.expect("a transaction");
    create_locations(&tx).await;
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut oracle = ListingOracle::default();
    let (regions, sites) = create_locations(&tx).await;
    let providers = create_providers(&tx).await;
    let hosts = create_hosts(&tx, &sites).await;
    let oses = create_profiles(&tx).await;
    let policies = create_policies(&tx, &oses).await;
    let (accounts, configs) = create_accounts_and_configs(&tx).await;
    let start = (accounts.as_slice(), configs.as_slice());
    let instances = create_instances(&tx, &hosts, (&oses, &policies), start).await;
    let runs = create_runs(&tx, &instances, &policies).await;
    create_schedules(&tx, &mut oracle, (&hosts, &sites, &regions)).await;
    tx.commit().await.expect("committed");
    set_providers(store, tenant, &hosts, &providers).await;
    let last_contacts = record_contacts(store, tenant, &instances).await;

    let tx = store.tenant(tenant).await.expect("a transaction");
    let ids: Vec<_> = hosts.iter().map(|host| host.id).collect();
    let mut hardware_by_host = hardware::find_by_hosts(&tx, &ids).await.expect("hardware");
    for host in hosts::find_many(&tx, &ids).await.expect("hosts") {
        let instance = instances.iter().find(|instance| instance.host == host.id);
        let last_contact = instance.and_then(|instance| last_contacts.get(&instance.id).copied());
        let node = model::HostNode { instance, last_contact };
        model::add_host(&mut oracle, &host, node, hardware_by_host.remove(&host.id).as_ref());
    }
    for it in &regions {
        oracle.add(model::region(it));
    }
    for it in &sites {
        oracle.add(model::site(it));
    }
    for it in &oses {
        oracle.add(model::os(it));
    }
    for it in &policies {
        oracle.add(model::policy(it));
    }
    for it in &providers {
        oracle.add(model::provider(it));
    }
    for it in &accounts {
        oracle.add(model::account(it));
    }
    for it in &configs {
        oracle.add(model::config(it));
    }
    for it in &instances {
        oracle.add(model::instance(it));
    }
    for it in &runs {
        oracle.add(model::run(it));
    }
    oracle.add_reverse_edges("sites", "region", (Resource::Site, Resource::Region));
    oracle.add_reverse_edges("hosts", "site", (Resource::Host, Resource::Site));
    oracle.add_reverse_edges("instance", "host", (Resource::Instance, Resource::Host));
    (tenant, oracle)
}

/// Records a contact of every other node. Returns the times.
async fn record_contacts(
    store: &Store,
    tenant: TenantId,
    instances: &[Instance],
) -> HashMap<InstanceId, Time> {
    let times = instances.iter().step_by(2).enumerate();
    let times: HashMap<_, _> = times.map(|(n, instance)| (instance.id, nth_time(n / 2))).collect();
    let batch = times.iter().map(|(instance, at)| contact(tenant, *instance, *at));
    let tx = store.fleet().await.expect("a transaction");
    let recorded = contacts::record_contacts(&tx, batch.collect(), nth_time(1_000)).await;
    recorded.expect("recorded");
    tx.commit().await.expect("committed");
    times
}

async fn create_locations(tx: &Tx) -> (Vec<Region>, Vec<Site>) {
    let mut created_regions: Vec<Region> = Vec::new();
    for n in 0..9_usize {
        let spec = RegionSpec {
            name: nth_name(n),
            parent: (n > 1).then(|| created_regions[(n - 2) / 2].id),
            metadata: nth_labels(n),
        };
        created_regions.push(regions::create(tx, &spec, nth_time(n)).await.expect("a region"));
    }
    let within: Vec<_> = created_regions.iter().map(|region| region.id).collect();
    let mut created_sites = Vec::new();
    for n in 0..11_usize {
        let degrees = i32::try_from(n).expect("a small number") * 10_000_000;
        let spec = SiteSpec {
            name: nth_name(n + 3),
            region: nth_or_none(&within, n * 2),
            latitude: degrees - 50_000_000,
            longitude: degrees,
            metadata: nth_labels(n + 1),
        };
        created_sites.push(sites::create(tx, &spec, nth_time(n)).await.expect("a site"));
    }
    (created_regions, created_sites)
}

async fn create_providers(tx: &Tx) -> Vec<Provider> {
    let vendors = [ProviderVendor::Unspecified, ProviderVendor::LenovoLoca];
    let mut created = Vec::new();
    for (n, vendor) in vendors.into_iter().enumerate() {
        let spec = ProviderSpec::parse(
            (ProviderKind::Baremetal, vendor),
            &format!("provider {n}"),
            "https://provider/api",
            Vec::new(),
            "{}",
        );
        let spec = spec.expect("a provider");
        created.push(providers::create(tx, &spec, nth_time(n)).await.expect("created"));
    }
    created
}

async fn create_hosts(tx: &Tx, sites: &[Site]) -> Vec<Host> {
    let sites: Vec<_> = sites.iter().map(|site| site.id).collect();
    let mut created = Vec::new();
    for n in 0..20_usize {
        let serial = if n.is_multiple_of(3) { String::new() } else { format!("SERIAL{n}") };
        let uuid = Uuid::from_u128(0xabcd_ef01_0000 + n as u128 * 0x1_0001_0000_0000_0000);
        let uuid = if n % 3 == 1 { String::new() } else { uuid.to_string() };
        let registration =
            Registration::parse(NAMES[n % NAMES.len()], &uuid, &serial, n.is_multiple_of(2));
        let registration =
            registration.and_then(|registration| registration.with_user_lvm_size(to_u32(n)));
        let host = hosts::register(tx, &registration.expect("a registration"), nth_time(n)).await;
        let host = host.expect("a host");
        let change = hosts::HostChange {
            name: None,
            site: Some(nth_or_none(&sites, n)),
            metadata: Some(nth_labels(n)),
        };
        hosts::change(tx, host.id, &change, nth_time(n + 2)).await.expect("changed");
        if n.is_multiple_of(4) {
            let status = ["Running", "50% done", "a_b\\c"][n % 3];
            let status = Status::new(status, Indication::InProgress, nth_time(n + 1));
            hosts::set_status(tx, host.id, &status).await.expect("status set");
        }
        if n % 2 == 1 {
            let digest = [u8::try_from(n).expect("a small number"); 32];
            hardware::store_if_changed(tx, host.id, nth_hardware(n), &digest, nth_time(n))
                .await
                .expect("stored");
        }
        created.push(host);
    }
    created
}

fn nth_hardware(n: usize) -> Hardware {
    let address =
        |end: usize| Address { address: format!("10.0.{n}.{end}/24"), ..Address::default() };
    let nic = |end: usize| Nic {
        device_name: format!("eth{end}"),
        mac_addr: format!("52:54:00:00:{n:02x}:{end:02x}"),
        mtu: [1_500, 9_000][end % 2],
        sriov_enabled: end == 1,
        link_state: LinkState {
            kind: [Link::Up, Link::Down, Link::Unspecified][end % 3],
            timestamps: None,
        },
        ipaddresses: (0..end).map(address).collect(),
        ..Nic::default()
    };
    let disk = Storage {
        device_name: "sda".to_owned(),
        model: format!("DISK_{}%", n % 3),
        capacity_bytes: Capacity(1_u64 << (n + 30)),
        ..Storage::default()
    };
    let stick = Usb { bus: to_u32(n), class: "Hub".to_owned(), ..Usb::default() };
    Hardware {
        memory_bytes: 1_u64 << (n + 20),
        cpu_model: "Xeon 50%".to_owned(),
        cpu_cores: to_u32(n % 4),
        product_name: format!("Box {}", n % 2),
        product_vendor: ["", "Dell Inc."][n % 2].to_owned(),
        controller: n.is_multiple_of(3).then_some(Controller::Ipmi),
        storages: vec![disk],
        nics: (0..n % 4).map(nic).collect(),
        usbs: vec![stick],
        ..Hardware::default()
    }
}

async fn create_profiles(tx: &Tx) -> Vec<OsProfile> {
    let mut created = Vec::new();
    for n in 0..3_usize {
        let spec = OsSpec {
            name: format!("edge os {n}"),
            kind: if n == 0 { OsKind::Mutable } else { OsKind::Immutable },
            profile_name: "edge_profile".to_owned(),
            image_id: format!("3.0.{n}"),
            description: "all of 50%".to_owned(),
            ..bookworm()
        };
        created.push(os_profiles::create(tx, &spec, nth_time(n)).await.expect("created"));
    }
    created
}

async fn create_policies(tx: &Tx, oses: &[OsProfile]) -> Vec<UpdatePolicy> {
    let image =
        DesiredUpdate::parse_target(Some(oses[1].id), "", &[], "").expect("a desired update");
    let sources = ["http://a_b", "http://c_d"]
        .map(|uri| format!("Types: deb\nURIs: {uri}\nSuites: ./\nSigned-By: /k"));
    let packages =
        DesiredUpdate::parse_target(None, "curl\njq", &sources, "quiet").expect("a desired update");
    let mut created = Vec::new();
    for (n, desired) in [DesiredUpdate::Latest, image, packages].into_iter().enumerate() {
        let spec = PolicySpec {
            allow_downgrade: n == 1,
            ..PolicySpec::parse(&format!("policy {n}"), NAMES[n], desired).expect("a policy")
        };
        created.push(policies::create(tx, &spec, nth_time(n)).await.expect("created"));
    }
    created
}

async fn create_accounts_and_configs(tx: &Tx) -> (Vec<LocalAccount>, Vec<CustomConfig>) {
    let (mut accounts, mut configs) = (Vec::new(), Vec::new());
    for (n, name) in ["ann", "bob"].into_iter().enumerate() {
        let key = format!("ssh-ed25519 AAAAC3Nz {name}@edge");
        let account = LocalAccountSpec::parse(name, &key).expect("an account");
        accounts.push(local_accounts::create(tx, &account, nth_time(n)).await.expect("created"));
        let config = CustomConfigSpec::parse(name, "of all", "#cloud-config\nntp: {}\n");
        let config = config.expect("a configuration");
        configs.push(custom_configs::create(tx, &config, nth_time(n)).await.expect("created"));
    }
    (accounts, configs)
}

async fn create_instances(
    tx: &Tx,
    rows: &[Host],
    (oses, policies): (&[OsProfile], &[UpdatePolicy]),
    (accounts, configs): (&[LocalAccount], &[CustomConfig]),
) -> Vec<Instance> {
    let oses: Vec<OsId> = oses.iter().map(|os| os.id).collect();
    let policies: Vec<PolicyId> = policies.iter().map(|policy| policy.id).collect();
    let accounts: Vec<_> = accounts.iter().map(|account| account.id).collect();
    let mut ids = Vec::new();
    for (n, host) in rows.iter().enumerate().filter(|(n, _)| n % 4 != 3) {
        let new = NewInstance {
            host: host.id,
            os: oses[n % oses.len()],
            name: nth_name(n + 1),
            kind: [InstanceKind::Metal, InstanceKind::Unspecified][n % 2],
            security_feature: SecurityFeature::None,
            policy: nth_or_none(&policies, n),
            local_account: nth_or_none(&accounts, n),
            custom_configs: configs.iter().take(n % 3).map(|c| c.id).collect(),
        };
        let created = instances::create(tx, &new, nth_time(n)).await.expect("created");
        if n.is_multiple_of(2) {
            let mut node = nodes::lock(tx, host.id).await.expect("a node");
            node.provisioned = n.is_multiple_of(4);
            node.agent_version = nth_agent_version(n / 2);
            node.status = Status::new("a_b\\c 50%", Indication::Idle, nth_time(n + 5));
            node.update_status = Status::new("Updating", Indication::InProgress, nth_time(n));
            ["", "edge os 2"][n / 2 % 2].clone_into(&mut node.os_update_available);
            node.facts_summary = FactsSummary {
                kernel_release: Some(format!("6.1.0-{n}-amd64")),
                reboot_required: [Some(true), Some(false), None][n / 2 % 3],
                reboot_required_by: None,
                boot_time: (!n.is_multiple_of(3)).then(|| nth_time(n + 1)),
                package_lists_refreshed_at: n.is_multiple_of(4).then(|| nth_time(n + 3)),
                package_lists_error: Some(["", "no route to host"][n / 2 % 2].to_owned()),
                security_updates: [Some(0), Some(7), None][n / 2 % 3],
                held_back_updates: Some(to_u32(n % 3)),
                stale_services: None,
                version: FactsSummary::VERSION,
            };
            nodes::save(tx, &node).await.expect("saved");
        }
        ids.push(created.id);
    }
    instances::find_many(tx, &ids).await.expect("instances")
}

/// Versions with numbers only, with a suffix, and without numbers.
fn nth_agent_version(n: usize) -> String {
    match n % 4 {
        0 => format!("0.{n}.0"),
        1 => format!("0.{n}~rc1"),
        2 => format!("0.{n}.0-dirty.5"),
        _ => "dev".to_owned(),
    }
}

/// The report of a run that left a package out.
fn held_back_report() -> RunReport {
    let count = HeldBackCount { cause: "hold".to_owned(), packages: 1 };
    RunReport { held_back_counts: vec![count], ..RunReport::default() }
}

async fn create_runs(tx: &Tx, rows: &[Instance], policies: &[UpdatePolicy]) -> Vec<UpdateRun> {
    // A policy that is deleted at the end.
    let spec = PolicySpec::parse("gone", "", DesiredUpdate::Latest).expect("a policy");
    let deleted_policy = policies::create(tx, &spec, NOON).await.expect("created");
    let policies: Vec<_> = policies.iter().chain([&deleted_policy]).collect();
    let failure =
        || Failure { kind: FailureKind::Apply, reason: "50% of dpkg_configure".to_owned() };
    let histories = [
        vec![RunEvent::Finished],
        vec![RunEvent::NothingToDo],
        vec![RunEvent::Failed(failure())],
        vec![RunEvent::Began, RunEvent::Reverted(failure())],
        vec![RunEvent::Downloading, RunEvent::Cancelled(CancelCause::Requested)],
        vec![RunEvent::Downloading, RunEvent::Superseded],
        vec![RunEvent::Downloaded],
        vec![RunEvent::Downloading],
        vec![RunEvent::VerifyBegun],
    ];
    let mut ids = Vec::new();
    for (n, history) in histories.iter().cycle().take(18).enumerate() {
        let opening = RunOpening {
            instance: rows[n % rows.len()].id,
            name: format!("edge update {n}"),
            description: "OS_update".to_owned(),
            attempt: n.is_multiple_of(2).then(|| AttemptId(Uuid::from_u128(n as u128 + 1))),
            origin: Origin {
                target: None,
                policy: nth_or_none(&policies, n).cloned(),
                order: None,
            },
            follows: None,
            assignment: None,
        };
        let mut subject = Subject::New(Box::new(opening));
        for (step, event) in history.iter().enumerate() {
            let record = RunEventRecord {
                evidence: Evidence {
                    log: NAMES[n % NAMES.len()].to_owned(),
                    report: n.is_multiple_of(2).then(held_back_report),
                    ..Evidence::default()
                },
                ..numbered_record(event.clone(), to_u32(step) + 1)
            };
            let timeouts = RunTimeouts::default();
            let now = nth_time(n + 10 * step);
            let run = runs::advance(tx, subject, &record, &timeouts, now).await;
            let id = run.expect("an accepted event").id;
            subject = Subject::Run(id);
            if step == 0 {
                ids.push(id);
            }
        }
    }
    policies::delete(tx, deleted_policy.id).await.expect("deleted");
    runs::find_many(tx, &ids).await.expect("runs")
}
