//! Taking the steps and looking at what they made.

use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{Engine, all_steps, last, unchanged};
use crate::journal::{Entry, JournalError, Phase, Point};
use crate::model::{Failure, FailureKind, News};
use crate::modules::{AnyStep, Try, Undone, Verdict};

/// How often a node is looked at whose services are still coming up.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Why what was begun is not gone on with.
const OTHERS: &str = "another program is at work on what the update has begun to change";

/// What a module noted that noted nothing.
static NOTHING: Value = Value::Null;

impl Engine {
    /// Takes the steps that are left, looks at what they made, reboots the node if that is needed, and ends the attempt.
    /// Also what goes on after a kill, then with [`Try::Again`].
    ///
    /// The attempt comes back open, to be gone on with later, in four cases. Three are told by [`Engine::why_open`]:
    /// somebody else is at work on what it changes, so that what is found is neither its success nor its failure; the
    /// module is missing that knows the change; or it cannot be told whether what was got ready is still so. The fourth
    /// is [`Phase::Rebooting`]. Then the first call with it asks for the reboot, so that there is time between to tell the
    /// server and to let go of the own inhibitor lock.
    pub async fn carry_out(&self, entry: Entry, trying: Try) -> Result<Entry, JournalError> {
        self.left_open().clear();
        if entry.phase == Phase::Over {
            return Ok(entry);
        }
        // Without it nothing is known of how the node is, least of all that it is as planned.
        if let Some(missing) = self.missing(&entry) {
            return Ok(self.leave_open(entry, missing.reason));
        }
        if entry.phase == Phase::Rebooting {
            return self.go_on_rebooting(entry).await;
        }
        if trying == Try::Again {
            if self.others_are_at_work(&entry, trying).await {
                return Ok(self.leave_open(entry, OTHERS.to_owned()));
            }
            if self.came_too_late(&entry).await {
                return self.turn_back(entry);
            }
        }
        let entry = match self.take_steps(entry, trying).await? {
            ControlFlow::Continue(entry) => entry,
            ControlFlow::Break(entry) => return Ok(entry),
        };
        if entry.phase == Phase::Verifying {
            return self.verify(entry).await;
        }
        self.follow_up(entry).await
    }

    /// Takes the steps that are left, and breaks off with the attempt if one fails.
    async fn take_steps(
        &self,
        mut entry: Entry,
        mut trying: Try,
    ) -> Result<ControlFlow<Entry, Entry>, JournalError> {
        while let Some(next) = entry.steps.iter().position(|step| !step.done) {
            let Some(step) = entry.steps.get(next).map(|step| step.step.clone()) else {
                break;
            };
            tracing::info!(attempt = %entry.attempt, module = step.module, step = step.name, ?trying, "taking a step");
            let begun = self.now();
            let taken = self.take(&entry, &step, trying).await;
            entry.spent("apply", (begun, self.now()), 0);
            if let Err(failure) = taken {
                tracing::warn!(attempt = %entry.attempt, step = step.name, error = %failure, "a step failed");
                let verdict = self.look(&mut entry).await;
                if verdict.problem.is_some() {
                    return Ok(ControlFlow::Break(
                        self.give_up(entry, failure, verdict).await?,
                    ));
                }
                tracing::info!(step = step.name, "all is as planned nevertheless");
                entry.remarks.push(failure.remark(&step.name));
            }
            if let Some(taken) = entry.steps.get_mut(next) {
                taken.done = true;
            }
            let point = Point::done(&step.module, &step.name);
            self.parts.journal.write(&point, &entry)?;
            trying = Try::First;
        }
        Ok(ControlFlow::Continue(entry))
    }

    async fn take(&self, entry: &Entry, step: &AnyStep, trying: Try) -> Result<(), Failure> {
        let module = self.module(step)?;
        // Also on the first try: what was done since the leave was given took its time.
        if module.arms() && self.is_late(entry) && module.is_untouched(&all_steps(entry)).await? {
            let reason = "nothing was changed yet, and the time to begin is over";
            return Err(Failure::new(FailureKind::Interrupted, reason));
        }
        module.apply(step, trying, entry.before).await
    }

    /// Gives an attempt back that is gone on with by the next call.
    pub(super) fn leave_open(&self, entry: Entry, why: String) -> Entry {
        tracing::warn!(attempt = %entry.attempt, why, "what was begun is not over yet");
        *self.left_open() = why;
        entry
    }

    fn turn_back(&self, entry: Entry) -> Result<Entry, JournalError> {
        let reason = "interrupted before anything was changed, and the time to begin is over";
        let failure = Failure::new(FailureKind::Interrupted, reason);
        let booted = unchanged(&entry);
        self.end(entry, News::Reverted { failure, booted })
    }

    /// Whether somebody else is changing what the attempt changes. That nobody can tell is no reason to wait.
    async fn others_are_at_work(&self, entry: &Entry, trying: Try) -> bool {
        for module in self.concerned(entry) {
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
        if !self.is_late(entry) || entry.steps.iter().any(|step| step.done) {
            return false;
        }
        if self.missing(entry).is_some() {
            return false;
        }
        let steps = all_steps(entry);
        for module in self.concerned(entry) {
            // One that arms is asked before each of its steps, and then takes back what it may have got ready already.
            if module.arms() || !matches!(module.is_untouched(&steps).await, Ok(true)) {
                return false;
            }
        }
        true
    }

    /// What is found on the node. After a boot that came in the middle, what is wrong may right itself while services
    /// come up, unless a module says that it does not.
    pub(super) async fn look(&self, entry: &mut Entry) -> Verdict {
        let began = last(entry, &News::Began);
        let booted = began.is_some_and(|began| began.boot_id != self.parts.boot_id);
        let until = booted.then(|| Instant::now() + self.settling);
        let verdict = loop {
            let verdict = self.look_once(entry).await;
            let patient = until.is_some_and(|until| Instant::now() < until);
            match &verdict.problem {
                Some(problem) if patient && !verdict.is_final => {
                    tracing::debug!(%problem, "the system has booted and is looked at again");
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                _ => break verdict,
            }
        };
        add_new(&mut entry.conffiles, verdict.kept_conffiles.clone());
        verdict
    }

    async fn look_once(&self, entry: &Entry) -> Verdict {
        let steps = all_steps(entry);
        // Who does not know a step cannot say that all is as planned, and time does not teach it.
        let missing = self.missing(entry);
        let mut whole = Verdict {
            is_final: missing.is_some(),
            problem: missing,
            ..Verdict::default()
        };
        for module in self.concerned(entry) {
            match module.verify(&steps, noted(entry, module.name())).await {
                Ok(verdict) => {
                    whole.results.extend(verdict.results);
                    whole.kept_conffiles.extend(verdict.kept_conffiles);
                    whole.problem = whole.problem.or(verdict.problem);
                    whole.is_final |= verdict.is_final;
                    whole.booted = whole.booted.or(verdict.booted);
                }
                Err(failure) => whole.problem = whole.problem.or(Some(failure)),
            }
        }
        whole
    }

    /// Goes back if a module knows how; else says how the node is. Not while somebody else is still at work there, nor
    /// before it is certain that nothing stays ready to change the node later.
    pub(super) async fn give_up(
        &self,
        entry: Entry,
        mut failure: Failure,
        verdict: Verdict,
    ) -> Result<Entry, JournalError> {
        if self.others_are_at_work(&entry, Try::First).await {
            return Ok(self.leave_open(entry, OTHERS.to_owned()));
        }
        // The last words of what was found, if what failed has none of its own.
        if failure.log.is_empty()
            && let Some(problem) = &verdict.problem
        {
            failure.log.clone_from(&problem.log);
        }
        let booted = verdict.booted;
        match self.go_back(&entry).await {
            Ok(Undone::Entirely) => return self.end(entry, News::Reverted { failure, booted }),
            Ok(Undone::Impossible) => {}
            Err(back) => {
                let reason = failure.reason;
                let why = format!("{reason}; going back did not work and is tried again: {back}");
                return Ok(self.leave_open(entry, why));
            }
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
        let news = News::Failed {
            failure,
            results,
            booted,
        };
        self.end(entry, news)
    }

    /// Whether every module that took steps is verified to be as before. Who took none has nothing to go back from. Fails
    /// if that is to be tried again: what may still be armed boots with any reset.
    async fn go_back(&self, entry: &Entry) -> Result<Undone, Failure> {
        let steps = all_steps(entry);
        let (mut any, mut back) = (false, true);
        let mut again = None;
        for module in self.concerned(entry) {
            any = true;
            match module.undo(&steps).await {
                Ok(undone) => back &= undone == Undone::Entirely,
                Err(failure) => {
                    tracing::warn!(module = module.name(), error = %failure, "cannot go back");
                    back = false;
                    if module.arms() {
                        again = again.or(Some(failure));
                    }
                }
            }
        }
        match again {
            Some(failure) => Err(failure),
            None if any && back => Ok(Undone::Entirely),
            None => Ok(Undone::Impossible),
        }
    }
}

/// What a module noted before the change.
pub(super) fn noted<'a>(entry: &'a Entry, module: &str) -> &'a Value {
    entry.baselines.get(module).unwrap_or(&NOTHING)
}

/// Adds what is not in the list yet: it may be found again after a kill.
pub(super) fn add_new(list: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for text in more {
        if !list.contains(&text) {
            list.push(text);
        }
    }
}
