//! Schedules: when nodes may be changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::host::HostResource;
use crate::region::RegionResource;
use crate::site::SiteResource;
use crate::{Input, Timestamps};

wire_enum! {
    /// What a schedule is for. Only those for updates open windows.
    ScheduleStatus {
        Unspecified = "SCHEDULE_STATUS_UNSPECIFIED",
        Maintenance = "SCHEDULE_STATUS_MAINTENANCE",
        OsUpdate = "SCHEDULE_STATUS_OS_UPDATE",
        Shipping = "SCHEDULE_STATUS_SHIPPING",
        FirmwareUpdate = "SCHEDULE_STATUS_FIRMWARE_UPDATE",
        ClusterUpdate = "SCHEDULE_STATUS_CLUSTER_UPDATE",
    }
}

/// A schedule that opens once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SingleScheduleResource {
    /// Its id.
    pub resource_id: String,
    /// Repeats `resourceId`.
    #[serde(rename = "singleScheduleID")]
    pub single_schedule_id: String,
    /// For people; may be empty.
    pub name: String,
    /// What it is for.
    pub schedule_status: ScheduleStatus,
    /// When it opens, in Unix seconds.
    pub start_seconds: u32,
    /// When it closes, in Unix seconds; 0 if it stays open.
    pub end_seconds: u32,
    /// The host it is meant for.
    pub target_host_id: String,
    /// The host it is meant for, without what runs on it.
    pub target_host: Option<Box<HostResource>>,
    /// The site it is meant for.
    pub target_site_id: String,
    /// The site it is meant for.
    pub target_site: Option<SiteResource>,
    /// The region it is meant for.
    pub target_region_id: String,
    /// The region it is meant for.
    pub target_region: Option<RegionResource>,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A schedule that opens again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RepeatedScheduleResource {
    /// Its id.
    pub resource_id: String,
    /// Repeats `resourceId`.
    #[serde(rename = "repeatedScheduleID")]
    pub repeated_schedule_id: String,
    /// For people; may be empty.
    pub name: String,
    /// What it is for.
    pub schedule_status: ScheduleStatus,
    /// How long it stays open.
    pub duration_seconds: u32,
    /// The minutes at which it opens.
    pub cron_minutes: String,
    /// The hours at which it opens.
    pub cron_hours: String,
    /// The days of the month on which it opens.
    pub cron_day_month: String,
    /// The months in which it opens.
    pub cron_month: String,
    /// The days of the week on which it opens, 0 for Sunday.
    pub cron_day_week: String,
    /// The time zone in which minutes, hours, days and months count, by its IANA name.
    pub time_zone: String,
    /// The host it is meant for.
    pub target_host_id: String,
    /// The host it is meant for, without what runs on it.
    pub target_host: Option<Box<HostResource>>,
    /// The site it is meant for.
    pub target_site_id: String,
    /// The site it is meant for.
    pub target_site: Option<SiteResource>,
    /// The region it is meant for.
    pub target_region_id: String,
    /// The region it is meant for.
    pub target_region: Option<RegionResource>,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A page of single schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SingleScheduleList {
    /// The schedules of this page.
    pub single_schedules: Vec<SingleScheduleResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// What to give as `pageToken` for the next page; empty behind the last.
    pub next_page_token: String,
}

/// A page of repeated schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepeatedScheduleList {
    /// The schedules of this page.
    pub repeated_schedules: Vec<RepeatedScheduleResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// What to give as `pageToken` for the next page; empty behind the last.
    pub next_page_token: String,
}

/// A page of schedules of both kinds: `pageSize` and `offset` count for each kind by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleList {
    /// The single schedules of this page.
    pub single_schedules: Vec<SingleScheduleResource>,
    /// The repeated schedules of this page.
    pub repeated_schedules: Vec<RepeatedScheduleResource>,
    /// How many there are in all, of both kinds.
    pub total_elements: i32,
    /// Whether there are more of either kind behind this page.
    pub has_next: bool,
    /// What to give as `pageToken` for the next page; empty behind the last.
    pub next_page_token: String,
}

/// What a single schedule should be. A change (PATCH) counts only for the fields that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SingleScheduleInput {
    /// For people; may be empty.
    #[serde(default)]
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// What it is for.
    pub schedule_status: ScheduleStatus,
    /// When it opens, in Unix seconds; in the future.
    #[schema(minimum = 1)]
    pub start_seconds: u32,
    /// When it closes, in Unix seconds; left out if it stays open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub end_seconds: Option<u32>,
    /// The host it is meant for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^host-[0-9a-f]{8}$")]
    pub target_host_id: String,
    /// The site it is meant for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^site-[0-9a-f]{8}$")]
    pub target_site_id: String,
    /// The region it is meant for.
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

/// What a repeated schedule should be. A change (PATCH) counts only for the fields that it names.
///
/// The fields of cron are `*` or a list of numbers, ranges (`1-5`) and steps (`*/15`, `0-30/10`), separated by commas; a
/// day of the month may be `L`, the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RepeatedScheduleInput {
    /// For people; may be empty.
    #[serde(default)]
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// What it is for.
    pub schedule_status: ScheduleStatus,
    /// How long it stays open.
    #[schema(minimum = 1, maximum = 86_400)]
    pub duration_seconds: u32,
    /// The minutes at which it opens, 0 to 59.
    pub cron_minutes: String,
    /// The hours at which it opens, 0 to 23.
    pub cron_hours: String,
    /// The days of the month on which it opens, 1 to 31.
    pub cron_day_month: String,
    /// The months in which it opens, 1 to 12.
    pub cron_month: String,
    /// The days of the week on which it opens, 0 for Sunday to 6.
    pub cron_day_week: String,
    /// The time zone in which all that counts, by its IANA name; null for UTC. A new schedule that leaves it out counts in
    /// UTC. One that is described anew (PUT) without it keeps the zone that it has: clients of the ancestor do not know it.
    #[serde(default = "utc")]
    #[schema(value_type = Option<String>, default = "UTC")]
    pub time_zone: String,
    /// The host it is meant for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^host-[0-9a-f]{8}$")]
    pub target_host_id: String,
    /// The site it is meant for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^site-[0-9a-f]{8}$")]
    pub target_site_id: String,
    /// The region it is meant for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(pattern = "^$|^region-[0-9a-f]{8}$")]
    pub target_region_id: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

impl Default for RepeatedScheduleInput {
    /// Every minute, for a minute.
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
