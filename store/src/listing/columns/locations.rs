//! Regions and sites.

use super::{Column, Link, ResourceTable, project_table};

pub const REGION: ResourceTable = ResourceTable {
    labels: Some("@.metadata"),
    references: &[Column::reference(
        "region_resource_parent_region",
        "(@.parent_id::bigint & 4294967295)",
    )],
    ..project_table(
        "regions @",
        &[
            Column::ID,
            Column::new("name", "@.name"),
            Column::LABELS.long(),
            Column::CREATED_AT,
            Column::UPDATED_AT,
        ],
        &[
            Link::keyed("parent_region", "#.id = @.parent_id", "@.parent_id"),
            Link::new("sites", "#.region_id = @.id"),
        ],
    )
};

pub const SITE: ResourceTable = ResourceTable {
    labels: Some("@.metadata"),
    references: &[Column::reference("site_resource_region", "(@.region_id::bigint & 4294967295)")],
    ..project_table(
        "sites @",
        &[
            Column::ID,
            Column::new("name", "@.name"),
            Column::new("site_lat", "@.latitude"),
            Column::new("site_lng", "@.longitude"),
            Column::LABELS.long(),
            Column::CREATED_AT,
            Column::UPDATED_AT,
        ],
        &[
            Link::keyed("region", "#.id = @.region_id", "@.region_id"),
            Link::new("hosts", "#.site_id = @.id"),
        ],
    )
};
