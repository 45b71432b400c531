//! One attempt, from the plan to the verdict.
//!
//! Everything is in the journal before it happens, so that after a kill at any moment the next engine on the same folder
//! goes on. What a step's tool says of itself decides nothing; what is found on the node afterwards does.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use evenkeel_kit::Clock;

use crate::identity;
use crate::journal::{Entry, Journal, JournalError, Phase, Point, Step};
use crate::model::{Event, Failure, FailureKind, News, Plan, Target};
use crate::modules::{AnyModule, AnyStep, Draft, Ready, Try, Undone, Verdict};

/// Carries attempts out.
pub struct Engine {
    modules: Vec<Box<dyn AnyModule>>,
    journal: Box<dyn Journal>,
    clock: Arc<dyn Clock>,
    boot_id: String,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("modules", &self.module_names())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine for the boot that the system is in.
    pub fn new(
        modules: Vec<Box<dyn AnyModule>>,
        journal: Box<dyn Journal>,
        clock: Arc<dyn Clock>,
        boot_id: String,
    ) -> Self {
        Self {
            modules,
            journal,
            clock,
            boot_id,
        }
    }

    /// The names of the modules, in ascending order.
    pub fn module_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.modules.iter().map(|m| m.name().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// The points at which the journal is written, in the order in which an attempt passes them.
    pub fn points(&self) -> Vec<Point> {
        let (before, after) = Point::FIXED.split_at(3);
        let steps = self.modules.iter().flat_map(|module| {
            let names = module.step_names().iter();
            names.map(|step| Point::done(module.name(), step))
        });
        let fixed = |names: &'static [&'static str]| names.iter().map(|name| Point::fixed(name));
        fixed(before).chain(steps).chain(fixed(after)).collect()
    }

    /// The open attempt, if there is one. What an attempt left behind that is not open any more is removed.
    pub fn open(&self) -> Result<Option<Entry>, JournalError> {
        self.journal.read()
    }

    /// Removes what attempts left behind. Only when none is open.
    pub fn tidy(&self) {
        for module in &self.modules {
            if let Err(failure) = module.clean() {
                tracing::warn!(module = module.name(), error = %failure, "cannot clean up");
            }
        }
    }

    /// Brings up to date what the modules know about the outside, without any wish.
    pub async fn refresh(&self) -> Result<(), Failure> {
        for module in &self.modules {
            module.refresh(None).await?;
        }
        Ok(())
    }

    /// Plans the whole change. Nothing is opened and nothing but the modules' knowledge is changed.
    pub async fn plan(&self, target: &Target) -> Result<Draft<AnyStep>, Failure> {
        let mut whole = Draft::default();
        let mut spoken_of = false;
        for module in &self.modules {
            module.refresh(Some(&target.wish)).await?;
            let Some(draft) = module.plan(&target.wish).await? else {
                continue;
            };
            spoken_of = true;
            whole.changes.extend(draft.changes);
            whole.steps.extend(draft.steps);
            whole.download_bytes += draft.download_bytes;
        }
        if spoken_of {
            return Ok(whole);
        }
        let reason = "this agent does not know how to do what was asked";
        Err(Failure::new(FailureKind::Unsupported, reason))
    }

    /// Opens an attempt with its plan.
    pub fn start(&self, target: Target, draft: Draft<AnyStep>) -> Result<Entry, JournalError> {
        let plan = Plan {
            changes: draft.changes,
            download_bytes: draft.download_bytes,
        };
        let step = |step| Step { step, done: false };
        let mut entry = blank(target);
        entry.plan = plan.clone();
        entry.steps = draft.steps.into_iter().map(step).collect();
        self.happened(&mut entry, News::Downloading(plan));
        self.journal.write(&Point::fixed("opened"), &entry)?;
        Ok(entry)
    }

    /// An attempt that is over before there was a plan.
    pub fn start_and_end(&self, target: Target, news: News) -> Result<Entry, JournalError> {
        self.end(blank(target), news)
    }

    /// Fetches what the plan needs. A failure ends the attempt.
    pub async fn fetch(&self, mut entry: Entry) -> Result<Entry, JournalError> {
        if let Err(failure) = self.fetch_steps(&entry).await {
            return self.fail(entry, failure);
        }
        entry.phase = Phase::Staged;
        self.happened(&mut entry, News::Downloaded);
        self.journal.write(&Point::fixed("downloaded"), &entry)?;
        Ok(entry)
    }

    /// Whether the node itself lets the change begin. What was fetched is checked again, and fetched again if need be.
    pub async fn ready(&self, entry: &Entry) -> Result<Ready, Failure> {
        self.fetch_steps(entry).await?;
        let steps = all_steps(entry);
        for module in &self.modules {
            if let Ready::NotYet(why) = module.check(&steps).await? {
                return Ok(Ready::NotYet(why));
            }
        }
        Ok(Ready::Yes)
    }

    async fn fetch_steps(&self, entry: &Entry) -> Result<(), Failure> {
        for step in &entry.steps {
            self.module(&step.step)?.fetch(&step.step).await?;
        }
        Ok(())
    }

    /// From now on the node is being changed. The server allowed it until `before`.
    pub fn begin(
        &self,
        mut entry: Entry,
        before: Option<DateTime<Utc>>,
    ) -> Result<Entry, JournalError> {
        entry.phase = Phase::Applying;
        entry.before = before;
        self.happened(&mut entry, News::Began);
        self.journal.write(&Point::fixed("began"), &entry)?;
        Ok(entry)
    }

    /// Takes the steps that are left, looks at what they made and ends the attempt. Also what goes on after a kill, then
    /// with [`Try::Again`]. The attempt stays as it is, to be gone on with later, while somebody else is at work on what
    /// it changes: what is found then is neither its success nor its failure.
    pub async fn carry_out(
        &self,
        mut entry: Entry,
        mut trying: Try,
    ) -> Result<Entry, JournalError> {
        if trying == Try::Again {
            if self.others_are_at_work(trying).await {
                return Ok(entry);
            }
            if self.came_too_late(&entry).await {
                return self.turn_back(entry);
            }
        }
        while let Some(next) = entry.steps.iter().position(|step| !step.done) {
            let step = entry.steps[next].step.clone();
            tracing::info!(attempt = %entry.attempt, module = step.module, step = step.name, ?trying, "taking a step");
            if let Err(failure) = self.take(&step, trying).await {
                tracing::warn!(attempt = %entry.attempt, step = step.name, error = %failure, "a step failed");
                let verdict = self.look(&entry).await;
                if verdict.problem.is_some() {
                    return self.give_up(entry, failure, verdict).await;
                }
                tracing::info!(step = step.name, "all is as planned nevertheless");
                entry.remarks.push(failure.remark(&step.name));
            }
            entry.steps[next].done = true;
            self.journal
                .write(&Point::done(&step.module, &step.name), &entry)?;
            trying = Try::First;
        }
        if entry.phase == Phase::Applying {
            entry.phase = Phase::Verifying;
            self.happened(&mut entry, News::VerifyBegun);
            self.journal.write(&Point::fixed("verify-begun"), &entry)?;
        }
        let mut verdict = self.look(&entry).await;
        match verdict.problem.take() {
            Some(failure) => self.give_up(entry, failure, verdict).await,
            None => self.end(
                entry,
                News::Finished {
                    results: verdict.results,
                },
            ),
        }
    }

    fn turn_back(&self, entry: Entry) -> Result<Entry, JournalError> {
        let reason = "interrupted before anything was changed, and the time to begin is over";
        let failure = Failure::new(FailureKind::Interrupted, reason);
        self.end(entry, News::Reverted { failure })
    }

    /// Whether somebody else is changing what the modules change. That nobody can tell is no reason to wait.
    async fn others_are_at_work(&self, trying: Try) -> bool {
        for module in &self.modules {
            match module.at_work(trying).await {
                Ok(None) => {}
                Ok(Some(who)) => {
                    tracing::warn!(who, "the attempt is gone on with later");
                    return true;
                }
                Err(failure) => {
                    tracing::warn!(error = %failure, "cannot tell who else is at work");
                }
            }
        }
        false
    }

    /// Whether leave was given, nothing was done with it, and it has ended: the change would begin outside its window.
    async fn came_too_late(&self, entry: &Entry) -> bool {
        let is_over = entry
            .before
            .is_some_and(|before| before <= self.clock.now());
        if !is_over || entry.steps.iter().any(|step| step.done) {
            return false;
        }
        let steps = all_steps(entry);
        for module in &self.modules {
            if !matches!(module.is_untouched(&steps).await, Ok(true)) {
                return false;
            }
        }
        true
    }

    /// Gives up an attempt that has changed nothing yet.
    pub fn cancel(&self, entry: Entry, cause: &str) -> Result<Entry, JournalError> {
        let cause = cause.to_owned();
        self.end(entry, News::Cancelled { cause })
    }

    /// Ends an attempt that has changed nothing yet.
    pub fn fail(&self, entry: Entry, failure: Failure) -> Result<Entry, JournalError> {
        let results = Vec::new();
        self.end(entry, News::Failed { failure, results })
    }

    /// Writes down up to which sequence number the server has stored the events.
    pub fn acknowledge(&self, entry: &mut Entry, upto: u32) -> Result<(), JournalError> {
        if entry.acknowledged == upto {
            return Ok(());
        }
        entry.acknowledged = upto;
        self.journal.write(&Point::fixed("acknowledged"), entry)
    }

    /// Forgets an attempt of which the server knows everything.
    pub fn close(&self) -> Result<(), JournalError> {
        self.tidy();
        self.journal.clear()
    }

    async fn take(&self, step: &AnyStep, trying: Try) -> Result<(), Failure> {
        self.module(step)?.apply(step, trying).await
    }

    fn module(&self, step: &AnyStep) -> Result<&dyn AnyModule, Failure> {
        let own = self.modules.iter().find(|own| own.name() == step.module);
        own.map(AsRef::as_ref).ok_or_else(|| {
            let reason = format!("this agent has no module {}", step.module);
            Failure::new(FailureKind::Unsupported, reason)
        })
    }

    /// What is found on the node.
    async fn look(&self, entry: &Entry) -> Verdict {
        let steps = all_steps(entry);
        let mut whole = Verdict::default();
        for module in &self.modules {
            match module.verify(&steps).await {
                Ok(verdict) => {
                    whole.results.extend(verdict.results);
                    whole.problem = whole.problem.or(verdict.problem);
                }
                Err(failure) => whole.problem = whole.problem.or(Some(failure)),
            }
        }
        whole
    }

    /// Goes back if a module knows how; else says how the node is. Not while somebody else is still at work there.
    async fn give_up(
        &self,
        entry: Entry,
        failure: Failure,
        verdict: Verdict,
    ) -> Result<Entry, JournalError> {
        if self.others_are_at_work(Try::First).await {
            return Ok(entry);
        }
        let steps = all_steps(&entry);
        let mut back = !self.modules.is_empty();
        for module in &self.modules {
            back &= matches!(module.undo(&steps).await, Ok(Undone::Entirely));
        }
        if back {
            return self.end(entry, News::Reverted { failure });
        }
        // The tool's words tell why, the verdict tells what came of it.
        let failure = match verdict.problem {
            Some(problem) => Failure::with_log(
                failure.kind,
                format!("{}; {}", failure.reason, problem.reason),
                &failure.log,
            ),
            None => failure,
        };
        let results = verdict.results;
        self.end(entry, News::Failed { failure, results })
    }

    fn end(&self, mut entry: Entry, news: News) -> Result<Entry, JournalError> {
        match news.failure() {
            Some(failure) => {
                tracing::error!(attempt = %entry.attempt, outcome = news.name(), error = %failure, "the attempt is over");
            }
            None => {
                tracing::info!(attempt = %entry.attempt, outcome = news.name(), "the attempt is over");
            }
        }
        entry.phase = Phase::Over;
        self.happened(&mut entry, news);
        self.journal.write(&Point::fixed("ended"), &entry)?;
        Ok(entry)
    }

    /// Numbers an event. It is sent only after the journal has it.
    fn happened(&self, entry: &mut Entry, news: News) {
        entry.events.push(Event {
            sequence: entry.last_sequence() + 1,
            at: self.clock.now(),
            boot_id: self.boot_id.clone(),
            news,
        });
    }
}

fn blank(target: Target) -> Entry {
    Entry {
        attempt: identity::new_attempt(),
        target,
        phase: Phase::Downloading,
        plan: Plan::default(),
        steps: Vec::new(),
        events: Vec::new(),
        acknowledged: 0,
        before: None,
        remarks: Vec::new(),
    }
}

fn all_steps(entry: &Entry) -> Vec<AnyStep> {
    entry.steps.iter().map(|step| step.step.clone()).collect()
}
