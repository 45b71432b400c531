//! What to write instead of JSON members that are not fields.
//!
//! As in EIM, an id that links to another resource is tested at the end of the link, and an id that repeats `resourceId`
//! is tested by that name.

use super::Resource;
use crate::filter::error::normalize_name;

/// Suggestions for every resource.
const COMMON: &[(&str, &str)] = &[("id", "resourceId"), ("timestamps", "createdAt")];

const REGION: &[(&str, &str)] =
    &[("regionID", "resourceId"), ("parentId", "parentRegion.resourceId")];

const SITE: &[(&str, &str)] = &[("siteID", "resourceId"), ("regionId", "region.resourceId")];

const HOST: &[(&str, &str)] = &[
    ("hostId", "resourceId"),
    ("siteId", "site.resourceId"),
    ("providerId", "provider.resourceId"),
    ("instanceId", "instance.resourceId"),
    ("ipAddresses", "hostNics.ipaddresses.address"),
    ("rebootRequiredBy", "rebootRequired"),
];

const INSTANCE: &[(&str, &str)] = &[
    ("instanceID", "resourceId"),
    ("hostID", "host.resourceId"),
    ("osID", "os.resourceId"),
    ("localAccountID", "localaccount.resourceId"),
    ("osUpdatePolicyID", "updatePolicy.resourceId"),
    ("customConfigID", "customConfig.resourceId"),
];

const OS: &[(&str, &str)] = &[("osResourceID", "resourceId"), ("osId", "resourceId")];

const POLICY: &[(&str, &str)] = &[("targetOsId", "targetOs.resourceId")];

const RUN: &[(&str, &str)] = &[
    ("instanceId", "instance.resourceId"),
    ("hostId", "instance.host.resourceId"),
    ("hostName", "instance.host.name"),
    ("policyId", "appliedPolicy.resourceId"),
    ("statusDetails", "log"),
];

const SCHEDULE: &[(&str, &str)] = &[
    ("singleScheduleID", "resourceId"),
    ("repeatedScheduleID", "resourceId"),
    ("targetHostId", "targetHost.resourceId"),
    ("targetSiteId", "targetSite.resourceId"),
    ("targetRegionId", "targetRegion.resourceId"),
];

const PROVIDER: &[(&str, &str)] = &[("providerID", "resourceId")];

const CUSTOM_CONFIG: &[(&str, &str)] = &[("customConfigID", "resourceId")];

const LOCAL_ACCOUNT: &[(&str, &str)] = &[("localAccountID", "resourceId")];

/// What to write instead of this member, in any spelling.
pub(super) fn suggestion_for(resource: Resource, name: &str) -> Option<&'static str> {
    let own = match resource {
        Resource::Region => REGION,
        Resource::Site => SITE,
        Resource::Host => HOST,
        Resource::Instance => INSTANCE,
        Resource::Os => OS,
        Resource::Policy => POLICY,
        Resource::Run => RUN,
        Resource::SingleSchedule | Resource::RepeatedSchedule => SCHEDULE,
        Resource::Provider => PROVIDER,
        Resource::CustomConfig => CUSTOM_CONFIG,
        Resource::LocalAccount => LOCAL_ACCOUNT,
        Resource::Nic
        | Resource::Storage
        | Resource::Usb
        | Resource::Gpu
        | Resource::IpAddress
        | Resource::WorkloadMember => return None,
    };
    let name = normalize_name(name);
    let mut all = own.iter().chain(COMMON);
    let suggestion = all.find(|(member, _)| normalize_name(member) == name);
    suggestion.map(|(_, instead)| *instead)
}
