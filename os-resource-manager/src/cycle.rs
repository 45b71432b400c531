//! One time that a registry is asked for all projects, from its claim to its end.
//!
//! Whatever is found is kept at once, so who is killed leaves it to the next one, which need not fetch it again.
//! Nothing is kept by who lost the claim meanwhile.

mod listing;
mod outcome;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{Catalogue, CycleOutcome, CycleStep, File};
use evenkeel_registry::copy::finding_of;
use evenkeel_registry::{Finding, FindingKind, RegistryError};
use evenkeel_store::StoreError;
use evenkeel_store::os_catalogue::{self, Artifact, Claim, Ended, Progress};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use self::listing::Listed;
use self::outcome::Tally;
use crate::fetch::{Fetcher, Looked, Revision, is_of_the_whole, kept};
use crate::manager::Engine;
use crate::sources::Source;

/// For how long a claim holds without a word of its holder.
pub(crate) const LEASE: TimeDelta = TimeDelta::minutes(1);

/// How often its holder says that it goes on.
const BEAT: Duration = Duration::from_secs(15);

/// How often it says how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// How long fetching may take in all. What is not there by then is for the next cycle.
const WITHIN: Duration = Duration::from_mins(30);

/// How long one revision may take: what drips must not hold up the others.
const REVISION_WITHIN: Duration = Duration::from_mins(5);

/// The longest that a registry is left alone because it asks for it.
const LONGEST_WISH: TimeDelta = TimeDelta::hours(1);

/// A cycle that goes on.
#[derive(Debug)]
pub(crate) struct Cycle<'a> {
    pub engine: &'a Engine,
    pub claim: Claim,
    pub source: Arc<Source>,
    progress: Mutex<Progress>,
    tally: Mutex<Tally>,
}

/// Why a cycle does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Somebody else holds it.
    Lost,
    /// The process stops.
    Asked,
    /// The registry as a whole cannot be asked.
    Registry(RegistryError),
    /// The database cannot be reached.
    Store(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<RegistryError> for Stop {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

impl<'a> Cycle<'a> {
    /// One that was just claimed.
    pub(crate) fn new(engine: &'a Engine, claim: Claim, source: Arc<Source>) -> Self {
        Self {
            engine,
            claim,
            source,
            progress: Mutex::new(Progress {
                step: CycleStep::Listing,
                finished: 0,
                total: 0,
            }),
            tally: Mutex::default(),
        }
    }

    /// Goes on to its end, or until the process is asked to stop. Says whether it was brought to its end.
    ///
    /// # Errors
    /// The database cannot be reached. Then the cycle is anybody's again when its lease is over.
    pub(crate) async fn run(&self, stopping: &CancellationToken) -> Result<bool, StoreError> {
        let begun = Instant::now();
        let worked = tokio::select! {
            worked = Box::pin(self.work()) => worked,
            stop = self.beats() => Err(stop),
            () = stopping.cancelled() => Err(Stop::Asked),
        };
        let registry = self.claim.registry.as_str();
        let ended = match worked {
            Ok(()) => self.tally().ended(),
            Err(Stop::Registry(error)) => self.failed(&error),
            Err(Stop::Store(error)) => return Err(error),
            Err(Stop::Lost) => {
                tracing::warn!(registry, "a sync was taken over by another process");
                return Ok(false);
            }
            Err(Stop::Asked) => {
                // Whoever comes next need not wait for the end of the lease.
                self.beat(TimeDelta::zero()).await?;
                return Ok(false);
            }
        };
        let tx = self.engine.store.fleet().await?;
        let is_held = os_catalogue::finish(&tx, &self.claim, &ended).await?;
        tx.commit().await?;
        if !is_held {
            tracing::warn!(registry, "a sync was taken over by another process");
            return Ok(false);
        }
        self.note(&ended, begun.elapsed());
        if ended.outcome == CycleOutcome::Failed {
            // Reports say why nothing new came.
            self.engine.applier.all(registry, None).await?;
        }
        Ok(true)
    }

    /// All that is done under the claim.
    async fn work(&self) -> Result<(), Stop> {
        let (applier, registry) = (&self.engine.applier, self.claim.registry.as_str());
        let wanted = applier.wanted(registry).await?;
        match timeout(WITHIN, Box::pin(self.gather(&wanted))).await {
            Ok(gathered) => gathered?,
            Err(_) => self.tally().is_late = true,
        }
        self.begin(CycleStep::Applying, 0);
        applier.all(registry, Some(&wanted)).await?;
        Ok(())
    }

    /// Fetches what is wanted.
    async fn gather(&self, wanted: &[Catalogue]) -> Result<(), Stop> {
        let listed = self.list(wanted).await?;
        let files = self.look(&listed).await?;
        self.mark_gone(&listed).await?;
        let missing = self.sides(&files).await?;
        self.tally().documents += missing;
        self.forget_sides().await
    }

    /// Removes the documents that nothing names any more.
    async fn forget_sides(&self) -> Result<(), Stop> {
        let tx = self.engine.store.fleet().await?;
        os_catalogue::forget_sides(&tx, &self.claim).await?;
        Ok(tx.commit().await?)
    }

    /// Looks at all revisions that are wanted. Gives the files of each that can be used.
    async fn look(&self, listed: &[Listed]) -> Result<Vec<Vec<File>>, Stop> {
        let mut revisions = self.revisions(listed).await?;
        // What could not be had the last time must not keep the others from their turn.
        revisions.sort_by_key(|revision| {
            let before = revision.before.as_ref();
            before.is_some_and(outcome::is_wanting)
        });
        self.begin(CycleStep::Fetching, revisions.len());
        let fetcher = Fetcher(&self.source);
        stream::iter(revisions)
            .map(|revision| self.revision(fetcher, revision))
            .buffer_unordered(self.engine.settings.parallel)
            .try_fold(Vec::new(), |mut all, files| async move {
                self.one_more();
                all.push(files);
                Ok(all)
            })
            .await
    }

    /// Looks at one revision, and keeps what became of it. Gives its files.
    async fn revision(&self, fetcher: Fetcher<'_>, revision: Revision) -> Result<Vec<File>, Stop> {
        let looked = match timeout(REVISION_WITHIN, fetcher.look(&revision)).await {
            Ok(Ok(looked)) => looked,
            Ok(Err(error)) if is_of_the_whole(&error) => return Err(error.into()),
            Ok(Err(error)) => Looked::New(revision.put_off(&finding_of(&error))),
            Err(_) => {
                let minutes = REVISION_WITHIN.as_secs() / 60;
                let why = format!("it was not there after {minutes} minutes");
                let finding = Finding::new(FindingKind::Unreachable, why);
                Looked::New(revision.put_off(&finding))
            }
        };
        let artifact = match looked {
            Looked::Vanished => return Ok(Vec::new()),
            Looked::Same(artifact) => {
                self.see(&artifact.repository, vec![artifact.tag.clone()])
                    .await?;
                artifact
            }
            Looked::New(artifact) => self.keep(&revision, artifact).await?,
        };
        if outcome::is_wanting(&artifact) {
            self.tally().revisions += 1;
        }
        Ok(artifact.files)
    }

    /// Keeps what a revision is now. What the database cannot keep is a finding of it, and nothing else is disturbed.
    async fn keep(&self, revision: &Revision, artifact: Artifact) -> Result<Artifact, Stop> {
        match self.try_to_keep(&artifact).await {
            Ok(()) => Ok(artifact),
            Err(Stop::Store(error @ (StoreError::Conflict(_) | StoreError::Database(_)))) => {
                let (repository, tag) = (&artifact.repository, &artifact.tag);
                tracing::warn!(repository, tag, %error, "a revision cannot be kept");
                let why = "it cannot be kept in the database";
                let finding = Finding::new(FindingKind::NotAProfile, why);
                let artifact = revision.unusable(&finding);
                self.try_to_keep(&artifact).await?;
                Ok(artifact)
            }
            Err(stop) => Err(stop),
        }
    }

    async fn try_to_keep(&self, artifact: &Artifact) -> Result<(), Stop> {
        let tx = self.engine.store.fleet().await?;
        if !os_catalogue::keep(&tx, &self.claim, artifact).await? {
            return Err(Stop::Lost);
        }
        tx.commit().await?;
        Ok(())
    }

    async fn see(&self, repository: &str, tags: Vec<String>) -> Result<(), Stop> {
        let tx = self.engine.store.fleet().await?;
        if !os_catalogue::see(&tx, &self.claim, repository, &tags).await? {
            return Err(Stop::Lost);
        }
        tx.commit().await?;
        Ok(())
    }

    /// Begins a step that has so many parts.
    pub(crate) fn begin(&self, step: CycleStep, total: usize) {
        *self.progress() = Progress {
            step,
            finished: 0,
            total: u32::try_from(total).unwrap_or(u32::MAX),
        };
    }

    /// Notes that one more part is done.
    pub(crate) fn one_more(&self) {
        self.progress().finished += 1;
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the claim for as long as it is this cycle's.
    async fn beats(&self) -> Stop {
        let mut ticks = interval(TOLD_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told: Option<Progress> = None;
        let mut last = Instant::now();
        loop {
            ticks.tick().await;
            let progress = *self.progress();
            if told == Some(progress) && last.elapsed() < BEAT {
                continue;
            }
            let begun = Instant::now();
            match self.beat(LEASE).await {
                Ok(true) => (told, last) = (Some(progress), begun),
                Ok(false) => return Stop::Lost,
                Err(_) if last.elapsed() < LEASE.to_std().unwrap_or_default() => {}
                Err(error) => return Stop::Store(error),
            }
        }
    }

    async fn beat(&self, lease: TimeDelta) -> Result<bool, StoreError> {
        let progress = *self.progress();
        let tx = self.engine.store.fleet().await?;
        let is_held = os_catalogue::beat(&tx, &self.claim, &progress, lease).await?;
        tx.commit().await?;
        Ok(is_held)
    }

    /// How it ends if the registry as a whole cannot be asked.
    fn failed(&self, error: &RegistryError) -> Ended {
        let not_before = match error {
            RegistryError::Busy { again: Some(again) } => {
                let again = TimeDelta::from_std(*again).unwrap_or(LONGEST_WISH);
                Some(self.engine.clock.now() + again.min(LONGEST_WISH))
            }
            _ => None,
        };
        Ended {
            outcome: CycleOutcome::Failed,
            message: finding_of(error).message,
            not_before,
        }
    }

    fn note(&self, ended: &Ended, took: Duration) {
        let registry = self.claim.registry.as_str();
        let outcome = ended.outcome.name();
        metrics::counter!("evenkeel_os_cycles_total", "outcome" => outcome).increment(1);
        metrics::histogram!("evenkeel_os_cycle_seconds").record(took.as_secs_f64());
        if ended.outcome == CycleOutcome::Failed {
            tracing::warn!(
                registry,
                error = ended.message,
                "a registry could not be asked"
            );
        } else {
            tracing::info!(
                registry,
                outcome,
                ?took,
                message = ended.message,
                "asked a registry"
            );
        }
    }
}

impl Revision {
    /// What is kept of one that may be had the next time: what it was, and why it is not known what it is.
    fn put_off(&self, finding: &Finding) -> Artifact {
        match &self.before {
            Some(before) if before.document.is_some() => {
                let mut artifact = before.clone();
                // What was said of it the last time that it could not be had may be in other words.
                let kind = Some(finding.kind.name());
                let is_other = |kept: &Value| kept.get("kind").and_then(Value::as_str) != kind;
                artifact.findings.retain(is_other);
                artifact.findings.push(kept(finding));
                artifact.gone_at = None;
                artifact
            }
            _ => self.unusable(finding),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_revision_does_not_grow_while_it_cannot_be_had() {
        let new = Revision {
            repository: "os/edge".parse().expect("a repository"),
            tag: "0.8.11".parse().expect("a tag"),
            before: None,
        };
        let finding = |kind, why: &str| Finding::new(kind, why);
        let odd = kept(&finding(FindingKind::UnknownKey, "spec.more"));
        let mut known = new.unusable(&finding(FindingKind::Gone, "gone"));
        known.document = Some("spec: {}".to_owned());
        known.findings = vec![odd.clone()];
        for why in ["after 3 s", "after 4 s"] {
            let revision = Revision {
                repository: new.repository.clone(),
                tag: new.tag.clone(),
                before: Some(known),
            };
            let away = finding(FindingKind::Unreachable, why);
            known = revision.put_off(&away);
            assert_eq!(known.findings, [odd.clone(), kept(&away)]);
        }
    }
}
