//! Nodes of one line of images, and a newer image.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::{OsKind, OsProvider, OsSpec, SecurityFeature, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::testing::fill::{self, Size};
use evenkeel_store::{Store, image_lines, nodes, os_profiles};
use serde::Serialize;

use crate::report::{millis, tidy};
use crate::seed;
use crate::station::Station;

/// How many hosts there are for each site.
const HOSTS_PER_SITE: u32 = 100;

/// How long it may take until all of them are told.
const PATIENCE: Duration = Duration::from_mins(10);

/// What it took to tell a fleet of an image.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// How many nodes it has, all of one line.
    pub nodes: u32,
    /// From the moment in which the image was there until the last one was told.
    pub seconds: f64,
    /// Processor time of the server, in milliseconds.
    pub cpu_ms_server: f64,
    /// Processor time of Postgres, in milliseconds.
    pub cpu_ms_postgres: f64,
}

/// Makes a fleet, publishes a newer image into its project, and waits until every node was told.
pub async fn measure(count: u32) -> anyhow::Result<Figures> {
    let station = Station::start("").await?;
    let size = Size {
        hosts: count,
        sites: (count / HOSTS_PER_SITE).max(1),
    };
    let (store, tenant, filled) = seed::filled(&station, size, false).await?;
    let running = image(&store, tenant, "3.0.1").await?;
    let (project, os) = (tenant.uuid(), running.bits().cast_signed());
    store
        .unprepared(&format!(
            "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE node_states SET os_id = {os}, os_update_available = '', \
             available_digest = sha256('') WHERE tenant_id = '{project}'; COMMIT"
        ))
        .await?;
    told(&store).await?;
    fill::settle(&store, &station.superuser()).await?;

    let meters = station.meters();
    image(&store, tenant, "3.0.2").await?;
    let began = Instant::now();
    told(&store).await?;
    let figures = Figures {
        nodes: count,
        seconds: tidy(began.elapsed().as_secs_f64()),
        cpu_ms_server: millis(meters.0.spent()),
        cpu_ms_postgres: millis(meters.1.spent()),
    };
    let last = filled.instances.last().context("a fleet has a node")?;
    let tx = store.tenant(tenant).await?;
    let shown = nodes::find(&tx, *last).await?.os_update_available;
    ensure!(shown == "edge 3.0.2", "a node shows {shown:?}");
    drop(tx);
    store.close().await;
    drop(station.stop().await);
    Ok(figures)
}

/// Puts an image into the project.
async fn image(store: &Store, tenant: TenantId, version: &str) -> anyhow::Result<OsId> {
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
    let made = os_profiles::create(&tx, &spec, SystemClock.now()).await?;
    tx.commit().await?;
    Ok(made.id)
}

/// Waits until every line of images was followed.
async fn told(store: &Store) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let tx = store.fleet().await?;
        let behind = image_lines::behind(&tx, 1).await?;
        drop(tx);
        if behind.is_empty() {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "nodes are not told of an image");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
