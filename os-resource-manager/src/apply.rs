//! Applies the fetched content of a registry to the projects that selected it, and writes each project's sync report.
//!
//! Nothing here contacts a registry: the result of the last cycle is in the database. Several replicas may apply the same
//! content to one project at once; the result is one set of rows.

mod report_builder;
mod unsynced;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{CatalogSelection, CycleOutcome, ResolvedSelection};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::chain::chain;
use evenkeel_registry::FindingKind;
use evenkeel_store::contents::{self, ContentDigest};
use evenkeel_store::os_catalogue::{self, CycleState};
use evenkeel_store::os_details::{self, ImportedOs};
use evenkeel_store::os_reports::{self, SyncReport};
use evenkeel_store::{Store, StoreError, os_profiles, os_settings};

use self::report_builder::ReportBuilder;
use crate::plan::{GoneRevision, Plan, RegistryContent, plan};
use crate::sources::{Source, Sources};

/// Each new OS profile wakes the nodes with open long polls, so one transaction imports only a few.
const MAX_PROFILES_PER_TRANSACTION: usize = 20;

const MAX_LOOKUPS_PER_TRANSACTION: usize = 100;

/// Applies registry content to projects. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Applier {
    store: Store,
    /// Defaults for projects that do not set a part of their selection.
    defaults: CatalogSelection,
    sources: Arc<Sources>,
    /// Selections of projects without a report for which a cycle was already requested. The import into such a
    /// project may fail and be retried many times; the registry must not be fetched each time.
    requested: Arc<Mutex<HashMap<TenantId, ResolvedSelection>>>,
}

/// A project's selection, checked against the server's registries.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SelectionState {
    /// Nothing is selected.
    Empty,
    /// The selection cannot be applied; the reason.
    Invalid(String),
    /// A complete selection of a registry that the server knows.
    Complete(ResolvedSelection),
}

/// The plan for one selection, and the state of the registry that it is based on.
#[derive(Debug)]
struct PlannedSync {
    plan: Plan,
    cycle: i64,
    /// Start of the last cycle, if there was one.
    fetched_at: Option<Time>,
    /// Error of the last cycle, if it failed.
    failure: Option<String>,
}

impl Applier {
    pub(crate) fn new(store: Store, defaults: CatalogSelection, sources: Arc<Sources>) -> Self {
        Self { store, defaults, sources, requested: Arc::default() }
    }

    /// The distinct selections of one registry over all projects.
    pub(crate) async fn list_selections(
        &self,
        registry: &str,
    ) -> Result<Vec<ResolvedSelection>, StoreError> {
        let groups = self.group_by_selection(registry).await?.into_iter();
        Ok(groups.map(|(resolved, _)| resolved).collect())
    }

    /// Applies the registry's content to all projects that selected it. Returns the number of projects.
    ///
    /// A cycle calls it after it fetched the selections in `gathered`; after a failed cycle it is called without
    /// them, and writes the error into the reports. A project that changed its selection during the cycle is skipped
    /// without a report, because its new selection was not fetched.
    /// [`apply_to_unsynced`](Self::apply_to_unsynced) finds it later.
    ///
    /// # Errors
    /// The database is unreachable. An error of one project does not affect the others.
    pub(crate) async fn apply_to_all(
        &self,
        registry: &str,
        gathered: Option<&[ResolvedSelection]>,
    ) -> Result<u64, StoreError> {
        let Some(source) = self.sources.find(registry) else {
            return Ok(0);
        };
        let mut done = 0;
        let mut counts = BTreeMap::new();
        let groups = self.group_by_selection(registry).await?.into_iter();
        let in_cycle = gathered.is_some();
        let gathered = gathered.map(|gathered| gathered.iter().collect::<HashSet<_>>());
        let is_known = |resolved: &ResolvedSelection| {
            gathered.as_ref().is_none_or(|gathered| gathered.contains(resolved))
        };
        for (resolved, tenants) in groups.filter(|(resolved, _)| is_known(resolved)) {
            let Some(planned) = self.plan_sync(&resolved, &source, in_cycle).await? else {
                return Ok(0);
            };
            for tenant in tenants {
                match self.apply_plan(tenant, &resolved, &planned).await {
                    Ok(Some(report)) => {
                        done += 1;
                        count_findings(&mut counts, &report);
                    }
                    Ok(None) => {}
                    Err(error) => skip_failed_project(tenant, error)?,
                }
            }
        }
        record_findings(registry, &counts);
        Ok(done)
    }

    /// Applies the known content to one project. Returns false if nothing is known yet for its selection, or if the
    /// selection changed since its registry was requested.
    ///
    /// # Errors
    /// The database is unreachable, or the project is being deleted.
    async fn apply_to_project(
        &self,
        tenant: TenantId,
        state: &SelectionState,
    ) -> Result<bool, StoreError> {
        let selection = self.load_selection(tenant).await?;
        if self.resolve_selection(&selection) != *state {
            return Ok(false);
        }
        let SelectionState::Complete(resolved) = state else {
            return self.report_unresolved(tenant, &selection, state).await;
        };
        // The registry was found a moment ago.
        let Some(source) = self.sources.find(&resolved.registry) else {
            return Ok(false);
        };
        let Some(planned) = self.plan_sync(resolved, &source, false).await? else {
            return Ok(false);
        };
        Ok(self.apply_plan(tenant, resolved, &planned).await?.is_some())
    }

    async fn load_selection(&self, tenant: TenantId) -> Result<CatalogSelection, StoreError> {
        let tx = self.store.tenant(tenant).await?;
        let selection = os_settings::find(&tx).await?;
        Ok(selection.unwrap_or_default().or_defaults(&self.defaults))
    }

    fn resolve_selection(&self, selection: &CatalogSelection) -> SelectionState {
        match selection.resolve() {
            Ok(None) => SelectionState::Empty,
            Err(invalid) => SelectionState::Invalid(invalid.to_string()),
            Ok(Some(resolved)) if self.sources.find(&resolved.registry).is_none() => {
                let registry = resolved.registry;
                SelectionState::Invalid(format!("the server has no registry called {registry}"))
            }
            Ok(Some(resolved)) => SelectionState::Complete(resolved),
        }
    }

    /// The projects that selected a registry, grouped by equal selections.
    async fn group_by_selection(
        &self,
        registry: &str,
    ) -> Result<HashMap<ResolvedSelection, Vec<TenantId>>, StoreError> {
        let tx = self.store.fleet().await?;
        let selections = os_settings::all(&tx).await?;
        drop(tx);
        let mut groups: HashMap<ResolvedSelection, Vec<TenantId>> = HashMap::new();
        for (tenant, selection) in selections {
            let selection = selection.unwrap_or_default().or_defaults(&self.defaults);
            // Errors of a selection were reported when they were noticed.
            let Ok(Some(resolved)) = selection.resolve() else {
                continue;
            };
            if resolved.registry != registry {
                continue;
            }
            groups.entry(resolved).or_default().push(tenant);
        }
        Ok(groups)
    }

    /// Plans the sync of one selection. `None` if no cycle of the registry has ended yet.
    async fn plan_sync(
        &self,
        resolved: &ResolvedSelection,
        source: &Source,
        in_cycle: bool,
    ) -> Result<Option<PlannedSync>, StoreError> {
        let name = |profile: &String| format!("{}{profile}", source.prefix);
        let repositories: Vec<String> = resolved.enabled.iter().map(name).collect();
        let tx = self.store.fleet().await?;
        let Some(state) = os_catalogue::state(&tx, &resolved.registry).await? else {
            return Ok(None);
        };
        let is_claimed = in_cycle && state.claimed.is_some();
        if !is_claimed && state.ended_at.is_none() {
            return Ok(None);
        }
        let artifacts =
            os_catalogue::list_artifacts(&tx, &resolved.registry, &repositories).await?;
        let attachments = os_catalogue::list_attachments(&tx, &resolved.registry).await?;
        let now = tx.database_time();
        drop(tx);
        let content = RegistryContent {
            prefix: &source.prefix,
            trust: source.trust,
            artifacts: &artifacts,
            attachments: &attachments,
        };
        Ok(Some(PlannedSync {
            plan: plan(resolved, &content, now),
            cycle: if is_claimed { state.claimed } else { None }.unwrap_or(state.done),
            fetched_at: state.started_at,
            failure: last_failure(state, is_claimed),
        }))
    }

    /// Imports a plan into a project. `None` if the project changed its selection, or if a document was replaced in the
    /// meantime: then a cycle is running, and applies the new content itself.
    async fn apply_plan(
        &self,
        tenant: TenantId,
        resolved: &ResolvedSelection,
        planned: &PlannedSync,
    ) -> Result<Option<SyncReport>, StoreError> {
        let begun = self.store.database_time().await?;
        let plan = &planned.plan;
        if !self.store_documents(tenant, &resolved.registry, plan).await? {
            return Ok(None);
        }
        let mut builder = ReportBuilder::new(plan);
        for profiles in plan.profiles.chunks(MAX_PROFILES_PER_TRANSACTION) {
            self.import_profiles(tenant, profiles, &mut builder).await?;
        }
        for revisions in plan.gone.chunks(MAX_LOOKUPS_PER_TRANSACTION) {
            self.find_gone_profiles(tenant, revisions, &mut builder).await?;
        }
        let outcome = match planned.failure {
            Some(_) => CycleOutcome::Failed,
            None => builder.outcome(),
        };
        let started = planned.fetched_at.unwrap_or(begun);
        let ended = self.store.database_time().await?.max(started);
        let report = SyncReport {
            registry: resolved.registry.clone(),
            revision: resolved.revision.to_string(),
            outcome,
            message: planned.failure.clone().unwrap_or_default(),
            cycle: planned.cycle,
            started_at: started,
            ended_at: ended,
            created: builder.created,
            updated: builder.updated,
            unchanged: builder.unchanged,
            refused: builder.refused,
            findings: builder.findings(ended),
        };
        let state = SelectionState::Complete(resolved.clone());
        let is_stored = self.store_report(tenant, &state, &report).await?;
        Ok(is_stored.then_some(report))
    }

    /// Copies the documents of a plan into a project. Each gets its own transaction, because documents are large. Returns
    /// false if a document was replaced in the meantime.
    async fn store_documents(
        &self,
        tenant: TenantId,
        registry: &str,
        plan: &Plan,
    ) -> Result<bool, StoreError> {
        let mut there: HashSet<ContentDigest> = HashSet::new();
        let digests: Vec<&ContentDigest> = plan.documents.keys().collect();
        for some in digests.chunks(MAX_LOOKUPS_PER_TRANSACTION) {
            let tx = self.store.tenant(tenant).await?;
            for digest in some {
                if contents::touch(&tx, digest, tx.database_time()).await? {
                    there.insert(**digest);
                }
            }
            tx.commit().await?;
        }
        for (digest, key) in &plan.documents {
            if there.contains(digest) {
                continue;
            }
            let tx = self.store.fleet().await?;
            let body = os_catalogue::attachment_body(&tx, registry, key).await?;
            drop(tx);
            let Some(body) = body.filter(|body| has_digest(body, digest)) else {
                return Ok(false);
            };
            let tx = self.store.tenant(tenant).await?;
            contents::insert_if_missing(&tx, digest, &body, tx.database_time()).await?;
            tx.commit().await?;
        }
        Ok(true)
    }

    /// Imports OS profiles into a project.
    async fn import_profiles<'a>(
        &self,
        tenant: TenantId,
        some: &'a [ImportedOs],
        builder: &mut ReportBuilder<'a>,
    ) -> Result<(), StoreError> {
        let tx = self.store.tenant(tenant).await?;
        let now = tx.database_time();
        let mut outcomes = Vec::with_capacity(some.len());
        for profile in some {
            match os_details::import(&tx, profile, now).await {
                Ok(one) => outcomes.push(Ok(one)),
                // The conflict was found before anything was written, so the transaction can continue.
                Err(StoreError::Conflict(conflict)) => outcomes.push(Err(conflict)),
                Err(error) => return Err(error),
            }
        }
        tx.commit().await?;
        for (profile, outcome) in some.iter().zip(outcomes) {
            match outcome {
                Ok(outcome) => builder.add_outcome(profile, outcome),
                Err(conflict) => builder.add_conflict(profile, &conflict),
            }
        }
        Ok(())
    }

    /// Reports the OS profiles whose revision is gone from the registry.
    async fn find_gone_profiles(
        &self,
        tenant: TenantId,
        some: &[GoneRevision],
        builder: &mut ReportBuilder<'_>,
    ) -> Result<(), StoreError> {
        let tx = self.store.tenant(tenant).await?;
        for revision in some {
            let os =
                os_profiles::find_image(&tx, &revision.profile_name, &revision.image_id).await?;
            if let Some(os) = os {
                builder.add_gone(revision, os.id);
            }
        }
        Ok(())
    }

    /// Writes a report that says why nothing is taken.
    async fn report_unresolved(
        &self,
        tenant: TenantId,
        selection: &CatalogSelection,
        state: &SelectionState,
    ) -> Result<bool, StoreError> {
        let (outcome, message) = match state {
            SelectionState::Invalid(why) => (CycleOutcome::Failed, why.clone()),
            _ => (CycleOutcome::Good, String::new()),
        };
        let now = self.store.database_time().await?;
        let report = SyncReport {
            registry: selection.registry.clone().unwrap_or_default(),
            revision: selection.revision.clone().unwrap_or_default(),
            outcome,
            message,
            cycle: 0,
            started_at: now,
            ended_at: now,
            created: 0,
            updated: 0,
            unchanged: 0,
            refused: 0,
            findings: Vec::new(),
        };
        self.store_report(tenant, state, &report).await
    }

    /// Writes the report of a project. Returns false if the selection changed, or if a later cycle has been reported.
    async fn store_report(
        &self,
        tenant: TenantId,
        state: &SelectionState,
        report: &SyncReport,
    ) -> Result<bool, StoreError> {
        let tx = self.store.tenant(tenant).await?;
        // A concurrent change of the selection waits for this lock, and then deletes this report.
        tx.lock_for_change().await?;
        let selection = os_settings::find(&tx).await?.unwrap_or_default();
        if self.resolve_selection(&selection.or_defaults(&self.defaults)) != *state {
            return Ok(false);
        }
        let before = os_reports::find(&tx).await?;
        let is_later =
            |before: SyncReport| before.registry == report.registry && before.cycle > report.cycle;
        if before.is_some_and(is_later) {
            return Ok(false);
        }
        os_reports::replace(&tx, report).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Error of the last cycle, if it failed. A running cycle has reached the registry, so it has no error.
fn last_failure(state: CycleState, is_claimed: bool) -> Option<String> {
    (!is_claimed && state.outcome == Some(CycleOutcome::Failed)).then_some(state.message)
}

fn has_digest(body: &str, digest: &ContentDigest) -> bool {
    evenkeel_registry::Digest::compute(body.as_bytes()).bytes() == digest
}

/// Ignores an error of one project, so that the others continue. Returns the error if the database is unreachable.
fn skip_failed_project(tenant: TenantId, error: StoreError) -> Result<(), StoreError> {
    if matches!(error, StoreError::Unreachable(_)) {
        return Err(error);
    }
    // The project is being deleted, or a lock was held for too long. The next cycle tries again.
    tracing::warn!(%tenant, error = %chain(&error), "cannot import operating systems into a project");
    Ok(())
}

fn count_findings(counts: &mut BTreeMap<String, u32>, report: &SyncReport) {
    for row in &report.findings {
        *counts.entry(row.kind.clone()).or_default() += 1;
    }
}

/// Sets the metrics of the findings in a registry, summed over all projects.
fn record_findings(registry: &str, counts: &BTreeMap<String, u32>) {
    for kind in FindingKind::ALL {
        let labels = [("registry", registry.to_owned()), ("kind", kind.name().to_owned())];
        let count = counts.get(kind.name()).copied().unwrap_or_default();
        metrics::gauge!("evenkeel_os_findings", &labels).set(count);
    }
}
