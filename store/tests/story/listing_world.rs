//! A project with a few of everything, in a database and beside it.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::custom_config::{CustomConfig, CustomConfigSpec};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::hardware::{
    Address, Capacity, Controller, Hardware, Link, LinkState, Nic, Storage, Usb,
};
use evenkeel_domain::host::{Host, Registration};
use evenkeel_domain::id::{OsId, PolicyId};
use evenkeel_domain::instance::{Instance, InstanceKind, NewInstance};
use evenkeel_domain::local_account::{LocalAccount, LocalAccountSpec};
use evenkeel_domain::os::{OsKind, OsProfile, OsSpec, SecurityFeature};
use evenkeel_domain::place::{Metadata, Region, RegionSpec, Site, SiteSpec};
use evenkeel_domain::policy::{PolicySpec, UpdatePolicy, Wish};
use evenkeel_domain::provider::{Provider, ProviderKind, ProviderSpec, ProviderVendor};
use evenkeel_domain::run::{
    AttemptId, CancelCause, Evidence, Failure, FailureKind, Happening, Origin, Patience, RunEvent,
    UpdateRun,
};
use evenkeel_domain::schedule::{
    Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, SingleSpec, Zone,
};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::runs::{Opening, Subject};
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::{
    Store, Tx, custom_configs, hardware, hosts, instances, local_accounts, nodes, os_profiles,
    policies, providers, regions, runs, sites,
};
use uuid::Uuid;

use crate::house::{NOON, bookworm, numbered, project};
use crate::listing_model as model;
use crate::listing_oracle::Model;

/// What is listed by itself.
pub const LISTED: &[Resource] = &[
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

const NAMES: &[&str] = &[
    "",
    "edge",
    "Edge 1",
    "edge-01",
    "shop_2",
    "Shop: 10/b",
    "a.b",
];

fn name(n: usize) -> Name {
    Name::parse("name", NAMES[n % NAMES.len()]).expect("a name")
}

/// Microseconds apart, some within the same second.
fn at(n: usize) -> Time {
    NOON + TimeDelta::microseconds(i64::try_from(n).expect("a small number") * 400_001)
}

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("a small number")
}

fn labels(n: usize) -> Metadata {
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

/// One of several things, and now and then none.
fn some<T: Copy>(of: &[T], n: usize) -> Option<T> {
    of.get(n % (of.len() + 1)).copied()
}

/// Makes the project.
pub async fn world(store: &Store) -> (TenantId, Model) {
    let tenant = project(store, "ours").await;
    // What another project has is in no list.
    let theirs = project(store, "theirs").await;
    let tx = store.tenant(theirs).await.expect("a transaction");
    places(&tx).await;
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut there = Model::default();
    let (regions, sites) = places(&tx).await;
    let providers = providers(&tx).await;
    let hosts = machines(&tx, &sites).await;
    let oses = catalogue(&tx).await;
    let policies = wishes(&tx, &oses).await;
    let (accounts, configs) = first_start(&tx).await;
    let start = (accounts.as_slice(), configs.as_slice());
    let instances = installed(&tx, &hosts, (&oses, &policies), start).await;
    let runs = attempts(&tx, &instances, &policies).await;
    scheduled(&tx, &mut there, (&hosts, &sites, &regions)).await;
    tx.commit().await.expect("committed");
    bring(store, tenant, &hosts, &providers).await;

    let tx = store.tenant(tenant).await.expect("a transaction");
    let ids: Vec<_> = hosts.iter().map(|host| host.id).collect();
    let mut made_of = hardware::of_hosts(&tx, &ids).await.expect("hardware");
    for host in hosts::find_many(&tx, &ids).await.expect("hosts") {
        model::host(&mut there, &host, made_of.remove(&host.id).as_ref());
    }
    for it in &regions {
        there.add(model::region(it));
    }
    for it in &sites {
        there.add(model::site(it));
    }
    for it in &oses {
        there.add(model::os(it));
    }
    for it in &policies {
        there.add(model::policy(it));
    }
    for it in &providers {
        there.add(model::provider(it));
    }
    for it in &accounts {
        there.add(model::account(it));
    }
    for it in &configs {
        there.add(model::config(it));
    }
    for it in &instances {
        there.add(model::instance(it));
    }
    for it in &runs {
        there.add(model::run(it));
    }
    there.close("sites", "region", (Resource::Site, Resource::Region));
    there.close("hosts", "site", (Resource::Host, Resource::Site));
    there.close("instance", "host", (Resource::Instance, Resource::Host));
    (tenant, there)
}

async fn places(tx: &Tx) -> (Vec<Region>, Vec<Site>) {
    let mut made: Vec<Region> = Vec::new();
    for n in 0..9_usize {
        let spec = RegionSpec {
            name: name(n),
            parent: (n > 1).then(|| made[(n - 2) / 2].id),
            metadata: labels(n),
        };
        made.push(regions::create(tx, &spec, at(n)).await.expect("a region"));
    }
    let within: Vec<_> = made.iter().map(|region| region.id).collect();
    let mut stood = Vec::new();
    for n in 0..11_usize {
        let degrees = i32::try_from(n).expect("a small number") * 10_000_000;
        let spec = SiteSpec {
            name: name(n + 3),
            region: some(&within, n * 2),
            latitude: degrees - 50_000_000,
            longitude: degrees,
            metadata: labels(n + 1),
        };
        stood.push(sites::create(tx, &spec, at(n)).await.expect("a site"));
    }
    (made, stood)
}

async fn providers(tx: &Tx) -> Vec<Provider> {
    let vendors = [ProviderVendor::Unspecified, ProviderVendor::LenovoLoca];
    let mut made = Vec::new();
    for (n, vendor) in vendors.into_iter().enumerate() {
        let spec = ProviderSpec::parse(
            (ProviderKind::Baremetal, vendor),
            &format!("provider {n}"),
            "https://provider/api",
            Vec::new(),
            "{}",
        );
        let spec = spec.expect("a provider");
        made.push(providers::create(tx, &spec, at(n)).await.expect("made"));
    }
    made
}

async fn machines(tx: &Tx, sites: &[Site]) -> Vec<Host> {
    let sites: Vec<_> = sites.iter().map(|site| site.id).collect();
    let mut made = Vec::new();
    for n in 0..20_usize {
        let serial = if n.is_multiple_of(3) {
            String::new()
        } else {
            format!("SERIAL{n}")
        };
        let uuid = Uuid::from_u128(0xabcd_ef01_0000 + n as u128 * 0x1_0001_0000_0000_0000);
        let uuid = if n % 3 == 1 {
            String::new()
        } else {
            uuid.to_string()
        };
        let told = Registration::parse(NAMES[n % NAMES.len()], &uuid, &serial, n.is_multiple_of(2));
        let told = told.and_then(|told| told.with_user_lvm_size(small(n)));
        let host = hosts::register(tx, &told.expect("a machine"), at(n)).await;
        let host = host.expect("a host");
        let change = hosts::HostChange {
            name: None,
            site: Some(some(&sites, n)),
            metadata: Some(labels(n)),
        };
        hosts::change(tx, host.id, &change, at(n + 2))
            .await
            .expect("changed");
        if n.is_multiple_of(4) {
            let status = ["Running", "50% done", "a_b\\c"][n % 3];
            let status = Status::new(status, Indication::InProgress, at(n + 1));
            hosts::set_status(tx, host.id, &status).await.expect("told");
        }
        if n % 2 == 1 {
            let digest = [u8::try_from(n).expect("small"); 32];
            hardware::keep(tx, host.id, parts(n), &digest, at(n))
                .await
                .expect("kept");
        }
        made.push(host);
    }
    made
}

fn parts(n: usize) -> Hardware {
    let address = |end: usize| Address {
        address: format!("10.0.{n}.{end}/24"),
        ..Address::default()
    };
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
    let stick = Usb {
        bus: small(n),
        class: "Hub".to_owned(),
        ..Usb::default()
    };
    Hardware {
        memory_bytes: 1_u64 << (n + 20),
        cpu_model: "Xeon 50%".to_owned(),
        cpu_cores: small(n % 4),
        product_name: format!("Box {}", n % 2),
        controller: n.is_multiple_of(3).then_some(Controller::Ipmi),
        storages: vec![disk],
        nics: (0..n % 4).map(nic).collect(),
        usbs: vec![stick],
        ..Hardware::default()
    }
}

async fn catalogue(tx: &Tx) -> Vec<OsProfile> {
    let mut made = Vec::new();
    for n in 0..3_usize {
        let spec = OsSpec {
            name: format!("edge os {n}"),
            kind: if n == 0 {
                OsKind::Mutable
            } else {
                OsKind::Immutable
            },
            profile_name: "edge_profile".to_owned(),
            image_id: format!("3.0.{n}"),
            description: "all of 50%".to_owned(),
            ..bookworm()
        };
        made.push(os_profiles::create(tx, &spec, at(n)).await.expect("made"));
    }
    made
}

async fn wishes(tx: &Tx, oses: &[OsProfile]) -> Vec<UpdatePolicy> {
    let image = Wish::target(Some(oses[1].id), "", &[], "").expect("a wish");
    let sources = ["deb http://a_b ./", "deb http://c_d ./"].map(String::from);
    let packages = Wish::target(None, "curl\njq", &sources, "quiet").expect("a wish");
    let mut made = Vec::new();
    for (n, wish) in [Wish::Latest, image, packages].into_iter().enumerate() {
        let spec = PolicySpec {
            allow_downgrade: n == 1,
            ..PolicySpec::parse(&format!("wish {n}"), NAMES[n], wish).expect("a policy")
        };
        made.push(policies::create(tx, &spec, at(n)).await.expect("made"));
    }
    made
}

async fn first_start(tx: &Tx) -> (Vec<LocalAccount>, Vec<CustomConfig>) {
    let (mut accounts, mut configs) = (Vec::new(), Vec::new());
    for (n, name) in ["ann", "bob"].into_iter().enumerate() {
        let key = format!("ssh-ed25519 AAAAC3Nz {name}@edge");
        let account = LocalAccountSpec::parse(name, &key).expect("an account");
        accounts.push(
            local_accounts::create(tx, &account, at(n))
                .await
                .expect("made"),
        );
        let config = CustomConfigSpec::parse(name, "of all", "#cloud-config\nntp: {}\n");
        let config = config.expect("a configuration");
        configs.push(
            custom_configs::create(tx, &config, at(n))
                .await
                .expect("made"),
        );
    }
    (accounts, configs)
}

async fn installed(
    tx: &Tx,
    on: &[Host],
    (oses, policies): (&[OsProfile], &[UpdatePolicy]),
    (accounts, configs): (&[LocalAccount], &[CustomConfig]),
) -> Vec<Instance> {
    let oses: Vec<OsId> = oses.iter().map(|os| os.id).collect();
    let policies: Vec<PolicyId> = policies.iter().map(|policy| policy.id).collect();
    let accounts: Vec<_> = accounts.iter().map(|account| account.id).collect();
    let mut ids = Vec::new();
    for (n, host) in on.iter().enumerate().filter(|(n, _)| n % 4 != 3) {
        let new = NewInstance {
            host: host.id,
            os: oses[n % oses.len()],
            name: name(n + 1),
            kind: [InstanceKind::Metal, InstanceKind::Unspecified][n % 2],
            security_feature: SecurityFeature::None,
            policy: some(&policies, n),
            local_account: some(&accounts, n),
            custom_configs: configs.iter().take(n % 3).map(|c| c.id).collect(),
        };
        let made = instances::create(tx, &new, at(n)).await.expect("made");
        if n.is_multiple_of(2) {
            let mut node = nodes::lock(tx, host.id).await.expect("a node");
            node.provisioned = n.is_multiple_of(4);
            node.status = Status::new("a_b\\c 50%", Indication::Idle, at(n + 5));
            node.update_status = Status::new("Updating", Indication::InProgress, at(n));
            ["", "edge os 2"][n / 2 % 2].clone_into(&mut node.os_update_available);
            nodes::save(tx, &node).await.expect("saved");
        }
        ids.push(made.id);
    }
    instances::find_many(tx, &ids).await.expect("instances")
}

async fn attempts(tx: &Tx, on: &[Instance], policies: &[UpdatePolicy]) -> Vec<UpdateRun> {
    // One whose policy is gone.
    let spec = PolicySpec::parse("gone", "", Wish::Latest).expect("a policy");
    let gone = policies::create(tx, &spec, NOON).await.expect("made");
    let policies: Vec<_> = policies.iter().chain([&gone]).collect();
    let failure = || Failure {
        kind: FailureKind::Apply,
        reason: "50% of dpkg_configure".to_owned(),
    };
    let histories = [
        vec![RunEvent::Finished],
        vec![RunEvent::NothingToDo],
        vec![RunEvent::Failed(failure())],
        vec![RunEvent::Began, RunEvent::Reverted(failure())],
        vec![
            RunEvent::Downloading,
            RunEvent::Cancelled(CancelCause::Requested),
        ],
        vec![RunEvent::Downloading, RunEvent::Superseded],
        vec![RunEvent::Downloaded],
        vec![RunEvent::Downloading],
        vec![RunEvent::VerifyBegun],
    ];
    let mut ids = Vec::new();
    for (n, history) in histories.iter().cycle().take(18).enumerate() {
        let opening = Opening {
            instance: on[n % on.len()].id,
            name: format!("edge update {n}"),
            description: "OS_update".to_owned(),
            attempt: n
                .is_multiple_of(2)
                .then(|| AttemptId(Uuid::from_u128(n as u128 + 1))),
            origin: Origin {
                target: None,
                policy: some(&policies, n).cloned(),
                order: None,
            },
            follows: None,
        };
        let mut subject = Subject::New(Box::new(opening));
        for (step, event) in history.iter().enumerate() {
            let happening = Happening {
                evidence: Evidence {
                    log: NAMES[n % NAMES.len()].to_owned(),
                    ..Evidence::default()
                },
                ..numbered(event.clone(), small(step) + 1)
            };
            let patience = Patience::default();
            let now = at(n + 10 * step);
            let run = runs::advance(tx, subject, &happening, &patience, now).await;
            let id = run.expect("it fits").id;
            subject = Subject::Run(id);
            if step == 0 {
                ids.push(id);
            }
        }
    }
    policies::delete(tx, gone.id).await.expect("deleted");
    runs::find_many(tx, &ids).await.expect("runs")
}

async fn scheduled(
    tx: &Tx,
    there: &mut Model,
    (hosts, sites, regions): (&[Host], &[Site], &[Region]),
) {
    let targets = [
        ScheduleTarget::Host(hosts[0].id),
        ScheduleTarget::Site(sites[0].id),
        ScheduleTarget::Region(regions[0].id),
    ];
    for n in 0..8_usize {
        let single = SingleSpec {
            name: name(n),
            status: ScheduleStatus::ALL[n % ScheduleStatus::ALL.len()],
            start: NOON + TimeDelta::hours(1),
            end: n.is_multiple_of(2).then(|| at(n) + TimeDelta::hours(2)),
            target: some(&targets, n),
        };
        let single = schedules::create(tx, &single, at(n)).await.expect("made");
        there.add(model::single(&single));
        let again = RepeatedSpec {
            name: name(n + 1),
            status: ScheduleStatus::OsUpdate,
            duration: TimeDelta::minutes(i64::from(small(n)) + 1),
            cron: Cron::parse("0", "2", "*", "*", "1-5").expect("a cron"),
            zone: Zone::UTC,
            target: some(&targets, n + 1),
        };
        let again = repeated::create(tx, &again, at(n)).await.expect("made");
        there.add(model::repeated(&again));
    }
}

/// Says who brought some of the hosts.
async fn bring(store: &Store, tenant: TenantId, hosts: &[Host], providers: &[Provider]) {
    for (n, host) in hosts.iter().enumerate() {
        if let Some(provider) = some(&[providers[0].id, providers[1].id], n) {
            let brought = format!(
                "BEGIN; SET LOCAL evenkeel.tenant = '{tenant}'; \
                 UPDATE hosts SET provider_id = {} WHERE id = {}; COMMIT",
                provider.bits().cast_signed(),
                host.id.bits().cast_signed()
            );
            store.unprepared(&brought).await.expect("brought");
        }
    }
}
