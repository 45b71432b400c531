//! What follows when the steps are taken: services, a reboot if the change asks for it, and the last look.

use chrono::TimeDelta;

use super::work::{add_new, noted};
use super::{Engine, all_steps, last};
use crate::journal::{Entry, JournalError, Phase};
use crate::model::{Failure, FailureKind, News, RebootRule, Wish};

/// A node that does not reboot is told to so often.
const MOST_REBOOTS: u32 = 3;
/// Between two such times, and after the last.
const REBOOT_AGAIN: TimeDelta = TimeDelta::minutes(5);

impl Engine {
    /// Looks at what the steps made; if it is as planned, does what should follow.
    pub(super) async fn follow_up(&self, mut entry: Entry) -> Result<Entry, JournalError> {
        let mut verdict = self.look(&mut entry).await;
        if let Some(failure) = verdict.problem.take() {
            return self.give_up(entry, failure, verdict).await;
        }
        let reasons = match self.after(&mut entry).await {
            Ok(reasons) => reasons,
            Err(failure) => return Ok(self.leave_open(entry, failure.reason)),
        };
        if let Some(reasons) = reasons {
            match self.why_not_to_reboot(&entry) {
                None => return self.begin_reboot(entry, &reasons),
                Some(why) => return self.do_not_reboot(entry, &why).await,
            }
        }
        self.verify(entry).await
    }

    /// The node is not to reboot, although the change asks for it. What is only changed by the reboot is taken back: left
    /// as it is, any reboot would make the change, outside its window and with nobody watching.
    async fn do_not_reboot(&self, mut entry: Entry, why: &str) -> Result<Entry, JournalError> {
        if entry.reboot_is_the_change {
            let reason = format!("the change needs a reboot, and the node does not make it: {why}");
            let failure = Failure::new(FailureKind::Reboot, reason);
            let verdict = self.look(&mut entry).await;
            return self.give_up(entry, failure, verdict).await;
        }
        stay_up(&mut entry, why);
        self.verify(entry).await
    }

    /// Lets the modules do what should follow; why the change asks for a reboot, if it does. Fails if a module cannot tell
    /// whose change is that reboot: it would be called finished, and not be made.
    async fn after(&self, entry: &mut Entry) -> Result<Option<Vec<String>>, Failure> {
        let steps = all_steps(entry);
        let mut reasons: Option<Vec<String>> = None;
        let mut untold = None;
        for module in self.concerned(entry) {
            match module.after(&steps, noted(entry, module.name())).await {
                Ok(after) => {
                    add_new(&mut entry.restarted, after.restarted);
                    add_new(&mut entry.remarks, after.remarks);
                    entry.reboot_is_the_change |= after.reboot_is_the_change;
                    if let Some(more) = after.reboot {
                        reasons.get_or_insert_default().extend(more);
                    }
                }
                Err(failure) => {
                    tracing::warn!(module = module.name(), error = %failure, "what should follow the change failed");
                    add_new(&mut entry.remarks, [failure.remark("after the change")]);
                    if module.arms() {
                        untold = untold.or(Some(failure));
                    }
                }
            }
        }
        untold.map_or(Ok(reasons), Err)
    }

    /// Why the node is not rebooted now, although the change asks for it; `None` if it is.
    fn why_not_to_reboot(&self, entry: &Entry) -> Option<String> {
        if reboot_rule(entry) == RebootRule::Never {
            return Some("the policy leaves reboots to people".to_owned());
        }
        if let Err(why) = (self.parts.may_reboot)() {
            return Some(why);
        }
        let is_late = self.is_late(entry);
        let closed = || is_late.then(|| "the window has closed".to_owned());
        self.parts.reboot.hindrance().or_else(closed)
    }

    /// Writes down that the node reboots. It does when the attempt is gone on with.
    fn begin_reboot(&self, mut entry: Entry, reasons: &[String]) -> Result<Entry, JournalError> {
        tracing::warn!(attempt = %entry.attempt, reasons = reasons.join(", "), "the node has to reboot");
        entry.phase = Phase::Rebooting;
        entry.boot_id.clone_from(&self.parts.boot_id);
        self.happened(&mut entry, News::RebootBegun);
        self.write("reboot-begun", &entry)?;
        Ok(entry)
    }

    /// In another boot the reboot is over. In the same one it is asked for, again if it did not come about.
    pub(super) async fn go_on_rebooting(&self, mut entry: Entry) -> Result<Entry, JournalError> {
        if entry.boot_id != self.parts.boot_id {
            if let Some(begun) = last(&entry, &News::RebootBegun) {
                let begun = begun.at;
                entry.spent("reboot", (begun, self.now()), 0);
            }
            return self.verify(entry).await;
        }
        if !self.is_due(&entry) {
            return Ok(entry);
        }
        let hindrance = self.why_not_to_reboot(&entry);
        match hindrance {
            None if entry.reboots < MOST_REBOOTS => self.ask_for_reboot(entry).await,
            Some(why) if entry.reboots == 0 => self.do_not_reboot(entry, &why).await,
            _ => self.did_not_reboot(entry).await,
        }
    }

    /// Whether the last try was given its time. One in the future is one of a clock that was turned back.
    fn is_due(&self, entry: &Entry) -> bool {
        let now = self.now();
        entry
            .reboot_at
            .is_none_or(|at| at > now || now - at >= REBOOT_AGAIN)
    }

    async fn ask_for_reboot(&self, mut entry: Entry) -> Result<Entry, JournalError> {
        entry.reboots += 1;
        entry.reboot_at = Some(self.now());
        self.write("reboot-begun", &entry)?;
        tracing::warn!(attempt = %entry.attempt, time = entry.reboots, "rebooting");
        if let Err(failure) = self.parts.reboot.begin().await {
            tracing::error!(attempt = %entry.attempt, error = %failure, "the node cannot be rebooted");
            add_new(&mut entry.remarks, [failure.remark("reboot")]);
            self.write("reboot-begun", &entry)?;
        }
        Ok(entry)
    }

    async fn did_not_reboot(&self, mut entry: Entry) -> Result<Entry, JournalError> {
        let verdict = self.look(&mut entry).await;
        let times = match entry.reboots {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        if entry.reboot_is_the_change {
            let reason = format!("the node did not reboot although it was told to {times}");
            let failure = Failure::new(FailureKind::Reboot, reason);
            return self.give_up(entry, failure, verdict).await;
        }
        entry.reboot_required = true;
        let mut reason = format!(
            "the change is made, but the node did not reboot although it was told to {times}; reboot it by hand"
        );
        let log = verdict.problem.map_or_else(String::new, |problem| {
            reason = format!("{reason}; {}", problem.reason);
            problem.log
        });
        let failure = Failure::with_log(FailureKind::Reboot, reason, &log);
        let news = News::Failed {
            failure,
            results: verdict.results,
            booted: verdict.booted,
        };
        self.end(entry, news)
    }

    /// The last look, which decides.
    pub(super) async fn verify(&self, mut entry: Entry) -> Result<Entry, JournalError> {
        if entry.phase != Phase::Verifying {
            entry.phase = Phase::Verifying;
            self.happened(&mut entry, News::VerifyBegun);
            self.write("verify-begun", &entry)?;
        }
        let mut verdict = self.look(&mut entry).await;
        if let Some(failure) = verdict.problem.take() {
            return self.give_up(entry, failure, verdict).await;
        }
        if entry.reboot_is_the_change {
            // Only now is anything changed that something could follow. That it did not is among the remarks.
            self.after(&mut entry).await.ok();
        }
        let news = News::Finished {
            results: verdict.results,
            booted: verdict.booted,
        };
        self.end(entry, news)
    }
}

/// The change asks for a reboot, and the node does not make it.
fn stay_up(entry: &mut Entry, why: &str) {
    tracing::warn!(attempt = %entry.attempt, why, "the node does not reboot, although the change asks for it");
    entry.reboot_required = true;
    let remark = format!("the change asks for a reboot, and the node does not make it: {why}");
    add_new(&mut entry.remarks, [remark]);
}

fn reboot_rule(entry: &Entry) -> RebootRule {
    match &entry.target.wish {
        Wish::Packages(wish) => wish.rules.reboot,
        Wish::Image(_) => RebootRule::IfRequired,
        Wish::Unknown => RebootRule::Never,
    }
}
