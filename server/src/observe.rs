//! Metrics of requests, calls and the process. Label values never contain IDs or other values that
//! a peer chooses.

mod calls;
mod labels;
mod metric;
mod metric_list;
mod wakeup_delay;

use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use evenkeel_kit::Lifecycle;
use evenkeel_store::Store;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::MissedTickBehavior;

use crate::memory;

pub(crate) use calls::CallMetricsLayer;
pub use metric::{LabelValues, MetricDescription, MetricGroup, MetricKind, MetricLabel};
pub use metric_list::METRIC_GROUPS;

const DURATION_BUCKETS_SECONDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Buckets for the number of items in a batch.
const BATCH_SIZE_BUCKETS: [f64; 8] = [1.0, 2.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0];

/// Revision of the sources, if the build names it.
pub(crate) const REVISION: &str = match option_env!("EVENKEEL_REVISION") {
    Some(revision) => revision,
    None => "",
};

/// Interval at which recorded values are added to their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Installs the metrics recorder of this process.
pub(crate) fn install(life: &Lifecycle) -> anyhow::Result<PrometheusHandle> {
    let handle = install_recorder().context("cannot install the metrics recorder")?;
    spawn_upkeep(handle.clone(), life);
    wakeup_delay::spawn_measurement(life);
    metric_list::register_metrics();
    record_build();
    Ok(handle)
}

/// Version, revision and schema of this build, as the labels of a metric.
fn record_build() {
    let labels = [
        ("version", evenkeel_store::release_version()),
        ("revision", REVISION),
        ("schema", evenkeel_store::newest_schema_step()),
    ];
    metrics::gauge!("evenkeel_build_info", &labels).set(1.0);
}

fn install_recorder() -> Result<PrometheusHandle, BuildError> {
    let batches = |name: &str| Matcher::Full(name.to_owned());
    PrometheusBuilder::new()
        .set_buckets(&DURATION_BUCKETS_SECONDS)?
        .set_buckets_for_metric(batches("evenkeel_poll_batch_size"), &BATCH_SIZE_BUCKETS)?
        .set_buckets_for_metric(batches("evenkeel_contacts_batch"), &BATCH_SIZE_BUCKETS)?
        .install_recorder()
}

/// Histograms keep every single recorded value until upkeep adds it to its bucket. Without regular
/// upkeep, memory would grow until the next scrape.
fn spawn_upkeep(metrics: PrometheusHandle, life: &Lifecycle) {
    let stopping = life.stopping();
    life.spawn("metrics", async move {
        let mut looks = tokio::time::interval(UPKEEP_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                _ = looks.tick() => metrics.run_upkeep(),
            }
        }
    });
}

/// Counts requests to the REST router by route.
pub(crate) fn count_http_requests(router: Router) -> Router {
    router.layer(middleware::from_fn(record_http_request))
}

async fn record_http_request(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = method_label(request.method().as_str());
    let response = next.run(request).await;
    // Inner routers put the matched path into the response.
    let route = response.extensions().get::<MatchedPath>();
    let route = route.map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let status = response.status().as_u16().to_string();
    let labels = [("method", method.to_owned()), ("route", route), ("status", status)];
    metrics::counter!("evenkeel_http_requests_total", &labels).increment(1);
    let labels = [labels[0].clone(), labels[1].clone()];
    metrics::histogram!("evenkeel_http_request_seconds", &labels)
        .record(begun.elapsed().as_secs_f64());
    response
}

fn method_label(method: &str) -> &'static str {
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    methods.into_iter().find(|candidate| *candidate == method).unwrap_or("other")
}

/// Updates the metrics of the database connections.
#[expect(clippy::cast_precision_loss, reason = "there are few connections and requests")]
pub(crate) fn update_connection_metrics(store: &Store) {
    for usage in store.share_usage() {
        let share = usage.share.name();
        metrics::gauge!("evenkeel_database_connections", "share" => share).set(usage.in_use as f64);
        metrics::gauge!("evenkeel_database_share_waiting", "share" => share)
            .set(usage.waiting as f64);
        metrics::counter!("evenkeel_database_share_refused_total", "share" => share)
            .absolute(usage.refused);
    }
    let pool = store.pool_usage();
    let in_use = pool.open.saturating_sub(pool.idle);
    metrics::gauge!("evenkeel_database_pool_connections", "state" => "in_use").set(in_use);
    metrics::gauge!("evenkeel_database_pool_connections", "state" => "idle").set(pool.idle);
    metrics::gauge!("evenkeel_database_pool_max_connections").set(pool.max);
}

/// Updates the process metrics from procfs.
pub(crate) fn update_process_metrics() {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    if let Some(bytes) = memory::resident_bytes() {
        #[expect(clippy::cast_precision_loss, reason = "no machine has that much memory")]
        let bytes = bytes as f64;
        metrics::gauge!("process_resident_memory_bytes").set(bytes);
    }
    // The state and the numbers follow the name of the process, which may contain any character.
    let stat = read("stat");
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let (user, system) = (number(fields.nth(11)), number(fields.next()));
    if let (Some(user), Some(system)) = (user, system) {
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        metrics::counter!("process_cpu_seconds_total").absolute((user + system) / ticks);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_store::ConnectionShare;

    use super::*;
    use crate::listen::listener_name;

    #[test]
    fn an_unknown_method_has_no_label_of_its_own() {
        assert_eq!(method_label("GET"), "GET");
        assert_eq!(method_label("BREW"), "other");
    }

    /// The declared values of the only label of a metric.
    fn declared_values(name: &str) -> &'static [&'static str] {
        let mut metrics = METRIC_GROUPS.iter().flat_map(|group| group.metrics);
        let metric = metrics.find(|metric| metric.name == name).unwrap();
        match metric.labels[0].values {
            LabelValues::Closed(declared) => declared,
            LabelValues::Open => panic!("the values of {name} are open"),
        }
    }

    #[test]
    fn each_share_of_the_connections_is_declared() {
        let declared = declared_values("evenkeel_database_connections");
        assert_eq!(declared, ConnectionShare::ALL.map(ConnectionShare::name));
    }

    #[test]
    fn each_listener_is_declared() {
        let settings = ["rest.listen", "southbound.listen", "files.listen", "admin.listen"];
        for metric in ["evenkeel_connections", "evenkeel_connections_full_total"] {
            assert_eq!(declared_values(metric), settings.map(listener_name), "{metric}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unscraped_process_keeps_no_raw_measurements() {
        const MEASUREMENTS: u32 = 1_000_000;
        let recorder = PrometheusBuilder::new().build_recorder();
        let took = metrics::with_local_recorder(&recorder, || metrics::histogram!("took"));
        let life = Lifecycle::new();
        spawn_upkeep(recorder.handle(), &life);
        let before = memory::resident_bytes().expect("the kernel provides the resident memory");
        for _ in 0..20 {
            (0..MEASUREMENTS).for_each(|at| took.record(f64::from(at)));
            tokio::time::sleep(UPKEEP_INTERVAL).await;
        }
        let after = memory::resident_bytes().expect("the kernel provides the resident memory");
        // The values of one upkeep interval need 8 MB, all of them 160 MB.
        let grown = after.saturating_sub(before) >> 20;
        assert!(grown < 64, "{grown} MiB");
        life.stop();
    }
}
