//! Watches whether the database can be used, and whether the clock of the process agrees with its
//! clock.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::{Clock, Lifecycle, tick};
use evenkeel_store::{ClockAgreement, ClockReading, Store, StoreError};

use crate::app_context::AppContext;

/// How often the clocks are compared and the database is tested.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Compares the clocks at an interval, records the difference, and logs when they begin to differ
/// and when they agree again.
pub(crate) fn spawn(context: &AppContext, life: &Lifecycle) {
    let (store, clock) = (context.store.clone(), Arc::clone(&context.clock));
    let stopping = life.stopping();
    life.spawn("clock check", async move {
        let mut ticks = tick::aligned_interval(CLOCK_CHECK_INTERVAL);
        let mut last = ClockAgreement::Agrees;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            let read = read_clocks(&store, &*clock).await;
            record_readiness(read.as_ref().ok());
            // Others log that the database cannot be reached.
            let Ok(clocks) = read else {
                continue;
            };
            metrics::gauge!("evenkeel_clock_offset_seconds")
                .set(clocks.offset().as_seconds_f64());
            match (last, clocks.agreement()) {
                (_, ClockAgreement::Unknown) => continue,
                (ClockAgreement::Agrees, ClockAgreement::Differs) => tracing::error!(
                    "{clocks}; until they agree the process is not ready, deletes no old data and ends no runs"
                ),
                (ClockAgreement::Differs, ClockAgreement::Agrees) => {
                    tracing::info!("the clocks of this process and of the database agree again");
                }
                _ => {}
            }
            last = clocks.agreement();
        }
    });
}

/// Reads both clocks. Fails also if the database cannot be written.
async fn read_clocks(store: &Store, clock: &dyn Clock) -> Result<ClockReading, StoreError> {
    store.ping().await?;
    store.read_clocks(clock).await
}

/// Records whether the database can be used and whether this process is ready, as `/readyz` shows
/// it.
fn record_readiness(clocks: Option<&ClockReading>) {
    let is_ready = clocks.is_some_and(|clocks| clocks.agreement() != ClockAgreement::Differs);
    let as_number = |holds: bool| if holds { 1.0 } else { 0.0 };
    metrics::gauge!("evenkeel_database_up").set(as_number(clocks.is_some()));
    metrics::gauge!("evenkeel_ready").set(as_number(is_ready));
}
