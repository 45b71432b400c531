//! REST form of update policies.

use evenkeel_api::Timestamps;
use evenkeel_api::os::OperatingSystemResource;
use evenkeel_api::policy::{self as wire, OsUpdatePolicy, UpdatePolicyKind};
use evenkeel_domain::id::OsId;
use evenkeel_domain::package::PackageRequirement;
use evenkeel_domain::policy::{
    DesiredUpdate, ImageRules, PackageRules, RebootRule, ServiceRule, TargetUpdate,
    UnusedPackagesRule, UpdatePolicy,
};
use evenkeel_store::related::Related;

use super::operating_systems as os;

/// REST form of a policy.
pub fn resource(
    policy: &UpdatePolicy,
    target_os: Option<OperatingSystemResource>,
) -> OsUpdatePolicy {
    let (update_policy, target) = match &policy.spec.desired {
        DesiredUpdate::Latest => (UpdatePolicyKind::Latest, TargetUpdate::default()),
        DesiredUpdate::Target(target) => (UpdatePolicyKind::Target, target.clone()),
    };
    OsUpdatePolicy {
        resource_id: policy.id.to_string(),
        name: policy.spec.name.to_string(),
        description: policy.spec.description.clone(),
        update_policy,
        update_packages: PackageRequirement::format_list(&target.packages),
        update_sources: target.sources,
        update_kernel_command: target.kernel_command,
        target_os_id: String::new(),
        target_os,
        allow_downgrade: policy.spec.allow_downgrade,
        offline_days: policy.spec.offline_days,
        package_rules: package_rules_resource(&policy.spec.rules),
        image_rules: image_rules_resource(policy.spec.image_rules),
        timestamps: Some(Timestamps::new(policy.created_at, policy.created_at)),
    }
}

/// REST form of a policy, including its target operating system.
pub fn resource_with_target(policy: &UpdatePolicy, related: &Related) -> OsUpdatePolicy {
    let target = target_os(policy).and_then(|id| related.oses.get(&id));
    resource(policy, target.map(os::resource))
}

/// Id of the target operating system of a policy.
pub fn target_os(policy: &UpdatePolicy) -> Option<OsId> {
    match &policy.spec.desired {
        DesiredUpdate::Latest => None,
        DesiredUpdate::Target(target) => target.os,
    }
}

/// REST form of the rules for packages.
pub fn package_rules_resource(rules: &PackageRules) -> wire::PackageRules {
    wire::PackageRules {
        suites: rules.suites.clone(),
        exclude: rules.exclude.clone(),
        min_age_days: rules.min_age_days,
        allow_removals: rules.allow_removals,
        reboot: match rules.reboot {
            RebootRule::IfRequired => wire::RebootRule::IfRequired,
            RebootRule::Never => wire::RebootRule::Never,
        },
        services: match rules.services {
            ServiceRule::KeepRunning => wire::ServiceRule::KeepRunning,
            ServiceRule::Restart => wire::ServiceRule::Restart,
        },
        download_bytes_per_second: rules.download_bytes_per_second,
        unused_packages: match rules.unused_packages {
            UnusedPackagesRule::RemoveKernels => wire::UnusedPackagesRule::RemoveKernels,
            UnusedPackagesRule::RemoveAll => wire::UnusedPackagesRule::RemoveAll,
            UnusedPackagesRule::Keep => wire::UnusedPackagesRule::Keep,
        },
        minimal_steps: rules.minimal_steps,
    }
}

/// REST form of the rules for images.
pub const fn image_rules_resource(rules: ImageRules) -> wire::ImageRules {
    wire::ImageRules {
        download_bytes_per_second: rules.download_bytes_per_second,
        max_bytes: rules.max_bytes,
        attempts: rules.attempts,
    }
}
