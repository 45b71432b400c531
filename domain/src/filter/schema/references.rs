//! References to other resources by which EIM's clients order lists. Their names are those of the columns in EIM's
//! database. Filters use edges instead.

use super::{FieldKind, FilterField, Resource};

const REGION: &[FilterField] = &[reference("region_resource_parent_region")];
const SITE: &[FilterField] = &[reference("site_resource_region")];
const HOST: &[FilterField] =
    &[reference("host_resource_site"), reference("host_resource_provider")];
const INSTANCE: &[FilterField] =
    &[reference("instance_resource_os"), reference("instance_resource_localaccount")];
const POLICY: &[FilterField] = &[reference("os_update_policy_resource_target_os")];
const RUN: &[FilterField] = &[
    reference("os_update_run_resource_applied_policy"),
    reference("os_update_run_resource_instance"),
];
const SINGLE_SCHEDULE: &[FilterField] = &[
    reference("single_schedule_resource_target_host"),
    reference("single_schedule_resource_target_site"),
    reference("single_schedule_resource_target_region"),
];
const REPEATED_SCHEDULE: &[FilterField] = &[
    reference("repeated_schedule_resource_target_host"),
    reference("repeated_schedule_resource_target_site"),
    reference("repeated_schedule_resource_target_region"),
];

pub(super) const fn references_of(resource: Resource) -> &'static [FilterField] {
    match resource {
        Resource::Region => REGION,
        Resource::Site => SITE,
        Resource::Host => HOST,
        Resource::Instance => INSTANCE,
        Resource::Policy => POLICY,
        Resource::Run => RUN,
        Resource::SingleSchedule => SINGLE_SCHEDULE,
        Resource::RepeatedSchedule => REPEATED_SCHEDULE,
        _ => &[],
    }
}

/// The number behind the other resource's id, or 0 if there is none.
const fn reference(name: &'static str) -> FilterField {
    FilterField { name, kind: FieldKind::Number }
}
