//! The list of all metrics: the descriptions in `/metrics`, and the page `docs/reference/metrics.md`.

use super::metric::{MetricDescription, MetricGroup, MetricKind, metric};
use MetricKind::{Counter, Gauge, Histogram};

/// Registers the description of every metric with the recorder of this process.
pub(super) fn register_descriptions() {
    let metrics = METRIC_GROUPS.iter().flat_map(|group| group.metrics);
    metrics.for_each(MetricDescription::register);
}

const LISTENERS: &str =
    "Setting of the listener: `rest.listen`, `southbound.listen`, `files.listen` or `admin.listen`";
const CERTIFICATES: &str = "Listener whose certificate it is: `rest`, `admin` or `southbound` (also that of `files.listen`); `ca` (the server's own authority); `database_client` (`sslcert`) or `database_ca` (the first of `sslrootcert` that expires)";
const RELOADED_FILES: &str = "Listener whose certificate it is: `rest`, `admin` or `southbound` (also that of `files.listen`); or `users` (`auth.login.users`)";
const CALL_OUTCOMES: &str =
    "`ok`, `refused`, or `error` (internal error, or the server is unavailable)";
const OS_REQUEST_OUTCOMES: &str =
    "`good`, or the kind of the error, for example `unreachable`, `denied` or `busy`";
const FILE_OUTCOMES: &str = "`full`, `partial`, `not_modified`, or the reason of the refusal: `refused` (no access, or not a GET or HEAD request), `not_found`, `ambiguous`, `bad_range`, `too_many` (transfers), `pending` (download still running), `too_large`, `no_space`, `disk`, `wrong_content` or `unavailable`";
const RUN_EVENTS: &str = "`downloading`, `downloaded`, `began`, `reboot_begun`, `verify_begun`, `reverting`, `finished`, `failed`, `reverted`, `nothing_to_do`, `cancelled`, `timed_out`, `superseded` or `removed`";
const REBUILD_REASONS: &str = "`opened` (first connection of the process), `server` (another database server), `backwards` (the log of the server went back), `truncated`, `pruned` or `removed` (parts of the log are missing), or `mismatch` (a cached answer was wrong)";
const STALE_REASONS: &str = "`node`, `site`, `project`, `slot` (slots of an assignment) or `all`";
const REFUSAL_KINDS: &str = "`query`, `write`, `awaiting_body` (the message did not arrive), `message_memory` (no memory left for the message), `memory` (no memory left for the connection), `writers` (too many waiting writers), `database` (too many calls that query the database) or `poll_batch` (the poll waited too long for a batch)";
const WAKEUP_REASONS: &str =
    "`recheck`, `superseded` (by a newer poll of the node) or `draining` (the process stops)";
const POLL_RESULTS: &str = "`hit` (answered from the cache), `miss` (answered from the database), `write` (something was written), `long_poll` (answered at the end of a long poll, in addition to another kind) or `refused`";
const REMOVED_ROWS: &str = "`runs`, `contents`, `slots`, `versions`, `tokens`, `daily_usage` (daily limits that are full again), `contacts` (contacts in the future, which were corrected), `changes`, `tallies` or `projects` (rows of deleted projects)";

const CONNECTION_SHARES: &str =
    "`nodes` (with the tasks of the server), `rest_reads`, `rest_writes` or `logins`";
const HOUSEKEEPING_STEPS: &str = "`runs`, `contents`, `slots`, `versions`, `tokens`, `daily_usage`, `contacts`, `changes`, `tallies`, `projects`, `oldest rows` (reading the ages) or `id numbers` (reading how many are used)";
const AGED_DATA: &str = "`runs` (since their end), `contents` and `versions` (since their last use or report), `slots`, `tokens` (of nodes), `operator_tokens` and `logins` (since their expiry), `node_daily_usage` and `project_daily_usage` (since the allowance is full again), `changes` (in the change log) or `projects` (since their deletion, until their last row is removed)";

/// All metrics of evenkeeld.
pub const METRIC_GROUPS: &[MetricGroup] = &[
    MetricGroup { title: "Requests and calls", metrics: REQUESTS },
    MetricGroup { title: "Connections", metrics: CONNECTIONS },
    MetricGroup { title: "Polls", metrics: POLLS },
    MetricGroup { title: "Answer cache and change log", metrics: ANSWER_CACHE },
    MetricGroup { title: "Load", metrics: LOAD },
    MetricGroup { title: "Runs and nodes", metrics: RUNS },
    MetricGroup { title: "Catalogue of operating systems", metrics: CATALOGUE },
    MetricGroup { title: "Files for nodes", metrics: FILES },
    MetricGroup { title: "Process", metrics: PROCESS },
];

const REQUESTS: &[MetricDescription] = &[
    metric(
        "evenkeel_http_requests_total",
        Counter,
        &[
            ("method", "HTTP method, or `other`"),
            ("route", "Path of the API with its parameters, or `none`"),
            ("status", "HTTP status"),
        ],
        "Requests to the REST API that were answered.",
    ),
    metric(
        "evenkeel_http_request_seconds",
        Histogram,
        &[
            ("method", "HTTP method, or `other`"),
            ("route", "Path of the API with its parameters, or `none`"),
        ],
        "Duration of requests to the REST API.",
    ),
    metric(
        "evenkeel_grpc_calls_total",
        Counter,
        &[
            ("method", "Path of the gRPC method"),
            ("code", "Number of the gRPC status code; 0 is success"),
        ],
        "Calls of agents that were answered.",
    ),
    metric(
        "evenkeel_grpc_call_seconds",
        Histogram,
        &[("method", "Path of the gRPC method")],
        "Duration of calls of agents, including waiting time.",
    ),
    metric(
        "evenkeel_agent_calls_total",
        Counter,
        &[("call", "`enroll`, `renew`, `poll`, `begin` or `report`"), ("outcome", CALL_OUTCOMES)],
        "Calls of Evenkeel's agents that were answered.",
    ),
    metric(
        "evenkeel_eim_polls_total",
        Counter,
        &[("outcome", CALL_OUTCOMES)],
        "Polls of EIM's agents that were answered.",
    ),
    metric(
        "evenkeel_eim_heartbeats_total",
        Counter,
        &[("outcome", CALL_OUTCOMES)],
        "Heartbeats of EIM's agents that were answered.",
    ),
];

const CONNECTIONS: &[MetricDescription] = &[
    metric("evenkeel_connections", Gauge, &[("listener", LISTENERS)], "Open connections."),
    metric(
        "evenkeel_connections_full_total",
        Counter,
        &[("listener", LISTENERS)],
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
    metric(
        "evenkeel_handshakes_total",
        Counter,
        &[("outcome", "`ok`, `failed` (including refused connections) or `slow` (timed out)")],
        "TLS handshakes of agents.",
    ),
    metric(
        "evenkeel_certificate_expiry_timestamp_seconds",
        Gauge,
        &[("certificate", CERTIFICATES)],
        "When a certificate expires that this process uses, in seconds since 1970. That of a listener is its own certificate, without its chain.",
    ),
    metric(
        "evenkeel_file_reloads_total",
        Counter,
        &[
            ("file", RELOADED_FILES),
            (
                "outcome",
                "`ok`, or `failed`: the new file is not usable, and the old content is still used",
            ),
        ],
        "Changed files that were read again, and certificates of the server's own authority that were renewed.",
    ),
];

const POLLS: &[MetricDescription] = &[
    metric(
        "evenkeel_poll_requests_total",
        Counter,
        &[("protocol", "`own` (Evenkeel's agents) or `eim`"), ("kind", POLL_RESULTS)],
        "Polls by result.",
    ),
    metric("evenkeel_long_poll_open", Gauge, &[], "Open long polls."),
    metric(
        "evenkeel_long_poll_wakeups_total",
        Counter,
        &[("reason", WAKEUP_REASONS)],
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
        &[("reason", STALE_REASONS)],
        "Changes that invalidated cached answers, by their scope.",
    ),
    metric(
        "evenkeel_answer_cache_rebuilds_total",
        Counter,
        &[("reason", REBUILD_REASONS)],
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
        "Age of the oldest change that is not sealed yet; 0 if there is none.",
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
        &[("kind", REFUSAL_KINDS)],
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
        &[
            ("scope", "`node` or `project`"),
            ("amount", "`bytes`, `package_lists`, `versions` or `runs`"),
        ],
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
        &[("share", CONNECTION_SHARES)],
        "Database connections in use.",
    ),
    metric(
        "evenkeel_database_share_refused_total",
        Counter,
        &[("share", CONNECTION_SHARES)],
        "Requests and calls that got no database connection of their share in time.",
    ),
    metric("evenkeel_poll_interval_seconds", Gauge, &[], "Poll interval that nodes currently get."),
];

const RUNS: &[MetricDescription] = &[
    metric(
        "evenkeel_run_events_total",
        Counter,
        &[("event", RUN_EVENTS)],
        "Events of runs that changed the state of the run.",
    ),
    metric("evenkeel_silent_nodes_total", Counter, &[], "Nodes that became silent."),
    metric(
        "evenkeel_housekeeping_removed_rows_total",
        Counter,
        &[("kind", REMOVED_ROWS)],
        "Old rows that housekeeping removed.",
    ),
    metric(
        "evenkeel_housekeeping_failures_total",
        Counter,
        &[("kind", HOUSEKEEPING_STEPS)],
        "Steps of housekeeping that failed. The other steps of the pass still run.",
    ),
    metric(
        "evenkeel_housekeeping_oldest_row_seconds",
        Gauge,
        &[("kind", AGED_DATA)],
        "Age of the oldest row that housekeeping may remove one day, after the last pass; 0 if there is none.",
    ),
    metric(
        "evenkeel_id_numbers_used_ratio",
        Gauge,
        &[("kind", "kind of resource, such as `run`, `host` or `instance`")],
        "Used part of the 4,294,967,295 numbers for ids of a kind, from 0 to 1. Numbers are never used again.",
    ),
];

const CATALOGUE: &[MetricDescription] = &[
    metric(
        "evenkeel_os_cycles_total",
        Counter,
        &[("outcome", "`succeeded`, `partial` or `failed`")],
        "Syncs with registries of operating systems.",
    ),
    metric("evenkeel_os_cycle_seconds", Histogram, &[], "Duration of a sync."),
    metric(
        "evenkeel_os_requests_total",
        Counter,
        &[("outcome", OS_REQUEST_OUTCOMES)],
        "Requests to registries and for attachments.",
    ),
    metric(
        "evenkeel_os_findings",
        Gauge,
        &[
            ("registry", "Name of the registry in the settings"),
            ("kind", "Kind of the finding, as in the sync report"),
        ],
        "Findings in the sync reports of all projects.",
    ),
    metric(
        "evenkeel_os_last_good_seconds",
        Gauge,
        &[("registry", "Name of the registry in the settings")],
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
    metric(
        "evenkeel_files_requests_total",
        Counter,
        &[("outcome", FILE_OUTCOMES)],
        "Requests for files.",
    ),
    metric(
        "evenkeel_files_fetched_total",
        Counter,
        &[("outcome", "`good`, `too_large`, `no_space`, `wrong_content`, `unavailable` or `disk`")],
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
