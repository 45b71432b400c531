//! Images of the operating system: one of two slots runs, the other takes the next image, and what does not come up well is
//! left again.
//!
//! Everything that takes long happens while the node works on: the file is fetched, checked, unpacked into the slot that
//! does not run, and read back ([`Module::fetch`]). What is left for the window is to arm the slot and to reset ([`arm`]).
//! From the reset on the [`crate::trial`] decides, before this module is asked anything; [`Module::verify`] only finds how
//! it ended.
//!
//! The writes and their order are those of [`slots`]: W0 to W3 in `write_slot`, W4 to W6 in `arm`.

pub mod arm;
pub mod boot_control;
pub mod device;
pub mod plan;
pub mod signature;
pub mod slots;
pub mod spool;
pub mod uki;
pub mod unpack;
pub mod web;

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::Clock;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::arm::Standing;
use self::boot_control::BootControl;
use self::plan::{Observed, Step};
use self::signature::Keys;
use self::slots::{Event, Raw, Seen, Slot, SlotFile, SlotState, What};
use self::spool::{Got, Spool, Spooled};
use crate::hooks::{self, Moment};
use crate::model::{Failure, FailureKind, ImageWish, Sha256, Wish};
use crate::modules::{After, Draft, Fetched, Module, Ready, Try, Undone, Verdict};
use crate::owner::Owner;
use crate::place::Place;
use crate::runner::Runner;

/// After so long a part of a download is told.
const SLICE: Duration = Duration::from_secs(30);

/// A slot that was read back and found whole is not read again sooner, however often the node is asked whether it is ready.
const READ_AGAIN: Duration = Duration::from_mins(10);

/// Where the file of an image comes from, and where it lies until it is unpacked.
#[async_trait::async_trait]
pub trait Files: Send + Sync {
    /// The size of a file; `None` if that cannot be learnt before it is fetched.
    async fn size(&self, wish: &ImageWish) -> Result<Option<u64>, Failure>;
    /// Works on a file for at most about `slice`.
    async fn fetch(&self, wish: &ImageWish, slice: Duration) -> Result<Got, Failure>;
    /// Removes what was fetched, but for one file.
    fn discard_but(&self, keep: Option<&Sha256>) -> Result<(), Failure>;
}

#[async_trait::async_trait]
impl Files for Spool {
    async fn size(&self, wish: &ImageWish) -> Result<Option<u64>, Failure> {
        Spool::size(self, wish).await
    }

    async fn fetch(&self, wish: &ImageWish, slice: Duration) -> Result<Got, Failure> {
        Spool::fetch(self, wish, slice).await
    }

    fn discard_but(&self, keep: Option<&Sha256>) -> Result<(), Failure> {
        Spool::discard_but(self, keep)
    }
}

/// What the module is made of.
pub struct ImageParts {
    /// Says what runs, and arms.
    pub boot: Arc<dyn BootControl>,
    /// What is known of the slots.
    pub slots: Arc<SlotFile>,
    /// Fetches files.
    pub files: Arc<dyn Files>,
    /// What the machine's owner allows.
    pub owner: Arc<Owner>,
    /// Runs hooks.
    pub runner: Arc<dyn Runner>,
    /// Where things are.
    pub place: Place,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// The kernel's name of the machine's architecture.
    pub machine: String,
    /// How long each hook may take.
    pub hook_deadline: Duration,
    /// How long hooks may put off the reset.
    pub reboot_patience: Duration,
}

impl fmt::Debug for ImageParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageParts")
            .field("boot", &self.boot.name())
            .finish_non_exhaustive()
    }
}

/// Run an image.
pub struct Image {
    parts: ImageParts,
    /// The slot that was last found whole.
    whole: Mutex<Option<Whole>>,
}

/// A slot that was read back and found whole.
struct Whole {
    slot: Slot,
    raw: Raw,
    at: Instant,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("boot", &self.parts.boot.name())
            .finish_non_exhaustive()
    }
}

/// What is noted before the change. It may be read by the agent of another image, older or newer: every field may be left
/// out, and one that is not known is read past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    /// When it was noted, by the node's clock.
    pub at: Option<DateTime<Utc>>,
    /// How often the image had been left undecided.
    pub undecided: u8,
}

impl Image {
    /// The images of a system with two slots.
    pub fn new(parts: ImageParts) -> Self {
        Self {
            parts,
            whole: Mutex::new(None),
        }
    }

    /// The part of a wish that speaks of images.
    pub fn wanted(wish: &Wish) -> Option<&ImageWish> {
        match wish {
            Wish::Image(image) => Some(image),
            Wish::Packages(_) | Wish::Unknown => None,
        }
    }

    /// Whether somebody vouches for an image whom the machine's owner trusts. Read anew each time: a key that is taken away
    /// counts from then on.
    fn vouched(&self, wish: &ImageWish) -> Result<(), Failure> {
        let limits = self.parts.owner.limits();
        let limits =
            limits.map_err(|error| Failure::new(FailureKind::Limits, error.to_string()))?;
        if limits.image.unsigned_images {
            return Ok(());
        }
        Keys::load(&self.parts.place.image_keys())?.check(wish)
    }

    async fn ask(&self, moment: Moment) -> Result<(), String> {
        let ImageParts {
            place,
            runner,
            hook_deadline,
            ..
        } = &self.parts;
        hooks::ask(moment, place, runner.as_ref(), *hook_deadline).await
    }

    /// W0 to W3: from the whole file to the slot. If it fails the file stays: the next attempt need not fetch it again.
    async fn write_slot(&self, step: &Step, from: &Spooled) -> Result<(), Failure> {
        let ImageParts { boot, slots, .. } = &self.parts;
        let Step { slot, wish, .. } = step;
        let seen = boot.look().await?;
        let what = What {
            file: wish.sha256,
            profile_name: wish.profile_name.clone(),
            image_id: wish.image_id.clone(),
            raw: None,
        };
        // W0, the intent first: after a cut nobody takes for whole what is half written.
        let begin = Event::Begin {
            what,
            again: wish.again,
        };
        slots.step(*slot, &begin, &seen)?;
        // W1 before the first byte: nothing may start what will be torn.
        boot.withdraw(*slot).await?;
        // W2. Who lets go of this, because the agent is asked to stop, stops the writing as well.
        let halt = CancellationToken::new();
        let _halts = halt.clone().drop_guard();
        let raw = match boot.write(*slot, from, &halt).await {
            Ok(raw) => raw,
            Err(failure) => {
                slots.step(*slot, &Event::Spoilt, &seen)?;
                return Err(failure);
            }
        };
        // W3 when the slot was read back, and only then is the file let go: from here on no network is needed.
        slots.step(*slot, &Event::Wrote(raw), &seen)?;
        self.try_to_discard(None).await;
        Ok(())
    }

    /// Lets go of fetched files. What cannot be removed now is removed when the attempt is over.
    async fn try_to_discard(&self, keep: Option<Sha256>) {
        if let Err(failure) = self.discard(keep).await {
            tracing::warn!(error = %failure, "a file of an image stays for now");
        }
    }

    /// To remove a file of some GB takes its time: nobody else is kept waiting for it.
    async fn discard(&self, keep: Option<Sha256>) -> Result<(), Failure> {
        let files = Arc::clone(&self.parts.files);
        let discarded = tokio::task::spawn_blocking(move || files.discard_but(keep.as_ref()));
        discarded.await.unwrap_or_else(|error| {
            let reason = format!("what was fetched of an image could not be removed: {error}");
            Err(Failure::new(FailureKind::Storage, reason))
        })
    }

    /// Whether a slot still holds what was written. One that does not is written anew by the next attempt.
    async fn still_whole(&self, slot: Slot, raw: &Raw, seen: &Seen) -> Result<(), Failure> {
        let lock = || self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = lock().as_ref().is_some_and(|whole| {
            whole.slot == slot && whole.raw == *raw && whole.at.elapsed() < READ_AGAIN
        });
        if is_known {
            return Ok(());
        }
        let read = self.parts.boot.reread(slot, raw).await;
        if read
            .as_ref()
            .is_err_and(|failure| failure.kind == FailureKind::Verify)
        {
            self.parts.slots.step(slot, &Event::Spoilt, seen)?;
        }
        read?;
        *lock() = Some(Whole {
            slot,
            raw: *raw,
            at: Instant::now(),
        });
        Ok(())
    }
}

impl Module for Image {
    const NAME: &'static str = "image";
    const STEPS: &'static [&'static str] = Step::NAMES;
    const ARMS: bool = true;
    type Wanted = ImageWish;
    type Observed = Observed;
    type Step = Step;
    type Baseline = Baseline;

    /// The server says what there is.
    fn refresh(
        &self,
        _wanted: Option<&ImageWish>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    async fn observe(&self, wanted: &ImageWish) -> Result<Observed, Failure> {
        let ImageParts {
            boot, slots, files, ..
        } = &self.parts;
        let seen = boot.look().await?;
        let slots = slots.get();
        let unsigned = self.vouched(wanted).err();
        // No server is spoken to about a file that is there, or that nobody vouches for.
        let is_missing = plan::is_missing(wanted, &slots, &seen);
        let size = if is_missing && unsigned.is_none() {
            files.size(wanted).await?
        } else {
            None
        };
        let room = match seen.booted {
            Some(booted) if is_missing => Some(boot.room(booted.other()).await),
            _ => None,
        };
        Ok(Observed {
            refused: boot.refuses(wanted),
            faults: boot.faults().await,
            machine: self.parts.machine.clone(),
            slots,
            seen,
            unsigned,
            size,
            room,
        })
    }

    fn plan(wanted: &ImageWish, observed: &Observed) -> Result<Draft<Step>, Failure> {
        plan::plan(wanted, observed)
    }

    fn step_name(_step: &Step) -> &'static str {
        Step::NAME
    }

    fn renew(step: Step, wanted: &ImageWish) -> Step {
        Step {
            wish: wanted.clone(),
            ..step
        }
    }

    async fn fetch(&self, step: &Step) -> Result<Fetched, Failure> {
        let ImageParts { boot, slots, .. } = &self.parts;
        if matches!(slots.get().state(step.slot), SlotState::Armed { .. }) {
            // By an attempt whose journal was lost. What nobody waits for must not boot.
            self.disarm(step.slot).await?;
        }
        if plan::is_written(&step.wish, slots.get().state(step.slot)) {
            return Ok(Fetched::All);
        }
        arm::spare(step, &boot.look().await?)?;
        // Before the first byte is asked for, and with each part: a key may have been taken away.
        self.vouched(&step.wish)?;
        if let Err(why) = self.ask(Moment::BeforeDownload).await {
            return Ok(Fetched::Later(why));
        }
        // There is room for one.
        self.try_to_discard(Some(step.wish.sha256)).await;
        match self.parts.files.fetch(&step.bounded(), SLICE).await? {
            Got::Part { bytes } => {
                tracing::debug!(bytes, "a part of the image is there");
                Ok(Fetched::Part)
            }
            Got::Later(why) => Ok(Fetched::Later(why)),
            Got::All(spooled) => {
                self.write_slot(step, &spooled).await?;
                Ok(Fetched::All)
            }
        }
    }

    async fn check(&self, steps: &[Step]) -> Result<Ready, Failure> {
        let ImageParts {
            boot, slots, owner, ..
        } = &self.parts;
        let Some(step) = steps.first() else {
            return Ok(Ready::Yes);
        };
        // Once it is armed nothing may delay the reset.
        if let Err(why) = owner.may_reboot() {
            return Ok(Ready::NotYet(why));
        }
        self.vouched(&step.wish)?;
        let seen = boot.look().await?;
        let Standing::Ready(what) = Standing::of(step, &slots.get(), &seen) else {
            let reason = format!(
                "{} does not hold the image any more, or does not wait: somebody else changed it since the plan was made",
                step.slot.label()
            );
            return Err(Failure::new(FailureKind::Plan, reason));
        };
        let faults = boot.faults().await;
        if !faults.is_empty() {
            return Ok(Ready::NotYet(faults.join("; ")));
        }
        if let Err(why) = self.ask(Moment::BeforeArming).await {
            return Ok(Ready::NotYet(why));
        }
        if let Some(raw) = &what.raw {
            self.still_whole(step.slot, raw, &seen).await?;
        }
        Ok(Ready::Yes)
    }

    fn note(&self, steps: &[Step]) -> impl Future<Output = Result<Baseline, Failure>> + Send {
        let slots = self.parts.slots.get();
        let before = |step: &Step| Some(slots.undecided(&step.wish.sha256)?.times);
        ready(Ok(Baseline {
            at: Some(self.parts.clock.now()),
            undecided: steps.first().and_then(before).unwrap_or_default(),
        }))
    }

    /// The trial, if it could not be seen through: what it decides is not for an attempt to say.
    fn at_work(
        &self,
        _trying: Try,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send {
        let slots = self.parts.slots.get();
        let mut states = [&slots.a, &slots.b].into_iter();
        let on_trial = states.any(|state| matches!(state, SlotState::Trial { .. }));
        ready(Ok(on_trial.then(|| "an image is on trial".to_owned())))
    }

    /// What was done is looked up, whether it is the first try or not.
    async fn apply(&self, step: &Step, _trying: Try) -> Result<(), Failure> {
        self.arm(step, None).await
    }

    async fn apply_before(
        &self,
        step: &Step,
        _trying: Try,
        before: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        self.arm(step, before).await
    }

    async fn verify(&self, steps: &[Step], baseline: &Baseline) -> Result<Verdict, Failure> {
        self.find_out(steps, baseline).await
    }

    async fn after(&self, steps: &[Step], _baseline: &Baseline) -> Result<After, Failure> {
        self.follow_up(steps).await
    }

    async fn is_untouched(&self, steps: &[Step]) -> Result<bool, Failure> {
        let Some(step) = steps.first() else {
            return Ok(true);
        };
        let seen = self.parts.boot.look().await?;
        let standing = Standing::of(step, &self.parts.slots.get(), &seen);
        // That it is armed was only written down: nothing starts it.
        Ok(matches!(
            standing,
            Standing::Ready(_) | Standing::HalfArmed(_)
        ))
    }

    async fn undo(&self, steps: &[Step]) -> Result<Undone, Failure> {
        match steps.first() {
            Some(step) => self.disarm(step.slot).await,
            None => Ok(Undone::Entirely),
        }
    }

    async fn stand_down(&self) -> Result<(), Failure> {
        for slot in [Slot::A, Slot::B] {
            if matches!(self.parts.slots.get().state(slot), SlotState::Armed { .. }) {
                tracing::warn!(%slot, "the slot is armed, and no attempt waits for it");
                self.disarm(slot).await?;
            }
        }
        Ok(())
    }

    /// There is nothing but files, and they take long.
    fn clean(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn discard_but(&self, wanted: Option<&ImageWish>) -> Result<(), Failure> {
        self.discard(wanted.map(|wish| wish.sha256)).await
    }
}
