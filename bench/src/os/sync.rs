//! A sync of everything, and one that finds nothing new.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_store::os_catalogue::{self, CycleState};
use evenkeel_store::{Store, StoreOptions};
use serde::Serialize;

use super::registry::{NAME, Published};
use crate::report::{millis, tidy};
use crate::station::Station;

/// How long a sync may take.
const PATIENCE: Duration = Duration::from_mins(30);

/// What a sync took.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Which one.
    pub what: &'static str,
    /// Profiles in all their revisions.
    pub artefacts: u32,
    /// From its beginning to its end, by the database's clock.
    pub seconds: f64,
    /// What the registry was asked.
    pub requests: usize,
    /// Processor time of the server, in milliseconds.
    pub cpu_ms_server: f64,
    /// Processor time of Postgres, in milliseconds.
    pub cpu_ms_postgres: f64,
}

/// Measures the sync of a server that was just started, and then one more.
pub async fn measure(station: &Station, published: &Published) -> anyhow::Result<Vec<Figures>> {
    let store = Store::connect(&station.database(), StoreOptions::default()).await?;
    let mut found = Vec::new();
    for what in ["cold", "nothing new"] {
        let meters = station.meters();
        let number = if found.is_empty() {
            1
        } else {
            published.asked();
            let tx = store.fleet().await?;
            let number = os_catalogue::request(&tx, NAME).await?;
            tx.commit().await?;
            number
        };
        let ended = ended(&store, number).await?;
        ensure!(
            ended.outcome == Some(CycleOutcome::Good),
            "the sync went wrong: {}",
            ended.message
        );
        let span = ended.ended_at.zip(ended.started_at);
        let (ended_at, started_at) = span.context("a sync has a beginning and an end")?;
        found.push(Figures {
            what,
            artefacts: published.artefacts(),
            seconds: tidy((ended_at - started_at).to_std()?.as_secs_f64()),
            requests: published.asked(),
            cpu_ms_server: millis(meters.0.spent()),
            cpu_ms_postgres: millis(meters.1.spent()),
        });
    }
    store.close().await;
    Ok(found)
}

/// Waits until the wish with this number is met and nobody is at the next one.
async fn ended(store: &Store, number: i64) -> anyhow::Result<CycleState> {
    let began = Instant::now();
    loop {
        let tx = store.fleet().await?;
        let state = os_catalogue::state(&tx, NAME).await?;
        drop(tx);
        let is_over = |state: &CycleState| state.done >= number && state.claimed.is_none();
        if let Some(state) = state.filter(is_over) {
            return Ok(state);
        }
        ensure!(began.elapsed() < PATIENCE, "the sync does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
