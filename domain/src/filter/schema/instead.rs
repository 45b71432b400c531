//! What to write instead of members of the JSON that are no fields.
//!
//! An id that links one resource to another is asked for at the end of the link, and an id that repeats `resourceId` by
//! that name, as with the ancestor.

use super::Resource;
use crate::filter::bad::squash;

/// What holds for every resource.
const ANY: &[(&str, &str)] = &[("id", "resourceId"), ("timestamps", "createdAt")];

const REGION: &[(&str, &str)] = &[
    ("regionID", "resourceId"),
    ("parentId", "parentRegion.resourceId"),
];

const SITE: &[(&str, &str)] = &[("siteID", "resourceId"), ("regionId", "region.resourceId")];

const HOST: &[(&str, &str)] = &[
    ("hostId", "resourceId"),
    ("siteId", "site.resourceId"),
    ("providerId", "provider.resourceId"),
    ("instanceId", "instance.resourceId"),
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

/// What to write instead of this member, however it is spelled.
pub(super) fn of(resource: Resource, name: &str) -> Option<&'static str> {
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
        | Resource::Nothing => return None,
    };
    let name = squash(name);
    let mut all = own.iter().chain(ANY);
    let found = all.find(|(member, _)| squash(member) == name);
    found.map(|(_, instead)| *instead)
}
