//! A fleet in a database: hosts with an instance, a policy and a window to come, and nodes that said their facts. A large
//! one is filled quickly, with copies.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::Authority;
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::decide::Protocol;
use evenkeel_domain::host::Registration;
use evenkeel_domain::id::HostId;
use evenkeel_domain::instance::{InstanceKind, NewInstance};
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::policy::{PolicySpec, Wish};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSpec};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::PollRequest;
use evenkeel_store::testing::fill::{self, Filled, Size};
use evenkeel_store::{
    Store, StoreOptions, Tx, assignments, hosts, instances, nodes, os_profiles, policies, projects,
    schedules,
};

use crate::load::Node;
use crate::station::Station;

/// How many hosts one transaction makes.
const BATCH: usize = 500;

/// Fills the project that the first start of the server made with copies of one host: whole, with hardware and runs, or as
/// much of them as polls ask for.
pub async fn filled(
    station: &Station,
    size: Size,
    whole: bool,
) -> anyhow::Result<(Store, TenantId, Filled)> {
    let options = StoreOptions {
        statement_timeout: Duration::from_mins(10),
        ..StoreOptions::default()
    };
    let store = Store::connect(&station.database(), options).await?;
    let now = SystemClock.now();
    let tx = store.fleet().await?;
    let (project, _) = projects::ensure_default(&tx, now).await?;
    drop(tx);
    let filled = if whole {
        fill::project(&store, project.id, size, now).await?
    } else {
        fill::nodes(&store, project.id, size, now).await?
    };
    Ok((store, project.id, filled))
}

/// Fills a project with hosts, and gives the nodes that poll for them.
pub async fn seed(
    store: &Store,
    tenant: TenantId,
    authority: &Authority,
    count: usize,
    now: DateTime<Utc>,
) -> anyhow::Result<Vec<Node>> {
    let tx = store.tenant(tenant).await?;
    let release = OsRelease {
        id: "debian".into(),
        version_id: "12".into(),
        pretty_name: "Debian GNU/Linux 12 (bookworm)".into(),
        codename: "bookworm".into(),
    };
    let os = os_profiles::ensure(&tx, &OsSpec::of_release(&release, "amd64")?, now).await?;
    let wish = Wish::target(None, "demo-hello=1.1\ndemo-app", &[], "")?;
    let policy = policies::create(&tx, &PolicySpec::parse("bench", "", wish)?, now).await?;
    tx.commit().await?;

    let digest = <sha2::Sha256 as sha2::Digest>::digest(b"facts").to_vec();
    let mut made = Vec::with_capacity(count);
    for first in (0..count).step_by(BATCH) {
        let tx = store.tenant(tenant).await?;
        for n in first..count.min(first + BATCH) {
            let new = NewInstance {
                host: host(&tx, n, now).await?,
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
            assignments::set(&tx, scope, policy.id, Limits::default(), now).await?;
            let mut state = nodes::lock(&tx, new.host).await?;
            state.provisioned = true;
            state.protocol = Protocol::Own {
                modules: vec!["packages".into()],
            };
            state.facts_digest.clone_from(&digest);
            nodes::save(&tx, &state).await?;
            made.push(new.host);
        }
        tx.commit().await?;
    }
    store.analyze().await?;
    made.into_iter()
        .map(|host| node(authority, tenant, host, &digest, now))
        .collect()
}

async fn host(tx: &Tx, n: usize, now: DateTime<Utc>) -> anyhow::Result<HostId> {
    let uuid = format!("00000000-0000-4000-8000-{n:012x}");
    let registration = Registration::parse(&format!("edge-{n:06}"), &uuid, "", true)?;
    let id = hosts::register(tx, &registration, now).await?.id;
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

fn node(
    authority: &Authority,
    tenant: TenantId,
    host: HostId,
    digest: &[u8],
    now: DateTime<Utc>,
) -> anyhow::Result<Node> {
    let issued =
        authority.issue_node(tenant.uuid(), &host.to_string(), TimeDelta::days(90), now)?;
    Ok(Node {
        authorization: format!("Bearer {}", issued.token.reveal()).parse()?,
        request: PollRequest {
            facts_digest: digest.to_vec(),
            ..PollRequest::default()
        },
    })
}
