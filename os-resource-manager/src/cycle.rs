//! One sync cycle: fetches a registry once for all projects, from the claim of the cycle to its end.
//!
//! Results are stored at once. If the process is killed, the next one continues and need not fetch them again. A process
//! that lost the claim stores nothing more.

mod listing;
mod outcome;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{CatalogFile, CycleOutcome, CycleStep, ResolvedSelection};
use evenkeel_registry::copy::to_finding;
use evenkeel_registry::{Finding, FindingKind, RegistryError};
use evenkeel_store::StoreError;
use evenkeel_store::os_catalogue::{self, Artifact, CycleClaim, CycleResult, Progress};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use self::listing::ListedProfile;
use self::outcome::Tally;
use crate::fetch::{FetchedRevision, Fetcher, Revision, finding_json, is_registry_wide};
use crate::manager::Engine;
use crate::sources::Source;

/// How long a claim is valid after its last renewal.
pub(crate) const LEASE: TimeDelta = TimeDelta::minutes(1);

const LEASE_RENEWAL_INTERVAL: Duration = Duration::from_secs(15);

/// How often the holder reports its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Limit for fetching in all. The next cycle fetches what is missing.
const FETCH_TIMEOUT: Duration = Duration::from_mins(30);

/// Limit for one revision, so that a slow one does not block the others.
const REVISION_TIMEOUT: Duration = Duration::from_mins(5);

/// Most attachments that one transaction deletes: each has a document of up to megabytes.
const ATTACHMENTS_PER_DELETION: u32 = 100;

/// Most transactions that delete attachments in one sync.
const MAX_DELETIONS_PER_SYNC: usize = 100;

/// Upper bound for the wait that a registry may ask for.
const MAX_RETRY_AFTER: TimeDelta = TimeDelta::hours(1);

/// A running cycle.
#[derive(Debug)]
pub(crate) struct Cycle<'a> {
    pub engine: &'a Engine,
    pub claim: CycleClaim,
    pub source: Arc<Source>,
    progress: Mutex<Progress>,
    tally: Mutex<Tally>,
}

/// Why a cycle stopped early.
#[derive(Debug)]
pub(crate) enum CycleStop {
    /// Another process has claimed it.
    ClaimLost,
    /// This process is shutting down.
    Shutdown,
    /// The registry as a whole is unavailable.
    Registry(RegistryError),
    /// The database is unreachable.
    Store(StoreError),
}

impl From<StoreError> for CycleStop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<RegistryError> for CycleStop {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

impl<'a> Cycle<'a> {
    pub(crate) fn new(engine: &'a Engine, claim: CycleClaim, source: Arc<Source>) -> Self {
        Self {
            engine,
            claim,
            source,
            progress: Mutex::new(Progress { step: CycleStep::Listing, finished: 0, total: 0 }),
            tally: Mutex::default(),
        }
    }

    /// Runs the cycle to its end, or until the process shuts down. Returns whether the cycle has ended.
    ///
    /// # Errors
    /// The database is unreachable. Another process can claim the cycle when the lease expires.
    pub(crate) async fn run(&self, stopping: &CancellationToken) -> Result<bool, StoreError> {
        let begun = Instant::now();
        let result = tokio::select! {
            result = Box::pin(self.sync()) => result,
            stop = self.hold_claim() => Err(stop),
            () = stopping.cancelled() => Err(CycleStop::Shutdown),
        };
        let registry = self.claim.registry.as_str();
        let ended = match result {
            Ok(()) => self.tally().to_result(),
            Err(CycleStop::Registry(error)) => {
                registry_failure(&error, self.engine.store.database_time().await?)
            }
            Err(CycleStop::Store(error)) => return Err(error),
            Err(CycleStop::ClaimLost) => {
                tracing::warn!(registry, "another process took over the sync");
                return Ok(false);
            }
            Err(CycleStop::Shutdown) => {
                // Ends the lease, so that the next process can continue at once.
                self.renew_claim(TimeDelta::zero()).await?;
                return Ok(false);
            }
        };
        let tx = self.engine.store.fleet().await?;
        let is_held = os_catalogue::finish(&tx, &self.claim, &ended).await?;
        tx.commit().await?;
        if !is_held {
            tracing::warn!(registry, "another process took over the sync");
            return Ok(false);
        }
        self.record_result(&ended, begun.elapsed());
        if ended.outcome == CycleOutcome::Failed {
            // The reports say why there is nothing new.
            self.engine.applier.apply_to_all(registry, None).await?;
        }
        Ok(true)
    }

    /// The work of the cycle, done while it holds the claim.
    async fn sync(&self) -> Result<(), CycleStop> {
        let (applier, registry) = (&self.engine.applier, self.claim.registry.as_str());
        let selections = applier.list_selections(registry).await?;
        match timeout(FETCH_TIMEOUT, Box::pin(self.fetch(&selections))).await {
            Ok(gathered) => gathered?,
            Err(_) => self.tally().is_late = true,
        }
        self.begin_step(CycleStep::Applying, 0);
        applier.apply_to_all(registry, Some(&selections)).await?;
        Ok(())
    }

    /// Fetches the selected revisions and their attachments.
    async fn fetch(&self, selections: &[ResolvedSelection]) -> Result<(), CycleStop> {
        let listed = self.list_profiles(selections).await?;
        let files = self.fetch_revisions(&listed).await?;
        self.mark_gone(&listed).await?;
        let missing = self.fetch_attachments(&files).await?;
        self.tally().documents += missing;
        self.delete_unused_attachments().await
    }

    /// Deletes the attachments that no revision refers to. The next sync continues after many.
    async fn delete_unused_attachments(&self) -> Result<(), CycleStop> {
        for _ in 0..MAX_DELETIONS_PER_SYNC {
            let tx = self.engine.store.fleet().await?;
            let limit = ATTACHMENTS_PER_DELETION;
            let deleted = os_catalogue::delete_unused_attachments(&tx, &self.claim, limit).await?;
            tx.commit().await?;
            if deleted < u64::from(limit) {
                break;
            }
        }
        Ok(())
    }

    /// Fetches all selected revisions. Returns the files of each usable revision.
    async fn fetch_revisions(
        &self,
        listed: &[ListedProfile],
    ) -> Result<Vec<Vec<CatalogFile>>, CycleStop> {
        let mut revisions = self.load_revisions(listed).await?;
        // Revisions that failed last time come last, so that they do not block the others.
        revisions.sort_by_key(|revision| {
            let before = revision.before.as_ref();
            before.is_some_and(outcome::is_incomplete)
        });
        self.begin_step(CycleStep::Fetching, revisions.len());
        let fetcher = Fetcher(&self.source);
        stream::iter(revisions)
            .map(|revision| self.fetch_revision(fetcher, revision))
            .buffer_unordered(self.engine.settings.parallel)
            .try_fold(Vec::new(), |mut all, files| async move {
                self.count_finished();
                all.push(files);
                Ok(all)
            })
            .await
    }

    /// Fetches one revision and stores the result. Returns its files.
    async fn fetch_revision(
        &self,
        fetcher: Fetcher<'_>,
        revision: Revision,
    ) -> Result<Vec<CatalogFile>, CycleStop> {
        let result = match timeout(REVISION_TIMEOUT, fetcher.fetch(&revision)).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) if is_registry_wide(&error) => return Err(error.into()),
            Ok(Err(error)) => FetchedRevision::Changed(revision.with_failure(&to_finding(&error))),
            Err(_) => {
                let minutes = REVISION_TIMEOUT.as_secs() / 60;
                let why = format!("it did not arrive within {minutes} minutes");
                let finding = Finding::new(FindingKind::Unreachable, why);
                FetchedRevision::Changed(revision.with_failure(&finding))
            }
        };
        let artifact = match result {
            FetchedRevision::Vanished => return Ok(Vec::new()),
            FetchedRevision::Unchanged(artifact) => {
                self.mark_seen(&artifact.repository, vec![artifact.tag.clone()]).await?;
                artifact
            }
            FetchedRevision::Changed(artifact) => self.store_revision(&revision, artifact).await?,
        };
        if outcome::is_incomplete(&artifact) {
            self.tally().revisions += 1;
        }
        Ok(artifact.files)
    }

    /// Stores a revision. If the database rejects it, a finding is stored instead, and the cycle continues.
    async fn store_revision(
        &self,
        revision: &Revision,
        artifact: Artifact,
    ) -> Result<Artifact, CycleStop> {
        match self.store_artifact(&artifact).await {
            Ok(()) => Ok(artifact),
            Err(CycleStop::Store(error @ (StoreError::Conflict(_) | StoreError::Database(_)))) => {
                let (repository, tag) = (&artifact.repository, &artifact.tag);
                tracing::warn!(repository, tag, %error, "cannot store a revision");
                let why = "the database cannot store it";
                let finding = Finding::new(FindingKind::NotAProfile, why);
                let artifact = revision.unusable_artifact(&finding);
                self.store_artifact(&artifact).await?;
                Ok(artifact)
            }
            Err(stop) => Err(stop),
        }
    }

    async fn store_artifact(&self, artifact: &Artifact) -> Result<(), CycleStop> {
        let tx = self.engine.store.fleet().await?;
        if !os_catalogue::store_artifact(&tx, &self.claim, artifact).await? {
            return Err(CycleStop::ClaimLost);
        }
        tx.commit().await?;
        Ok(())
    }

    async fn mark_seen(&self, repository: &str, tags: Vec<String>) -> Result<(), CycleStop> {
        let tx = self.engine.store.fleet().await?;
        if !os_catalogue::mark_seen(&tx, &self.claim, repository, &tags).await? {
            return Err(CycleStop::ClaimLost);
        }
        tx.commit().await?;
        Ok(())
    }

    /// Begins a step that has `total` parts.
    pub(crate) fn begin_step(&self, step: CycleStep, total: usize) {
        *self.progress() =
            Progress { step, finished: 0, total: u32::try_from(total).unwrap_or(u32::MAX) };
    }

    /// Counts one finished part.
    pub(crate) fn count_finished(&self) {
        self.progress().finished += 1;
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the claim until it is lost.
    async fn hold_claim(&self) -> CycleStop {
        let mut ticks = interval(PROGRESS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sent: Option<Progress> = None;
        let mut last = Instant::now();
        loop {
            ticks.tick().await;
            let progress = *self.progress();
            if sent == Some(progress) && last.elapsed() < LEASE_RENEWAL_INTERVAL {
                continue;
            }
            let begun = Instant::now();
            match self.renew_claim(LEASE).await {
                Ok(true) => (sent, last) = (Some(progress), begun),
                Ok(false) => return CycleStop::ClaimLost,
                Err(_) if last.elapsed() < LEASE.to_std().unwrap_or_default() => {}
                Err(error) => return CycleStop::Store(error),
            }
        }
    }

    async fn renew_claim(&self, lease: TimeDelta) -> Result<bool, StoreError> {
        let progress = *self.progress();
        let tx = self.engine.store.fleet().await?;
        let is_held = os_catalogue::report_progress(&tx, &self.claim, &progress, lease).await?;
        tx.commit().await?;
        Ok(is_held)
    }

    fn record_result(&self, ended: &CycleResult, took: Duration) {
        let registry = self.claim.registry.as_str();
        let outcome = ended.outcome.name();
        metrics::counter!("evenkeel_os_cycles_total", "outcome" => outcome).increment(1);
        metrics::histogram!("evenkeel_os_cycle_seconds").record(took.as_secs_f64());
        if ended.outcome == CycleOutcome::Failed {
            tracing::warn!(registry, error = ended.message, "cannot sync a registry");
        } else {
            tracing::info!(registry, outcome, ?took, message = ended.message, "synced a registry");
        }
    }
}

/// Result of a cycle whose registry is unavailable, at this time of the database.
fn registry_failure(error: &RegistryError, now: Time) -> CycleResult {
    let not_before = match error {
        RegistryError::Busy { retry_after: Some(retry_after) } => {
            let retry_after = TimeDelta::from_std(*retry_after).unwrap_or(MAX_RETRY_AFTER);
            Some(now + retry_after.min(MAX_RETRY_AFTER))
        }
        _ => None,
    };
    CycleResult { outcome: CycleOutcome::Failed, message: to_finding(error).message, not_before }
}

impl Revision {
    /// The stored state of a revision whose fetch may succeed later: its last content, and the failure as a finding.
    fn with_failure(&self, finding: &Finding) -> Artifact {
        match &self.before {
            Some(before) if before.document.is_some() => {
                let mut artifact = before.clone();
                // Replaces the last failure of the same kind: its text may differ.
                let kind = Some(finding.kind.name());
                let is_other_kind =
                    |stored: &Value| stored.get("kind").and_then(Value::as_str) != kind;
                artifact.findings.retain(is_other_kind);
                artifact.findings.push(finding_json(finding));
                artifact.gone_at = None;
                artifact
            }
            _ => self.unusable_artifact(finding),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_do_not_grow_while_a_revision_is_unreachable() {
        let new = Revision {
            repository: "os/edge".parse().expect("a repository"),
            tag: "0.8.11".parse().expect("a tag"),
            before: None,
        };
        let finding = |kind, why: &str| Finding::new(kind, why);
        let odd = finding_json(&finding(FindingKind::UnknownKey, "spec.more"));
        let mut artifact = new.unusable_artifact(&finding(FindingKind::Gone, "gone"));
        artifact.document = Some("spec: {}".to_owned());
        artifact.findings = vec![odd.clone()];
        for why in ["after 3 s", "after 4 s"] {
            let revision = Revision {
                repository: new.repository.clone(),
                tag: new.tag.clone(),
                before: Some(artifact),
            };
            let failure = finding(FindingKind::Unreachable, why);
            artifact = revision.with_failure(&failure);
            assert_eq!(artifact.findings, [odd.clone(), finding_json(&failure)]);
        }
    }
}
