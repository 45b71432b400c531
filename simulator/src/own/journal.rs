//! What a node of our own agent writes down of an attempt.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{BadImage, Event, Facts, Image};
use uuid::Uuid;

use crate::clock::{Moment, Time};
use crate::own::wire;
use crate::truth::{Attempt, Change, Leave, Span, Told};

/// An attempt that is open on the node.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: Uuid,
    pub(super) digest: String,
    pub(super) phase: Phase,
    pub(super) acknowledged: u32,
    pub(super) boot_id: String,
    events: Vec<Event>,
    told: Vec<Told>,
    leave: Option<Leave>,
    /// The image that is to be booted.
    pub(super) image: Option<Trial>,
    /// The one that runs since it ended, if it ended with a word of that.
    booted: Option<String>,
}

/// An image that is to be booted in the place of another one.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) change: Change,
    pub(super) profile: String,
    /// Of its file.
    sha256: String,
    /// Whether it is tried although it failed here.
    pub(super) again: bool,
}

impl Trial {
    /// That of an image on a node that runs this version.
    pub(super) fn of(image: Image, running: &str) -> Self {
        Self {
            change: Change {
                from: running.to_owned(),
                to: image.image_id,
            },
            profile: image.profile_name,
            sha256: image.sha256,
            again: image.again,
        }
    }

    /// Whether it runs already: it need not be booted.
    pub(super) fn is_there(&self) -> bool {
        self.change.from == self.change.to
    }

    /// Whether it failed on a node with these facts, and nobody ordered it.
    pub(super) fn is_refused(&self, facts: &Facts) -> bool {
        let mut bad = facts.bad_images.iter();
        !self.again && bad.any(|bad| bad.sha256 == self.sha256)
    }
}

/// Where an attempt stands on the node.
#[derive(Debug)]
pub(super) enum Phase {
    /// Until then, by the true clock; the flag says whether it will work.
    Fetching { until: Time, works: bool },
    /// Ready to begin.
    Staged,
    /// Being changed: what is still to happen, each so long after the one before.
    Changing {
        steps: VecDeque<(Duration, News)>,
        since: Time,
    },
    /// It is over.
    Over,
}

/// Leave given ahead.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) digest: String,
    pub(super) windows: Vec<Span>,
    pub(super) expires: Time,
    /// When the node asked, and when it was given, by the server.
    pub(super) between: Span,
}

impl Given {
    /// Whether an attempt at this target may begin at this instant of the node's own clock.
    pub(super) fn allows(&self, digest: &str, node: Time) -> bool {
        self.digest == digest
            && node < self.expires
            && self
                .windows
                .iter()
                .any(|(start, end)| *start <= node && node < *end)
    }
}

impl Entry {
    pub(super) fn new(id: Uuid, digest: &str, boot_id: &str) -> Self {
        Self {
            id,
            digest: digest.to_owned(),
            phase: Phase::Staged,
            acknowledged: 0,
            boot_id: boot_id.to_owned(),
            events: Vec::new(),
            told: Vec::new(),
            leave: None,
            image: None,
            booted: None,
        }
    }

    /// Writes down what the end of an attempt at an image leaves on the node: which one runs, and which one failed.
    /// Facts survive what the journal does not.
    pub(super) fn settle(&mut self, facts: &mut Facts) {
        let (Some(trial), Some(last)) = (&self.image, self.told.last()) else {
            return;
        };
        let Some(running) = &mut facts.booted_image else {
            return;
        };
        match last.news {
            "finished" => {
                running.image_id.clone_from(&trial.change.to);
                facts.bad_images.retain(|bad| bad.sha256 != trial.sha256);
            }
            "reverted" => {
                facts.bad_images.retain(|bad| bad.sha256 != trial.sha256);
                facts.bad_images.push(BadImage {
                    sha256: trial.sha256.clone(),
                    image_id: trial.change.to.clone(),
                    why: "as drawn by lot".to_owned(),
                });
            }
            "failed" => {}
            _ => return,
        }
        self.booted = Some(running.image_id.clone());
    }

    /// Writes down what happened.
    pub(super) fn push(&mut self, news: News, at: Moment) {
        let sequence = self.last_sequence() + 1;
        let told = Told {
            news: wire::name(&news),
            at,
        };
        if wire::ends(&news) {
            self.phase = Phase::Over;
        }
        self.told.push(told);
        self.events.push(Event {
            sequence,
            node_time: Some(wire::timestamp(at.node)),
            boot_id: self.boot_id.clone(),
            news: Some(news),
            account: None,
        });
    }

    /// The number of the last event, 0 if there is none.
    pub(super) fn last_sequence(&self) -> u32 {
        u32::try_from(self.events.len()).unwrap_or(u32::MAX)
    }

    /// What was not acknowledged yet.
    pub(super) fn unsent(&self) -> Vec<Event> {
        let from = usize::try_from(self.acknowledged).unwrap_or(usize::MAX);
        self.events.get(from..).unwrap_or_default().to_vec()
    }

    /// Begins to change the node.
    pub(super) fn begin(&mut self, leave: Leave, steps: VecDeque<(Duration, News)>, at: Moment) {
        self.leave = Some(leave);
        self.push(News::Began(evenkeel_proto::agent::Began {}), at);
        self.phase = Phase::Changing {
            steps,
            since: at.truth,
        };
    }

    /// Lets everything happen whose time has come.
    pub(super) fn catch_up(&mut self, now: Moment) {
        loop {
            let Phase::Changing { steps, since } = &mut self.phase else {
                return;
            };
            let Some((length, _)) = steps.front() else {
                return;
            };
            let due = *since + TimeDelta::from_std(*length).unwrap_or_default();
            if now.truth < due {
                return;
            }
            let Some((_, news)) = steps.pop_front() else {
                return;
            };
            *since = due;
            if matches!(news, News::RebootBegun(_)) {
                let next = Uuid::parse_str(&self.boot_id).map_or(0, |boot| boot.as_u128());
                self.push(news, now);
                self.boot_id = Uuid::from_u128(next.wrapping_add(1)).to_string();
            } else {
                self.push(news, now);
            }
        }
    }

    /// What really happened.
    pub(super) fn into_truth(self, forgotten: bool) -> Attempt {
        Attempt {
            id: self.id,
            digest: self.digest,
            events: self.told,
            acknowledged: self.acknowledged,
            leave: self.leave,
            forgotten,
            again: self.image.as_ref().is_some_and(|trial| trial.again),
            image: self.image.map(|trial| trial.change),
            booted: self.booted,
        }
    }
}
