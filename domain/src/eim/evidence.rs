//! What a sample proves.

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::Time;
use crate::condition::ConditionKind;
use crate::decide::{NodeFacts, Target, TargetKind};
use crate::eim::delivery::Delivered;
use crate::eim::detail::Detail;
use crate::eim::echo;
use crate::os::{Image, OsKind};
use crate::run::{CancelCause, Evidence, Happening, OpenRun, RunEvent, RunState};
use crate::status::Indication;
use crate::text;

/// A call whose answer was lost is repeated within this time, with the very same sample (southbound section 3.3).
const RETRIES: TimeDelta = TimeDelta::seconds(15);

/// How often one sample is sent at most.
const CALLS: u32 = 4;

/// The longest image that is remembered, in bytes.
const MAX_IMAGE: usize = 200;

named! {
    /// What the state file of a node says (southbound section 1.6).
    SampleKind {
        /// Nothing that can be understood.
        Unspecified = "unspecified",
        /// Nothing is going on.
        UpToDate = "up_to_date",
        /// Fetching.
        Downloading = "downloading",
        /// All is there.
        Downloaded = "downloaded",
        /// The node is being changed.
        Started = "started",
        /// It ended well.
        Updated = "updated",
        /// It did not.
        Failed = "failed",
    }
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What the state file says.
    pub kind: SampleKind,
    /// What stands beside it: it sticks, so it may belong to an earlier update (M13).
    pub detail: String,
    /// The profile of the image that the node says it has; empty on nodes that are updated by packages, and before the
    /// first image. It is an echo of what was delivered, not what was booted (southbound section 3.8).
    pub profile_name: String,
    /// The version of that image.
    pub os_image_id: String,
}

/// What the last sample said. Kept as one JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// What the state file said.
    pub kind: SampleKind,
    /// A digest of the last detail that was not empty.
    pub detail_digest: String,
    /// The image that it named.
    #[serde(default)]
    pub image: String,
    /// Whether the sample is a failure that is not believed yet.
    #[serde(default)]
    pub doubt: Option<Doubt>,
}

/// A failure without a word. It may be a fault of the sampling (southbound section 3.3), so it is only believed when
/// it is still there in a later sample; the node repeats a failure until its next update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// When it was first said.
    pub since: Time,
    /// How often it was said.
    pub times: u32,
    /// What was said before: a fault of the sampling hides it, it does not end it.
    #[serde(default)]
    pub instead_of: Option<SampleKind>,
}

/// What was known of a node before its sample came.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// Its last sample; none before the first.
    pub seen: Option<&'a Seen>,
    /// What it was told.
    pub delivered: &'a Delivered,
    /// Its run that is not over.
    pub open: Option<&'a OpenRun>,
    /// What is known about it.
    pub known: &'a NodeFacts,
    /// The images of the profile that its instance runs.
    pub images: &'a [Image],
}

/// What a sample proves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proof {
    /// What happened, in this order. `superseded` ends the run that is open; what follows it opens the next one.
    pub events: Vec<Happening>,
    /// The image that the node was brought to.
    pub image: Option<Image>,
    /// What the instance shows as the state of its updates; none if it shows its run, or if nothing new is known.
    pub shown: Option<(&'static str, Indication)>,
    /// What people should know, of the kinds in `judged`.
    pub conditions: Vec<(ConditionKind, String)>,
    /// The kinds of conditions that this sample says something about: what is not among `conditions` is over.
    pub judged: Vec<ConditionKind>,
    /// What is to be remembered as the last sample.
    pub seen: Option<Seen>,
}

impl Seen {
    /// What the state file says, as far as that is believed.
    #[must_use]
    pub fn said(&self) -> SampleKind {
        let doubted = self.doubt.and_then(|doubt| doubt.instead_of);
        doubted.unwrap_or(self.kind)
    }
}

impl SampleKind {
    /// The ancestor's words for it and how to take them (southbound section 1.6).
    #[must_use]
    pub const fn status(self) -> (&'static str, Indication) {
        match self {
            Self::Unspecified => ("Unknown", Indication::Unspecified),
            Self::UpToDate => ("No new updates available", Indication::Idle),
            Self::Downloading => ("Downloading artifacts", Indication::Idle),
            Self::Downloaded => ("Download complete", Indication::Idle),
            Self::Started => ("Updating", Indication::InProgress),
            Self::Updated => ("Update completed", Indication::Idle),
            Self::Failed => ("Update failed", Indication::Error),
        }
    }

    /// How far an update is that says this, if it says that one is going on.
    const fn progress(self) -> Option<(u8, RunEvent)> {
        match self {
            Self::Downloading => Some((1, RunEvent::Downloading)),
            Self::Downloaded => Some((2, RunEvent::Downloaded)),
            Self::Started => Some((3, RunEvent::Began)),
            Self::Unspecified | Self::UpToDate | Self::Updated | Self::Failed => None,
        }
    }
}

/// The events that a sample proves, the image that they prove, and what else follows. Pure and total.
///
/// The first sample of a node is a baseline and proves nothing (E28). An end is proved once: it is repeated until our
/// answer arrives, and a failure until the next update begins.
#[must_use]
pub fn evidence(before: &Before<'_>, sample: &Sample, now: Time) -> Proof {
    let reading = before.read(sample, now);
    let mut proof = Proof {
        seen: before.remembered(sample, &reading),
        ..Proof::default()
    };
    echo::judge(before, sample, &mut proof);
    match reading {
        Reading::Silent => proof.shown = before.shown(sample),
        Reading::Doubtful(_) => return proof,
        Reading::Anomaly => {
            let text = "its agent reported a failure without a reason, and there was no update";
            let anomaly = (ConditionKind::AgentAnomaly, text.to_owned());
            proof.judged.push(ConditionKind::AgentAnomaly);
            proof.conditions.push(anomaly);
            return proof;
        }
        Reading::Proved(events, detail) => {
            let is_finished = matches!(events.last(), Some(RunEvent::Finished));
            let frozen = before.frozen(&events);
            proof.take(events, detail);
            if is_finished && before.known.os_kind == OsKind::Immutable {
                echo::conclude(before, frozen, sample, &mut proof);
            }
        }
    }
    if !matches!(sample.kind, SampleKind::Failed | SampleKind::Unspecified) {
        proof.judged.push(ConditionKind::AgentAnomaly);
    }
    proof
}

/// How a sample is read.
enum Reading {
    /// It proves nothing.
    Silent,
    /// It is a failure that is not believed yet.
    Doubtful(Doubt),
    /// It is a failure where there was no update.
    Anomaly,
    /// It proves this, and these are its words.
    Proved(Vec<RunEvent>, Option<Detail>),
}

impl Reading {
    fn of(event: RunEvent) -> Self {
        Self::Proved(vec![event], None)
    }

    fn failed(detail: Detail) -> Self {
        Self::Proved(vec![RunEvent::Failed(detail.failure())], Some(detail))
    }
}

impl Before<'_> {
    fn read(&self, sample: &Sample, now: Time) -> Reading {
        let Some(seen) = self.seen else {
            return Reading::Silent;
        };
        let reading = match sample.kind {
            SampleKind::Unspecified => Reading::Silent,
            SampleKind::Downloading | SampleKind::Downloaded | SampleKind::Started => {
                self.going_on(seen, sample)
            }
            SampleKind::UpToDate => self.at_rest(now),
            SampleKind::Updated => self.updated(seen, sample),
            SampleKind::Failed => self.failed(seen, sample, now),
        };
        match reading {
            // What is open is the run of another agent: this agent's update is another one.
            Reading::Proved(mut events, detail) if self.is_foreign() => {
                events.insert(0, RunEvent::Superseded);
                Reading::Proved(events, detail)
            }
            reading => reading,
        }
    }

    /// The open run, if it can be one of such an agent: it numbers no attempts and reports no steps after the change.
    fn mine(&self) -> Option<&OpenRun> {
        self.open.filter(|run| {
            run.attempt.is_none()
                && (run.state.is_untouched() || matches!(run.state, RunState::Applying { .. }))
        })
    }

    fn is_foreign(&self) -> bool {
        self.open.is_some() && self.mine().is_none()
    }

    /// Something is going on.
    fn going_on(&self, seen: &Seen, sample: &Sample) -> Reading {
        let Some((said, event)) = sample.kind.progress() else {
            return Reading::Silent;
        };
        let Some(run) = self.mine() else {
            // What was seen before and belongs to no open run was ended by us: it is not begun anew.
            let said = seen.said();
            let goes_on = said == sample.kind
                || (said == SampleKind::Downloading && sample.kind == SampleKind::Downloaded);
            return if goes_on {
                Reading::Silent
            } else {
                Reading::of(event)
            };
        };
        let known = match run.state {
            RunState::Downloading { .. } => 1,
            RunState::Staged { .. } => 2,
            _ => 3,
        };
        // It was at rest meanwhile, or it would have gone back from the middle of a change: this is the next update,
        // and how the one before ended was never seen (M12). Fetching again what was fetched is no other update.
        let was_at_rest = match seen.kind {
            SampleKind::UpToDate | SampleKind::Updated => true,
            SampleKind::Failed => seen.doubt.is_none(),
            _ => false,
        };
        if was_at_rest {
            Reading::Proved(vec![RunEvent::Superseded, event], None)
        } else if said < known && known == 3 && seen.kind != sample.kind {
            let end = match seen.doubt {
                // The failure that was doubted was one: the next update ends its repetition.
                Some(_) => RunEvent::Failed(Detail::default().failure()),
                None => RunEvent::Superseded,
            };
            Reading::Proved(vec![end, event], None)
        } else if said <= known {
            Reading::Silent
        } else {
            Reading::of(event)
        }
    }

    /// Nothing is going on any more, and no end was seen.
    fn at_rest(&self, now: Time) -> Reading {
        let Some(run) = self.mine() else {
            return Reading::Silent;
        };
        // It began, seen or not, and found nothing to do. Without a window it only dropped what it had fetched.
        if !run.state.is_untouched() || self.delivered.was_open(now) {
            Reading::of(RunEvent::NothingToDo)
        } else {
            Reading::of(RunEvent::Cancelled(CancelCause::Refused))
        }
    }

    fn updated(&self, seen: &Seen, sample: &Sample) -> Reading {
        let is_repeated = seen.kind == SampleKind::Updated
            && !sample.speaks(seen)
            && seen.image == sample.image();
        if self.mine().is_none() && is_repeated {
            return Reading::Silent;
        }
        // A detail sticks: what stood there before says nothing about what ends now (M13).
        let said = if sample.speaks(seen) {
            Detail::read(&sample.detail)
        } else {
            Detail::default()
        };
        Reading::Proved(vec![RunEvent::Finished], Some(said))
    }

    fn failed(&self, seen: &Seen, sample: &Sample, now: Time) -> Reading {
        if sample.speaks(seen) {
            return Reading::failed(Detail::read(&sample.detail));
        }
        let run = self.mine();
        if seen.kind != SampleKind::Failed {
            // What we ended may be going on all the same.
            let may_go_on = run.is_some() || seen.kind.progress().is_some();
            return if may_go_on || self.delivered.may_have_begun(now) {
                Reading::Doubtful(Doubt {
                    since: now,
                    times: 1,
                    instead_of: Some(seen.kind),
                })
            } else {
                Reading::Anomaly
            };
        }
        let Some(doubt) = seen.doubt else {
            // The failure was recorded, and it is repeated until the next update begins.
            let is_lost = run.is_some_and(|run| !run.state.is_untouched());
            return if is_lost {
                Reading::failed(Detail::default())
            } else {
                Reading::Silent
            };
        };
        let times = doubt.times.saturating_add(1);
        if times <= CALLS && now - doubt.since < RETRIES {
            return Reading::Doubtful(Doubt { times, ..doubt });
        }
        // What it had fetched was given up, and it has no window to begin in: its run is over.
        let was_fetched = matches!(
            seen.said(),
            SampleKind::Downloading | SampleKind::Downloaded
        );
        if run.is_none() && was_fetched && !self.delivered.may_have_begun(now) {
            return Reading::Anomaly;
        }
        // The agent writes the detail together with the failure, so the words of the last failure are also this one's.
        let detail = Detail::read(&sample.detail);
        Reading::failed(if detail.explains_a_failure() {
            detail
        } else {
            Detail::default()
        })
    }

    /// What is to be remembered of the sample.
    fn remembered(&self, sample: &Sample, reading: &Reading) -> Option<Seen> {
        // What cannot be understood says nothing about the sample before it either.
        if sample.kind == SampleKind::Unspecified {
            return self.seen.cloned();
        }
        let detail_digest = match (sample.detail.is_empty(), self.seen) {
            (true, Some(seen)) => seen.detail_digest.clone(),
            _ => digest(&sample.detail),
        };
        Some(Seen {
            kind: sample.kind,
            detail_digest,
            image: sample.image(),
            doubt: match reading {
                Reading::Doubtful(doubt) => Some(*doubt),
                _ => None,
            },
        })
    }

    /// What moves no run is shown all the same, except a failure once more: it is shown already, or it was none.
    fn shown(&self, sample: &Sample) -> Option<(&'static str, Indication)> {
        let is_old = sample.kind == SampleKind::Failed && self.seen.is_some();
        (self.open.is_none() && !is_old).then(|| sample.kind.status())
    }

    /// The image that the ended run was for, if it was for one.
    fn frozen(&self, events: &[RunEvent]) -> Option<&Image> {
        let run = self.mine().filter(|_| events.len() == 1);
        match run.and_then(|run| run.target.as_ref()) {
            Some(Target {
                wish: TargetKind::Image(image),
                ..
            }) => Some(image),
            Some(_) => None,
            None => self.delivered.image.as_ref(),
        }
    }
}

impl Proof {
    /// Whether the sample says something about conditions of this kind.
    #[must_use]
    pub fn judges(&self, kind: ConditionKind) -> bool {
        self.judged.contains(&kind)
    }

    /// The events, the last of them with the words of the sample.
    fn take(&mut self, events: Vec<RunEvent>, detail: Option<Detail>) {
        self.events = events.into_iter().map(Happening::of).collect();
        let (Some(detail), Some(last)) = (detail, self.events.last_mut()) else {
            return;
        };
        self.judged.push(ConditionKind::DetailCut);
        if detail.is_cut {
            let text = "the detail of its last update was too long to keep all of it";
            let cut = (ConditionKind::DetailCut, text.to_owned());
            self.conditions.push(cut);
        }
        last.evidence = Evidence {
            plan: (!detail.packages.is_empty()).then_some(detail.packages),
            log: detail.text,
            ..Evidence::default()
        };
    }
}

impl Sample {
    /// Whether it has words that did not stand there before.
    fn speaks(&self, seen: &Seen) -> bool {
        !self.detail.is_empty() && seen.detail_digest != digest(&self.detail)
    }

    fn image(&self) -> String {
        text::cut(&text::storable(&self.os_image_id), MAX_IMAGE)
    }
}

/// Tells texts apart; not for secrets (FNV-1a of 64 bits, and the length).
fn digest(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}-{}", text.len())
}
