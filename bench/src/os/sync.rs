//! Cost of a cold sync, and of a sync without changes.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_store::os_catalogue::{self, CycleState};
use evenkeel_store::{Store, StoreOptions};
use serde::Serialize;

use super::registry::{PublishedRegistry, REGISTRY_NAME};
use crate::bench_harness::BenchHarness;
use crate::report::{millis, round_figure};

const SYNC_TIMEOUT: Duration = Duration::from_mins(30);

/// Cost of a sync.
#[derive(Debug, Serialize)]
pub struct SyncFigures {
    /// Kind of the sync.
    pub what: &'static str,
    /// Number of profile artefacts.
    pub artefacts: u32,
    /// Duration by the database's clock, in seconds.
    pub seconds: f64,
    /// Requests to the registry.
    pub requests: usize,
    /// Processor time of the server, in milliseconds.
    pub cpu_ms_server: f64,
    /// Processor time of Postgres, in milliseconds.
    pub cpu_ms_postgres: f64,
}

/// Measures the first sync after the start of the server, and a second one.
pub async fn measure(
    harness: &BenchHarness,
    published: &PublishedRegistry,
) -> anyhow::Result<Vec<SyncFigures>> {
    let store = Store::connect(&harness.database_url(), StoreOptions::default()).await?;
    let mut figures = Vec::new();
    for what in ["cold", "unchanged"] {
        let meters = harness.meters();
        let number = if figures.is_empty() {
            1
        } else {
            published.take_request_count();
            let tx = store.fleet().await?;
            let number = os_catalogue::request(&tx, REGISTRY_NAME).await?;
            tx.commit().await?;
            number
        };
        let ended = wait_for_sync(&store, number).await?;
        ensure!(
            ended.outcome == Some(CycleOutcome::Good),
            "the sync did not succeed: {}",
            ended.message
        );
        let span = ended.ended_at.zip(ended.started_at);
        let (ended_at, started_at) = span.context("the sync has no start or no end")?;
        figures.push(SyncFigures {
            what,
            artefacts: published.artefact_count(),
            seconds: round_figure((ended_at - started_at).to_std()?.as_secs_f64()),
            requests: published.take_request_count(),
            cpu_ms_server: millis(meters.0.spent()),
            cpu_ms_postgres: millis(meters.1.spent()),
        });
    }
    store.close().await;
    Ok(figures)
}

/// Waits until the requested sync is done and no other one runs.
async fn wait_for_sync(store: &Store, number: i64) -> anyhow::Result<CycleState> {
    let began = Instant::now();
    loop {
        let tx = store.fleet().await?;
        let state = os_catalogue::state(&tx, REGISTRY_NAME).await?;
        drop(tx);
        let is_finished = |state: &CycleState| state.done >= number && state.claimed.is_none();
        if let Some(state) = state.filter(is_finished) {
            return Ok(state);
        }
        ensure!(began.elapsed() < SYNC_TIMEOUT, "the sync did not end in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
