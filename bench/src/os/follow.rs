//! Notification of nodes: the time until every node of an image series shows a newer image.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::{OsKind, OsProvider, OsSpec, SecurityFeature, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::testing::fill::{self, ProjectSize};
use evenkeel_store::{Store, image_series, nodes, os_profiles};
use serde::Serialize;

use crate::bench_harness::BenchHarness;
use crate::report::{millis, round_figure};
use crate::seed;

const HOSTS_PER_SITE: u32 = 100;

/// Timeout for the notification of all nodes.
const NOTIFY_TIMEOUT: Duration = Duration::from_mins(10);

/// Cost of notifying a fleet of a newer image.
#[derive(Debug, Serialize)]
pub struct FollowFigures {
    /// Number of nodes, all of one image series.
    pub nodes: u32,
    /// Time from the creation of the image until the last node was notified, in seconds.
    pub seconds: f64,
    /// Processor time of the server, in milliseconds.
    pub cpu_ms_server: f64,
    /// Processor time of Postgres, in milliseconds.
    pub cpu_ms_postgres: f64,
}

/// Creates a fleet and a newer image in its project, and waits until every node is notified.
pub async fn measure(count: u32) -> anyhow::Result<FollowFigures> {
    let harness = BenchHarness::start("").await?;
    let size = ProjectSize { hosts: count, sites: (count / HOSTS_PER_SITE).max(1) };
    let (store, tenant, seeded) = seed::fill_project(&harness, size, false).await?;
    let running = create_image(&store, tenant, "3.0.1").await?;
    let (project, os) = (tenant.uuid(), running.bits().cast_signed());
    store
        .execute_unprepared(&format!(
            "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE node_states SET os_id = {os}, os_update_available = '', \
             available_digest = sha256('') WHERE tenant_id = '{project}'; COMMIT"
        ))
        .await?;
    wait_until_notified(&store).await?;
    fill::vacuum_and_checkpoint(&store, &harness.superuser_url()).await?;

    let meters = harness.meters();
    create_image(&store, tenant, "3.0.2").await?;
    let began = Instant::now();
    wait_until_notified(&store).await?;
    let figures = FollowFigures {
        nodes: count,
        seconds: round_figure(began.elapsed().as_secs_f64()),
        cpu_ms_server: millis(meters.0.spent()),
        cpu_ms_postgres: millis(meters.1.spent()),
    };
    let last = seeded.instances.last().context("the fleet has no node")?;
    let tx = store.tenant(tenant).await?;
    let available = nodes::find(&tx, *last).await?.os_update_available;
    ensure!(available == "edge 3.0.2", "a node shows {available:?} instead of the newer image");
    drop(tx);
    store.close().await;
    drop(harness.stop().await);
    Ok(figures)
}

/// Creates an image in the project.
async fn create_image(store: &Store, tenant: TenantId, version: &str) -> anyhow::Result<OsId> {
    let spec = OsSpec {
        name: format!("edge {version}"),
        kind: OsKind::Immutable,
        provider: OsProvider::Infra,
        architecture: "x86_64".to_owned(),
        profile_name: "edge".to_owned(),
        image_id: version.to_owned(),
        image_url: format!("files/edge-{version}.raw.gz"),
        sha256: Sha256::parse("sha256", &"a".repeat(64))?,
        security_feature: SecurityFeature::None,
        description: String::new(),
        metadata: String::new(),
        repo_url: String::new(),
        tls_ca_cert: String::new(),
        installed_packages_url: String::new(),
        existing_cves_url: String::new(),
        fixed_cves_url: String::new(),
        image_signatures: Vec::new(),
    };
    let tx = store.tenant(tenant).await?;
    let created = os_profiles::create(&tx, &spec, SystemClock.now()).await?;
    tx.commit().await?;
    Ok(created.id)
}

/// Waits until the nodes of all image series are notified.
async fn wait_until_notified(store: &Store) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let tx = store.fleet().await?;
        let behind = image_series::list_outdated(&tx, 1).await?;
        drop(tx);
        if behind.is_empty() {
            return Ok(());
        }
        ensure!(began.elapsed() < NOTIFY_TIMEOUT, "nodes were not notified of an image in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
