//! The first resource of each kind, created by the store.

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::hardware::{
    Address, Capacity, Controller, Hardware, Link, LinkState, Nic, Storage,
};
use evenkeel_domain::host::Registration;
use evenkeel_domain::id::{HostId, InstanceId, OsId, RegionId, RunId, SiteId};
use evenkeel_domain::instance::{FactsSummary, InstanceKind, NewInstance};
use evenkeel_domain::location::{Metadata, RegionSpec, SiteSpec};
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::package::{ObservedPackage, PackageChange};
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec, UpdatePolicy};
use evenkeel_domain::run::{
    AttemptId, Evidence, Origin, PhaseSpan, RunEvent, RunEventRecord, RunReport, RunTimeouts,
};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::text::Name;
use serde_json::json;

use super::{NICS_PER_HOST, PUBLIC_KEY, host_name, instance_name, others, run_name};
use crate::error::StoreError;
use crate::hosts::{HostChange, JoinRequest};
use crate::runs::{RunOpening, Subject};
use crate::tx::Tx;
use crate::{
    assignments, hardware, hosts, instances, nodes, os_profiles, policies, regions, runs, sites,
};

const OS: &str = "Debian GNU/Linux 12 (bookworm)";

/// The resources that are copied.
#[derive(Debug)]
pub struct SeedTemplates {
    pub os: OsId,
    /// Regions for sites.
    pub regions: Vec<RegionId>,
    pub site: SiteId,
    pub host: HostId,
    /// The network interfaces of the host.
    pub nics: Vec<Nic>,
    pub instance: InstanceId,
    pub run: RunId,
}

/// Creates the first resource of each kind.
pub async fn make(tx: &Tx, now: Time) -> Result<SeedTemplates, StoreError> {
    let os = os_profiles::find_or_create(tx, &debian(), now).await?.id;
    let policy = PolicySpec::parse("newest", "", DesiredUpdate::Latest).expect("a policy");
    let policy = policies::create(tx, &policy, now).await?;
    assignments::set(tx, Scope::Project, policy.id, UpdateLimits::default(), now).await?;
    let regions = create_regions(tx, now).await?;
    let site = SiteSpec {
        name: name(&others::site_name(0)),
        region: regions.first().copied(),
        metadata: labels(&[("city", "ulm")]),
        ..SiteSpec::default()
    };
    let site = sites::create(tx, &site, now).await?.id;
    let host = create_host(tx, site, now).await?;
    hardware::store_if_changed(tx, host, sample_hardware(), &[1; 32], now).await?;
    let stored_hardware = hardware::find_by_hosts(tx, &[host]).await?.remove(&host);
    let instance = create_instance(tx, host, os, now).await?;
    let run = create_run(tx, instance, policy, now).await?;
    Ok(SeedTemplates {
        os,
        regions,
        site,
        host,
        nics: stored_hardware.map(|hardware| hardware.nics).unwrap_or_default(),
        instance,
        run,
    })
}

fn name(text: &str) -> Name {
    Name::parse("name", text).expect("a name")
}

fn labels(pairs: &[(&str, &str)]) -> Metadata {
    let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Metadata::parse(pairs).expect("labels")
}

fn debian() -> OsSpec {
    let release = OsRelease {
        id: "debian".into(),
        version_id: "12".into(),
        pretty_name: OS.into(),
        codename: "bookworm".into(),
    };
    OsSpec::from_release(&release, "amd64").expect("a profile")
}

/// Creates nested regions and returns the innermost ones.
async fn create_regions(tx: &Tx, now: Time) -> Result<Vec<RegionId>, StoreError> {
    let region = |text: &str, parent| RegionSpec {
        name: name(text),
        parent,
        metadata: labels(&[("country", "de")]),
    };
    let mut inner = Vec::new();
    for n in 0..5 {
        let outer = region(&format!("region-{n}"), None);
        let outer = regions::create(tx, &outer, now).await?.id;
        for m in 0..4 {
            let within = region(&format!("region-{n}-{m}"), Some(outer));
            inner.push(regions::create(tx, &within, now).await?.id);
        }
    }
    Ok(inner)
}

async fn create_host(tx: &Tx, site: SiteId, now: Time) -> Result<HostId, StoreError> {
    let (hostname, uuid) = (host_name(0), others::uuid(0));
    let registration = Registration::parse(&hostname, &uuid.to_string(), &others::serial(0), true);
    let id = hosts::register(tx, &registration.expect("a machine"), now).await?.id;
    let joining = JoinRequest { uuid, serial: None, hostname, public_key: PUBLIC_KEY.to_vec() };
    hosts::record_join(tx, id, &joining, now).await?;
    let change = HostChange {
        name: None,
        site: Some(Some(site)),
        metadata: Some(labels(&[("rack", "r00")])),
    };
    hosts::change(tx, id, &change, now).await?;
    let status = Status::new("Running", Indication::Idle, now);
    hosts::set_status(tx, id, &status).await?;
    Ok(id)
}

fn sample_hardware() -> Hardware {
    let nic = |n: u32| Nic {
        device_name: format!("eth{n}"),
        pci_identifier: format!("0000:0{n}:00.0"),
        mac_addr: others::mac(0, n),
        mtu: 1_500,
        link_state: LinkState { kind: Link::Up, timestamps: None },
        ipaddresses: vec![Address { address: others::address(0, n), ..Address::default() }],
        ..Nic::default()
    };
    let disk = Storage {
        wwid: "eui.0025385b91b0f3a1".into(),
        serial: "S4EWNX0R401234".into(),
        vendor: "Samsung".into(),
        model: "PM9A3".into(),
        capacity_bytes: Capacity(960_197_124_096),
        device_name: "nvme0n1".into(),
        timestamps: None,
    };
    Hardware {
        serial_number: others::serial(0),
        memory_bytes: 64 << 30,
        cpu_model: "Intel(R) Xeon(R) D-1736NT CPU @ 2.70GHz".into(),
        cpu_capabilities: "aes,avx,avx2,fpu,mmx,nx,sse,sse2,sse4_1,sse4_2,vmx".into(),
        cpu_architecture: "x86_64".into(),
        cpu_sockets: 1,
        cpu_cores: 8,
        cpu_threads: 16,
        product_name: "Edge Server E1".into(),
        bios_version: "1.4.2".into(),
        bios_release_date: "03/14/2026".into(),
        bios_vendor: "American Megatrends".into(),
        controller: Some(Controller::Ipmi),
        controller_ip: "10.255.0.1".into(),
        storages: vec![disk],
        nics: (0..NICS_PER_HOST).map(nic).collect(),
        ..Hardware::default()
    }
}

async fn create_instance(
    tx: &Tx,
    host: HostId,
    os: OsId,
    now: Time,
) -> Result<InstanceId, StoreError> {
    let new = NewInstance {
        host,
        os,
        name: name(&instance_name(0)),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
        local_account: None,
        custom_configs: Vec::new(),
    };
    let instance = instances::create(tx, &new, now).await?.id;
    let mut node = nodes::lock(tx, host).await?;
    node.provisioned = true;
    node.protocol = AgentProtocol::Own { modules: vec!["packages".into()] };
    node.agent_version = "0.1.0".into();
    node.facts_digest = vec![3; 32];
    node.facts_summary.version = FactsSummary::VERSION;
    node.facts = json!({"kernel": "6.1.0-28-amd64", "release": OS});
    node.status = Status::new("Running", Indication::Idle, now);
    node.update_status = Status::new("Update completed", Indication::Idle, now);
    node.os_update_available =
        json!([{"name": "curl", "available_version": "7.88.1-10", "architecture": "amd64"}])
            .to_string();
    nodes::save(tx, &node).await?;
    Ok(instance)
}

async fn create_run(
    tx: &Tx,
    instance: InstanceId,
    policy: UpdatePolicy,
    now: Time,
) -> Result<RunId, StoreError> {
    let opening = RunOpening {
        instance,
        name: run_name(0),
        description: OS.into(),
        attempt: Some(AttemptId(others::attempt(0))),
        origin: Origin { target: None, policy: Some(policy), order: None },
        follows: None,
        assignment: None,
    };
    let report = RunReport {
        phases: vec![PhaseSpan { phase: "apply".into(), millis: 4_200, bytes: 0 }],
        ..RunReport::default()
    };
    let plan = Evidence {
        plan: Some(["curl", "libcurl4", "openssl", "tzdata"].map(package_change).into()),
        report: Some(report),
        ..Evidence::default()
    };
    let (timeouts, (started, ended)) = (RunTimeouts::default(), others::times(0, now));
    let mut subject = Subject::New(Box::new(opening));
    let mut id = RunId::from_bits(0);
    for (number, event, evidence, at) in
        [(1, RunEvent::Began, plan, started), (2, RunEvent::Finished, Evidence::default(), ended)]
    {
        let record = RunEventRecord {
            sequence: Some(number),
            evidence,
            ..RunEventRecord::from_event(event)
        };
        id = runs::advance(tx, subject, &record, &timeouts, at).await?.id;
        subject = Subject::Run(id);
    }
    Ok(id)
}

fn package_change(package: &str) -> PackageChange {
    let version = Some("3.0.15-1~deb12u1".to_owned());
    PackageChange {
        name: package.to_owned(),
        architecture: "amd64".into(),
        before: Some("3.0.14-1~deb12u2".into()),
        desired: version.clone(),
        observed: Some(ObservedPackage { version, state: "installed".into() }),
        suites: vec!["bookworm-security".to_owned()],
        origins: vec!["Debian-Security".to_owned()],
    }
}
