//! Schedules: what opens windows.

mod cron;
mod repeated;
mod single;
mod zone;

pub use cron::Cron;
pub use repeated::{RepeatedSchedule, RepeatedSpec};
pub use single::{SingleSchedule, SingleSpec};
pub use zone::Zone;

use std::fmt;

use chrono::TimeDelta;

use crate::Time;
use crate::id::{HostId, RegionId, SiteId};
use crate::window::Window;

named! {
    /// What a schedule is for. Only schedules of kind `os_update` open windows for updates, unless the project says
    /// that any does (M14).
    ScheduleStatus {
        /// Nothing was said.
        Unspecified = "unspecified",
        /// People work on the node.
        Maintenance = "maintenance",
        /// The node is on its way to where it will stand.
        Shipping = "shipping",
        /// The node may be updated.
        OsUpdate = "os_update",
        /// The firmware may be updated.
        FirmwareUpdate = "firmware_update",
        /// The cluster that the node belongs to may be updated.
        ClusterUpdate = "cluster_update",
    }
}

/// What a schedule is meant for. One for a site or a region is meant for every host below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleTarget {
    /// One host.
    Host(HostId),
    /// The hosts of one site.
    Site(SiteId),
    /// The hosts of one region and of the regions in it.
    Region(RegionId),
}

impl fmt::Display for ScheduleTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(id) => id.fmt(f),
            Self::Site(id) => id.fmt(f),
            Self::Region(id) => id.fmt(f),
        }
    }
}

/// Which schedules of a project open windows for updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opens {
    /// Those whose status says so.
    #[default]
    OsUpdate,
    /// All, whatever they are for, as the ancestor did (M14).
    AnyStatus,
}

impl Opens {
    /// What the setting of a project says.
    #[must_use]
    pub const fn from_setting(any_schedule_status: bool) -> Self {
        if any_schedule_status {
            Self::AnyStatus
        } else {
            Self::OsUpdate
        }
    }

    /// Whether schedules of this status open windows for updates.
    #[must_use]
    pub fn admits(self, status: ScheduleStatus) -> bool {
        self == Self::AnyStatus || status == ScheduleStatus::OsUpdate
    }
}

/// Which windows of a schedule are asked for: what is open, what comes next however far that is, and what else begins
/// before `until`, but never more than `limit`. With a limit of 2 or more the next one is always among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The instant they are asked for.
    pub now: Time,
    /// Windows after the next one are left out unless they begin before this.
    pub until: Time,
    /// The most windows of one schedule.
    pub limit: usize,
    /// How long a window of an open-ended schedule is.
    pub max_window: TimeDelta,
    /// Which schedules open windows.
    pub opens: Opens,
}

impl Ahead {
    /// Takes of the windows of a schedule, earliest first, what was asked for.
    fn take(&self, windows: impl Iterator<Item = Window>) -> Vec<Window> {
        let mut taken: Vec<Window> = Vec::new();
        for window in windows.take(self.limit) {
            let next_is_known = taken.last().is_some_and(|last| self.now < last.start);
            if next_is_known && self.until <= window.start {
                break;
            }
            taken.push(window);
        }
        taken
    }
}
