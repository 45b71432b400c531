//! Evaluates samples: which events a sample proves.

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::Time;
use crate::condition::ConditionKind;
use crate::decide::{NodeFacts, Target, TargetKind};
use crate::eim::delivery::DeliveryState;
use crate::eim::detail::{Detail, SampleDetail};
use crate::eim::echo;
use crate::os::{Image, OsKind};
use crate::run::{CancelCause, Evidence, ImageChange, OpenRun, RunEvent, RunEventRecord, RunState};
use crate::status::Indication;
use crate::text;

/// An agent retries a call whose answer was lost within this time, with the same sample.
const RETRY_PERIOD: TimeDelta = TimeDelta::seconds(15);

/// Maximum number of calls that send the same sample.
const MAX_CALLS_PER_SAMPLE: u32 = 4;

/// Maximum stored size of an image id, in bytes.
const MAX_IMAGE_ID_BYTES: usize = 200;

named! {
    /// The state that a node's state file reports.
    SampleKind {
        /// Unknown state.
        Unspecified = "unspecified",
        /// No update is running.
        UpToDate = "up_to_date",
        /// The node fetches an update.
        Downloading = "downloading",
        /// The update is fetched completely.
        Downloaded = "downloaded",
        /// The node is being changed.
        Started = "started",
        /// The update succeeded.
        Updated = "updated",
        /// The update failed.
        Failed = "failed",
    }
}

/// A sample of a node's state file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Reported state.
    pub kind: SampleKind,
    /// Detail of the state. The agent does not clear it, so it may belong to an earlier update.
    pub detail: SampleDetail,
    /// Profile of the image that the node reports; empty on nodes that are updated by packages, and before the first
    /// image. This echoes the delivered image, not the booted one.
    pub profile_name: String,
    /// Version of that image.
    pub os_image_id: String,
}

/// The stored summary of the last sample, one JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSample {
    /// Reported state.
    pub kind: SampleKind,
    /// Digest of the last detail that was not empty.
    pub detail_digest: String,
    /// Image that the sample named.
    #[serde(default)]
    pub image: String,
    /// A failure that is not confirmed yet.
    #[serde(default)]
    pub unconfirmed_failure: Option<UnconfirmedFailure>,
    /// Whether the agent reports that it skips the updates that it gets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skips_updates: bool,
}

/// A failure without a detail. It may be an error of the sampling, so a later sample must confirm it. The node repeats a
/// failure until its next update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnconfirmedFailure {
    /// When the failure was first reported.
    pub since: Time,
    /// Number of samples that reported it.
    pub times: u32,
    /// State before the failure. A sampling error hides that state but does not end it.
    #[serde(default)]
    pub instead_of: Option<SampleKind>,
}

/// State of a node before a sample.
#[derive(Clone, Copy, Debug)]
pub struct PriorState<'a> {
    /// Last sample; `None` before the first.
    pub last_sample: Option<&'a LastSample>,
    /// Last answer to the node.
    pub delivered: &'a DeliveryState,
    /// Open run of the node.
    pub open_run: Option<&'a OpenRun>,
    /// Facts about the node.
    pub facts: &'a NodeFacts,
    /// Images of the profile that the instance runs.
    pub images: &'a [Image],
}

/// Result of the evaluation of a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proof {
    /// Events in order. `superseded` ends the open run; the event after it opens the next one.
    pub events: Vec<RunEventRecord>,
    /// Image that the node was updated to.
    pub image: Option<Image>,
    /// Update status of the instance. `None` if the instance shows its run, or if nothing new is known.
    pub status: Option<(&'static str, Indication)>,
    /// Conditions to raise, of the kinds in `checked_conditions`.
    pub conditions: Vec<(ConditionKind, String)>,
    /// Kinds of conditions that this sample decides. Those that are not in `conditions` are cleared.
    pub checked_conditions: Vec<ConditionKind>,
    /// Summary to store as the last sample.
    pub last_sample: Option<LastSample>,
}

impl LastSample {
    /// The reported state; while a failure is not confirmed, the state before it.
    #[must_use]
    pub fn confirmed_kind(&self) -> SampleKind {
        let doubted = self.unconfirmed_failure.and_then(|failure| failure.instead_of);
        doubted.unwrap_or(self.kind)
    }
}

impl SampleKind {
    /// EIM's status text and its indication.
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

    /// Step of a running update and its event, if the state belongs to one.
    const fn progress(self) -> Option<(u8, RunEvent)> {
        match self {
            Self::Downloading => Some((1, RunEvent::Downloading)),
            Self::Downloaded => Some((2, RunEvent::Downloaded)),
            Self::Started => Some((3, RunEvent::Began)),
            Self::Unspecified | Self::UpToDate | Self::Updated | Self::Failed => None,
        }
    }
}

/// Evaluates a sample: the events, the image and the conditions that it proves. Pure and total.
///
/// The first sample of a node is a baseline and proves nothing. An end is proved once, although the agent repeats it
/// until an answer arrives, and repeats a failure until the next update begins.
#[must_use]
pub fn evaluate_sample(before: &PriorState<'_>, sample: &Sample, now: Time) -> Proof {
    let reading = before.interpret(sample, now);
    let mut proof =
        Proof { last_sample: before.sample_to_store(sample, &reading), ..Proof::default() };
    echo::check_image(before, sample, &mut proof);
    match reading {
        Reading::NoEvent => proof.status = before.visible_status(sample),
        Reading::Unconfirmed(_) => return proof,
        Reading::Anomaly => {
            let text = "its agent reported a failure without a reason, and there was no update";
            let anomaly = (ConditionKind::AgentAnomaly, text.to_owned());
            proof.checked_conditions.push(ConditionKind::AgentAnomaly);
            proof.conditions.push(anomaly);
            return proof;
        }
        Reading::Proved(events, detail) => {
            let is_finished = matches!(events.last(), Some(RunEvent::Finished));
            let frozen = before.frozen_image(&events);
            proof.record_events(events, detail);
            if before.facts.os_kind == OsKind::Immutable {
                if is_finished {
                    echo::conclude_update(before, frozen, sample, &mut proof);
                }
                proof.record_image(&before.facts.running, frozen);
            }
        }
    }
    if !matches!(sample.kind, SampleKind::Failed | SampleKind::Unspecified) {
        proof.checked_conditions.push(ConditionKind::AgentAnomaly);
    }
    proof
}

/// Interpretation of a sample.
enum Reading {
    /// The sample proves nothing.
    NoEvent,
    /// A failure that is not confirmed yet.
    Unconfirmed(UnconfirmedFailure),
    /// A failure while there was no update.
    Anomaly,
    /// The sample proves these events, with this detail.
    Proved(Vec<RunEvent>, Option<Detail>),
}

impl Reading {
    fn from_event(event: RunEvent) -> Self {
        Self::Proved(vec![event], None)
    }

    fn from_failure(detail: Detail) -> Self {
        Self::Proved(vec![RunEvent::Failed(detail.failure())], Some(detail))
    }
}

impl PriorState<'_> {
    fn interpret(&self, sample: &Sample, now: Time) -> Reading {
        let Some(last) = self.last_sample else {
            return Reading::NoEvent;
        };
        let reading = match sample.kind {
            SampleKind::Unspecified => Reading::NoEvent,
            SampleKind::Downloading | SampleKind::Downloaded | SampleKind::Started => {
                self.read_progress(last, sample)
            }
            SampleKind::UpToDate => self.read_idle(now),
            SampleKind::Updated => self.read_update(last, sample),
            SampleKind::Failed => self.read_failure(last, sample, now),
        };
        match reading {
            // The open run belongs to another agent, so this agent's update supersedes it.
            Reading::Proved(mut events, detail) if self.has_foreign_run() => {
                events.insert(0, RunEvent::Superseded);
                Reading::Proved(events, detail)
            }
            reading => reading,
        }
    }

    /// The open run, if it can belong to an EIM agent: it has no attempt number and no steps after the change.
    fn eim_run(&self) -> Option<&OpenRun> {
        self.open_run.filter(|run| {
            run.attempt.is_none()
                && (run.state.is_untouched() || matches!(run.state, RunState::Applying { .. }))
        })
    }

    fn has_foreign_run(&self) -> bool {
        self.open_run.is_some() && self.eim_run().is_none()
    }

    /// Interprets a sample of a running update.
    fn read_progress(&self, last: &LastSample, sample: &Sample) -> Reading {
        let Some((progress, event)) = sample.kind.progress() else {
            return Reading::NoEvent;
        };
        let Some(run) = self.eim_run() else {
            // An update that was seen before and has no open run was ended by the server: it does not begin again.
            let last_kind = last.confirmed_kind();
            let goes_on = last_kind == sample.kind
                || (last_kind == SampleKind::Downloading && sample.kind == SampleKind::Downloaded);
            return if goes_on { Reading::NoEvent } else { Reading::from_event(event) };
        };
        let run_progress = match run.state {
            RunState::Downloading { .. } => 1,
            RunState::Staged { .. } => 2,
            _ => 3,
        };
        // The node was at rest, or would have gone back from the middle of a change, so this is the next update and the
        // end of the one before was missed. Fetching the same update again does not count as another one.
        let was_at_rest = match last.kind {
            SampleKind::UpToDate | SampleKind::Updated => true,
            SampleKind::Failed => last.unconfirmed_failure.is_none(),
            _ => false,
        };
        if was_at_rest {
            Reading::Proved(vec![RunEvent::Superseded, event], None)
        } else if progress < run_progress && run_progress == 3 && last.kind != sample.kind {
            let end = match last.unconfirmed_failure {
                // The unconfirmed failure was real: the next update ends its repetition.
                Some(_) => RunEvent::Failed(Detail::default().failure()),
                None => RunEvent::Superseded,
            };
            Reading::Proved(vec![end, event], None)
        } else if progress <= run_progress {
            Reading::NoEvent
        } else {
            Reading::from_event(event)
        }
    }

    /// Interprets a sample without a running update, for which no end was seen.
    fn read_idle(&self, now: Time) -> Reading {
        let Some(run) = self.eim_run() else {
            return Reading::NoEvent;
        };
        // The update began, seen or not, and found nothing to do. Without a window it only dropped the fetched files.
        if !run.state.is_untouched() || self.delivered.was_open(now) {
            Reading::from_event(RunEvent::NothingToDo)
        } else {
            Reading::from_event(RunEvent::Cancelled(CancelCause::Refused))
        }
    }

    fn read_update(&self, last: &LastSample, sample: &Sample) -> Reading {
        let is_repeated = last.kind == SampleKind::Updated
            && !sample.has_new_detail(last)
            && last.image == sample.stored_image_id();
        if self.eim_run().is_none() && is_repeated {
            return Reading::NoEvent;
        }
        // The agent does not clear a detail, so the detail of an earlier failure may still be there. Two successes often
        // have the same detail.
        let detail = sample.detail.content();
        let is_valid = sample.has_new_detail(last) || detail.failure.is_none();
        let detail = if is_valid { detail.clone() } else { Detail::default() };
        Reading::Proved(vec![RunEvent::Finished], Some(detail))
    }

    fn read_failure(&self, last: &LastSample, sample: &Sample, now: Time) -> Reading {
        if sample.has_new_detail(last) {
            return Reading::from_failure(sample.detail.content().clone());
        }
        let run = self.eim_run();
        if last.kind != SampleKind::Failed {
            // An update that the server ended may still be running.
            let may_go_on = run.is_some() || last.kind.progress().is_some();
            return if may_go_on || self.delivered.may_have_begun(now) {
                Reading::Unconfirmed(UnconfirmedFailure {
                    since: now,
                    times: 1,
                    instead_of: Some(last.kind),
                })
            } else {
                Reading::Anomaly
            };
        }
        let Some(unconfirmed) = last.unconfirmed_failure else {
            // The failure is recorded; the agent repeats it until the next update begins.
            let is_lost = run.is_some_and(|run| !run.state.is_untouched());
            return if is_lost {
                Reading::from_failure(Detail::default())
            } else {
                Reading::NoEvent
            };
        };
        let times = unconfirmed.times.saturating_add(1);
        if times <= MAX_CALLS_PER_SAMPLE && now - unconfirmed.since < RETRY_PERIOD {
            return Reading::Unconfirmed(UnconfirmedFailure { times, ..unconfirmed });
        }
        // The run is ended because the download failed, and the node has no window to begin in.
        let was_fetched =
            matches!(last.confirmed_kind(), SampleKind::Downloading | SampleKind::Downloaded);
        if run.is_none() && was_fetched && !self.delivered.may_have_begun(now) {
            return Reading::Anomaly;
        }
        // The agent writes the detail together with the failure, so the old detail also belongs to this failure.
        let detail = sample.detail.content();
        let names_kind = detail.names_failure_kind();
        Reading::from_failure(if names_kind { detail.clone() } else { Detail::default() })
    }

    /// The summary of the sample to store.
    fn sample_to_store(&self, sample: &Sample, reading: &Reading) -> Option<LastSample> {
        // An unknown state says nothing about the sample before it either.
        if sample.kind == SampleKind::Unspecified {
            return self.last_sample.cloned();
        }
        let detail_digest = match (sample.detail.is_empty(), self.last_sample) {
            (true, Some(last)) => last.detail_digest.clone(),
            _ => sample.detail.digest().to_owned(),
        };
        Some(LastSample {
            kind: sample.kind,
            detail_digest,
            image: sample.stored_image_id(),
            unconfirmed_failure: match reading {
                Reading::Unconfirmed(failure) => Some(*failure),
                _ => None,
            },
            skips_updates: sample.detail.reports_skip(),
        })
    }

    /// The status of a sample that changes no run. A repeated failure is already visible or was none.
    fn visible_status(&self, sample: &Sample) -> Option<(&'static str, Indication)> {
        let is_old = sample.kind == SampleKind::Failed && self.last_sample.is_some();
        (self.open_run.is_none() && !is_old).then(|| sample.kind.status())
    }

    /// The image that the ended run was for.
    fn frozen_image(&self, events: &[RunEvent]) -> Option<&Image> {
        let run = self.eim_run().filter(|_| events.len() == 1);
        match run.and_then(|run| run.target.as_ref()) {
            Some(Target { kind: TargetKind::Image(image), .. }) => Some(image),
            Some(_) => None,
            None => self.delivered.image.as_ref(),
        }
    }
}

impl Proof {
    /// Whether the sample decides conditions of this kind.
    #[must_use]
    pub fn checks_condition(&self, kind: ConditionKind) -> bool {
        self.checked_conditions.contains(&kind)
    }

    /// Records the events, and attaches the detail of the sample to the last of them.
    fn record_events(&mut self, events: Vec<RunEvent>, detail: Option<Detail>) {
        self.events = events.into_iter().map(RunEventRecord::from_event).collect();
        let (Some(detail), Some(last)) = (detail, self.events.last_mut()) else {
            return;
        };
        self.checked_conditions.push(ConditionKind::DetailCut);
        if detail.is_cut {
            let text = "the detail of its last update was too long and was cut";
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

impl Proof {
    /// Records in the last event which image the run installs, and which one ran before and runs after it.
    fn record_image(&mut self, running: &Image, frozen: Option<&Image>) {
        let (Some(target), Some(last)) = (frozen, self.events.last_mut()) else {
            return;
        };
        last.evidence.image = Some(ImageChange {
            profile_name: target.profile_name.clone(),
            before: running.image_id.clone(),
            desired: target.image_id.clone(),
            booted: self.image.as_ref().map(|image| image.image_id.clone()),
        });
    }
}

impl Sample {
    /// Whether the sample has a detail that differs from the last one.
    fn has_new_detail(&self, last: &LastSample) -> bool {
        !self.detail.is_empty() && last.detail_digest != self.detail.digest()
    }

    fn stored_image_id(&self) -> String {
        text::cut(&text::storable(&self.os_image_id), MAX_IMAGE_ID_BYTES)
    }
}
