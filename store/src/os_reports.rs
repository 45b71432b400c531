//! Report of the last sync of each project with its registry.

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_domain::tenant::TenantId;
use sea_orm::{FromQueryResult, QueryResult};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::rows::{JsonColumn, or_corrupt};
use crate::tx::{FleetTx, Tx, execute, query_all, query_one};

/// Maximum number of findings that are stored per sync.
pub const MAX_FINDINGS: usize = 1_000;

/// The length limit of a message, in bytes. Longer messages are cut.
const MAX_MESSAGE_BYTES: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReport {
    /// The configured name of the registry.
    pub registry: String,
    /// The requested revision.
    pub revision: String,
    pub outcome: CycleOutcome,
    /// The reason of the outcome; empty if it is good.
    pub message: String,
    /// The number of the cycle that fetched the registry.
    pub cycle: i64,
    /// Start of that cycle.
    pub started_at: Time,
    /// End of the import into the project.
    pub ended_at: Time,
    /// Number of created operating systems.
    pub created: u32,
    /// Number of updated operating systems.
    pub updated: u32,
    /// Number of unchanged operating systems.
    pub unchanged: u32,
    /// Number of rejected profiles.
    pub refused: u32,
    /// The findings; at most [`MAX_FINDINGS`] are stored.
    pub findings: Vec<SyncFinding>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncFinding {
    /// The repository; empty if it concerns no repository.
    pub repository: String,
    /// The tag; empty if it concerns no tag.
    pub tag: String,
    /// The stable name of its kind; at most 40 characters.
    pub kind: String,
    /// The affected field of a profile, if any.
    pub field: Option<String>,
    /// For users; at most 1,000 bytes are stored.
    pub message: String,
    /// The affected operating system, if any.
    pub os: Option<OsId>,
    /// Since when every sync reports it.
    pub since: Time,
}

/// Replaces the report of the last sync of the project. A finding that the previous report contains
/// as well keeps its `since`. NUL, which the database rejects, is replaced by a visible symbol.
///
/// # Errors
/// The kind of a finding is empty or too long.
pub async fn replace(tx: &Tx, report: &SyncReport) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    let before = find(tx).await?.map_or_else(Vec::new, |report| report.findings);
    let first_seen: HashMap<_, _> =
        before.iter().map(|row| (finding_key(row), row.since)).collect();
    let mut findings: Vec<SyncFinding> =
        report.findings.iter().take(MAX_FINDINGS).map(storable_finding).collect();
    for row in &mut findings {
        let since = first_seen.get(&finding_key(row)).copied();
        row.since = since.unwrap_or(row.since);
    }
    write_report(tx, report).await?;
    let sql = "DELETE FROM os_sync_findings WHERE tenant_id = $1";
    execute(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    let findings: Vec<_> = (1..).zip(&findings).map(FindingRow::from).collect();
    let sql = "INSERT INTO os_sync_findings (tenant_id, number, repository, tag, kind, field, message, os_id, since_at) \
               SELECT $1::uuid, f.number, f.repository, f.tag, f.kind, f.field, f.message, f.os_id, f.since_at \
               FROM jsonb_to_recordset($2::jsonb) AS f (number integer, repository text, tag text, kind text, \
               field text, message text, os_id integer, since_at timestamptz)";
    let values = [tx.tenant().uuid().into(), JsonColumn(findings).into()];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// The report of the last sync of the project; none if there was no sync since its settings
/// changed.
pub async fn find(tx: &Tx) -> Result<Option<SyncReport>, StoreError> {
    let sql = "SELECT r.registry, r.revision, r.outcome, r.message, r.cycle, r.started_at, r.ended_at, r.created, \
               r.updated, r.unchanged, r.refused, (SELECT coalesce(json_agg(f ORDER BY f.number), '[]'::json) \
               FROM os_sync_findings f WHERE f.tenant_id = r.tenant_id) AS findings \
               FROM os_sync_reports r WHERE r.tenant_id = $1";
    let row = query_one(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    row.as_ref().map(from_row).transpose()
}

/// At most `limit` projects without a report. Projects with settings of their own come first.
pub async fn list_missing(tx: &FleetTx, limit: u32) -> Result<Vec<TenantId>, StoreError> {
    let sql = "SELECT p.tenant_id FROM projects p LEFT JOIN os_settings s ON s.tenant_id = p.tenant_id \
               WHERE p.removed_at IS NULL \
               AND NOT EXISTS (SELECT FROM os_sync_reports r WHERE r.tenant_id = p.tenant_id) \
               ORDER BY s.tenant_id IS NULL, p.tenant_id LIMIT $1";
    let mut projects = Vec::new();
    for row in query_all(tx.conn(), sql, [i64::from(limit).into()]).await? {
        projects.push(TenantId::new(row.try_get_by_index(0)?));
    }
    Ok(projects)
}

async fn write_report(tx: &Tx, report: &SyncReport) -> Result<(), StoreError> {
    let sql = "INSERT INTO os_sync_reports (tenant_id, registry, revision, outcome, message, cycle, started_at, ended_at, \
               created, updated, unchanged, refused) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
               ON CONFLICT (tenant_id) DO UPDATE SET registry = excluded.registry, revision = excluded.revision, \
               outcome = excluded.outcome, message = excluded.message, cycle = excluded.cycle, \
               started_at = excluded.started_at, ended_at = excluded.ended_at, created = excluded.created, \
               updated = excluded.updated, unchanged = excluded.unchanged, refused = excluded.refused";
    let values = [
        tx.tenant().uuid().into(),
        report.registry.as_str().into(),
        report.revision.as_str().into(),
        report.outcome.name().into(),
        storable_message(&report.message).into(),
        report.cycle.into(),
        report.started_at.into(),
        report.ended_at.into(),
        report.created.cast_signed().into(),
        report.updated.cast_signed().into(),
        report.unchanged.cast_signed().into(),
        report.refused.cast_signed().into(),
    ];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// All of a finding except its `since`.
type FindingKey<'a> = (&'a str, &'a str, &'a str, Option<&'a str>, &'a str, Option<OsId>);

fn finding_key(row: &SyncFinding) -> FindingKey<'_> {
    (&row.repository, &row.tag, &row.kind, row.field.as_deref(), &row.message, row.os)
}

/// A finding that the database accepts: its texts may contain anything found in the registry.
fn storable_finding(row: &SyncFinding) -> SyncFinding {
    SyncFinding {
        repository: without_nul(&row.repository),
        tag: without_nul(&row.tag),
        kind: without_nul(&row.kind),
        field: row.field.as_deref().map(without_nul),
        message: storable_message(&row.message),
        os: row.os,
        since: row.since,
    }
}

fn storable_message(text: &str) -> String {
    let mut text = without_nul(text);
    text.truncate(text.floor_char_boundary(MAX_MESSAGE_BYTES));
    text
}

fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// A row of `os_sync_findings` without its project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct FindingRow {
    number: i32,
    repository: String,
    tag: String,
    kind: String,
    field: Option<String>,
    message: String,
    os_id: Option<i32>,
    since_at: Time,
}

impl From<(i32, &SyncFinding)> for FindingRow {
    fn from((number, row): (i32, &SyncFinding)) -> Self {
        let row = row.clone();
        Self {
            number,
            repository: row.repository,
            tag: row.tag,
            kind: row.kind,
            field: row.field,
            message: row.message,
            os_id: row.os.map(|id| id.bits().cast_signed()),
            since_at: row.since,
        }
    }
}

impl From<FindingRow> for SyncFinding {
    fn from(row: FindingRow) -> Self {
        Self {
            repository: row.repository,
            tag: row.tag,
            kind: row.kind,
            field: row.field,
            message: row.message,
            os: row.os_id.map(|id| OsId::from_bits(id.cast_unsigned())),
            since: row.since_at,
        }
    }
}

#[derive(Debug, FromQueryResult)]
struct ReportRow {
    registry: String,
    revision: String,
    outcome: String,
    message: String,
    cycle: i64,
    started_at: Time,
    ended_at: Time,
    created: i32,
    updated: i32,
    unchanged: i32,
    refused: i32,
    findings: JsonColumn<Vec<FindingRow>>,
}

fn from_row(row: &QueryResult) -> Result<SyncReport, StoreError> {
    let row = ReportRow::from_query_result(row, "")?;
    let outcome = CycleOutcome::from_name(&row.outcome);
    Ok(SyncReport {
        registry: row.registry,
        revision: row.revision,
        outcome: or_corrupt(outcome, "os_sync_reports", 0, "outcome")?,
        message: row.message,
        cycle: row.cycle,
        started_at: row.started_at,
        ended_at: row.ended_at,
        created: row.created.cast_unsigned(),
        updated: row.updated.cast_unsigned(),
        unchanged: row.unchanged.cast_unsigned(),
        refused: row.refused.cast_unsigned(),
        findings: row.findings.0.into_iter().map(SyncFinding::from).collect(),
    })
}
