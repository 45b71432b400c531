//! The list of all metrics: the descriptions in `/metrics`, and the page `docs/reference/metrics.md`.

use super::labels::{
    AGED_DATA, AGENT_CALL, CALL_OUTCOME, CERTIFICATE, CHANGE_WATCHER_END, CONNECTION_SHARE,
    CREDENTIAL_KIND, CYCLE_OUTCOME, FETCH_OUTCOME, FILE_OUTCOME, FINDING_KIND, GRPC_CODE,
    GRPC_METHOD, HANDSHAKE_OUTCOME, HOST_STATUS, HOUSEKEEPING_STEP, HTTP_METHOD, HTTP_STATUS,
    LIMIT_SCOPE, LIMITED_AMOUNT, LISTENER, NOTIFICATION_RESULT, NUMBERED_KIND, OPEN_RUN_STATE,
    OS_REQUEST_OUTCOME, POLL_RESULT, POOL_STATE, PROTOCOL, REBUILD_REASON, REFUSAL_KIND, REGISTRY,
    RELOAD_OUTCOME, RELOADED_FILE, REMOVED_ROWS, REVISION, ROUTE, RUN_EVENT, RUN_RESULT,
    SCHEMA_STEP, STALE_REASON, TRACE_SPAN_RESULT, VERSION, WAKEUP_REASON,
};
use super::metric::{MetricDescription, MetricGroup, MetricKind, metric};
use MetricKind::{Counter, Gauge, Histogram};

/// Registers every metric with the recorder of this process: its description, and the series that
/// are known in advance.
pub(super) fn register_metrics() {
    let metrics = METRIC_GROUPS.iter().flat_map(|group| group.metrics);
    metrics.for_each(MetricDescription::register);
}

/// All metrics of evenkeeld.
pub const METRIC_GROUPS: &[MetricGroup] = &[
    MetricGroup { title: "Requests and calls", metrics: REQUESTS },
    MetricGroup { title: "Connections", metrics: CONNECTIONS },
    MetricGroup { title: "Polls", metrics: POLLS },
    MetricGroup { title: "Answer cache and change log", metrics: ANSWER_CACHE },
    MetricGroup { title: "Load", metrics: LOAD },
    MetricGroup { title: "Fleet", metrics: FLEET },
    MetricGroup { title: "Runs and nodes", metrics: RUNS },
    MetricGroup { title: "Catalogue of operating systems", metrics: CATALOGUE },
    MetricGroup { title: "Files for nodes", metrics: FILES },
    MetricGroup { title: "Process", metrics: PROCESS },
];

const REQUESTS: &[MetricDescription] = &[
    metric(
        "evenkeel_http_requests_total",
        Counter,
        &[HTTP_METHOD, ROUTE, HTTP_STATUS],
        "Requests to the REST API that were answered.",
    ),
    metric(
        "evenkeel_http_request_seconds",
        Histogram,
        &[HTTP_METHOD, ROUTE],
        "Duration of requests to the REST API.",
    ),
    metric("evenkeel_change_watchers", Gauge, &[], "Streams of changes that are open."),
    metric(
        "evenkeel_change_events_total",
        Counter,
        &[],
        "Changes that were sent to streams of changes.",
    ),
    metric(
        "evenkeel_change_watchers_ended_total",
        Counter,
        &[CHANGE_WATCHER_END],
        "Streams of changes that ended. `slow` means that the client did not read.",
    ),
    metric(
        "evenkeel_grpc_calls_total",
        Counter,
        &[GRPC_METHOD, GRPC_CODE],
        "Calls of agents that were answered.",
    ),
    metric(
        "evenkeel_grpc_call_seconds",
        Histogram,
        &[GRPC_METHOD],
        "Duration of calls of agents, including waiting time.",
    ),
    metric(
        "evenkeel_agent_calls_total",
        Counter,
        &[AGENT_CALL, CALL_OUTCOME],
        "Calls of Evenkeel's agents that were answered.",
    ),
    metric(
        "evenkeel_eim_polls_total",
        Counter,
        &[CALL_OUTCOME],
        "Polls of EIM's agents that were answered.",
    ),
    metric(
        "evenkeel_eim_heartbeats_total",
        Counter,
        &[CALL_OUTCOME],
        "Heartbeats of EIM's agents that were answered.",
    ),
];

const CONNECTIONS: &[MetricDescription] = &[
    metric("evenkeel_connections", Gauge, &[LISTENER], "Open connections."),
    metric(
        "evenkeel_connections_full_total",
        Counter,
        &[LISTENER],
        "Number of times that the connection limit of the listener was reached.",
    ),
    metric(
        "evenkeel_connections_unauthenticated_total",
        Counter,
        &[],
        "Connections that were closed because they had no authenticated call in time, or because a newer one needed their slot.",
    ),
    metric(
        "evenkeel_connections_replaced_total",
        Counter,
        &[],
        "Connections of nodes that were closed because the node opened more than `southbound.max_connections_per_node`.",
    ),
    metric(
        "evenkeel_connections_idle_closed_total",
        Counter,
        &[],
        "Connections of the REST API without a running request that were closed because their user, project or address opened too many.",
    ),
    metric("evenkeel_handshakes_total", Counter, &[HANDSHAKE_OUTCOME], "TLS handshakes of agents."),
    metric(
        "evenkeel_certificate_expiry_timestamp_seconds",
        Gauge,
        &[CERTIFICATE],
        "When a certificate expires that this process uses, in seconds since 1970. That of a listener is its own certificate, without its chain.",
    ),
    metric(
        "evenkeel_file_reloads_total",
        Counter,
        &[RELOADED_FILE, RELOAD_OUTCOME],
        "Changed files that were read again, and certificates of the server's own authority that were renewed.",
    ),
];

const POLLS: &[MetricDescription] = &[
    metric("evenkeel_poll_requests_total", Counter, &[PROTOCOL, POLL_RESULT], "Polls by result."),
    metric("evenkeel_long_poll_open", Gauge, &[], "Open long polls."),
    metric(
        "evenkeel_long_poll_wakeups_total",
        Counter,
        &[WAKEUP_REASON],
        "Long polls that were woken.",
    ),
    metric("evenkeel_poll_batch_waiting", Gauge, &[], "Polls that wait for a batch."),
    metric("evenkeel_poll_batch_size", Histogram, &[], "Number of polls in a batch."),
    metric("evenkeel_poll_batch_seconds", Histogram, &[], "Duration of a batch."),
    metric(
        "evenkeel_contacts_batch",
        Histogram,
        &[],
        "Number of contact times that were written in one batch.",
    ),
    metric("evenkeel_contacts_written_total", Counter, &[], "Contact times that were written."),
];

const ANSWER_CACHE: &[MetricDescription] = &[
    metric("evenkeel_answer_cache_age_seconds", Gauge, &[], "Age of the data in the answer cache."),
    metric("evenkeel_answer_cache_nodes", Gauge, &[], "Nodes in the answer cache."),
    metric("evenkeel_answer_cache_answers", Gauge, &[], "Different answers in the answer cache."),
    metric("evenkeel_answer_cache_bytes", Gauge, &[], "Memory of the answer cache."),
    metric(
        "evenkeel_answer_cache_stale_total",
        Counter,
        &[STALE_REASON],
        "Changes that invalidated cached answers, by their scope.",
    ),
    metric(
        "evenkeel_answer_cache_rebuilds_total",
        Counter,
        &[REBUILD_REASON],
        "Rebuilds of the answer cache.",
    ),
    metric(
        "evenkeel_answer_cache_mismatches_total",
        Counter,
        &[],
        "Cached answers that differed from the database. Must stay 0.",
    ),
    metric(
        "evenkeel_fence_wait_seconds",
        Histogram,
        &[],
        "Time that a start permit waited until the cache had read all earlier changes.",
    ),
    metric(
        "evenkeel_change_seals_total",
        Counter,
        &[],
        "Seals of the change log that were written.",
    ),
    metric("evenkeel_sealed_changes_total", Counter, &[], "Changes that were sealed."),
    metric(
        "evenkeel_unsealed_changes_age_seconds",
        Gauge,
        &[],
        "Age of the oldest change that is not sealed yet; 0 if there is none. While this process cannot seal, the time since it last could is added.",
    ),
    metric("evenkeel_log_rows_total", Counter, &[], "Rows of the change log that were read."),
    metric("evenkeel_log_pass_seconds", Histogram, &[], "Duration of one read of the change log."),
    metric(
        "evenkeel_log_lag_seconds",
        Gauge,
        &[],
        "Time since the change log was last read completely. Rows of open transactions cannot be read yet.",
    ),
    metric(
        "evenkeel_log_oldest_transaction_seconds",
        Gauge,
        &[],
        "How long the oldest open transaction of the database has been seen. The log names it after six seconds.",
    ),
];

const LOAD: &[MetricDescription] = &[
    metric(
        "evenkeel_overload_refused_total",
        Counter,
        &[REFUSAL_KIND],
        "Calls that were refused because of overload.",
    ),
    metric(
        "evenkeel_rate_limited_calls_total",
        Counter,
        &[],
        "Calls that were refused because the node exceeded its rate limit.",
    ),
    metric(
        "evenkeel_daily_limit_refused_total",
        Counter,
        &[LIMIT_SCOPE, LIMITED_AMOUNT],
        "Calls that were refused because a daily limit was used up.",
    ),
    metric(
        "evenkeel_load_pressure",
        Gauge,
        &[],
        "Load: 0 is idle, 1 is the maximum that the server can sustain.",
    ),
    metric(
        "evenkeel_database_connections",
        Gauge,
        &[CONNECTION_SHARE],
        "Database connections in use.",
    ),
    metric(
        "evenkeel_database_share_waiting",
        Gauge,
        &[CONNECTION_SHARE],
        "Requests and calls that wait for a database connection of their share.",
    ),
    metric(
        "evenkeel_database_pool_connections",
        Gauge,
        &[POOL_STATE],
        "Open connections to the database, by state.",
    ),
    metric(
        "evenkeel_database_pool_max_connections",
        Gauge,
        &[],
        "Maximum number of connections to the database (`database.max_connections`).",
    ),
    metric(
        "evenkeel_database_share_refused_total",
        Counter,
        &[CONNECTION_SHARE],
        "Requests and calls that got no database connection of their share in time.",
    ),
    metric("evenkeel_poll_interval_seconds", Gauge, &[], "Poll interval that nodes currently get."),
];

const FLEET: &[MetricDescription] = &[
    metric(
        "evenkeel_fleet_age_seconds",
        Gauge,
        &[],
        "Age of the counts of the fleet, the other metrics of this group. All replicas serve the same counts, so do not add them up. `+Inf` before the first count; until then the others are 0 or missing.",
    ),
    metric(
        "evenkeel_fleet_count_seconds",
        Gauge,
        &[],
        "How long the last count of the fleet took. The next one begins after twenty times as long, or after `admin.fleet_count_interval` if that is longer.",
    ),
    metric("evenkeel_fleet_projects", Gauge, &[], "Projects."),
    metric("evenkeel_fleet_hosts", Gauge, &[HOST_STATUS], "Hosts by status. Each counts once."),
    metric(
        "evenkeel_fleet_nodes",
        Gauge,
        &[],
        "Nodes: machines that have reported since their instance was created.",
    ),
    metric("evenkeel_fleet_nodes_with_updates", Gauge, &[], "Nodes with an available update."),
    metric(
        "evenkeel_fleet_nodes_with_security_updates",
        Gauge,
        &[],
        "Nodes with an available security update.",
    ),
    metric(
        "evenkeel_fleet_security_updates",
        Gauge,
        &[],
        "Security updates that are not installed, summed over all nodes.",
    ),
    metric("evenkeel_fleet_nodes_requiring_reboot", Gauge, &[], "Nodes that need a reboot."),
    metric("evenkeel_fleet_runs_open", Gauge, &[OPEN_RUN_STATE], "Open runs by state."),
    metric(
        "evenkeel_fleet_runs_ended_last_hour",
        Gauge,
        &[RUN_RESULT],
        "Runs that ended within the last hour, by result.",
    ),
    metric(
        "evenkeel_fleet_runs_stored",
        Gauge,
        &[],
        "Runs in the database, open and ended, until their retention ends.",
    ),
    metric(
        "evenkeel_fleet_assignments_stopped",
        Gauge,
        &[],
        "Assignments that stopped after `stopAfterFailures` failed runs.",
    ),
    metric(
        "evenkeel_fleet_credentials_ending",
        Gauge,
        &[CREDENTIAL_KIND],
        "Valid credentials that end within seven days and were issued for longer.",
    ),
];

const RUNS: &[MetricDescription] = &[
    metric(
        "evenkeel_run_events_total",
        Counter,
        &[RUN_EVENT],
        "Events of runs that changed the state of the run.",
    ),
    metric("evenkeel_silent_nodes_total", Counter, &[], "Nodes that became silent."),
    metric(
        "evenkeel_notification_deliveries_total",
        Counter,
        &[NOTIFICATION_RESULT],
        "Attempts to deliver notifications to webhooks and mail servers. Deliveries that newer ones replaced, and overdue ones, count as `dead` without an attempt.",
    ),
    metric(
        "evenkeel_housekeeping_removed_rows_total",
        Counter,
        &[REMOVED_ROWS],
        "Old rows that housekeeping removed.",
    ),
    metric(
        "evenkeel_housekeeping_failures_total",
        Counter,
        &[HOUSEKEEPING_STEP],
        "Steps of housekeeping that failed. The other steps of the pass still run.",
    ),
    metric(
        "evenkeel_housekeeping_oldest_row_seconds",
        Gauge,
        &[AGED_DATA],
        "Age of the oldest row that housekeeping may remove one day, after the last pass; 0 if there is none.",
    ),
    metric(
        "evenkeel_id_numbers_used_ratio",
        Gauge,
        &[NUMBERED_KIND],
        "Used part of the 4,294,967,295 numbers for ids of a kind, from 0 to 1. Numbers are never used again.",
    ),
];

const CATALOGUE: &[MetricDescription] = &[
    metric(
        "evenkeel_os_cycles_total",
        Counter,
        &[CYCLE_OUTCOME],
        "Syncs with registries of operating systems.",
    ),
    metric("evenkeel_os_cycle_seconds", Histogram, &[], "Duration of a sync."),
    metric(
        "evenkeel_os_requests_total",
        Counter,
        &[OS_REQUEST_OUTCOME],
        "Requests to registries and for attachments.",
    ),
    metric(
        "evenkeel_os_findings",
        Gauge,
        &[REGISTRY, FINDING_KIND],
        "Findings in the sync reports of all projects.",
    ),
    metric(
        "evenkeel_os_last_good_seconds",
        Gauge,
        &[REGISTRY],
        "Time since the last sync of the registry without findings.",
    ),
    metric(
        "evenkeel_image_changes_total",
        Counter,
        &[],
        "Nodes for which a change of the images changed the newest image.",
    ),
];

const FILES: &[MetricDescription] = &[
    metric("evenkeel_files_requests_total", Counter, &[FILE_OUTCOME], "Requests for files."),
    metric(
        "evenkeel_files_fetched_total",
        Counter,
        &[FETCH_OUTCOME],
        "Files that were fetched from registries and file servers.",
    ),
    metric(
        "evenkeel_files_cache_bytes",
        Gauge,
        &[],
        "Size of the stored files and of the space reserved for downloads.",
    ),
    metric(
        "evenkeel_files_evicted_total",
        Counter,
        &[],
        "Files that were removed to make room for others.",
    ),
];

const PROCESS: &[MetricDescription] = &[
    metric(
        "evenkeel_build_info",
        Gauge,
        &[VERSION, REVISION, SCHEMA_STEP],
        "Always 1; the labels are the values.",
    ),
    metric(
        "evenkeel_ready",
        Gauge,
        &[],
        "1 if the process is ready: the database can be used and the clocks agree. 0 if not. Checked every ten seconds.",
    ),
    metric(
        "evenkeel_trace_spans_total",
        Counter,
        &[TRACE_SPAN_RESULT],
        "Spans of traces for the collector in `tracing.otlp_endpoint`.",
    ),
    metric(
        "evenkeel_database_up",
        Gauge,
        &[],
        "1 if the database answers and can be written, 0 if not. Checked every ten seconds.",
    ),
    metric(
        "evenkeel_clock_offset_seconds",
        Gauge,
        &[],
        "How far the clock of this process is ahead of the clock of the database. Beyond 60 in either direction the process is not ready, deletes no old data and ends no runs.",
    ),
    metric("process_resident_memory_bytes", Gauge, &[], "Resident memory of this process."),
    metric("process_cpu_seconds_total", Counter, &[], "CPU time of this process."),
    metric(
        "evenkeel_runtime_wakeup_delay_seconds",
        Histogram,
        &[],
        "Time from the end of a task's wait until the task runs. Above 1 s, long work blocks all calls.",
    ),
];

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::super::metric::{LabelValues, MetricLabel};
    use super::*;

    /// Metrics with a label whose values are not known in advance, and why.
    const METRICS_WITH_OPEN_LABELS: [(&str, &str); 8] = [
        ("evenkeel_http_requests_total", "routes × methods × statuses are thousands of series"),
        ("evenkeel_http_request_seconds", "routes × methods are hundreds of histograms"),
        ("evenkeel_grpc_calls_total", "methods of services of three protocols × status codes"),
        ("evenkeel_grpc_call_seconds", "methods of services of three protocols"),
        ("evenkeel_os_findings", "registries of the settings"),
        ("evenkeel_os_last_good_seconds", "registries of the settings"),
        ("evenkeel_build_info", "one series, whose labels are the values"),
        (
            "evenkeel_certificate_expiry_timestamp_seconds",
            "a certificate that is not used has no time",
        ),
    ];

    fn all_metrics() -> impl Iterator<Item = &'static MetricDescription> {
        METRIC_GROUPS.iter().flat_map(|group| group.metrics)
    }

    /// The text of `/metrics` right after the start of a process.
    fn render_initial() -> String {
        let recorder = PrometheusBuilder::new().set_buckets(&[1.0]).expect("a bucket");
        let recorder = recorder.build_recorder();
        metrics::with_local_recorder(&recorder, register_metrics);
        recorder.handle().render()
    }

    #[test]
    fn every_series_with_closed_labels_exists_from_the_start() {
        let text = render_initial();
        let names = |metric: &MetricDescription| match metric.kind {
            MetricKind::Histogram => format!("{}_count", metric.name),
            MetricKind::Counter | MetricKind::Gauge => metric.name.to_owned(),
        };
        for metric in all_metrics() {
            let mut expected = 1;
            for label in metric.labels {
                match label.values {
                    LabelValues::Closed(values) => expected *= values.len(),
                    LabelValues::Open => expected = 0,
                }
            }
            if metric.labels.is_empty() && metric.kind == Gauge {
                expected = 0;
            }
            let name = names(metric);
            let is_of_metric = |line: &&str| {
                let rest = line.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
            };
            let series: Vec<&str> = text.lines().filter(is_of_metric).collect();
            assert_eq!(series.len(), expected, "{name}: {series:?}");
            assert!(series.iter().all(|line| line.ends_with(" 0")), "{series:?}");
        }
    }

    #[test]
    fn a_label_is_only_open_with_a_reason() {
        let is_open = |label: &MetricLabel| matches!(label.values, LabelValues::Open);
        let open = all_metrics().filter(|metric| metric.labels.iter().any(is_open));
        let open: Vec<&str> = open.map(|metric| metric.name).collect();
        let mut allowed = METRICS_WITH_OPEN_LABELS.map(|(name, _)| name).to_vec();
        allowed.retain(|name| open.contains(name));
        assert_eq!(allowed.len(), METRICS_WITH_OPEN_LABELS.len(), "a reason without its metric");
        let missing: Vec<_> = open.iter().filter(|name| !allowed.contains(name)).collect();
        assert!(missing.is_empty(), "declare the values of the labels of {missing:?}");
    }

    #[test]
    fn the_meaning_of_a_label_names_each_value() {
        let mut missing = String::new();
        for metric in all_metrics() {
            for label in metric.labels {
                let LabelValues::Closed(values) = label.values else { continue };
                for value in values {
                    if !label.meaning.contains(&format!("`{value}`")) {
                        let _written = write!(missing, "{} {} {value}; ", metric.name, label.name);
                    }
                }
            }
        }
        assert!(missing.is_empty(), "{missing}");
    }
}
