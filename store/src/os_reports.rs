//! How the last sync of each project with its registry went.

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_domain::tenant::TenantId;
use sea_orm::{FromQueryResult, QueryResult};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::rows::{Kept, named};
use crate::tx::{FleetTx, Tx, all, execute, one};

/// The most findings that are kept of one sync.
pub const MAX_FINDINGS: usize = 1_000;

/// The longest message, in bytes. A longer one is cut.
const LONGEST_MESSAGE: usize = 1_000;

/// How a sync went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The name that the server knows the registry by.
    pub registry: String,
    /// What was wanted of it.
    pub revision: String,
    /// How it ended.
    pub outcome: CycleOutcome,
    /// Why it ended so; empty if it is good.
    pub message: String,
    /// The number of the cycle in which the registry was asked.
    pub cycle: i64,
    /// When that was begun.
    pub started_at: Time,
    /// When all was brought into the project.
    pub ended_at: Time,
    /// How many operating systems were made.
    pub made: u32,
    /// How many came to say something else.
    pub refreshed: u32,
    /// How many stayed as they were.
    pub same: u32,
    /// How many profiles were not taken.
    pub refused: u32,
    /// What was found; at most [`MAX_FINDINGS`] are kept.
    pub findings: Vec<Row>,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where in the registry; empty if it concerns no repository.
    pub repository: String,
    /// At which tag; empty if it concerns none.
    pub tag: String,
    /// The stable name of what it is; at most 40 characters.
    pub kind: String,
    /// Which field of a profile it concerns, if one.
    pub field: Option<String>,
    /// For people; at most 1,000 bytes are kept.
    pub message: String,
    /// The operating system that it concerns, if one.
    pub os: Option<OsId>,
    /// Since when each sync finds it.
    pub since: Time,
}

/// Writes how a sync of the project went, in place of the one before. Since when something is found stays as it was,
/// if the one before has found the same. NUL, which the database does not take, becomes a sign that shows it.
///
/// # Errors
/// The kind of a finding is empty or too long.
pub async fn replace(tx: &Tx, report: &Report) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let before = find(tx)
        .await?
        .map_or_else(Vec::new, |report| report.findings);
    let known: HashMap<_, _> = before.iter().map(|row| (key(row), row.since)).collect();
    let mut findings: Vec<Row> = report.findings.iter().take(MAX_FINDINGS).map(fit).collect();
    for row in &mut findings {
        let since = known.get(&key(row)).copied();
        row.since = since.unwrap_or(row.since);
    }
    write(tx, report).await?;
    let sql = "DELETE FROM os_sync_findings WHERE tenant_id = $1";
    execute(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    let findings: Vec<_> = (1..).zip(&findings).map(FindingRow::from).collect();
    let sql = "INSERT INTO os_sync_findings (tenant_id, number, repository, tag, kind, field, message, os_id, since_at) \
               SELECT $1::uuid, f.number, f.repository, f.tag, f.kind, f.field, f.message, f.os_id, f.since_at \
               FROM jsonb_to_recordset($2::jsonb) AS f (number integer, repository text, tag text, kind text, \
               field text, message text, os_id integer, since_at timestamptz)";
    let values = [tx.tenant().uuid().into(), Kept(findings).into()];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// How the last sync of the project went; none if there was none since its settings were changed.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(tx: &Tx) -> Result<Option<Report>, StoreError> {
    let sql = "SELECT r.registry, r.revision, r.outcome, r.message, r.cycle, r.started_at, r.ended_at, r.made, \
               r.refreshed, r.same, r.refused, (SELECT coalesce(json_agg(f ORDER BY f.number), '[]'::json) \
               FROM os_sync_findings f WHERE f.tenant_id = r.tenant_id) AS findings \
               FROM os_sync_reports r WHERE r.tenant_id = $1";
    let row = one(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    row.as_ref().map(from_row).transpose()
}

/// Projects of which it is not known how their last sync went, at most so many; those that say themselves what they
/// want come first.
///
/// # Errors
/// The database cannot be reached.
pub async fn missing(tx: &FleetTx, limit: u32) -> Result<Vec<TenantId>, StoreError> {
    let sql = "SELECT p.tenant_id FROM projects p LEFT JOIN os_settings s ON s.tenant_id = p.tenant_id \
               WHERE NOT EXISTS (SELECT FROM os_sync_reports r WHERE r.tenant_id = p.tenant_id) \
               ORDER BY s.tenant_id IS NULL, p.tenant_id LIMIT $1";
    let mut projects = Vec::new();
    for row in all(tx.conn(), sql, [i64::from(limit).into()]).await? {
        projects.push(TenantId::new(row.try_get_by_index(0)?));
    }
    Ok(projects)
}

async fn write(tx: &Tx, report: &Report) -> Result<(), StoreError> {
    let sql = "INSERT INTO os_sync_reports (tenant_id, registry, revision, outcome, message, cycle, started_at, ended_at, \
               made, refreshed, same, refused) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
               ON CONFLICT (tenant_id) DO UPDATE SET registry = excluded.registry, revision = excluded.revision, \
               outcome = excluded.outcome, message = excluded.message, cycle = excluded.cycle, \
               started_at = excluded.started_at, ended_at = excluded.ended_at, made = excluded.made, \
               refreshed = excluded.refreshed, same = excluded.same, refused = excluded.refused";
    let values = [
        tx.tenant().uuid().into(),
        report.registry.as_str().into(),
        report.revision.as_str().into(),
        report.outcome.name().into(),
        message(&report.message).into(),
        report.cycle.into(),
        report.started_at.into(),
        report.ended_at.into(),
        report.made.cast_signed().into(),
        report.refreshed.cast_signed().into(),
        report.same.cast_signed().into(),
        report.refused.cast_signed().into(),
    ];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// All of a finding but since when it is found.
type Key<'a> = (
    &'a str,
    &'a str,
    &'a str,
    Option<&'a str>,
    &'a str,
    Option<OsId>,
);

fn key(row: &Row) -> Key<'_> {
    (
        &row.repository,
        &row.tag,
        &row.kind,
        row.field.as_deref(),
        &row.message,
        row.os,
    )
}

/// A finding as it can be kept: what was found may be in its texts.
fn fit(row: &Row) -> Row {
    Row {
        repository: without_nul(&row.repository),
        tag: without_nul(&row.tag),
        kind: without_nul(&row.kind),
        field: row.field.as_deref().map(without_nul),
        message: message(&row.message),
        os: row.os,
        since: row.since,
    }
}

fn message(text: &str) -> String {
    let mut text = without_nul(text);
    text.truncate(text.floor_char_boundary(LONGEST_MESSAGE));
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

impl From<(i32, &Row)> for FindingRow {
    fn from((number, row): (i32, &Row)) -> Self {
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

impl From<FindingRow> for Row {
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
    made: i32,
    refreshed: i32,
    same: i32,
    refused: i32,
    findings: Kept<Vec<FindingRow>>,
}

fn from_row(row: &QueryResult) -> Result<Report, StoreError> {
    let row = ReportRow::from_query_result(row, "")?;
    let outcome = CycleOutcome::from_name(&row.outcome);
    Ok(Report {
        registry: row.registry,
        revision: row.revision,
        outcome: named(outcome, "os_sync_reports", 0, "outcome")?,
        message: row.message,
        cycle: row.cycle,
        started_at: row.started_at,
        ended_at: row.ended_at,
        made: row.made.cast_unsigned(),
        refreshed: row.refreshed.cast_unsigned(),
        same: row.same.cast_unsigned(),
        refused: row.refused.cast_unsigned(),
        findings: row.findings.0.into_iter().map(Row::from).collect(),
    })
}
