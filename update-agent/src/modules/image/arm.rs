//! From a slot that holds an image to one that boots it, and what is found when it did or did not.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::{Instant, sleep};

use super::plan::{Step, is_written};
use super::slots::{Doubt, Entry, Event, Seen, Slot, SlotState, Slots, What};
use super::{Baseline, Image, ImageParts};
use crate::hooks::Moment;
use crate::model::{Failure, FailureKind};
use crate::modules::{After, Undone, Verdict};
use crate::trial;

/// How often hooks are asked that put off the reset.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// How far an image has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It lies in its slot, whole, and nothing starts it.
    Ready(What),
    /// That it is armed was written down in this boot, and not done: nothing starts it.
    HalfArmed(What),
    /// The next boot tries it.
    Armed,
    /// It runs, and it is not decided whether it stays.
    OnTrial,
    /// It runs and stays.
    Runs,
    /// It was tried and left, and nobody can say that it does not do.
    Undecided(Doubt),
    /// It was tried and left.
    Failed {
        /// Why.
        why: String,
        /// Its last words.
        log: String,
    },
    /// Anything else, in words.
    Astray(String),
}

impl Standing {
    /// How far the image of a step has come.
    pub fn of(step: &Step, slots: &Slots, seen: &Seen) -> Self {
        let now = slots.state(step.slot);
        let is_own = |what: &What| what.file == step.wish.sha256;
        let label = step.slot.label();
        let Some(booted) = seen.booted else {
            return Self::Astray("it is not known from which slot the system runs".to_owned());
        };
        if booted == step.slot {
            return match now {
                SlotState::Good(what) if is_own(what) => Self::Runs,
                SlotState::Armed { what, .. } | SlotState::Trial { what, .. } if is_own(what) => {
                    Self::OnTrial
                }
                SlotState::Bad { what, why, log } if is_own(what) => Self::failed(why, log),
                other => Self::Astray(format!(
                    "the system runs from {label}, which {}",
                    other.words()
                )),
            };
        }
        match now {
            SlotState::Written(what) if is_written(&step.wish, now) => Self::Ready(what.clone()),
            SlotState::Armed { what, boot_id } if is_own(what) && *boot_id == seen.boot_id => {
                match seen.entry(step.slot) {
                    Entry::Counted { .. } | Entry::Once => Self::Armed,
                    Entry::Absent | Entry::Plain | Entry::Strange(_) => {
                        Self::HalfArmed(what.clone())
                    }
                }
            }
            SlotState::Bad { what, why, log } if is_own(what) => Self::failed(why, log),
            // It comes to be written once its entry is gone, which could not be removed yet.
            SlotState::Trial {
                what,
                doubt: Some(doubt),
                ..
            } if is_own(what) => Self::Undecided(doubt.clone()),
            // An image that is ordered again stays among the bad ones until it is committed: what is known of it there
            // is how it failed before. If it fails once more, its slot says so.
            other => match slots.known_bad(&step.wish.sha256) {
                Some(bad) if !step.wish.again => Self::failed(&bad.why, ""),
                _ => Self::Astray(format!(
                    "the system runs from {booted}, and {label} {}",
                    other.words()
                )),
            },
        }
    }

    /// The same, with what became of an attempt before which its image had been left undecided `before` times: one that
    /// was so again lies in its slot as if it had not been tried.
    fn since(self, before: u8, step: &Step, slots: &Slots) -> Self {
        match slots.undecided(&step.wish.sha256) {
            Some(undecided) if undecided.times > before && matches!(self, Self::Ready(_)) => {
                Self::Undecided(undecided.doubt.clone())
            }
            _ => self,
        }
    }

    fn failed(why: &str, log: &str) -> Self {
        Self::Failed {
            why: why.to_owned(),
            log: log.to_owned(),
        }
    }

    /// What is not as it was planned, and whether it stays so; `None` if all is.
    fn problem(&self, step: &Step) -> Option<(Failure, bool)> {
        let id = &step.wish.image_id;
        let verify = |reason: String| Failure::new(FailureKind::Verify, reason);
        match self {
            // What is armed waits for its reboot: it is asked for at once, and without it the engine goes back.
            Self::Runs | Self::Armed => None,
            Self::Ready(_) | Self::HalfArmed(_) => {
                let reason = format!("the image {id} lies in its slot and has not been tried");
                Some((verify(reason), true))
            }
            Self::OnTrial => {
                let reason = format!("the image {id} runs, and it is not decided whether it stays");
                Some((verify(reason), false))
            }
            Self::Undecided(Doubt { why, log }) => {
                let reason = format!(
                    "the image {id} was tried and left, and may be tried again, for nothing but the server was missing: \
                     {why}"
                );
                let failure = Failure::with_log(FailureKind::Verify, reason, log);
                Some((failure, true))
            }
            Self::Failed { why, log } => {
                let reason = format!("the image {id} was tried and left: {why}");
                let failure = Failure::with_log(FailureKind::Verify, reason, log);
                Some((failure, true))
            }
            Self::Astray(why) => {
                let reason = format!("the image {id} does not run: {why}");
                Some((verify(reason), true))
            }
        }
    }
}

/// Whether the slot of a step may be written: the other one runs.
pub(super) fn spare(step: &Step, seen: &Seen) -> Result<(), Failure> {
    if seen.booted == Some(step.slot.other()) {
        return Ok(());
    }
    let reason = format!(
        "the plan was made for a system that runs from {}, and it does not any more",
        step.slot.other().label()
    );
    Err(Failure::new(FailureKind::Plan, reason))
}

impl Image {
    /// W4 to W6, the last two only while leave is given. What an interrupted try did already is found and not done again.
    pub(super) async fn arm(
        &self,
        step: &Step,
        before: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        let ImageParts { boot, slots, .. } = &self.parts;
        let Step { slot, wish, .. } = step;
        let standing = Standing::of(step, &slots.get(), &boot.look().await?);
        let what = match standing {
            // Behind W6 the power went, or the agent died.
            Standing::Runs | Standing::Armed => return Ok(()),
            Standing::Ready(what) | Standing::HalfArmed(what) => what,
            other => {
                let problem = other.problem(step);
                return problem.map_or(Ok(()), |(failure, _)| Err(failure));
            }
        };
        // Once more, as late as can be: what was fetched days ago may not be trusted any longer.
        self.vouched(wish)?;
        #[cfg(feature = "halt-points")]
        if crate::halt::arms_early() {
            // W6 in the wrong place.
            boot.arm(*slot, &what, slots.get().sequence + 1).await?;
        }
        // W4 before anything names it: no entry ever stands for half a kernel.
        boot.kernel(*slot, &what).await?;
        // Before W5: what is armed boots with any reset, so nothing delays it from there on.
        self.may_reset(before).await?;
        // W5 before W6: who boots it must know that it is on trial. Looked up anew: that took its time.
        let seen = boot.look().await?;
        let again = wish.again;
        let armed = slots.step(*slot, &Event::Arm { again }, &seen)?;
        // W6, the first of the two writes that lead to something new.
        boot.arm(*slot, &what, armed.sequence).await
    }

    /// Asks hooks, again and again but not for ever, whether the machine may be reset. Fails also if the leave ends
    /// meanwhile: what they held up is not made up for outside the window.
    async fn may_reset(&self, before: Option<DateTime<Utc>>) -> Result<(), Failure> {
        let patience = self.parts.reboot_patience;
        let begun = Instant::now();
        loop {
            let asked = self.ask(Moment::BeforeReboot).await;
            if before.is_some_and(|before| before <= self.parts.clock.now()) {
                let why = asked.err().unwrap_or_default();
                let colon = if why.is_empty() { "" } else { ": " };
                let reason = format!("the window closed while the reset was put off{colon}{why}");
                return Err(Failure::new(FailureKind::Reboot, reason));
            }
            let Err(why) = asked else {
                return Ok(());
            };
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let minutes = patience.as_secs() / 60;
                let reason =
                    format!("the reset was put off for {minutes} min, which is too long: {why}");
                return Err(Failure::new(FailureKind::Reboot, reason));
            }
            tracing::info!(why, "the reset is put off");
            sleep(ASK_AGAIN.min(left)).await;
        }
    }

    /// How the change ended, or how far it has come.
    pub(super) async fn find_out(
        &self,
        steps: &[Step],
        baseline: &Baseline,
    ) -> Result<Verdict, Failure> {
        let Some(step) = steps.first() else {
            return Ok(Verdict::default());
        };
        let seen = self.parts.boot.look().await?;
        let slots = self.parts.slots.get();
        let mut standing =
            Standing::of(step, &slots, &seen).since(baseline.undecided, step, &slots);
        if let (Standing::Failed { log, .. }, Some(since)) = (&mut standing, baseline.at)
            && log.is_empty()
        {
            // It ended without a word; the firmware may have kept what the kernel said.
            *log = trial::of_silent_end(&self.parts.place, since);
        }
        let (problem, is_final) = standing.problem(step).unzip();
        Ok(Verdict {
            problem,
            is_final: is_final.unwrap_or_default(),
            booted: seen.image.map(|(_, image_id)| image_id),
            ..Verdict::default()
        })
    }

    /// What is armed needs its reboot. What runs and stays is told to those who wait for it.
    pub(super) async fn follow_up(&self, steps: &[Step]) -> Result<After, Failure> {
        let Some(step) = steps.first() else {
            return Ok(After::default());
        };
        let seen = self.parts.boot.look().await?;
        if Standing::of(step, &self.parts.slots.get(), &seen) == Standing::Runs {
            let told = self.ask(Moment::AfterCommit).await;
            return Ok(After {
                remarks: told.err().into_iter().collect(),
                ..After::default()
            });
        }
        let id = &step.wish.image_id;
        let reason = format!("the image {id} in {} is to be tried", step.slot.label());
        Ok(After {
            reboot: Some(vec![reason]),
            reboot_is_the_change: true,
            ..After::default()
        })
    }

    /// Sees to it that a slot is not started, if the other one runs.
    pub(super) async fn disarm(&self, slot: Slot) -> Result<Undone, Failure> {
        let ImageParts { boot, slots, .. } = &self.parts;
        let seen = boot.look().await?;
        if seen.booted != Some(slot.other()) {
            return Ok(Undone::Impossible);
        }
        match slots.get().state(slot) {
            // Somebody else's doing: what was kept is not for an attempt to take away.
            SlotState::Good(_) | SlotState::Trial { .. } => Ok(Undone::Impossible),
            SlotState::Armed { .. } => {
                // First what starts it, then the record: the other way a cut between them would leave an image that boots
                // and of which nobody knows that it is on trial.
                boot.withdraw(slot).await?;
                let seen = boot.look().await?;
                slots.step(slot, &Event::NotTried, &seen)?;
                Ok(Undone::Entirely)
            }
            SlotState::Empty
            | SlotState::Writing(_)
            | SlotState::Written(_)
            | SlotState::Bad { .. } => {
                boot.withdraw(slot).await?;
                Ok(Undone::Entirely)
            }
        }
    }
}

#[cfg(test)]
mod tests;
