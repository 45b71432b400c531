//! Watches whether the clock of the process agrees with the clock of the database.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::{Lifecycle, tick};
use evenkeel_store::ClockAgreement;

use crate::app_context::AppContext;

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
            // Others log that the database cannot be reached.
            let Ok(clocks) = store.read_clocks(&*clock).await else {
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
