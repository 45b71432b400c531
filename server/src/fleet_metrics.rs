//! Metrics of the whole fleet. One replica at a time counts the fleet and sends the counts to all;
//! each serves the counts that it received last, with their age. While the database is away, the
//! counts stay and their age grows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_kit::{Lifecycle, chain, tick};
use evenkeel_store::fleet_counts::{
    self, CountLimits, FleetCounts, HOST_STATUSES, PublishedCounts,
};
use evenkeel_store::{Lease, Store, StoreError};
use tokio::time::Instant;

/// How often a replica checks whether the counts are due.
const DUE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest interval between two counts.
const MIN_COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// A count begins at the earliest after this multiple of the duration of the last one, also of one
/// that failed, so that counting takes at most a twentieth of the time of one connection, however
/// large the fleet is.
const REST_FACTOR: u32 = 20;

/// The states of open runs, as the store names them.
const OPEN_RUN_STATES: [&str; 6] =
    ["downloading", "staged", "applying", "rebooting", "verifying", "reverting"];

/// The states of ended runs, as the store names them.
const RUN_RESULTS: [&str; 5] = ["succeeded", "failed", "reverted", "cancelled", "abandoned"];

const CREDENTIAL_KINDS: [&str; 2] = ["join_token", "operator_token"];

/// The counts that this replica serves.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetMetrics(Arc<Mutex<Option<LatestCount>>>);

/// The last count that this replica made or received.
#[derive(Clone, Copy, Debug)]
struct LatestCount {
    /// When it began, which is the age of its oldest number.
    began_at: Instant,
    took: Duration,
}

impl FleetMetrics {
    /// Starts to count the fleet at an interval, unless another replica does, and to receive the
    /// counts of other replicas.
    pub(crate) fn spawn_counting(&self, store: &Store, interval: Duration, life: &Lifecycle) {
        let interval = interval.max(MIN_COUNT_INTERVAL);
        let (fleet, store_of_listener, stopping) = (self.clone(), store.clone(), life.stopping());
        life.spawn("fleet counts of other servers", async move {
            let mut listener = fleet_counts::listen_for_counts(&store_of_listener);
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    published = listener.next() => fleet.note(&published),
                }
            }
        });
        let (fleet, store, stopping) = (self.clone(), store.clone(), life.stopping());
        life.spawn("fleet counts", async move {
            let mut ticks = tick::aligned_interval(interval.min(DUE_CHECK_INTERVAL));
            let mut retry_at = Instant::now();
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    _ = ticks.tick() => {}
                }
                if Instant::now() < retry_at || !fleet.is_due(interval) {
                    continue;
                }
                let began_at = Instant::now();
                let counted = stopping.run_until_cancelled(Box::pin(fleet.count(&store))).await;
                if let Some(Err(error)) = counted {
                    retry_at = Instant::now() + rest_after(began_at.elapsed());
                    note_failure(&error);
                }
            }
        });
    }

    /// Sets the metric of the age of the counts.
    pub(crate) fn update_age(&self) {
        let age =
            self.latest().map_or(f64::INFINITY, |latest| latest.began_at.elapsed().as_secs_f64());
        metrics::gauge!("evenkeel_fleet_age_seconds").set(age);
    }

    /// Counts the fleet, unless another replica is doing it.
    async fn count(&self, store: &Store) -> Result<(), StoreError> {
        let Some(lease) = store.try_lease(Lease::FleetCounts).await? else {
            return Ok(());
        };
        let began_at = Instant::now();
        let counts = fleet_counts::read(&lease, CountLimits::default()).await?;
        let published = PublishedCounts { counts, took: began_at.elapsed() };
        // The notification is written during the commit, so no reader of the change log waits for it.
        fleet_counts::publish_counts(&lease, &published).await?;
        lease.commit().await?;
        self.note(&published);
        Ok(())
    }

    /// Takes over counts that were just finished, also the own ones, which the listener receives
    /// again.
    fn note(&self, published: &PublishedCounts) {
        let now = Instant::now();
        let began_at = now.checked_sub(published.took).unwrap_or(now);
        let latest = LatestCount { began_at, took: published.took };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(latest);
        set_gauges(&published.counts);
        metrics::gauge!("evenkeel_fleet_count_seconds").set(published.took);
    }

    fn latest(&self) -> Option<LatestCount> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the counts are missing or old.
    fn is_due(&self, interval: Duration) -> bool {
        self.latest().is_none_or(|latest| {
            let rest = rest_after(latest.took);
            interval.max(latest.took + rest) <= latest.began_at.elapsed()
        })
    }
}

/// How long no count begins after one that took this long.
fn rest_after(took: Duration) -> Duration {
    took.saturating_mul(REST_FACTOR)
}

fn note_failure(error: &StoreError) {
    // Others log that the database cannot be reached.
    if !matches!(error, StoreError::Unreachable(_)) {
        tracing::warn!(error = %chain(error), "cannot count the fleet for metrics; a later pass retries");
    }
}

#[expect(clippy::cast_precision_loss, reason = "no fleet is that large")]
fn set_gauges(counts: &FleetCounts) {
    let nodes = counts.nodes;
    let totals = [
        ("evenkeel_fleet_projects", counts.projects),
        ("evenkeel_fleet_nodes", nodes.total),
        ("evenkeel_fleet_nodes_with_updates", nodes.with_updates),
        ("evenkeel_fleet_nodes_with_security_updates", nodes.with_security_updates),
        ("evenkeel_fleet_nodes_requiring_reboot", nodes.requiring_reboot),
        ("evenkeel_fleet_security_updates", nodes.security_updates),
        ("evenkeel_fleet_runs_stored", counts.stored_runs),
        ("evenkeel_fleet_assignments_stopped", counts.stopped_assignments),
    ];
    for (name, count) in totals {
        metrics::gauge!(name).set(count as f64);
    }
    set_labelled("evenkeel_fleet_hosts", "status", &HOST_STATUSES, &counts.hosts);
    set_labelled("evenkeel_fleet_runs_open", "state", &OPEN_RUN_STATES, &counts.open_runs);
    set_labelled("evenkeel_fleet_runs_ended_last_hour", "result", &RUN_RESULTS, &counts.ended_runs);
    let credentials = &counts.expiring_credentials;
    set_labelled("evenkeel_fleet_credentials_ending", "kind", &CREDENTIAL_KINDS, credentials);
}

/// Sets a gauge for each value of its label; a value without a count is 0.
#[expect(clippy::cast_precision_loss, reason = "no fleet is that large")]
fn set_labelled(
    name: &'static str,
    label: &'static str,
    values: &[&'static str],
    counts: &BTreeMap<String, u64>,
) {
    for value in values {
        let count = counts.get(*value).copied().unwrap_or_default();
        let labels = [(label, *value)];
        metrics::gauge!(name, &labels).set(count as f64);
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::observe::{LabelValues, METRIC_GROUPS};

    const INTERVAL: Duration = Duration::from_mins(1);

    fn published(took: Duration) -> PublishedCounts {
        let hosts = BTreeMap::from([("running".to_owned(), 5), ("of_a_newer_release".into(), 7)]);
        let counts = FleetCounts { hosts, stopped_assignments: 2, ..FleetCounts::default() };
        PublishedCounts { counts, took }
    }

    #[test]
    fn the_list_of_metrics_declares_the_same_values() {
        for (name, expected) in [
            ("evenkeel_fleet_hosts", &HOST_STATUSES[..]),
            ("evenkeel_fleet_runs_open", &OPEN_RUN_STATES[..]),
            ("evenkeel_fleet_runs_ended_last_hour", &RUN_RESULTS[..]),
            ("evenkeel_fleet_credentials_ending", &CREDENTIAL_KINDS[..]),
        ] {
            let mut metrics = METRIC_GROUPS.iter().flat_map(|group| group.metrics);
            let metric = metrics.find(|metric| metric.name == name).expect(name);
            let LabelValues::Closed(declared) = metric.labels[0].values else {
                panic!("{name} is open");
            };
            assert_eq!(declared, expected, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_is_due_after_the_interval_or_after_twenty_times_its_duration() {
        let fleet = FleetMetrics::default();
        assert!(fleet.is_due(INTERVAL), "nothing is known yet");
        fleet.note(&published(Duration::from_secs(1)));
        assert!(!fleet.is_due(INTERVAL));
        tokio::time::advance(Duration::from_secs(58)).await;
        assert!(!fleet.is_due(INTERVAL));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(fleet.is_due(INTERVAL));
        fleet.note(&published(Duration::from_secs(10)));
        tokio::time::advance(Duration::from_secs(199)).await;
        assert!(!fleet.is_due(INTERVAL));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(fleet.is_due(INTERVAL));
    }

    #[tokio::test(start_paused = true)]
    async fn the_values_stay_and_their_age_grows_while_there_are_no_new_counts() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let fleet = FleetMetrics::default();
        let render = || {
            metrics::with_local_recorder(&recorder, || fleet.update_age());
            recorder.handle().render()
        };
        assert!(render().contains("evenkeel_fleet_age_seconds inf"), "{}", render());
        metrics::with_local_recorder(&recorder, || {
            fleet.note(&published(Duration::from_secs(2)));
        });
        tokio::time::advance(Duration::from_hours(1)).await;
        let text = render();
        for line in [
            "evenkeel_fleet_age_seconds 3602",
            "evenkeel_fleet_count_seconds 2",
            "evenkeel_fleet_assignments_stopped 2",
            r#"evenkeel_fleet_hosts{status="running"} 5"#,
            r#"evenkeel_fleet_hosts{status="silent"} 0"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
        }
        assert!(!text.contains("of_a_newer_release"), "{text}");
    }
}
