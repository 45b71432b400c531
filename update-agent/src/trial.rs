//! The trial: what happens between the first boot of a new image and the decision to keep it or to give it up.
//!
//! Until the record says Good and the loader's entry has no counter, any reset leads back to the old image, sooner or
//! later, whoever makes it: the agent, the [guard](fn@guard), the initramfs, the kernel's `panic=`, the watchdog, or a
//! person. So the trial needs to be right about one thing only, the order of its writes. W8 says that the image was
//! booted, W9 that it was healthy, W10 makes it the one that boots, W11 says so. The other way U1 says why not, U2
//! removes its entry, U3 resets. W10 stands alone between old and new; before it nothing is lost by a cut, and behind
//! it nothing leads back.
//!
//! What cannot be written is tried again until the deadline. Then:
//!
//! | what fails | answer |
//! | --- | --- |
//! | the server alone, however well the rest | U1 says undecided; the old image finds that, and takes it for written |
//! | the agent's way to the server cannot be used at all | not kept; as an unhealthy image, whoever demands the server |
//! | W8, W9: the record | not kept; as an unhealthy image |
//! | U1: the record, after W8 | U2 and U3 without it: the old image finds Trial without an entry, and concludes |
//! | U1: the record, without W8 | U3 alone: the loader's counter is all that says that it was tried, so it stays |
//! | W10: the boot control | U2 and U3 without U1: the image is not bad, and the old one finds it Written |
//! | W10 and U2 | neither can be, and a reset would only lead here again: it runs on, and the next start blesses it |
//! | W11: the record | kept: the next start finds a plain entry, and writes it |
//! | U2: the boot control | U3: the loader counts what is left, and each next boot comes here again |
//! | U2 would remove the only entry | it is not removed: a sick system is better than none |

mod changes;
mod guard;
mod health;
mod last_words;
mod reset;
mod running;
#[cfg(test)]
mod tests;
pub(crate) mod watchdog;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use self::changes::{Change, Changes};
use self::health::Health;
use self::running::{Running, leave, running};
use self::watchdog::Watchdog as Device;
use crate::config::{HealthConfig, Watchdog};
use crate::link::Link;
use crate::model::{Failure, FailureKind};
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{Entry, Event, Seen, Slot, SlotFile, SlotState};
use crate::place::Place;
use crate::runner::Runner;

pub(crate) use self::changes::look;
pub use self::guard::{Guarded, guard, is_watched};
pub use self::last_words::of_silent_end;
pub use self::reset::{Reset, SysRq};

/// How often is asked, and tried again.
const BEAT: Duration = Duration::from_secs(2);

/// The disk is given at least so long to flush the record.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long after the deadline the agent, if it lives, may take to write down why, before others reset the machine.
/// Longer than it takes: the last words, and what the boot control does.
const GRACE: Duration = Duration::from_mins(1);

/// Why an entry is not removed.
const NOTHING_ELSE: &str = "there is nothing else to boot";

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// There was none.
    NotOnTrial,
    /// The image is kept.
    Committed {
        /// How long that took from boot.
        took: Duration,
    },
    /// The image is given up, and the reset was asked for: who sees this has nothing left to do, and changes nothing.
    FellBack {
        /// Why.
        why: String,
    },
}

/// What a trial is made of.
pub struct TrialParts {
    /// Says what runs, keeps it, and gives it up.
    pub boot: Arc<dyn BootControl>,
    /// What is known of the slots.
    pub slots: Arc<SlotFile>,
    /// The way to the server; or why this agent has none. The image that armed this one had one: that is a fault of the
    /// image itself, whoever demands the server.
    pub link: Result<Arc<dyn Link>, String>,
    /// Starts programs of the image.
    pub runner: Arc<dyn Runner>,
    /// Where things are.
    pub place: Place,
    /// Resets the machine.
    pub reset: Arc<dyn Reset>,
    /// What healthy means, and how long it may take.
    pub health: HealthConfig,
    /// Whether the old image had reached the server shortly before: only then is it demanded of the new one.
    pub server: bool,
    /// What becomes of a watchdog.
    pub watchdog: Watchdog,
}

impl fmt::Debug for TrialParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrialParts")
            .field("boot", &self.boot.name())
            .field("place", &self.place)
            .field("health", &self.health)
            .field("server", &self.server)
            .field("watchdog", &self.watchdog)
            .finish_non_exhaustive()
    }
}

/// Sees the trial through that the machine is in, if it is in one. What reconciliation of the record wanted done has
/// been done before. Ends at the latest a little after the deadline.
///
/// An error means that the image that runs is neither kept nor given up for now, and that a reset would not change
/// that: the agent says so and goes on with its work, and its next start goes on with the trial.
pub async fn see_through(parts: &TrialParts) -> Result<Over, Failure> {
    let timer = Timer::start(&parts.place, parts.health.deadline);
    let (slot, seen) = match running(parts, &timer).await? {
        Running::Trial(slot, seen) => (slot, seen),
        Running::Settled => {
            // Left open by an agent that was ended on trial, when its successor only had to finish the record.
            watchdog::stop_left_open(&parts.place);
            guard::end(&parts.place);
            return Ok(Over::NotOnTrial);
        }
        Running::Bad(slot, seen) => return leave(parts, slot, &seen).await,
        Running::Unknown(why) => {
            tracing::error!(why, "nothing can be learnt about the trial; resetting");
            parts.reset.now().await;
            return Ok(Over::FellBack { why });
        }
    };
    tracing::info!(slot = slot.label(), deadline = ?timer.deadline, "on trial");
    let device = Device::new(&parts.place, parts.watchdog);
    let is_armed = matches!(parts.slots.get().state(slot), SlotState::Armed { .. });
    let trial = Trial {
        parts,
        timer: &timer,
        device: &device,
        changes: Changes::new(&parts.boot, slot),
        slot,
        seen,
        is_armed: AtomicBool::new(is_armed),
    };
    // Behind the deadline a change may still run, then another look is taken, and the slot is withdrawn.
    let at_the_end = (GRACE / 2).max(parts.boot.patience().saturating_mul(3));
    let fed = timer.left().saturating_add(at_the_end);
    let over = device.feed_during(fed, trial.run()).await;
    // Whoever was given up is not fed any more, and not let go either: should the reset not come about, it makes one.
    if !matches!(over, Ok(Over::FellBack { .. })) {
        device.stop();
    }
    over
}

/// Knows how long ago the machine was booted, time in which it slept left out.
#[derive(Debug)]
struct Timer {
    /// How long ago that was when the timer was made.
    before: Duration,
    began: Instant,
    deadline: Duration,
    /// Whether the deadline counts from boot; else from when the timer was made.
    is_from_boot: bool,
}

impl Timer {
    /// A timer for a deadline: from boot where a guard watches, which counts from there as well; else from now, for an
    /// agent that is started again late in a boot must be able to learn something. Where it cannot be learnt when the
    /// machine was booted, it was now.
    fn start(place: &Place, deadline: Duration) -> Self {
        Self {
            before: guard::since_boot(place).unwrap_or_default(),
            began: Instant::now(),
            deadline,
            is_from_boot: guard::is_watched(place),
        }
    }

    fn since_boot(&self) -> Duration {
        self.before + self.began.elapsed()
    }

    /// How long it is until the deadline; zero behind it.
    fn left(&self) -> Duration {
        let passed = if self.is_from_boot {
            self.since_boot()
        } else {
            self.began.elapsed()
        };
        self.deadline.saturating_sub(passed)
    }

    /// The deadline, in words.
    fn words(&self) -> String {
        let from = if self.is_from_boot {
            "boot"
        } else {
            "the agent's start"
        };
        format!("{} s after {from}", self.deadline.as_secs())
    }
}

/// Why an image is not kept.
#[derive(Debug)]
struct NotKept {
    why: String,
    /// Whether everything that is the image's own was well for as long as it must be, up to the deadline. Then only the
    /// server was missing, and nobody knows whose fault that is.
    is_undecided: bool,
}

impl From<String> for NotKept {
    fn from(why: String) -> Self {
        Self {
            why,
            is_undecided: false,
        }
    }
}

/// A trial that is being seen through.
struct Trial<'a> {
    parts: &'a TrialParts,
    timer: &'a Timer,
    device: &'a Device,
    changes: Changes,
    slot: Slot,
    /// As it was when the trial began.
    seen: Seen,
    /// Whether W8 was not taken yet. The record itself is not asked: it waits for a disk that may not answer.
    is_armed: AtomicBool,
}

impl Trial<'_> {
    async fn run(&self) -> Result<Over, Failure> {
        let slots = self.parts.slots.get();
        let passed = match slots.state(self.slot) {
            // An earlier agent of this boot, or an earlier boot, has passed it and came no further: it is not asked
            // again.
            SlotState::Trial { passed: true, .. } => Ok(()),
            // An earlier agent of this boot has given up asking, and came no further.
            SlotState::Trial {
                boots,
                doubt: Some(doubt),
                ..
            } if boots.contains(&self.seen.boot_id) && self.timer.left().is_zero() => {
                Err(NotKept {
                    why: doubt.why.clone(),
                    is_undecided: true,
                })
            }
            _ => self.pass().await,
        };
        match passed {
            Ok(()) => self.keep().await,
            Err(not_kept) => self.fall_back(not_kept).await,
        }
    }

    /// W8, health, W9; else why not.
    async fn pass(&self) -> Result<(), NotKept> {
        let unwritten =
            |failure: Failure| format!("what happens on trial cannot be written down: {failure}");
        // W8 before anything is asked: if no word of this boot ever comes, the old image knows that there was one.
        let booted = self.write(Event::Booted).await;
        booted.map_err(unwritten)?;
        self.is_armed.store(false, Ordering::Relaxed);
        self.become_healthy().await?;
        // W9 before W10: a cut in W10 must not leave an image that boots for ever and that the record calls untried.
        let passed = self.write(Event::Passed).await;
        passed.map_err(unwritten)?;
        Ok(())
    }

    /// Writes an event into the record; again and again until the deadline.
    async fn write(&self, event: Event) -> Result<(), Failure> {
        loop {
            let written = self.step(event.clone(), self.seen.clone()).await;
            let Err(failure) = written else { return Ok(()) };
            if self.timer.left().is_zero() {
                return Err(failure);
            }
            tracing::warn!(%failure, ?event, "the record cannot be written");
            sleep(BEAT).await;
        }
    }

    /// Takes a step of the record. Another thread does it, since a disk takes its time to flush and this one feeds the
    /// watchdog. A disk that does not answer until the deadline is not waited for. What it writes later is a step of the
    /// table all the same, and a reset behind any of them leads to one image or the other.
    async fn step(&self, event: Event, seen: Seen) -> Result<(), Failure> {
        let (slots, slot) = (Arc::clone(&self.parts.slots), self.slot);
        let step = spawn_blocking(move || slots.step(slot, &event, &seen).map(drop));
        let patience = self.timer.left().max(PATIENCE);
        let unwritten = |why: String| {
            let reason = format!("the record of the slots is not written: {why}");
            Failure::new(FailureKind::Storage, reason)
        };
        match timeout(patience, step).await {
            Ok(Ok(stepped)) => stepped,
            Ok(Err(error)) => Err(unwritten(error.to_string())),
            Err(_) => {
                let patience = patience.as_secs();
                Err(unwritten(format!(
                    "the disk did not answer within {patience} s"
                )))
            }
        }
    }

    /// Asks until everything has been well for as long as it must be, without interruption; else why not.
    async fn become_healthy(&self) -> Result<(), NotKept> {
        let HealthConfig { stable, .. } = self.parts.health;
        let mut health = Health::new(self.parts);
        let mut since = None;
        // The same of all but the server.
        let mut own: Option<Instant> = None;
        let mut why = String::new();
        let mut is_first = true;
        loop {
            let asked = async {
                let itself = health.of_itself().await;
                if let Err(fault) = itself.and_then(|()| self.device.fault().map_or(Ok(()), Err)) {
                    own = None;
                    return Err(fault);
                }
                own.get_or_insert_with(Instant::now);
                health.of_server().await.map_err(|missing| {
                    if missing.is_own_fault {
                        own = None;
                    }
                    missing.why
                })
            };
            // The first round is never cut off: who comes late would judge an image of which nothing is known. What it
            // asks has deadlines of its own.
            let asked = if std::mem::take(&mut is_first) {
                Ok(asked.await)
            } else {
                timeout(self.timer.left(), asked).await
            };
            match asked {
                Ok(Ok(())) => {
                    let so_far = since.get_or_insert_with(Instant::now).elapsed();
                    if so_far >= stable {
                        return Ok(());
                    }
                    why = format!("it had been healthy for {} s only", so_far.as_secs());
                }
                Ok(Err(fault)) => {
                    if since.take().is_some() || fault != why {
                        tracing::warn!(fault, "not healthy yet");
                    }
                    why = fault;
                }
                // The deadline came while it was asked: what was known before is told.
                Err(_) => {}
            }
            if self.timer.left().is_zero() {
                return Err(NotKept {
                    why: format!("not healthy {}: {why}", self.timer.words()),
                    is_undecided: health.demands_server()
                        && own.is_some_and(|own| own.elapsed() >= stable),
                });
            }
            sleep(BEAT.min(self.timer.left())).await;
        }
    }

    /// W10 and W11.
    async fn keep(&self) -> Result<Over, Failure> {
        loop {
            let blessed = self.changes.make(Change::Bless).await;
            let Err(failure) = blessed else { break };
            if self.timer.left().is_zero() {
                return self.cannot_keep(&failure).await;
            }
            tracing::warn!(%failure, "the image cannot be made the one to boot");
            sleep(BEAT).await;
        }
        // From here on no reset leads back, so nobody needs to make one.
        guard::end(&self.parts.place);
        loop {
            // The record takes it only if the entry has really no counter any more.
            let written = match changes::look(self.parts.boot.as_ref()).await {
                Ok(seen) => self.step(Event::Committed, seen).await,
                Err(failure) => Err(failure),
            };
            let Err(failure) = written else { break };
            if self.timer.left().is_zero() {
                return Err(failure);
            }
            tracing::warn!(%failure, "that the image is kept cannot be written down");
            sleep(BEAT).await;
        }
        let took = self.timer.since_boot();
        tracing::info!(slot = self.slot.label(), ?took, "the image is kept");
        Ok(Over::Committed { took })
    }

    /// The image is healthy, and the boot control does not keep it. Without U1, which would call it bad for what it did
    /// not do: the old image finds that it had passed, and takes it for written.
    async fn cannot_keep(&self, failure: &Failure) -> Result<Over, Failure> {
        let why = format!("healthy, but it cannot be made the one to boot: {failure}");
        let second = if self.is_all_there_is().await {
            NOTHING_ELSE.to_owned()
        } else {
            match self.changes.make(Change::Withdraw).await {
                Ok(()) => {
                    tracing::error!(why, "falling back");
                    self.parts.reset.now().await;
                    return Ok(Over::FellBack { why });
                }
                Err(second) => second.reason,
            }
        };
        // Neither can be. A reset would lead to the same place, over and over: a system that runs is worth more.
        guard::end(&self.parts.place);
        let reason = format!("{why}; nor can it be given up: {second}");
        Err(Failure::new(FailureKind::Apply, reason))
    }

    /// U1, U2, U3.
    async fn fall_back(&self, not_kept: NotKept) -> Result<Over, Failure> {
        tracing::error!(why = not_kept.why, "falling back");
        let (parts, slot) = (self.parts, self.slot);
        let was_armed = self.is_armed.load(Ordering::Relaxed);
        // U1 first: with the entry gone and nothing said, nobody would learn why.
        let told = self.tell(&not_kept, was_armed).await;
        let why = not_kept.why;
        if let Err(failure) = &told {
            tracing::error!(%failure, "why the image is given up cannot be written down");
        }
        if self.is_all_there_is().await {
            guard::end(&parts.place);
            let reason = format!("{why}; it runs on, because {NOTHING_ELSE}");
            return Err(Failure::new(FailureKind::Verify, reason));
        }
        // If nothing says that it was on trial, the loader's counter must: an armed slot without an entry looks as if
        // it had never been booted, and would be tried again.
        let is_counted = matches!(self.seen.entry(slot), Entry::Counted { .. });
        let is_evidence = told.is_err() && was_armed && is_counted;
        // U2 does not rely on the loader's counting, which some versions do wrong.
        if !is_evidence && let Err(failure) = self.changes.make(Change::Withdraw).await {
            tracing::error!(%failure, "its entry cannot be removed");
        }
        parts.reset.now().await;
        Ok(Over::FellBack { why })
    }

    /// U1. Once: the deadline is over.
    async fn tell(&self, not_kept: &NotKept, was_armed: bool) -> Result<(), Failure> {
        let TrialParts { place, runner, .. } = self.parts;
        let log = last_words::of_this_boot(place, runner.as_ref()).await;
        if was_armed {
            // W8 was not taken before, and only what is on trial can have failed.
            self.step(Event::Booted, self.seen.clone()).await?;
        }
        let why = not_kept.why.clone();
        let event = if not_kept.is_undecided {
            Event::Undecided { why, log }
        } else {
            Event::Failed { why, log }
        };
        self.step(event, self.seen.clone()).await
    }

    /// Whether nothing would boot with this entry gone. What cannot be learnt is as it was when the trial began.
    async fn is_all_there_is(&self) -> bool {
        let looked = changes::look(self.parts.boot.as_ref()).await;
        let seen = looked.as_ref().unwrap_or(&self.seen);
        matches!(seen.entry(self.slot.other()), Entry::Absent)
    }
}
