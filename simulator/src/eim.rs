//! A simulated node with EIM's agent, as the real agent behaves.
//!
//! The agent does not report events. At each tick it sends the content of its state file, so a step
//! that ends before the next tick is never seen. The detail of an end stays in the file. `UPDATED`
//! is sent until it is acknowledged, a failure until the next update. A failed call is repeated at
//! once, up to three times. The agent starts by itself when a delivered window opens, by its own
//! clock, and its bookkeeping of windows has gaps ([`jobs`]).
//!
//! A node that is updated by images downloads an image before its window. It reports the image of
//! the last answer as the running one.

pub mod cron;
mod image;
pub mod jobs;
pub(crate) mod turn;
mod update;

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::maintmgr::update_status::StatusType;

use crate::clock::{NodeClock, Time};
use crate::connection::NodeConnection;
pub use crate::eim::image::EimImage;
use crate::eim::image::ImageState;
use crate::eim::jobs::WindowJobs;
use crate::eim::update::RunningUpdate;
use crate::ground_truth::{EimGroundTruth, EimSchedule, Span};
use crate::rng::Rng;

/// The speed of such nodes. The real ones are slower than a test can wait.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The interval between two ticks.
    pub tick: Duration,
    /// The delay before the first retry of a failed call; each further delay is half as long again.
    pub retry_delay: Duration,
    /// A window that is already open is used only if more than this is left of it.
    pub min_window_left: TimeDelta,
    /// The delay between the delivery of an open window and its use.
    pub begin_delay: TimeDelta,
}

impl Pace {
    /// The pace of the real agent.
    pub const REAL: Self = Self {
        tick: Duration::from_secs(20),
        retry_delay: Duration::from_millis(500),
        min_window_left: TimeDelta::minutes(10),
        begin_delay: TimeDelta::seconds(1),
    };

    /// The pace of a test.
    pub const FAST: Self = Self {
        tick: Duration::from_millis(150),
        retry_delay: Duration::from_millis(10),
        min_window_left: TimeDelta::seconds(1),
        begin_delay: TimeDelta::milliseconds(50),
    };
}

/// Random behaviour of such nodes.
#[derive(Clone, Copy, Debug)]
pub struct EimHabits {
    /// How long the download of an image takes, at least and at most.
    pub download_time: (Duration, Duration),
    /// How long an update changes the node while the agent keeps polling. If this is shorter than a
    /// tick, it is never seen.
    pub update_time: (Duration, Duration),
    /// How long the machine is down afterwards.
    pub reboot_time: (Duration, Duration),
    /// How often in a thousand turns the agent crashes.
    pub crash_per_mille: u16,
    /// How long the agent is away after a crash.
    pub crash_downtime: (Duration, Duration),
    /// How often in a thousand updates the update fails.
    pub failure_per_mille: u16,
    /// How often in a thousand updates there is nothing to do.
    pub no_op_per_mille: u16,
    /// How often in a thousand updates the end is never reported.
    pub stuck_per_mille: u16,
    /// How often in a thousand ticks the state file cannot be read, which is reported as a failure.
    pub unreadable_per_mille: u16,
}

impl Default for EimHabits {
    fn default() -> Self {
        let millis = |from, to| (Duration::from_millis(from), Duration::from_millis(to));
        Self {
            download_time: millis(0, 1_500),
            update_time: millis(0, 900),
            reboot_time: millis(50, 900),
            crash_per_mille: 4,
            crash_downtime: millis(50, 800),
            failure_per_mille: 200,
            no_op_per_mille: 100,
            stuck_per_mille: 15,
            unreadable_per_mille: 1,
        }
    }
}

/// A simulated node with EIM's agent.
#[derive(Debug)]
pub struct EimNode {
    guid: String,
    clock: NodeClock,
    rng: Rng,
    connection: NodeConnection,
    pace: Pace,
    habits: EimHabits,
    /// Survives a crash.
    file: StateFile,
    /// Lost in a crash.
    jobs: WindowJobs,
    running: Option<RunningUpdate>,
    /// Present on a system that is updated by images.
    images: Option<ImageState>,
    /// Until when the agent is away, by the true clock.
    down_until: Option<Time>,
    /// The schedules of the last answer, each with its index in the ground truth.
    delivered: Vec<(EimSchedule, usize)>,
    is_finishing: bool,
    ground_truth: EimGroundTruth,
}

/// The agent's state file.
#[derive(Clone, Debug)]
struct StateFile {
    kind: StatusType,
    /// Stays until it is replaced by another.
    detail: String,
    /// The window of the last answer that had one.
    single: Option<Span>,
    /// Whether this window is used up.
    is_used: bool,
    /// The update that the status belongs to.
    update: Option<usize>,
}

impl EimNode {
    /// A node that was registered with this GUID.
    #[must_use]
    pub fn new(guid: &str, clock: NodeClock, rng: Rng, connection: NodeConnection) -> Self {
        Self {
            guid: guid.to_owned(),
            clock,
            rng,
            connection,
            pace: Pace::REAL,
            habits: EimHabits::default(),
            file: StateFile {
                kind: StatusType::UpToDate,
                detail: String::new(),
                single: None,
                is_used: false,
                update: None,
            },
            jobs: WindowJobs::default(),
            running: None,
            images: None,
            down_until: None,
            delivered: Vec::new(),
            is_finishing: false,
            ground_truth: EimGroundTruth::default(),
        }
    }

    /// The same node with another pace and other habits.
    #[must_use]
    pub fn with_habits(self, pace: Pace, habits: EimHabits) -> Self {
        Self { pace, habits, ..self }
    }

    /// The same node on a system that is updated by images and runs this image.
    #[must_use]
    pub fn with_image(self, booted: EimImage) -> Self {
        Self { images: Some(ImageState::new(booted)), ..self }
    }

    /// From now on the node ends what it has begun, and begins nothing more.
    pub fn finish(&mut self) {
        self.is_finishing = true;
    }

    /// Whether nothing is in progress and the state file is acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let last_report = self.ground_truth.reports.last();
        let is_reported = last_report.is_some_and(|report| {
            report.acknowledged > 0
                && !report.spurious
                && report.kind == update::status_name(self.file.kind)
        });
        self.running.is_none()
            && !self.images.as_ref().is_some_and(ImageState::is_busy)
            && self.down_until.is_none()
            && self.file.kind != StatusType::Updated
            && is_reported
    }

    #[must_use]
    pub fn into_ground_truth(self) -> EimGroundTruth {
        self.ground_truth
    }
}
