//! Schedules, which open windows.

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
    /// Purpose of a schedule. Only schedules of kind `os_update` open windows for updates, unless the project allows any.
    ScheduleStatus {
        /// Not set.
        Unspecified = "unspecified",
        /// Users work on the node.
        Maintenance = "maintenance",
        /// The node is being shipped to its site.
        Shipping = "shipping",
        /// The node may be updated.
        OsUpdate = "os_update",
        /// The firmware may be updated.
        FirmwareUpdate = "firmware_update",
        /// The cluster of the node may be updated.
        ClusterUpdate = "cluster_update",
    }
}

/// What a schedule applies to. A schedule for a site or a region applies to all hosts below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleTarget {
    Host(HostId),
    /// The hosts of a site.
    Site(SiteId),
    /// The hosts of a region and of the regions inside it.
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
pub enum ScheduleFilter {
    /// Schedules with the status `os_update`.
    #[default]
    OsUpdate,
    /// All schedules, as in EIM.
    AnyStatus,
}

impl ScheduleFilter {
    /// The filter that a project's setting selects.
    #[must_use]
    pub const fn from_setting(any_schedule_status: bool) -> Self {
        if any_schedule_status { Self::AnyStatus } else { Self::OsUpdate }
    }

    /// Whether schedules of this status open windows for updates.
    #[must_use]
    pub fn admits(self, status: ScheduleStatus) -> bool {
        self == Self::AnyStatus || status == ScheduleStatus::OsUpdate
    }
}

/// Selects windows of a schedule: the open ones, the next one however far away it is, and others that begin before
/// `until`; never more than `limit`. With a limit of 2 or more the next one is always included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowQuery {
    /// The instant of the query.
    pub now: Time,
    /// Windows after the next one are omitted unless they begin before this.
    pub until: Time,
    /// Maximum number of windows of one schedule.
    pub limit: usize,
    /// Length of the windows of an open-ended schedule.
    pub max_window: TimeDelta,
    /// Which schedules open windows.
    pub filter: ScheduleFilter,
}

impl WindowQuery {
    /// Selects from the windows of a schedule, which are sorted by their start.
    fn select(&self, windows: impl Iterator<Item = Window>) -> Vec<Window> {
        let mut selected: Vec<Window> = Vec::new();
        for window in windows.take(self.limit) {
            let next_is_known = selected.last().is_some_and(|last| self.now < last.start);
            if next_is_known && self.until <= window.start {
                break;
            }
            selected.push(window);
        }
        selected
    }
}
