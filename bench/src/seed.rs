//! Seeds a database: hosts with an instance, a policy and a future window, and nodes whose facts
//! are stored. Large fleets are filled with copies of one host.

use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{Authority, KeyFingerprint};
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::host::Registration;
use evenkeel_domain::id::HostId;
use evenkeel_domain::instance::{FactsSummary, InstanceKind, NewInstance};
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSpec};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::PollRequest;
use evenkeel_store::hosts::JoinRequest;
use evenkeel_store::testing::fill::{self, ProjectSize, SeededProject};
use evenkeel_store::{
    Store, StoreOptions, Tx, assignments, hosts, instances, nodes, os_profiles, policies, projects,
    schedules,
};

use crate::bench_harness::BenchHarness;
use crate::load::PollingNode;

/// Hosts that one transaction creates.
const HOSTS_PER_TRANSACTION: usize = 500;

/// Fills the default project, which the server created at its first start, with copies of one host:
/// complete with hardware and runs, or only with the data that polls need.
pub async fn fill_project(
    harness: &BenchHarness,
    size: ProjectSize,
    is_complete: bool,
) -> anyhow::Result<(Store, TenantId, SeededProject)> {
    let options =
        StoreOptions { statement_timeout: Duration::from_mins(10), ..StoreOptions::default() };
    let store = Store::connect(&harness.database_url(), options).await?;
    let now = SystemClock.now();
    let tx = store.fleet().await?;
    let (project, _) = projects::ensure_default(&tx, now).await?;
    drop(tx);
    let seeded = if is_complete {
        fill::seed_project(&store, project.id, size, now).await?
    } else {
        fill::seed_nodes(&store, project.id, size, now).await?
    };
    Ok((store, project.id, seeded))
}

/// Creates hosts in a project, and returns nodes that poll for them.
pub async fn seed_nodes(
    store: &Store,
    tenant: TenantId,
    authority: &Authority,
    count: usize,
    now: DateTime<Utc>,
) -> anyhow::Result<Vec<PollingNode>> {
    let tx = store.tenant(tenant).await?;
    let release = OsRelease {
        id: "debian".into(),
        version_id: "12".into(),
        pretty_name: "Debian GNU/Linux 12 (bookworm)".into(),
        codename: "bookworm".into(),
    };
    let os =
        os_profiles::find_or_create(&tx, &OsSpec::from_release(&release, "amd64")?, now).await?;
    let desired = DesiredUpdate::parse_target(None, "demo-hello=1.1\ndemo-app", &[], "")?;
    let policy = policies::create(&tx, &PolicySpec::parse("bench", "", desired)?, now).await?;
    tx.commit().await?;

    let digest = <sha2::Sha256 as sha2::Digest>::digest(b"facts").to_vec();
    let mut created = Vec::with_capacity(count);
    for first in (0..count).step_by(HOSTS_PER_TRANSACTION) {
        let tx = store.tenant(tenant).await?;
        for n in first..count.min(first + HOSTS_PER_TRANSACTION) {
            let new = NewInstance {
                host: create_host(&tx, n, now).await?,
                os: os.id,
                name: Name::default(),
                kind: InstanceKind::Metal,
                security_feature: SecurityFeature::None,
                policy: None,
                local_account: None,
                custom_configs: Vec::new(),
            };
            let instance = instances::create(&tx, &new, now).await?;
            let scope = Scope::Instance(instance.id);
            assignments::set(&tx, scope, policy.id, UpdateLimits::default(), now).await?;
            let mut state = nodes::lock(&tx, new.host).await?;
            state.provisioned = true;
            state.protocol = AgentProtocol::Own { modules: vec!["packages".into()] };
            state.facts_digest.clone_from(&digest);
            state.facts_summary.version = FactsSummary::VERSION;
            nodes::save(&tx, &state).await?;
            created.push(new.host);
        }
        tx.commit().await?;
    }
    store.analyze().await?;
    created.into_iter().map(|host| polling_node(authority, tenant, host, &digest, now)).collect()
}

async fn create_host(tx: &Tx, n: usize, now: DateTime<Utc>) -> anyhow::Result<HostId> {
    let uuid = format!("00000000-0000-4000-8000-{n:012x}");
    let registration = Registration::parse(&format!("edge-{n:06}"), &uuid, "", true)?;
    let host = hosts::register(tx, &registration, now).await?;
    let (id, public_key) = (host.id, fill::PUBLIC_KEY.to_vec());
    let uuid = host.uuid.context("a host has no UUID")?;
    let joining = JoinRequest { uuid, serial: None, hostname: host.hostname, public_key };
    hosts::record_join(tx, id, &joining, now).await?;
    let window = SingleSpec {
        name: Name::default(),
        status: ScheduleStatus::OsUpdate,
        start: now + TimeDelta::days(1),
        end: Some(now + TimeDelta::days(2)),
        target: Some(ScheduleTarget::Host(id)),
    };
    schedules::create(tx, &window, now).await?;
    Ok(id)
}

fn polling_node(
    authority: &Authority,
    tenant: TenantId,
    host: HostId,
    digest: &[u8],
    now: DateTime<Utc>,
) -> anyhow::Result<PollingNode> {
    let key = KeyFingerprint::from_public_key(&fill::PUBLIC_KEY);
    let host = host.to_string();
    let issued = authority.issue_credential(
        (tenant.uuid(), host.as_str()),
        &key,
        TimeDelta::days(90),
        now,
    )?;
    Ok(PollingNode {
        authorization: format!("Bearer {}", issued.token.reveal()).parse()?,
        request: PollRequest { facts_digest: digest.to_vec(), ..PollRequest::default() },
    })
}
