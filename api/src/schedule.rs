//! Schedules: when nodes may be updated.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::host::HostResource;
use crate::region::RegionResource;
use crate::site::SiteResource;
use crate::{Input, Timestamps};

wire_enum! {
    /// Purpose of a schedule. Only schedules for operating system updates open maintenance windows,
    /// unless the project sets `anyScheduleStatus`.
    ScheduleStatus {
        Unspecified = "SCHEDULE_STATUS_UNSPECIFIED",
        Maintenance = "SCHEDULE_STATUS_MAINTENANCE",
        OsUpdate = "SCHEDULE_STATUS_OS_UPDATE",
        Shipping = "SCHEDULE_STATUS_SHIPPING",
        FirmwareUpdate = "SCHEDULE_STATUS_FIRMWARE_UPDATE",
        ClusterUpdate = "SCHEDULE_STATUS_CLUSTER_UPDATE",
    }
}

/// Schedule with a single window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SingleScheduleResource {
    /// Resource ID.
    pub resource_id: String,
    /// Same as `resourceId`.
    #[serde(rename = "singleScheduleID")]
    pub single_schedule_id: String,
    /// Display name; may be empty.
    pub name: String,
    /// Purpose.
    pub schedule_status: ScheduleStatus,
    /// Start of the window, in Unix seconds.
    pub start_seconds: u32,
    /// End of the window, in Unix seconds; 0 if the window has no end.
    pub end_seconds: u32,
    /// ID of the target host; empty for none.
    pub target_host_id: String,
    /// Target host, without its instance; null for none.
    pub target_host: Option<Box<HostResource>>,
    /// ID of the target site; empty for none.
    pub target_site_id: String,
    /// Target site; null for none.
    pub target_site: Option<SiteResource>,
    /// ID of the target region; empty for none.
    pub target_region_id: String,
    /// Target region; null for none.
    pub target_region: Option<RegionResource>,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// Schedule with repeated windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RepeatedScheduleResource {
    /// Resource ID.
    pub resource_id: String,
    /// Same as `resourceId`.
    #[serde(rename = "repeatedScheduleID")]
    pub repeated_schedule_id: String,
    /// Display name; may be empty.
    pub name: String,
    /// Purpose.
    pub schedule_status: ScheduleStatus,
    /// Length of each window in seconds.
    pub duration_seconds: u32,
    /// Minutes at which a window opens, in cron syntax.
    pub cron_minutes: String,
    /// Hours at which a window opens, in cron syntax.
    pub cron_hours: String,
    /// Days of the month on which a window opens, in cron syntax.
    pub cron_day_month: String,
    /// Months in which a window opens, in cron syntax.
    pub cron_month: String,
    /// Days of the week on which a window opens, in cron syntax; 0 is Sunday.
    pub cron_day_week: String,
    /// IANA name of the time zone of the cron fields.
    pub time_zone: String,
    /// ID of the target host; empty for none.
    pub target_host_id: String,
    /// Target host, without its instance; null for none.
    pub target_host: Option<Box<HostResource>>,
    /// ID of the target site; empty for none.
    pub target_site_id: String,
    /// Target site; null for none.
    pub target_site: Option<SiteResource>,
    /// ID of the target region; empty for none.
    pub target_region_id: String,
    /// Target region; null for none.
    pub target_region: Option<RegionResource>,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// A page of single schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SingleScheduleList {
    /// Schedules on this page.
    pub single_schedules: Vec<SingleScheduleResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Number of resources on this page that cannot be read, because a newer server wrote them; the
    /// server's log names them. Omitted if all can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_elements: Option<u32>,
}

/// A page of repeated schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepeatedScheduleList {
    /// Schedules on this page.
    pub repeated_schedules: Vec<RepeatedScheduleResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Number of resources on this page that cannot be read, because a newer server wrote them; the
    /// server's log names them. Omitted if all can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_elements: Option<u32>,
}

/// A page of schedules of both kinds. `pageSize` and `offset` apply to each kind separately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleList {
    /// Single schedules on this page.
    pub single_schedules: Vec<SingleScheduleResource>,
    /// Repeated schedules on this page.
    pub repeated_schedules: Vec<RepeatedScheduleResource>,
    /// Total number of matching schedules of both kinds on all pages.
    pub total_elements: i32,
    /// Whether another page of either kind follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Number of resources on this page that cannot be read, because a newer server wrote them; the
    /// server's log names them. Omitted if all can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_elements: Option<u32>,
}

/// Single schedule to create or change. PATCH changes only the fields in the body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SingleScheduleInput {
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[serde(default)]
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// Purpose. `SCHEDULE_STATUS_OS_UPDATE` opens windows for updates.
    pub schedule_status: ScheduleStatus,
    /// Start of the window, in Unix seconds; must be in the future, unless it is unchanged.
    #[schema(minimum = 1)]
    pub start_seconds: u32,
    /// End of the window, in Unix seconds; must be after the start. Null or omitted if the window
    /// has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub end_seconds: Option<u32>,
    /// ID of the target host; empty for none. Excludes the other targets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^host-[0-9a-f]{8}$")]
    pub target_host_id: String,
    /// ID of the target site; empty for none. Excludes the other targets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^site-[0-9a-f]{8}$")]
    pub target_site_id: String,
    /// ID of the target region; empty for none. Excludes the other targets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^region-[0-9a-f]{8}$")]
    pub target_region_id: String,
}

impl Input for SingleScheduleInput {
    const READ_ONLY: &[&str] = &[
        "resourceId",
        "singleScheduleID",
        "targetHost",
        "targetSite",
        "targetRegion",
        "timestamps",
    ];
}

/// Repeated schedule to create or change. PATCH changes only the fields in the body.
///
/// A cron field is `*` or a comma-separated list of numbers, ranges (`1-5`) and steps (`*/15`,
/// `0-30/10`). The day of the month may also be `L`, the last day. Months and days of the week may
/// be named (`JAN`, `MON-FRI`); responses have numbers. A schedule that would never open, such as on
/// 30 February, is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RepeatedScheduleInput {
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[serde(default)]
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// Purpose. `SCHEDULE_STATUS_OS_UPDATE` opens windows for updates.
    pub schedule_status: ScheduleStatus,
    /// Length of each window in seconds.
    #[schema(minimum = 1, maximum = 86_400)]
    pub duration_seconds: u32,
    /// Minutes at which a window opens, in cron syntax: 0 to 59.
    pub cron_minutes: String,
    /// Hours at which a window opens, in cron syntax: 0 to 23.
    pub cron_hours: String,
    /// Days of the month on which a window opens, in cron syntax: 1 to 31, or `L`. If both this
    /// field and `cronDayWeek` are restricted, a day needs to match only one of them. A step such as
    /// `*/2` restricts.
    pub cron_day_month: String,
    /// Months in which a window opens, in cron syntax: 1 to 12, or JAN to DEC.
    pub cron_month: String,
    /// Days of the week on which a window opens, in cron syntax: 0 (Sunday) to 6, or SUN to SAT.
    pub cron_day_week: String,
    /// IANA name of the time zone of the cron fields; null for UTC. A new schedule without this
    /// field uses UTC. PUT without this field keeps the current time zone, because EIM clients do
    /// not know the field.
    #[serde(default = "utc")]
    #[schema(value_type = Option<String>, default = "UTC")]
    pub time_zone: String,
    /// ID of the target host; empty for none. Excludes the other targets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^host-[0-9a-f]{8}$")]
    pub target_host_id: String,
    /// ID of the target site; empty for none. Excludes the other targets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^site-[0-9a-f]{8}$")]
    pub target_site_id: String,
    /// ID of the target region; empty for none. Excludes the other targets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^region-[0-9a-f]{8}$")]
    pub target_region_id: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

impl Default for RepeatedScheduleInput {
    /// A window of one minute in every minute.
    fn default() -> Self {
        let every = || "*".to_owned();
        Self {
            name: String::new(),
            schedule_status: ScheduleStatus::Unspecified,
            duration_seconds: 60,
            cron_minutes: every(),
            cron_hours: every(),
            cron_day_month: every(),
            cron_month: every(),
            cron_day_week: every(),
            time_zone: utc(),
            target_host_id: String::new(),
            target_site_id: String::new(),
            target_region_id: String::new(),
        }
    }
}

impl Input for RepeatedScheduleInput {
    const READ_ONLY: &[&str] = &[
        "resourceId",
        "repeatedScheduleID",
        "targetHost",
        "targetSite",
        "targetRegion",
        "timestamps",
    ];
}
