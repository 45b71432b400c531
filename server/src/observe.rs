//! Counts requests and calls. A label never holds an id or anything else that a peer chooses.

mod calls;

use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use evenkeel_kit::Lifecycle;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::MissedTickBehavior;

use crate::memory;

pub(crate) use calls::CallsLayer;

const SECONDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// How many are in a batch.
const BATCHES: [f64; 8] = [1.0, 2.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0];

/// How often what was measured is counted into its buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// Sets up the collection of metrics for this process.
pub(crate) fn install(life: &Lifecycle) -> anyhow::Result<PrometheusHandle> {
    let handle = recorder().context("metrics cannot be set up")?;
    keep_up(handle.clone(), life);
    describe_requests();
    describe_connections();
    describe_process();
    describe_polls();
    describe_view();
    describe_load();
    describe_catalogue();
    describe_files();
    Ok(handle)
}

fn recorder() -> Result<PrometheusHandle, BuildError> {
    let batches = |name: &str| Matcher::Full(name.to_owned());
    PrometheusBuilder::new()
        .set_buckets(&SECONDS)?
        .set_buckets_for_metric(batches("evenkeel_desk_batch"), &BATCHES)?
        .set_buckets_for_metric(batches("evenkeel_contacts_batch"), &BATCHES)?
        .install_recorder()
}

/// Until it is counted into its buckets, each single measurement of a histogram is kept, however long nobody scrapes.
fn keep_up(metrics: PrometheusHandle, life: &Lifecycle) {
    let stopping = life.stopping();
    life.spawn("metrics", async move {
        let mut looks = tokio::time::interval(UPKEEP);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                _ = looks.tick() => metrics.run_upkeep(),
            }
        }
    });
}

fn describe_requests() {
    metrics::describe_counter!(
        "evenkeel_http_requests_total",
        "Requests to the REST API that were answered."
    );
    metrics::describe_histogram!(
        "evenkeel_http_request_seconds",
        "How long answers of the REST API took."
    );
    metrics::describe_counter!(
        "evenkeel_grpc_calls_total",
        "Calls of agents that were answered."
    );
    metrics::describe_histogram!(
        "evenkeel_grpc_call_seconds",
        "How long answers to agents took, waiting included."
    );
}

fn describe_connections() {
    metrics::describe_gauge!("evenkeel_connections", "Connections that are open.");
    metrics::describe_counter!(
        "evenkeel_connections_full_total",
        "How often there was no place left for another connection."
    );
    metrics::describe_counter!(
        "evenkeel_connections_unknown_total",
        "Connections of agents that were ended because no call with a good credential had come."
    );
}

fn describe_process() {
    metrics::describe_gauge!(
        "process_resident_memory_bytes",
        "Memory that this process holds."
    );
    metrics::describe_gauge!(
        "process_cpu_seconds_total",
        "Processor time that this process took."
    );
}

fn describe_polls() {
    metrics::describe_counter!(
        "evenkeel_polls_total",
        "Polls, by how they were answered: from the view (hit), from the database (miss), with something written (news), \
         after they were held (held), or not (refused)."
    );
    metrics::describe_gauge!("evenkeel_held_polls", "Polls that are held now.");
    metrics::describe_counter!(
        "evenkeel_held_woken_total",
        "Held polls that were woken: for a look, by a newer poll of the node, or because the process stops."
    );
    metrics::describe_gauge!(
        "evenkeel_desk_waiting",
        "Polls that wait to be looked at in the database."
    );
    metrics::describe_histogram!(
        "evenkeel_desk_batch",
        "How many polls were looked at in one batch."
    );
    metrics::describe_histogram!("evenkeel_desk_seconds", "How long one batch took.");
    metrics::describe_histogram!(
        "evenkeel_contacts_batch",
        "How many times of last contact were written in one batch."
    );
}

fn describe_view() {
    metrics::describe_gauge!(
        "evenkeel_view_age_seconds",
        "How old what the view knows is."
    );
    metrics::describe_gauge!("evenkeel_view_nodes", "Nodes that the view remembers.");
    metrics::describe_gauge!(
        "evenkeel_view_answers",
        "Different answers that the view remembers."
    );
    metrics::describe_gauge!("evenkeel_view_bytes", "Memory that the view takes.");
    metrics::describe_counter!(
        "evenkeel_view_stale_total",
        "Changes that made something in the view stale, by how much: a node, a site, a project, the slots of an \
         assignment, or all."
    );
    metrics::describe_counter!(
        "evenkeel_view_rebuilds_total",
        "How often the view began anew, and why."
    );
    metrics::describe_counter!(
        "evenkeel_view_mismatches_total",
        "Answers of the view that the database did not agree with. There should be none."
    );
    metrics::describe_histogram!(
        "evenkeel_fence_wait_seconds",
        "How long leave to begin waited until the view had read all that came before."
    );
    metrics::describe_counter!(
        "evenkeel_log_rows_total",
        "Rows of the change log that were read."
    );
    metrics::describe_histogram!(
        "evenkeel_log_pass_seconds",
        "How long one look into the change log took."
    );
    metrics::describe_gauge!(
        "evenkeel_log_lag_seconds",
        "How long ago everything was read from the change log that could be: what is not over cannot."
    );
}

fn describe_load() {
    metrics::describe_counter!(
        "evenkeel_overload_refused_total",
        "Calls that were refused because there was too much to do: those that only ask (quiet), those that tell \
         something (news), those whose message did not come (arriving) or was too long for what is left (messages), those \
         that there is no memory for (memory), those that waited to write (writers), that would ask the database beside too many others (database), or to be looked at (desk)."
    );
    metrics::describe_gauge!(
        "evenkeel_load_pressure",
        "How much there is to do: 0 is nothing, 1 as much as can be borne."
    );
    metrics::describe_gauge!(
        "evenkeel_poll_interval_seconds",
        "How often nodes are asked to poll now."
    );
    metrics::describe_counter!(
        "evenkeel_handshakes_total",
        "TLS handshakes of agents, by how they ended: ok, failed (those turned away included), or slow (given up)."
    );
}

fn describe_catalogue() {
    metrics::describe_counter!(
        "evenkeel_os_cycles_total",
        "How often a registry of operating systems was asked, by how it went: good, partly, or failed."
    );
    metrics::describe_histogram!("evenkeel_os_cycle_seconds", "How long it took to ask one.");
    metrics::describe_counter!(
        "evenkeel_os_requests_total",
        "Questions to registries and for what lies beside them, by how they were answered: good, or why not."
    );
    metrics::describe_gauge!(
        "evenkeel_os_findings",
        "What projects are told of operating systems that were not taken as they are, by kind."
    );
    metrics::describe_gauge!(
        "evenkeel_os_last_good_seconds",
        "How long ago a registry was asked and all went well."
    );
    metrics::describe_counter!(
        "evenkeel_image_news_total",
        "Nodes for which a change of the images made another one the newest, or none."
    );
}

fn describe_files() {
    metrics::describe_counter!(
        "evenkeel_files_requests_total",
        "Requests for files, by how they were answered: whole, part, known (to who asked), or why not."
    );
    metrics::describe_counter!(
        "evenkeel_files_fetched_total",
        "Files that were fetched to be kept: good, or why not."
    );
    metrics::describe_gauge!(
        "evenkeel_files_cache_bytes",
        "How much is kept of files, and kept free for what is under way."
    );
    metrics::describe_counter!(
        "evenkeel_files_evicted_total",
        "Files that made room for others."
    );
}

/// Counts the requests to a REST router by route.
pub(crate) fn http(router: Router) -> Router {
    router.layer(middleware::from_fn(count_http))
}

async fn count_http(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = known_method(request.method().as_str());
    let response = next.run(request).await;
    // The path as the router inside knows it, which puts it into the answer.
    let route = response.extensions().get::<MatchedPath>();
    let route = route.map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let status = response.status().as_u16().to_string();
    let labels = [
        ("method", method.to_owned()),
        ("route", route),
        ("status", status),
    ];
    metrics::counter!("evenkeel_http_requests_total", &labels).increment(1);
    let labels = [labels[0].clone(), labels[1].clone()];
    metrics::histogram!("evenkeel_http_request_seconds", &labels)
        .record(begun.elapsed().as_secs_f64());
    response
}

fn known_method(method: &str) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("other")
}

/// Looks at what the kernel says about this process.
pub(crate) fn look_at_process() {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let number = |text: Option<&str>| {
        text.and_then(|text| text.parse::<u32>().ok())
            .map(f64::from)
    };
    if let Some(bytes) = memory::resident() {
        #[expect(clippy::cast_precision_loss, reason = "no machine has so much")]
        let bytes = bytes as f64;
        metrics::gauge!("process_resident_memory_bytes").set(bytes);
    }
    // Behind the name, which may hold anything, come the state and the numbers.
    let stat = read("stat");
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let (user, system) = (number(fields.nth(11)), number(fields.next()));
    if let (Some(user), Some(system)) = (user, system) {
        let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).map_or(100.0, f64::from);
        metrics::gauge!("process_cpu_seconds_total").set((user + system) / ticks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_nobody_knows_has_no_label_of_its_own() {
        assert_eq!(known_method("GET"), "GET");
        assert_eq!(known_method("BREW"), "other");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_nobody_scrapes_keeps_no_single_measurements() {
        const MEASURED: u32 = 1_000_000;
        let recorder = PrometheusBuilder::new().build_recorder();
        let took = metrics::with_local_recorder(&recorder, || metrics::histogram!("took"));
        let life = Lifecycle::new();
        keep_up(recorder.handle(), &life);
        let before = memory::resident().expect("the kernel says how much");
        for _ in 0..20 {
            (0..MEASURED).for_each(|at| took.record(f64::from(at)));
            tokio::time::sleep(UPKEEP).await;
        }
        let after = memory::resident().expect("the kernel says how much");
        // What comes between two times is 8 MB, all of it 160.
        let grown = after.saturating_sub(before) >> 20;
        assert!(grown < 64, "{grown} MiB");
        life.stop();
    }
}
