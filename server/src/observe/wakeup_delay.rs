//! Measures how late the runtime wakes a task. Long work on the threads of the runtime delays all
//! calls, and no other metric shows the cause.

use std::convert::Infallible;
use std::time::Duration;

use evenkeel_kit::Lifecycle;
use metrics::Histogram;
use tokio::time::{Instant, sleep_until};

/// How often a wake-up is measured.
const MEASURE_INTERVAL: Duration = Duration::from_millis(250);

/// The delay from which on a wake-up is logged: much longer than a busy machine delays a thread.
const LOGGED_DELAY: Duration = Duration::from_secs(1);

/// Measures wake-ups until the process stops.
pub(super) fn spawn_measurement(life: &Lifecycle) {
    let delays = metrics::histogram!("evenkeel_runtime_wakeup_delay_seconds");
    let stopping = life.stopping();
    life.spawn("wake-up delay", async move {
        stopping.run_until_cancelled(measure_wakeups(delays)).await;
        Ok(())
    });
}

async fn measure_wakeups(delays: Histogram) -> Infallible {
    loop {
        let due = Instant::now() + MEASURE_INTERVAL;
        sleep_until(due).await;
        let delay = due.elapsed();
        delays.record(delay.as_secs_f64());
        if LOGGED_DELAY <= delay {
            tracing::warn!(?delay, "the runtime woke a task late: long work blocks its threads");
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_late_wakeup_is_recorded() {
        let recorder =
            PrometheusBuilder::new().set_buckets(&[0.25, 2.5]).expect("buckets").build_recorder();
        let delays = metrics::with_local_recorder(&recorder, || metrics::histogram!("delay"));
        let count = |bucket: &str| {
            let line = format!("delay_bucket{{le=\"{bucket}\"}} ");
            let text = recorder.handle().render();
            let count = text.lines().find_map(|shown| shown.strip_prefix(&line));
            count.map_or(0, |count| count.parse::<u32>().expect("a number"))
        };
        let measured = Lifecycle::detach(measure_wakeups(delays));
        tokio::time::sleep(MEASURE_INTERVAL * 9 / 2).await;
        assert_eq!((count("0.25"), count("2.5")), (4, 4));
        // As if other work had used the thread for two seconds.
        tokio::time::advance(MEASURE_INTERVAL / 2 + Duration::from_secs(2)).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((count("0.25"), count("2.5")), (4, 5));
        measured.abort();
    }
}
