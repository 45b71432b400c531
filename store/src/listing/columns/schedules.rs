//! Schedules of both kinds.

use super::{Column, Link, ResourceTable, project_table};

pub const SINGLE: ResourceTable = ResourceTable {
    references: &[
        Column::reference(
            "single_schedule_resource_target_host",
            "(@.target_host_id::bigint & 4294967295)",
        ),
        Column::reference(
            "single_schedule_resource_target_site",
            "(@.target_site_id::bigint & 4294967295)",
        ),
        Column::reference(
            "single_schedule_resource_target_region",
            "(@.target_region_id::bigint & 4294967295)",
        ),
    ],
    ..project_table(
        "single_schedules @",
        &[
            Column::ID,
            Column::new("name", "@.name"),
            Column::new("schedule_status", "@.status"),
            Column::new("start_seconds", "@.start_at"),
            Column::new("end_seconds", "@.end_at").nullable(),
            Column::CREATED_AT,
            Column::UPDATED_AT,
        ],
        TARGETS,
    )
};

pub const REPEATED: ResourceTable = ResourceTable {
    references: &[
        Column::reference(
            "repeated_schedule_resource_target_host",
            "(@.target_host_id::bigint & 4294967295)",
        ),
        Column::reference(
            "repeated_schedule_resource_target_site",
            "(@.target_site_id::bigint & 4294967295)",
        ),
        Column::reference(
            "repeated_schedule_resource_target_region",
            "(@.target_region_id::bigint & 4294967295)",
        ),
    ],
    ..project_table(
        "repeated_schedules @",
        &[
            Column::ID,
            Column::new("name", "@.name"),
            Column::new("schedule_status", "@.status"),
            Column::new("duration_seconds", "@.duration_seconds"),
            Column::new("cron_minutes", "@.cron_minutes"),
            Column::new("cron_hours", "@.cron_hours"),
            Column::new("cron_day_month", "@.cron_day_month"),
            Column::new("cron_month", "@.cron_month"),
            Column::new("cron_day_week", "@.cron_day_week"),
            Column::new("time_zone", "@.time_zone"),
            Column::CREATED_AT,
            Column::UPDATED_AT,
        ],
        TARGETS,
    )
};

const TARGETS: &[Link] = &[
    Link::keyed("target_host", "#.id = @.target_host_id", "@.target_host_id"),
    Link::keyed("target_site", "#.id = @.target_site_id", "@.target_site_id"),
    Link::keyed("target_region", "#.id = @.target_region_id", "@.target_region_id"),
];
