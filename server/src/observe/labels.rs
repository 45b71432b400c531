//! The labels of metrics and their values.

use super::metric::{LabelValues, MetricLabel};

const fn closed(
    name: &'static str,
    values: &'static [&'static str],
    meaning: &'static str,
) -> MetricLabel {
    MetricLabel { name, meaning, values: LabelValues::Closed(values) }
}

const fn open(name: &'static str, meaning: &'static str) -> MetricLabel {
    MetricLabel { name, meaning, values: LabelValues::Open }
}

pub(super) const HTTP_METHOD: MetricLabel = open("method", "HTTP method, or `other`");
pub(super) const ROUTE: MetricLabel =
    open("route", "Path of the API with its parameters, or `none`");
pub(super) const HTTP_STATUS: MetricLabel = open("status", "HTTP status");
pub(super) const GRPC_METHOD: MetricLabel = open("method", "Path of the gRPC method");
pub(super) const GRPC_CODE: MetricLabel =
    open("code", "Number of the gRPC status code; 0 is success");
pub(super) const REGISTRY: MetricLabel = open("registry", "Name of the registry in the settings");
pub(super) const FINDING_KIND: MetricLabel =
    open("kind", "Kind of the finding, as in the sync report");
pub(super) const CERTIFICATE: MetricLabel = open(
    "certificate",
    "Listener whose certificate it is: `rest`, `admin` or `southbound` (also that of `files.listen`); `ca` (the server's own authority); `database_client` (`sslcert`) or `database_ca` (the first of `sslrootcert` that expires)",
);
pub(super) const VERSION: MetricLabel = open("version", "Version of the program");
pub(super) const REVISION: MetricLabel =
    open("revision", "Revision of the sources; empty if the build did not set `EVENKEEL_REVISION`");
pub(super) const SCHEMA_STEP: MetricLabel =
    open("schema", "Newest step of the database schema that the program knows");

pub(super) const AGENT_CALL: MetricLabel = closed(
    "call",
    &["enroll", "renew", "poll", "begin", "report"],
    "`enroll`, `renew`, `poll`, `begin` or `report`",
);
pub(super) const CALL_OUTCOME: MetricLabel = closed(
    "outcome",
    &["ok", "refused", "error"],
    "`ok`, `refused`, or `error` (internal error, or the server is unavailable)",
);
pub(super) const LISTENER: MetricLabel = closed(
    "listener",
    &["rest", "southbound", "files", "admin"],
    "Section with the settings of the listener: `rest`, `southbound`, `files` or `admin`",
);
pub(super) const HANDSHAKE_OUTCOME: MetricLabel = closed(
    "outcome",
    &["ok", "failed", "slow"],
    "`ok`, `failed` (including refused connections) or `slow` (timed out)",
);
pub(super) const RELOADED_FILE: MetricLabel = closed(
    "file",
    &["rest", "admin", "southbound", "users"],
    "Listener whose certificate it is: `rest`, `admin` or `southbound` (also that of `files.listen`); or `users` (`auth.login.users`)",
);
pub(super) const RELOAD_OUTCOME: MetricLabel = closed(
    "outcome",
    &["ok", "failed"],
    "`ok`, or `failed`: the new file is not usable, and the old content is still used",
);
pub(super) const CHANGE_WATCHER_END: MetricLabel = closed(
    "reason",
    &["disconnected", "slow", "access", "cursor", "stopping", "failed"],
    "`disconnected`, `slow`, `access` (the token expired or was revoked, or the project was deleted), `cursor` (changes after it were deleted), `stopping` or `failed`",
);
pub(super) const PROTOCOL: MetricLabel =
    closed("protocol", &["own", "eim"], "`own` (Evenkeel's agents) or `eim`");
pub(super) const POLL_RESULT: MetricLabel = closed(
    "kind",
    &["hit", "miss", "write", "long_poll", "refused"],
    "`hit` (answered from the cache), `miss` (answered from the database), `write` (something was written), `long_poll` (answered at the end of a long poll, in addition to another kind) or `refused`",
);
pub(super) const TRACE_SPAN_RESULT: MetricLabel = closed(
    "result",
    &["sent", "failed", "queue_full"],
    "`sent`, `failed` (the collector did not take it) or `queue_full` (dropped before it was sent)",
);
pub(super) const WAKEUP_REASON: MetricLabel = closed(
    "reason",
    &["recheck", "superseded", "draining"],
    "`recheck`, `superseded` (by a newer poll of the node) or `draining` (the process stops)",
);
pub(super) const STALE_REASON: MetricLabel = closed(
    "reason",
    &["node", "site", "project", "slot", "all"],
    "`node`, `site`, `project`, `slot` (slots of an assignment) or `all`",
);
pub(super) const REBUILD_REASON: MetricLabel = closed(
    "reason",
    &["opened", "server", "backwards", "truncated", "pruned", "removed", "mismatch"],
    "`opened` (first connection of the process), `server` (another database server), `backwards` (the log of the server went back), `truncated`, `pruned` or `removed` (parts of the log are missing), or `mismatch` (a cached answer was wrong)",
);
pub(super) const REFUSAL_KIND: MetricLabel = closed(
    "kind",
    &[
        "query",
        "write",
        "awaiting_body",
        "message_memory",
        "memory",
        "writers",
        "database",
        "poll_batch",
    ],
    "`query`, `write`, `awaiting_body` (the message did not arrive), `message_memory` (no memory left for the message), `memory` (no memory left for the connection), `writers` (too many waiting writers), `database` (too many calls that query the database) or `poll_batch` (the poll waited too long for a batch)",
);
pub(super) const LIMIT_SCOPE: MetricLabel =
    closed("scope", &["node", "project"], "`node` or `project`");
pub(super) const LIMITED_AMOUNT: MetricLabel = closed(
    "amount",
    &["bytes", "package_lists", "versions", "runs"],
    "`bytes`, `package_lists`, `versions` or `runs`",
);
pub(super) const CONNECTION_SHARE: MetricLabel = closed(
    "share",
    &["nodes", "rest_reads", "rest_writes", "logins"],
    "`nodes` (with the tasks of the server), `rest_reads`, `rest_writes` or `logins`",
);
pub(super) const POOL_STATE: MetricLabel =
    closed("state", &["in_use", "idle"], "`in_use` or `idle`");
pub(super) const RUN_EVENT: MetricLabel = closed(
    "event",
    &[
        "downloading",
        "downloaded",
        "began",
        "reboot_begun",
        "verify_begun",
        "reverting",
        "finished",
        "failed",
        "reverted",
        "nothing_to_do",
        "cancelled",
        "timed_out",
        "superseded",
        "removed",
    ],
    "`downloading`, `downloaded`, `began`, `reboot_begun`, `verify_begun`, `reverting`, `finished`, `failed`, `reverted`, `nothing_to_do`, `cancelled`, `timed_out`, `superseded` or `removed`",
);
pub(super) const REMOVED_ROWS: MetricLabel = closed(
    "kind",
    &[
        "runs",
        "contents",
        "slots",
        "versions",
        "tokens",
        "daily_usage",
        "contacts",
        "changes",
        "tallies",
        "projects",
    ],
    "`runs`, `contents`, `slots`, `versions`, `tokens`, `daily_usage` (daily limits that are full again), `contacts` (contacts in the future, which were corrected), `changes`, `tallies` or `projects` (rows of deleted projects)",
);
pub(super) const HOUSEKEEPING_STEP: MetricLabel = closed(
    "kind",
    &[
        "runs",
        "contents",
        "slots",
        "versions",
        "tokens",
        "daily_usage",
        "contacts",
        "changes",
        "tallies",
        "projects",
        "oldest rows",
        "id numbers",
    ],
    "`runs`, `contents`, `slots`, `versions`, `tokens`, `daily_usage`, `contacts`, `changes`, `tallies`, `projects`, `oldest rows` (reading the ages) or `id numbers` (reading how many are used)",
);
pub(super) const AGED_DATA: MetricLabel = closed(
    "kind",
    &[
        "runs",
        "contents",
        "versions",
        "slots",
        "tokens",
        "operator_tokens",
        "logins",
        "notification_deliveries",
        "os_attachments",
        "node_daily_usage",
        "project_daily_usage",
        "changes",
        "user_changes",
        "projects",
    ],
    "`runs` (since their end), `contents` and `versions` (since their last use or report), `slots`, `tokens` (of nodes), `operator_tokens` and `logins` (since their expiry), `notification_deliveries` (since their end), `os_attachments` (since their last fetch), `node_daily_usage` and `project_daily_usage` (since the allowance is full again), `changes` (of the server) and `user_changes` in the change log (since they were sealed), or `projects` (since their deletion, until their last row is removed)",
);
pub(super) const NUMBERED_KIND: MetricLabel = closed(
    "kind",
    &[
        "custom_config",
        "host",
        "instance",
        "join_token",
        "local_account",
        "notification_target",
        "os",
        "policy",
        "provider",
        "region",
        "repeated_schedule",
        "run",
        "single_schedule",
        "site",
    ],
    "Kind of resource: `custom_config`, `host`, `instance`, `join_token`, `local_account`, `notification_target`, `os`, `policy`, `provider`, `region`, `repeated_schedule`, `run`, `single_schedule` or `site`",
);
pub(super) const CYCLE_OUTCOME: MetricLabel =
    closed("outcome", &["succeeded", "partial", "failed"], "`succeeded`, `partial` or `failed`");
pub(super) const OS_REQUEST_OUTCOME: MetricLabel = closed(
    "outcome",
    &[
        "good",
        "unreachable",
        "denied",
        "busy",
        "not_there",
        "too_large",
        "wrong_digest",
        "not_a_profile",
        "address_not_allowed",
    ],
    "`good`, or the kind of the error: `unreachable`, `denied`, `busy`, `not_there`, `too_large`, `wrong_digest`, `not_a_profile` or `address_not_allowed`",
);
pub(super) const FILE_OUTCOME: MetricLabel = closed(
    "outcome",
    &[
        "full",
        "partial",
        "not_modified",
        "refused",
        "not_found",
        "ambiguous",
        "bad_range",
        "too_many",
        "pending",
        "too_large",
        "no_space",
        "disk",
        "wrong_content",
        "unavailable",
    ],
    "`full`, `partial`, `not_modified`, or the reason of the refusal: `refused` (no access, or not a GET or HEAD request), `not_found`, `ambiguous`, `bad_range`, `too_many` (transfers), `pending` (download still running), `too_large`, `no_space`, `disk`, `wrong_content` or `unavailable`",
);
pub(super) const FETCH_OUTCOME: MetricLabel = closed(
    "outcome",
    &["good", "too_large", "no_space", "wrong_content", "unavailable", "disk"],
    "`good`, `too_large`, `no_space`, `wrong_content`, `unavailable` or `disk`",
);
pub(super) const HOST_STATUS: MetricLabel = closed(
    "status",
    &evenkeel_store::fleet_counts::HOST_STATUSES,
    "The first that applies: `untrusted` (invalidated), `silent` (no contact), `error` (the host, its node or its update), `updating`, `running` or `other` (no running instance)",
);
pub(super) const OPEN_RUN_STATE: MetricLabel = closed(
    "state",
    &["downloading", "staged", "applying", "rebooting", "verifying", "reverting"],
    "`downloading`, `staged`, `applying`, `rebooting`, `verifying` or `reverting`",
);
pub(super) const RUN_RESULT: MetricLabel = closed(
    "result",
    &["succeeded", "failed", "reverted", "cancelled", "abandoned"],
    "`succeeded`, `failed`, `reverted`, `cancelled` or `abandoned`",
);
pub(super) const NOTIFICATION_RESULT: MetricLabel = closed(
    "result",
    &["delivered", "failed", "dead"],
    "`delivered`, `failed` (another attempt follows) or `dead` (none follows, unless a user replays it)",
);
pub(super) const CREDENTIAL_KIND: MetricLabel =
    closed("kind", &["join_token", "operator_token"], "`join_token` or `operator_token`");
