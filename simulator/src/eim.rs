//! A node with the ancestor's agent, as the real one behaves.
//!
//! It does not tell what happened: at each tick it shows a state file, whatever stands there at that moment. A step that
//! is over before the next tick is never seen. What stood beside an end sticks. `UPDATED` is shown until it was
//! acknowledged, a failure until the next update. A failed call is made again up to three times at once. It starts by
//! itself when a window opens that it was told, by its own clock, and its bookkeeping of windows has gaps
//! ([`jobs`]).
//!
//! A node that is updated by images fetches one before its window, and reports as the image that it runs the one that
//! it was told last.

pub mod cron;
mod image;
pub mod jobs;
mod turn;
mod update;

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::maintmgr::update_status::StatusType;

use crate::chance::Chance;
use crate::clock::{NodeClock, Time};
use crate::eim::image::Images;
pub use crate::eim::image::Picture;
use crate::eim::jobs::Jobs;
use crate::eim::update::Running;
use crate::line::Line;
use crate::truth::{EimTruth, Opening, Span};

/// How fast such nodes live. The real ones are slower than a test can wait.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two ticks.
    pub tick: Duration,
    /// Before the first repetition of a failed call; each further one waits half as long again.
    pub again_after: Duration,
    /// A window that is open already is used only if so much of it is left.
    pub least_left: TimeDelta,
    /// How long after it was told such a window is begun.
    pub begin_after: TimeDelta,
}

impl Pace {
    /// That of the real agent.
    pub const REAL: Self = Self {
        tick: Duration::from_secs(20),
        again_after: Duration::from_millis(500),
        least_left: TimeDelta::minutes(10),
        begin_after: TimeDelta::seconds(1),
    };

    /// That of a test.
    pub const BRISK: Self = Self {
        tick: Duration::from_millis(150),
        again_after: Duration::from_millis(10),
        least_left: TimeDelta::seconds(1),
        begin_after: TimeDelta::milliseconds(50),
    };
}

/// What happens to such nodes.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// How long an image is fetched.
    pub fetching: (Duration, Duration),
    /// How long an update changes the node while the agent goes on polling. Shorter than a tick is never seen.
    pub working: (Duration, Duration),
    /// How long the machine is down afterwards.
    pub rebooting: (Duration, Duration),
    /// How often in a thousand turns the agent dies.
    pub crash: u16,
    /// How long it is away then.
    pub down: (Duration, Duration),
    /// How often in a thousand updates something goes wrong.
    pub fail: u16,
    /// How often in a thousand updates there is nothing to do.
    pub nothing: u16,
    /// How often in a thousand updates nothing is ever heard of it again.
    pub stuck: u16,
    /// How often in a thousand ticks the state file cannot be read, which is shown as a failure.
    pub unreadable: u16,
}

impl Default for Habits {
    fn default() -> Self {
        let millis = |from, to| (Duration::from_millis(from), Duration::from_millis(to));
        Self {
            fetching: millis(0, 1_500),
            working: millis(0, 900),
            rebooting: millis(50, 900),
            crash: 4,
            down: millis(50, 800),
            fail: 200,
            nothing: 100,
            stuck: 15,
            unreadable: 1,
        }
    }
}

/// A simulated node of the ancestor's agent.
#[derive(Debug)]
pub struct EimNode {
    guid: String,
    clock: NodeClock,
    chance: Chance,
    line: Line,
    pace: Pace,
    habits: Habits,
    /// What survives a crash.
    file: StateFile,
    /// What does not.
    jobs: Jobs,
    running: Option<Running>,
    /// On a system that is updated by images.
    images: Option<Images>,
    /// Until when the agent is away, by the true clock.
    down_until: Option<Time>,
    /// What was last told to the node, and where that stands in the truth.
    told: Vec<(Opening, usize)>,
    is_finishing: bool,
    truth: EimTruth,
}

/// The agent's state file.
#[derive(Clone, Debug)]
struct StateFile {
    kind: StatusType,
    /// Sticks.
    detail: String,
    /// The window that was told last.
    single: Option<Span>,
    /// Whether that was used up.
    is_used: bool,
    /// The update that it speaks of.
    update: Option<usize>,
}

impl EimNode {
    /// A node that was registered with this GUID.
    #[must_use]
    pub fn new(guid: &str, clock: NodeClock, chance: Chance, line: Line) -> Self {
        Self {
            guid: guid.to_owned(),
            clock,
            chance,
            line,
            pace: Pace::REAL,
            habits: Habits::default(),
            file: StateFile {
                kind: StatusType::UpToDate,
                detail: String::new(),
                single: None,
                is_used: false,
                update: None,
            },
            jobs: Jobs::default(),
            running: None,
            images: None,
            down_until: None,
            told: Vec::new(),
            is_finishing: false,
            truth: EimTruth::default(),
        }
    }

    /// The same node with another pace and other habits.
    #[must_use]
    pub fn living(self, pace: Pace, habits: Habits) -> Self {
        Self {
            pace,
            habits,
            ..self
        }
    }

    /// The same node on a system that is updated by images, which runs this one.
    #[must_use]
    pub fn with_image(self, booted: Picture) -> Self {
        Self {
            images: Some(Images::running(booted)),
            ..self
        }
    }

    /// From now on it ends what it has begun, and begins nothing more.
    pub fn finish(&mut self) {
        self.is_finishing = true;
    }

    /// Whether nothing goes on and all that stood in the state file was acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let shown = self.truth.said.last();
        let is_told = shown.is_some_and(|said| {
            said.acknowledged > 0 && !said.spurious && said.kind == update::name(self.file.kind)
        });
        self.running.is_none()
            && !self.images.as_ref().is_some_and(Images::is_busy)
            && self.down_until.is_none()
            && self.file.kind != StatusType::Updated
            && is_told
    }

    /// What it really did.
    #[must_use]
    pub fn into_truth(self) -> EimTruth {
        self.truth
    }
}
