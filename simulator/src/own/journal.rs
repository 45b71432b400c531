//! The journal of an attempt on a node with our own agent.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{BadImage, Event, Facts, Image, ReportRequest};
use uuid::Uuid;

use crate::clock::{Moment, Time};
use crate::ground_truth::{Attempt, AttemptEvent, ImageReplacement, Span, StartPermit};
use crate::own::wire;

/// An attempt that is open on the node.
#[derive(Debug)]
pub struct JournalEntry {
    pub(super) id: Uuid,
    pub(super) digest: String,
    pub(super) phase: Phase,
    pub(super) acknowledged: u32,
    pub(super) boot_id: String,
    events: Vec<Event>,
    history: Vec<AttemptEvent>,
    permit: Option<StartPermit>,
    /// The image to boot.
    pub(super) image: Option<ImageTrial>,
    /// The image that runs since the attempt ended, if the end reported one.
    booted: Option<String>,
}

/// An image that replaces another one.
#[derive(Debug)]
pub(super) struct ImageTrial {
    pub(super) change: ImageReplacement,
    pub(super) profile: String,
    /// The digest of its file.
    sha256: String,
    /// Whether it is tried although it failed on this node.
    pub(super) again: bool,
}

impl ImageTrial {
    /// The trial of an image on a node that runs the version `running`.
    pub(super) fn new(image: Image, running: &str) -> Self {
        Self {
            change: ImageReplacement { from: running.to_owned(), to: image.image_id },
            profile: image.profile_name,
            sha256: image.sha256,
            again: image.is_retry,
        }
    }

    /// Whether the image already runs, so it need not be booted.
    pub(super) fn is_running(&self) -> bool {
        self.change.from == self.change.to
    }

    /// Whether the image failed on a node with these facts and was not ordered.
    pub(super) fn is_quarantined(&self, facts: &Facts) -> bool {
        let mut bad = facts.bad_images.iter();
        !self.again && bad.any(|bad| bad.sha256 == self.sha256)
    }
}

/// The progress of an attempt on the node.
#[derive(Debug)]
pub(super) enum Phase {
    /// Until this time, by the true clock. `succeeds` is the result.
    Downloading { until: Time, succeeds: bool },
    /// Ready to begin.
    Staged,
    /// The node is being changed. Each remaining step has its delay after the previous one.
    Changing { steps: VecDeque<(Duration, Kind)>, since: Time },
    /// The attempt has ended.
    Ended,
}

/// A grant to begin while no server can be reached.
#[derive(Clone, Debug)]
pub(super) struct OfflineGrant {
    pub(super) digest: String,
    pub(super) windows: Vec<Span>,
    pub(super) expires: Time,
    /// When the node polled, and when the server answered.
    pub(super) between: Span,
}

impl OfflineGrant {
    /// Whether an attempt at this target may begin at this instant of the node's own clock.
    pub(super) fn allows(&self, digest: &str, node: Time) -> bool {
        self.digest == digest
            && node < self.expires
            && self.windows.iter().any(|(start, end)| *start <= node && node < *end)
    }
}

impl JournalEntry {
    /// An attempt without events, at a target.
    #[must_use]
    pub fn new(id: Uuid, digest: &str, boot_id: &str) -> Self {
        Self {
            id,
            digest: digest.to_owned(),
            phase: Phase::Staged,
            acknowledged: 0,
            boot_id: boot_id.to_owned(),
            events: Vec::new(),
            history: Vec::new(),
            permit: None,
            image: None,
            booted: None,
        }
    }

    /// Updates the facts after an attempt at an image: the running image and the failed one. Facts
    /// survive the loss of the journal.
    pub(super) fn update_image_facts(&mut self, facts: &mut Facts) {
        let (Some(trial), Some(last)) = (&self.image, self.history.last()) else {
            return;
        };
        let Some(running) = &mut facts.booted_image else {
            return;
        };
        match last.name {
            "finished" => {
                running.image_id.clone_from(&trial.change.to);
                facts.bad_images.retain(|bad| bad.sha256 != trial.sha256);
            }
            "reverted" => {
                facts.bad_images.retain(|bad| bad.sha256 != trial.sha256);
                facts.bad_images.push(BadImage {
                    sha256: trial.sha256.clone(),
                    image_id: trial.change.to.clone(),
                    reason: "as drawn by lot".to_owned(),
                });
            }
            "failed" => {}
            _ => return,
        }
        self.booted = Some(running.image_id.clone());
    }

    /// Records an event.
    pub fn push(&mut self, event: Kind, at: Moment) {
        let sequence = self.last_sequence() + 1;
        let record = AttemptEvent { name: wire::event_name(&event), at };
        if wire::ends_attempt(&event) {
            self.phase = Phase::Ended;
        }
        self.history.push(record);
        self.events.push(Event {
            sequence,
            node_time: Some(wire::timestamp(at.node_time)),
            boot_id: self.boot_id.clone(),
            kind: Some(event),
            report: None,
        });
    }

    /// The number of the last event, 0 if there is none.
    pub(super) fn last_sequence(&self) -> u32 {
        u32::try_from(self.events.len()).unwrap_or(u32::MAX)
    }

    /// The events that are not acknowledged.
    pub(super) fn unsent(&self) -> Vec<Event> {
        let from = usize::try_from(self.acknowledged).unwrap_or(usize::MAX);
        self.events.get(from..).unwrap_or_default().to_vec()
    }

    /// The report of the events that are not acknowledged.
    #[must_use]
    pub fn build_report(&self) -> ReportRequest {
        ReportRequest {
            attempt_id: self.id.to_string(),
            target_digest: self.digest.clone(),
            events: self.unsent(),
        }
    }

    /// Begins to change the node.
    pub(super) fn begin(
        &mut self,
        permit: StartPermit,
        steps: VecDeque<(Duration, Kind)>,
        at: Moment,
    ) {
        self.permit = Some(permit);
        self.push(Kind::Began(evenkeel_proto::agent::Began {}), at);
        self.phase = Phase::Changing { steps, since: at.true_time };
    }

    /// Records all steps that are due.
    pub(super) fn catch_up(&mut self, now: Moment) {
        loop {
            let Phase::Changing { steps, since } = &mut self.phase else {
                return;
            };
            let Some((length, _)) = steps.front() else {
                return;
            };
            let due = *since + TimeDelta::from_std(*length).unwrap_or_default();
            if now.true_time < due {
                return;
            }
            let Some((_, event)) = steps.pop_front() else {
                return;
            };
            *since = due;
            if matches!(event, Kind::RebootBegun(_)) {
                let next = Uuid::parse_str(&self.boot_id).map_or(0, |boot| boot.as_u128());
                self.push(event, now);
                self.boot_id = Uuid::from_u128(next.wrapping_add(1)).to_string();
            } else {
                self.push(event, now);
            }
        }
    }

    pub(super) fn into_ground_truth(self, forgotten: bool) -> Attempt {
        Attempt {
            id: self.id,
            digest: self.digest,
            events: self.history,
            acknowledged: self.acknowledged,
            permit: self.permit,
            forgotten,
            again: self.image.as_ref().is_some_and(|trial| trial.again),
            image: self.image.map(|trial| trial.change),
            booted: self.booted,
        }
    }
}
