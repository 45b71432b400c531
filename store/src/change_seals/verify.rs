//! Compares the change log with its seals.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_domain::Time;
use evenkeel_domain::change_seal::{
    ChainReport, ChainVerifier, ChangeRetention, ChangeSpan, Seal, SealDigest, VerificationScope,
};
use evenkeel_domain::tenant::TenantId;
use uuid::Uuid;

use super::rows::{SealPosition, read_changes, read_seals};
use crate::error::StoreError;
use crate::pool::Store;
use crate::tx::{FleetTx, query_all, query_one};

/// The maximum number of seals that are read at once.
const SEALS_PER_PAGE: usize = 1_000;

/// The maximum number of changes that are read at once.
const CHANGES_PER_PAGE: usize = 5_000;

/// What to verify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditRequest {
    /// The id of a project, which may be deleted; none for all projects.
    pub project: Option<Uuid>,
    /// Changes that were sealed before are not compared with their seals.
    pub since: Option<Time>,
    /// Digests of seals that the chains must contain.
    pub expected: BTreeSet<SealDigest>,
    /// What the server may have removed.
    pub retention: ChangeRetention,
}

/// The result for one project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectAudit {
    /// None if the project was deleted.
    pub name: Option<String>,
    pub chain: ChainReport,
    /// Changes that were not sealed yet.
    pub unsealed: Option<ChangeSpan>,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    pub projects: BTreeMap<TenantId, ProjectAudit>,
    /// Expected digests that no seal has.
    pub missing: BTreeSet<SealDigest>,
}

impl AuditReport {
    /// Whether nothing was altered. Unsealed changes are no fault.
    #[must_use]
    pub fn is_unaltered(&self) -> bool {
        self.missing.is_empty()
            && self.projects.values().all(|project| project.chain.faults.is_empty())
    }
}

/// Compares the changes and the seals of one project or of all. Reads the log once, in pages, each in a transaction of its
/// own, while servers write, seal and remove.
///
/// # Errors
/// The database cannot be reached, or a row cannot be read.
pub async fn verify(store: &Store, request: &AuditRequest) -> Result<AuditReport, StoreError> {
    let tx = store.fleet().await?;
    let scope = VerificationScope { since: request.since, retention: request.retention };
    let sealed_to = read_sealed_to(&tx).await?;
    drop(tx);
    let project = request.project.map(TenantId::new);
    let mut audit = Audit {
        store,
        project,
        scope,
        expected: request.expected.clone(),
        position: 0,
        verifiers: BTreeMap::new(),
    };
    audit.check_seals(sealed_to).await?;
    audit.read_up_to(sealed_to).await?;
    let mut report = AuditReport { missing: audit.expected, ..AuditReport::default() };
    for (project, verifier) in audit.verifiers {
        report.projects.entry(project).or_default().chain = verifier.finish();
    }
    let tx = store.fleet().await?;
    for (project, span) in read_unsealed(&tx, project, sealed_to).await? {
        report.projects.entry(project).or_default().unsealed = Some(span);
    }
    for (project, name) in read_names(&tx).await? {
        if let Some(audit) = report.projects.get_mut(&project) {
            audit.name = Some(name);
        }
    }
    Ok(report)
}

/// A verification that is going on.
struct Audit<'a> {
    store: &'a Store,
    project: Option<TenantId>,
    scope: VerificationScope,
    /// Expected digests that were not found yet.
    expected: BTreeSet<SealDigest>,
    /// Changes with numbers up to this were read, or need not be read.
    position: i64,
    verifiers: BTreeMap<TenantId, ChainVerifier>,
}

impl Audit<'_> {
    /// Checks all seals that cover changes with numbers up to `sealed_to`.
    async fn check_seals(&mut self, sealed_to: i64) -> Result<(), StoreError> {
        let mut after = SealPosition::START;
        loop {
            let tx = self.store.fleet().await?;
            let mut page = read_seals(&tx, self.project, after, SEALS_PER_PAGE).await?;
            drop(tx);
            page.retain(|seal| seal.up_to <= sealed_to);
            page.truncate(count_seals_to_check(&page));
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = SealPosition::after(last);
            self.read_changes_of(&page).await?;
            let now = self.store.fleet().await?.database_time();
            for seal in page {
                self.expected.remove(&seal.digest);
                self.verifier(seal.tenant).check_seal(seal, now);
            }
        }
    }

    /// Reads the changes that seals cover, unless none of them must be compared.
    async fn read_changes_of(&mut self, page: &[Seal]) -> Result<(), StoreError> {
        // An altered seal may be out of order.
        let up_to = page.iter().map(|seal| seal.up_to).max().unwrap_or(self.position);
        let since = self.scope.since;
        if page.iter().any(|seal| since.is_none_or(|since| since <= seal.sealed_at)) {
            self.read_up_to(up_to).await
        } else {
            self.position = self.position.max(up_to);
            Ok(())
        }
    }

    /// Reads the changes from the position on.
    async fn read_up_to(&mut self, up_to: i64) -> Result<(), StoreError> {
        while self.position < up_to {
            let tx = self.store.fleet().await?;
            let range = (self.position, up_to);
            let changes = read_changes(&tx, self.project, range, CHANGES_PER_PAGE).await?;
            drop(tx);
            let is_end = changes.len() < CHANGES_PER_PAGE;
            let last = changes.last().map(|(_, change)| change.number);
            self.position = last.filter(|_| !is_end).unwrap_or(up_to);
            for (project, change) in changes {
                self.verifier(project).add_change(change);
            }
        }
        Ok(())
    }

    fn verifier(&mut self, project: TenantId) -> &mut ChainVerifier {
        let scope = self.scope;
        self.verifiers.entry(project).or_insert_with(|| ChainVerifier::new(scope))
    }
}

/// How many seals of a page are checked at once, so that their changes fit into memory: at least one.
fn count_seals_to_check(page: &[Seal]) -> usize {
    let limit = u64::try_from(CHANGES_PER_PAGE).unwrap_or(u64::MAX);
    let mut changes = 0;
    let fitting = page.iter().take_while(|seal| {
        changes += seal.count();
        changes <= limit
    });
    fitting.count().max(1)
}

async fn read_sealed_to(tx: &FleetTx) -> Result<i64, StoreError> {
    let row = query_one(tx.conn(), "SELECT sealed_to FROM change_seal_state", []).await?;
    let row =
        row.ok_or(StoreError::Corrupt { table: "change_seal_state", row: 0, column: "sealed_to" })?;
    Ok(row.try_get_by_index(0)?)
}

/// The number and the times of the changes with numbers above `sealed_to`, per project.
async fn read_unsealed(
    tx: &FleetTx,
    project: Option<TenantId>,
    sealed_to: i64,
) -> Result<Vec<(TenantId, ChangeSpan)>, StoreError> {
    let sql = "SELECT c.tenant_id, count(*), min(c.at), max(c.at) FROM change_log c \
               WHERE c.seq > $1 AND ($2::uuid IS NULL OR c.tenant_id = $2) GROUP BY c.tenant_id";
    let project = project.map(TenantId::uuid);
    let mut unsealed = Vec::new();
    for row in query_all(tx.conn(), sql, [sealed_to.into(), project.into()]).await? {
        let count: i64 = row.try_get_by_index(1)?;
        let (first_at, last_at) = (row.try_get_by_index(2)?, row.try_get_by_index(3)?);
        let span = ChangeSpan { count: count.cast_unsigned(), first_at, last_at };
        unsealed.push((TenantId::new(row.try_get_by_index(0)?), span));
    }
    Ok(unsealed)
}

async fn read_names(tx: &FleetTx) -> Result<Vec<(TenantId, String)>, StoreError> {
    let sql = "SELECT tenant_id, name FROM projects WHERE removed_at IS NULL";
    let mut names = Vec::new();
    for row in query_all(tx.conn(), sql, []).await? {
        names.push((TenantId::new(row.try_get_by_index(0)?), row.try_get_by_index(1)?));
    }
    Ok(names)
}
