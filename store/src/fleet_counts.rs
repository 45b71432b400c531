//! Counts of the whole fleet, for metrics. One replica at a time reads them at an interval and
//! sends them to the others (`fleet_counts/exchange.rs`), so their cost depends neither on the
//! number of replicas nor on the number of scrapes.

mod exchange;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use chrono::TimeDelta;
use evenkeel_domain::instance::InstanceState;
use evenkeel_domain::status::Indication;
use sea_orm::{QueryResult, Value};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::StoreError;
use crate::limit_usage::FAILED_RUNS_SQL;
use crate::nodes::NO_CONNECTION_STATUS;
use crate::tx::{FleetTx, execute, query_all, query_one};

pub use exchange::{FleetCountsListener, PublishedCounts, listen_for_counts, publish_counts};

/// How many hosts one statement counts: for some tenths of a second. Short statements do not prevent
/// the removal of old row versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountLimits {
    /// Largest fleet that one statement counts. The statement reads whole tables: that
    /// takes a third of the time of lookups.
    pub hosts_at_once: u32,
    /// Number of hosts per statement for a larger fleet, whose nodes are looked up one by one.
    pub hosts_per_page: u32,
}

impl Default for CountLimits {
    fn default() -> Self {
        Self { hosts_at_once: 30_000, hosts_per_page: 10_000 }
    }
}

/// Age of the ended runs that are counted.
pub const ENDED_RUNS_PERIOD: TimeDelta = TimeDelta::hours(1);

/// How long before its end a credential is counted.
pub const EXPIRY_NOTICE_PERIOD: TimeDelta = TimeDelta::days(7);

/// Status of a host in the counts. Each host has exactly one: the first that applies.
pub const HOST_STATUSES: [&str; 6] =
    ["untrusted", "silent", "error", "updating", "running", "other"];

/// Counts of all projects, without those that are being removed. A map that lacks a name stands for
/// 0 of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetCounts {
    pub projects: u64,
    /// Hosts by status, see [`HOST_STATUSES`].
    pub hosts: BTreeMap<String, u64>,
    pub nodes: NodeCounts,
    /// Open runs by state.
    pub open_runs: BTreeMap<String, u64>,
    /// Runs that ended within [`ENDED_RUNS_PERIOD`], by state.
    pub ended_runs: BTreeMap<String, u64>,
    /// All runs in the database, open and ended, also of projects that are being removed.
    pub stored_runs: u64,
    /// Assignments that stopped after failures.
    pub stopped_assignments: u64,
    /// Valid credentials that end within [`EXPIRY_NOTICE_PERIOD`] and were issued for longer, by
    /// kind: `join_token` and `operator_token`.
    pub expiring_credentials: BTreeMap<String, u64>,
}

/// Counts of nodes: machines that have reported since their instance was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeCounts {
    pub total: u64,
    /// Nodes with an available update.
    pub with_updates: u64,
    /// Nodes with an available security update.
    pub with_security_updates: u64,
    pub requiring_reboot: u64,
    /// Security updates that are not installed, summed over all nodes.
    pub security_updates: u64,
}

/// The counts of hosts `p` with their nodes. `hosts` are hosts `p` joined with instances `i` and node
/// states `n`. Parameters: the status of a silent host, the indications of an error and of progress,
/// and the state of a running instance.
fn counts_sql(hosts: &str) -> String {
    format!(
        "counted AS (SELECT coalesce(n.provisioned, FALSE) AS is_node, \
         n.has_updates, n.security_updates, n.reboot_required, \
         CASE WHEN 'untrusted' IN (p.current_state, i.current_state) THEN 'untrusted' \
         WHEN $1 IN (p.status, n.status) THEN 'silent' \
         WHEN $2 IN (p.status_indication, n.status_indication, n.update_status_indication) THEN 'error' \
         WHEN n.update_status_indication = $3 THEN 'updating' \
         WHEN i.current_state = $4 THEN 'running' ELSE 'other' END AS host_status FROM {hosts} \
         WHERE NOT EXISTS (SELECT FROM projects o WHERE o.tenant_id = p.tenant_id AND o.removed_at IS NOT NULL)) \
         SELECT count(*) FILTER (WHERE is_node), count(*) FILTER (WHERE is_node AND has_updates), \
         count(*) FILTER (WHERE is_node AND security_updates > 0), \
         count(*) FILTER (WHERE is_node AND reboot_required), \
         coalesce(sum(security_updates) FILTER (WHERE is_node), 0)::bigint, \
         count(*) FILTER (WHERE host_status = 'untrusted'), count(*) FILTER (WHERE host_status = 'silent'), \
         count(*) FILTER (WHERE host_status = 'error'), count(*) FILTER (WHERE host_status = 'updating'), \
         count(*) FILTER (WHERE host_status = 'running'), count(*) FILTER (WHERE host_status = 'other')"
    )
}

/// Counts all hosts. The planner joins whole tables; `OFFSET 0` keeps long columns out of the join.
static ALL_HOSTS_SQL: LazyLock<String> = LazyLock::new(|| {
    let counts = counts_sql(
        "hosts p LEFT JOIN instances i ON i.tenant_id = p.tenant_id AND i.host_id = p.id \
         LEFT JOIN (SELECT tenant_id, instance_id, provisioned, status, status_indication, update_status_indication, \
         os_update_available <> '' AS has_updates, security_updates, reboot_required FROM node_states OFFSET 0) n \
         ON n.tenant_id = p.tenant_id AND n.instance_id = i.id",
    );
    format!("WITH {counts} FROM counted")
});

/// Counts a page of hosts after a host, with their nodes: at most three index lookups for each.
/// `OFFSET 0` keeps the planner from joining whole tables. Further parameters: the project and the id
/// of the host, and the length of the page.
static PAGE_OF_HOSTS_SQL: LazyLock<String> = LazyLock::new(|| {
    let counts = counts_sql(
        "page p LEFT JOIN LATERAL (SELECT i.id, i.current_state FROM instances i \
         WHERE i.tenant_id = p.tenant_id AND i.host_id = p.id OFFSET 0) i ON TRUE \
         LEFT JOIN LATERAL (SELECT n.provisioned, n.status, n.status_indication, n.update_status_indication, \
         n.os_update_available <> '' AS has_updates, n.security_updates, n.reboot_required FROM node_states n \
         WHERE n.tenant_id = p.tenant_id AND n.instance_id = i.id OFFSET 0) n ON TRUE",
    );
    format!(
        "WITH page AS MATERIALIZED ( \
         SELECT h.tenant_id, h.id, h.current_state, h.status, h.status_indication FROM hosts h \
         WHERE (h.tenant_id, h.id) > ($5, $6) ORDER BY h.tenant_id, h.id LIMIT $7), {counts}, \
         (SELECT count(*) FROM page), \
         (SELECT tenant_id FROM page ORDER BY tenant_id DESC, id DESC LIMIT 1), \
         (SELECT id FROM page ORDER BY tenant_id DESC, id DESC LIMIT 1) FROM counted"
    )
});

/// Parameters of [`counts_sql`].
fn status_values() -> [Value; 4] {
    [
        NO_CONNECTION_STATUS.into(),
        Indication::Error.name().into(),
        Indication::InProgress.name().into(),
        InstanceState::Running.name().into(),
    ]
}

/// Column of the first status of [`HOST_STATUSES`] in [`counts_sql`].
const FIRST_STATUS_COLUMN: usize = 5;

/// Open runs by state. An instance has at most one.
const OPEN_RUNS_SQL: &str = "SELECT r.state, count(*) FROM projects p CROSS JOIN LATERAL ( \
    SELECT u.state FROM update_runs u WHERE u.tenant_id = p.tenant_id AND u.ended_at IS NULL OFFSET 0) r \
    WHERE p.removed_at IS NULL GROUP BY r.state";

/// Ended runs since a time, by state.
const ENDED_RUNS_SQL: &str = "SELECT r.state, count(*) FROM projects p CROSS JOIN LATERAL ( \
    SELECT u.state FROM update_runs u WHERE u.tenant_id = p.tenant_id AND u.ended_at >= $1 OFFSET 0) r \
    WHERE p.removed_at IS NULL GROUP BY r.state";

/// Valid credentials that end between two times and were issued for longer than that.
const EXPIRING_SQL: &str = "SELECT 'join_token', count(*) FROM join_tokens t \
    JOIN projects p ON p.tenant_id = t.tenant_id AND p.removed_at IS NULL \
    WHERE t.expires_at > $1 AND t.expires_at <= $2 AND t.revoked_at IS NULL \
    AND t.expires_at - t.created_at > $2 - $1 AND NOT (t.one_time AND t.used > 0) \
    UNION ALL SELECT 'operator_token', count(*) FROM operator_tokens o \
    WHERE o.expires_at > $1 AND o.expires_at <= $2 AND o.revoked_at IS NULL \
    AND o.expires_at - o.issued_at > $2 - $1";

/// Counts the fleet. Reads each host, instance and node once, in short statements, and otherwise
/// only open runs, runs that ended recently, and assignments with a limit of failures. The
/// transaction must not be a snapshot.
pub async fn read(tx: &FleetTx, limits: CountLimits) -> Result<FleetCounts, StoreError> {
    let now = tx.database_time();
    let mut counts = FleetCounts::default();
    count_hosts(tx, limits, &mut counts).await?;
    let projects = "SELECT count(*) FROM projects WHERE removed_at IS NULL";
    counts.projects = count(tx, projects).await?;
    counts.open_runs = count_by_name(tx, OPEN_RUNS_SQL, Vec::new()).await?;
    let ended_since = vec![(now - ENDED_RUNS_PERIOD).into()];
    counts.ended_runs = count_by_name(tx, ENDED_RUNS_SQL, ended_since).await?;
    let stored = "SELECT coalesce(sum(n), 0)::bigint FROM tallies WHERE kind = 'run'";
    counts.stored_runs = count(tx, stored).await?;
    // At most as many failures are read as stop the assignment.
    let stopped = format!(
        "SELECT count(*) FROM assignments a JOIN projects p ON p.tenant_id = a.tenant_id AND p.removed_at IS NULL \
         WHERE a.stop_after_failures IS NOT NULL \
         AND (SELECT count(*) FROM (SELECT {FAILED_RUNS_SQL} LIMIT a.stop_after_failures) f) >= a.stop_after_failures"
    );
    counts.stopped_assignments = count(tx, &stopped).await?;
    let notice = vec![now.into(), (now + EXPIRY_NOTICE_PERIOD).into()];
    counts.expiring_credentials = count_by_name(tx, EXPIRING_SQL, notice).await?;
    Ok(counts)
}

/// Counts the hosts of a small fleet at once, and those of a large one in pages.
async fn count_hosts(
    tx: &FleetTx,
    limits: CountLimits,
    counts: &mut FleetCounts,
) -> Result<(), StoreError> {
    let hosts = "SELECT coalesce(sum(n), 0)::bigint FROM tallies WHERE kind = 'host'";
    let hosts = count(tx, hosts).await?;
    // A tally that is wrong must not select the statement for small fleets.
    if hosts == 0 || u64::from(limits.hosts_at_once) < hosts {
        return count_pages(tx, limits.hosts_per_page, counts).await;
    }
    allow_scans(tx, true).await?;
    let row = query_one(tx.conn(), ALL_HOSTS_SQL.as_str(), status_values()).await?;
    allow_scans(tx, false).await?;
    row.map_or(Ok(()), |row| counts.add_hosts(&row))
}

/// Lets the planner join whole tables. The setting for memory stays for the transaction.
async fn allow_scans(tx: &FleetTx, allow: bool) -> Result<(), StoreError> {
    let (scans, loops) = if allow { ("on", "off") } else { ("off", "on") };
    let sql = "SELECT set_config('enable_seqscan', $1, true), set_config('enable_nestloop', $2, true), \
               set_config('work_mem', '32MB', true)";
    execute(tx.conn(), sql, [scans.into(), loops.into()]).await.map(drop)
}

async fn count_pages(
    tx: &FleetTx,
    hosts_per_page: u32,
    counts: &mut FleetCounts,
) -> Result<(), StoreError> {
    let limit = i64::from(hosts_per_page);
    // No project has the nil UUID.
    let mut last = (Uuid::nil(), i32::MIN);
    loop {
        let page: [Value; 3] = [last.0.into(), last.1.into(), limit.into()];
        let values = status_values().into_iter().chain(page);
        let Some(row) = query_one(tx.conn(), PAGE_OF_HOSTS_SQL.as_str(), values).await? else {
            return Ok(());
        };
        counts.add_hosts(&row)?;
        let after = FIRST_STATUS_COLUMN + HOST_STATUSES.len();
        if row.try_get_by_index::<i64>(after)? < limit {
            return Ok(());
        }
        last = (row.try_get_by_index(after + 1)?, row.try_get_by_index(after + 2)?);
    }
}

impl FleetCounts {
    /// Adds a row of [`counts_sql`].
    fn add_hosts(&mut self, row: &QueryResult) -> Result<(), StoreError> {
        let column = |at: usize| row.try_get_by_index::<i64>(at).map(i64::cast_unsigned);
        let nodes = &mut self.nodes;
        nodes.total += column(0)?;
        nodes.with_updates += column(1)?;
        nodes.with_security_updates += column(2)?;
        nodes.requiring_reboot += column(3)?;
        nodes.security_updates += column(4)?;
        for (at, status) in HOST_STATUSES.into_iter().enumerate() {
            *self.hosts.entry(status.to_owned()).or_default() += column(FIRST_STATUS_COLUMN + at)?;
        }
        Ok(())
    }
}

async fn count(tx: &FleetTx, sql: &str) -> Result<u64, StoreError> {
    let count: i64 = match query_one(tx.conn(), sql, []).await? {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Reads rows of a name and a count.
async fn count_by_name(
    tx: &FleetTx,
    sql: &str,
    values: Vec<Value>,
) -> Result<BTreeMap<String, u64>, StoreError> {
    let mut counts = BTreeMap::new();
    for row in query_all(tx.conn(), sql, values).await? {
        let count: i64 = row.try_get_by_index(1)?;
        counts.insert(row.try_get_by_index(0)?, count.cast_unsigned());
    }
    Ok(counts)
}
