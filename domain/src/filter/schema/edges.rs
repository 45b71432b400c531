//! The edges between resources.

use super::{Edge, Resource};

const REGION: &[Edge] =
    &[to_one("parent_region", Resource::Region), to_many("sites", Resource::Site)];

const SITE: &[Edge] = &[to_one("region", Resource::Region), to_many("hosts", Resource::Host)];

const HOST: &[Edge] = &[
    to_one("site", Resource::Site),
    to_one("provider", Resource::Provider),
    to_one("instance", Resource::Instance),
    to_many("host_nics", Resource::Nic),
    to_many("host_storages", Resource::Storage),
    to_many("host_usbs", Resource::Usb),
    to_many("host_gpus", Resource::Gpu),
];

const INSTANCE: &[Edge] = &[
    to_one("host", Resource::Host),
    to_one("os", Resource::Os),
    to_one("localaccount", Resource::LocalAccount),
    to_one("update_policy", Resource::Policy),
    to_many("custom_config", Resource::CustomConfig),
    to_many("workload_members", Resource::WorkloadMember),
];

const POLICY: &[Edge] = &[to_one("target_os", Resource::Os)];

const RUN: &[Edge] =
    &[to_one("applied_policy", Resource::Policy), to_one("instance", Resource::Instance)];

const SCHEDULE: &[Edge] = &[
    to_one("target_host", Resource::Host),
    to_one("target_site", Resource::Site),
    to_one("target_region", Resource::Region),
];

const NIC: &[Edge] = &[to_many("ipaddresses", Resource::IpAddress)];

pub(super) const fn edges_of(resource: Resource) -> &'static [Edge] {
    match resource {
        Resource::Region => REGION,
        Resource::Site => SITE,
        Resource::Host => HOST,
        Resource::Instance => INSTANCE,
        Resource::Policy => POLICY,
        Resource::Run => RUN,
        Resource::SingleSchedule | Resource::RepeatedSchedule => SCHEDULE,
        Resource::Nic => NIC,
        Resource::Os
        | Resource::Provider
        | Resource::CustomConfig
        | Resource::LocalAccount
        | Resource::Storage
        | Resource::Usb
        | Resource::Gpu
        | Resource::IpAddress
        | Resource::WorkloadMember => &[],
    }
}

const fn to_one(name: &'static str, to: Resource) -> Edge {
    let many = false;
    Edge { name, to, many }
}

const fn to_many(name: &'static str, to: Resource) -> Edge {
    let many = true;
    Edge { name, to, many }
}
