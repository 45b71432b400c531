//! One attempt, from the plan to the verdict.
//!
//! Everything is in the journal before it happens, so that after a kill at any moment the next engine on the same folder
//! goes on. What a step's tool says of itself decides nothing; what is found on the node afterwards does. `work` takes
//! the steps and looks at what they made, `aftermath` reboots the node if that is needed and ends the attempt.

mod aftermath;
mod work;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Clock;

use crate::boot::Reboot;
use crate::identity;
use crate::journal::{Entry, Journal, JournalError, Phase, Point, Step};
use crate::model::{Event, Failure, FailureKind, News, Target};
use crate::modules::{AnyModule, AnyStep, Draft, Fetched, Ready};

/// Services that were started with the system have so long to come up before their absence counts.
const SETTLING: Duration = Duration::from_mins(2);

/// The cause of giving up what is not wanted any more: nothing of it is needed.
pub const WITHDRAWN: &str = "withdrawn";

/// The word of the machine's owner on a reboot now: an error says why not.
pub type MayReboot = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What an engine is made of.
pub struct Parts {
    /// What it can change.
    pub modules: Vec<Box<dyn AnyModule>>,
    /// Where it writes down what it does.
    pub journal: Box<dyn Journal>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// The boot that the system is in.
    pub boot_id: String,
    /// How the node is rebooted.
    pub reboot: Box<dyn Reboot>,
    /// Whether the machine's owner lets it be rebooted.
    pub may_reboot: MayReboot,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("boot_id", &self.boot_id)
            .finish_non_exhaustive()
    }
}

/// Carries attempts out.
pub struct Engine {
    parts: Parts,
    settling: Duration,
    /// How long the last plan took, in milliseconds.
    planning: AtomicU64,
    /// Why what was begun was last left open; empty if it was not.
    left_open: Mutex<String>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("modules", &self.module_names())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine of its parts.
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            settling: SETTLING,
            planning: AtomicU64::new(0),
            left_open: Mutex::default(),
        }
    }

    /// How long after a boot services may take to come up before their absence counts.
    #[must_use]
    pub fn with_settling(mut self, settling: Duration) -> Self {
        self.settling = settling;
        self
    }

    /// The names of the modules, in ascending order.
    pub fn module_names(&self) -> Vec<String> {
        let modules = self.parts.modules.iter();
        let mut names: Vec<_> = modules.map(|module| module.name().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// The points at which the journal is written, in the order in which an attempt passes them.
    pub fn points(&self) -> Vec<Point> {
        let (before, after) = Point::FIXED.split_at(3);
        let steps = self.parts.modules.iter().flat_map(|module| {
            let names = module.step_names().iter();
            names.map(|step| Point::done(module.name(), step))
        });
        let fixed = |names: &'static [&'static str]| names.iter().map(|name| Point::fixed(name));
        fixed(before).chain(steps).chain(fixed(after)).collect()
    }

    /// The open attempt, if there is one. What an attempt left behind that is not open any more is removed.
    pub fn open(&self) -> Result<Option<Entry>, JournalError> {
        self.parts.journal.read()
    }

    /// Why [`Engine::carry_out`] last left what was begun open, in words for a person; empty if it did not, or only for a
    /// reboot.
    pub fn why_open(&self) -> String {
        self.left_open().clone()
    }

    fn left_open(&self) -> MutexGuard<'_, String> {
        self.left_open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back what an attempt got ready that is not open any more: its journal may have been lost. Only when none is
    /// open. What cannot be taken back now is by the next round.
    pub async fn stand_down(&self) {
        for module in &self.parts.modules {
            if let Err(failure) = module.stand_down().await {
                tracing::error!(module = module.name(), error = %failure, "what no attempt waits for cannot be taken back");
            }
        }
    }

    /// Removes what attempts left behind. Only when none is open.
    pub fn tidy(&self) {
        for module in &self.parts.modules {
            if let Err(failure) = module.clean() {
                tracing::warn!(module = module.name(), error = %failure, "cannot clean up");
            }
        }
    }

    /// Brings up to date what the modules know about the outside, without any wish.
    pub async fn refresh(&self) -> Result<(), Failure> {
        for module in &self.parts.modules {
            module.refresh(None).await?;
        }
        Ok(())
    }

    /// Plans the whole change. Nothing is opened and nothing but the modules' knowledge is changed.
    pub async fn plan(&self, target: &Target) -> Result<Draft<AnyStep>, Failure> {
        let begun = self.now();
        let planned = self.think(target).await;
        let passed = self.now().signed_duration_since(begun);
        let millis = u64::try_from(passed.num_milliseconds()).unwrap_or(0);
        self.planning.store(millis, Ordering::Relaxed);
        planned
    }

    async fn think(&self, target: &Target) -> Result<Draft<AnyStep>, Failure> {
        let mut whole = Draft::default();
        let mut spoken_of = false;
        for module in &self.parts.modules {
            module.refresh(Some(&target.wish)).await?;
            let Some(draft) = module.plan(&target.wish).await? else {
                continue;
            };
            spoken_of = true;
            whole.changes.extend(draft.changes);
            whole.steps.extend(draft.steps);
            whole.withheld.extend(draft.withheld);
            whole.image = whole.image.or(draft.image);
            whole.download_bytes += draft.download_bytes;
            whole.disk_bytes += draft.disk_bytes;
            whole.reboot_expected |= draft.reboot_expected;
        }
        if spoken_of {
            return Ok(whole);
        }
        let reason = "this agent does not know how to do what was asked";
        Err(Failure::new(FailureKind::Unsupported, reason))
    }

    /// Opens an attempt with its plan.
    pub fn start(&self, target: Target, draft: Draft<AnyStep>) -> Result<Entry, JournalError> {
        let step = |step| Step { step, done: false };
        let mut entry = self.blank(target);
        entry.plan = draft.plan();
        entry.steps = draft.steps.into_iter().map(step).collect();
        let plan = entry.plan.clone();
        self.happened(&mut entry, News::Downloading(plan));
        self.write("opened", &entry)?;
        Ok(entry)
    }

    /// An attempt that is over before there was a plan.
    pub fn start_and_end(&self, target: Target, news: News) -> Result<Entry, JournalError> {
        self.end(self.blank(target), news)
    }

    /// Fetches what the plan needs, or a part of it: then the attempt stays open, to be gone on with after the server was
    /// heard. A failure ends the attempt: there is nothing more to fetch for it.
    pub async fn fetch(&self, mut entry: Entry) -> Result<(Entry, Fetched), JournalError> {
        let begun = self.now();
        let fetched = self.fetch_steps(&entry).await;
        let bytes = match fetched {
            Ok(Fetched::All) => entry.plan.download_bytes,
            Ok(Fetched::Part | Fetched::Later(_)) | Err(_) => 0,
        };
        entry.spent("download", (begun, self.now()), bytes);
        match fetched {
            Err(failure) => Ok((self.fail(entry, failure)?, Fetched::All)),
            Ok(Fetched::All) => {
                entry.phase = Phase::Staged;
                self.happened(&mut entry, News::Downloaded);
                self.write("downloaded", &entry)?;
                Ok((entry, Fetched::All))
            }
            Ok(Fetched::Part) => {
                // How long it took so far is told at the end.
                self.write("opened", &entry)?;
                Ok((entry, Fetched::Part))
            }
            Ok(later) => Ok((entry, later)),
        }
    }

    /// What is told anew of an open attempt's wish counts from now on: that it is the same change is for the caller to
    /// know. Only before anything was changed.
    pub fn renew(&self, mut entry: Entry, target: Target) -> Result<Entry, JournalError> {
        for step in &mut entry.steps {
            let module = self.module(&step.step);
            match module.and_then(|module| module.renew(&step.step, &target.wish)) {
                Ok(renewed) => step.step = renewed,
                // Whoever takes the step says the same.
                Err(failure) => tracing::warn!(error = %failure, "a step stays as it is"),
            }
        }
        entry.target = target;
        let point = match entry.phase {
            Phase::Downloading => "opened",
            _ => "downloaded",
        };
        self.write(point, &entry)?;
        Ok(entry)
    }

    /// Whether the modules let the change begin. What was fetched is checked again, and fetched again if need be.
    pub async fn ready(&self, entry: &Entry) -> Result<Ready, Failure> {
        // An image is booted or it is nothing: what would only be armed to be disarmed again is not begun.
        let hindrance = || self.parts.reboot.hindrance();
        if let Some(why) = entry.plan.image.as_ref().and_then(|_| hindrance()) {
            let why = format!("the node cannot be rebooted into its image: {why}");
            return Ok(Ready::NotYet(why));
        }
        match self.fetch_steps(entry).await? {
            Fetched::All => {}
            Fetched::Part => {
                let why = "what the change needs was lost and is being fetched again";
                return Ok(Ready::NotYet(why.to_owned()));
            }
            Fetched::Later(why) => return Ok(Ready::NotYet(why)),
        }
        let steps = all_steps(entry);
        for module in self.concerned(entry) {
            if let Ready::NotYet(why) = module.check(&steps).await? {
                return Ok(Ready::NotYet(why));
            }
        }
        Ok(Ready::Yes)
    }

    /// Fetches what the steps need, up to the first of which not all is there.
    async fn fetch_steps(&self, entry: &Entry) -> Result<Fetched, Failure> {
        for step in &entry.steps {
            match self.module(&step.step)?.fetch(&step.step).await? {
                Fetched::All => {}
                unfinished => return Ok(unfinished),
            }
        }
        Ok(Fetched::All)
    }

    /// The modules that have steps in an attempt. Others know nothing of it: they are neither asked nor told.
    fn concerned(&self, entry: &Entry) -> Vec<&dyn AnyModule> {
        let has_steps = |name: &str| entry.steps.iter().any(|step| step.step.module == name);
        let modules = self.parts.modules.iter().map(AsRef::as_ref);
        modules.filter(|module| has_steps(module.name())).collect()
    }

    /// Notes how the node is; from then on it is being changed. The server allowed it until `before`. An attempt whose
    /// beginning could not be noted is over: what came of it could not be told from what was.
    pub async fn begin(
        &self,
        mut entry: Entry,
        before: Option<DateTime<Utc>>,
    ) -> Result<Entry, JournalError> {
        let steps = all_steps(&entry);
        let mut baselines = BTreeMap::new();
        for module in self.concerned(&entry) {
            match module.note(&steps).await {
                Ok(baseline) => {
                    baselines.insert(module.name().to_owned(), baseline);
                }
                Err(failure) => return self.fail(entry, failure),
            }
        }
        entry.baselines = baselines;
        entry.phase = Phase::Applying;
        entry.before = before;
        self.happened(&mut entry, News::Began);
        self.write("began", &entry)?;
        Ok(entry)
    }

    /// Gives up an attempt that has changed nothing yet.
    pub fn cancel(&self, entry: Entry, cause: &str) -> Result<Entry, JournalError> {
        let cause = cause.to_owned();
        self.end(entry, News::Cancelled { cause })
    }

    /// Ends an attempt that has changed nothing yet.
    pub fn fail(&self, entry: Entry, failure: Failure) -> Result<Entry, JournalError> {
        let booted = unchanged(&entry);
        self.end(entry, News::failed(failure, booted))
    }

    /// Writes down up to which sequence number the server has stored the events.
    pub fn acknowledge(&self, entry: &mut Entry, upto: u32) -> Result<(), JournalError> {
        if entry.acknowledged == upto {
            return Ok(());
        }
        entry.acknowledged = upto;
        self.write("acknowledged", entry)
    }

    /// Forgets an attempt of which the server knows everything. Who tries the same again goes on with what is there of it.
    pub async fn close(&self, entry: &Entry) -> Result<(), JournalError> {
        self.tidy();
        let wanted = is_still_wanted(entry).then_some(&entry.target.wish);
        for module in &self.parts.modules {
            if let Err(failure) = module.discard_but(wanted).await {
                tracing::warn!(module = module.name(), error = %failure, "what was fetched stays for now");
            }
        }
        self.parts.journal.clear()
    }

    fn module(&self, step: &AnyStep) -> Result<&dyn AnyModule, Failure> {
        let mut modules = self.parts.modules.iter();
        let own = modules.find(|own| own.name() == step.module);
        own.map(AsRef::as_ref).ok_or_else(|| {
            let reason = format!(
                "the module {} is missing, which alone knows this change: what it needs was not found when the agent \
                 started, or is not configured as it must be; look at `evenkeel-agent doctor`, mend that and start the \
                 agent again",
                step.module
            );
            Failure::new(FailureKind::Unsupported, reason)
        })
    }

    /// Why nobody can say how the change stands; `None` if each step has its module.
    fn missing(&self, entry: &Entry) -> Option<Failure> {
        let mut steps = entry.steps.iter();
        steps.find_map(|step| self.module(&step.step).err())
    }

    /// Whether leave was given and has ended.
    fn is_late(&self, entry: &Entry) -> bool {
        entry.before.is_some_and(|before| before <= self.now())
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
        if let Some(begun) = last(&entry, &News::VerifyBegun) {
            let begun = begun.at;
            entry.spent("verify", (begun, self.now()), 0);
        }
        entry.phase = Phase::Over;
        self.happened(&mut entry, news);
        self.write("ended", &entry)?;
        Ok(entry)
    }

    /// Numbers an event. It is sent only after the journal has it.
    fn happened(&self, entry: &mut Entry, news: News) {
        let account = if news.is_terminal() {
            entry.account()
        } else {
            None
        };
        entry.events.push(Event {
            sequence: entry.last_sequence() + 1,
            at: self.now(),
            boot_id: self.parts.boot_id.clone(),
            news,
            account,
        });
    }

    fn write(&self, point: &'static str, entry: &Entry) -> Result<(), JournalError> {
        self.parts.journal.write(&Point::fixed(point), entry)
    }

    fn now(&self) -> DateTime<Utc> {
        self.parts.clock.now()
    }

    /// A new attempt, which knows how long its plan took.
    fn blank(&self, target: Target) -> Entry {
        let mut entry = Entry::new(identity::new_attempt(), target);
        let planning = self.planning.swap(0, Ordering::Relaxed);
        let now = self.now();
        let passed = TimeDelta::milliseconds(i64::try_from(planning).unwrap_or(0));
        let begun = now.checked_sub_signed(passed).unwrap_or(now);
        entry.spent("plan", (begun, now), 0);
        entry
    }
}

/// The version of the image that a node runs of which nothing was changed; none if the attempt is for no image.
fn unchanged(entry: &Entry) -> Option<String> {
    let before = &entry.plan.image.as_ref()?.before;
    (!before.is_empty()).then(|| before.clone())
}

/// Whether another attempt may follow one that is over, at the same.
fn is_still_wanted(entry: &Entry) -> bool {
    match entry.events.last().map(|event| &event.news) {
        Some(News::Failed { .. } | News::Reverted { .. }) => true,
        Some(News::Cancelled { cause }) => cause != WITHDRAWN,
        _ => false,
    }
}

fn all_steps(entry: &Entry) -> Vec<AnyStep> {
    entry.steps.iter().map(|step| step.step.clone()).collect()
}

/// The last event with this news.
fn last<'a>(entry: &'a Entry, news: &News) -> Option<&'a Event> {
    entry.events.iter().rev().find(|event| event.news == *news)
}
