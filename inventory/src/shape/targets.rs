//! REST form of targets.

use evenkeel_api::update_run::RunTarget;
use evenkeel_domain::decide::{Target, TargetKind};
use evenkeel_domain::package::PackageRequirement;
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec};

use super::policies;

/// REST form of a policy's desired update.
pub fn policy_target(spec: &PolicySpec) -> RunTarget {
    let rules = policies::package_rules_resource(&spec.rules);
    let image_rules = policies::image_rules_resource(spec.image_rules);
    let DesiredUpdate::Target(target) = &spec.desired else {
        return RunTarget {
            mode: "latest".to_owned(),
            package_rules: Some(rules),
            image_rules: Some(image_rules),
            ..RunTarget::default()
        };
    };
    let kind = if target.os.is_some() {
        "image"
    } else if target.packages.is_empty() && target.sources.is_empty() {
        "kernel"
    } else {
        "packages"
    };
    RunTarget {
        kind: kind.to_owned(),
        mode: "exactly".to_owned(),
        packages: target.packages.iter().map(PackageRequirement::to_string).collect(),
        sources: target.sources.clone(),
        package_rules: (kind == "packages").then_some(rules),
        kernel_command: target.kernel_command.clone(),
        os_id: target.os.map(|os| os.to_string()).unwrap_or_default(),
        image_rules: target.os.is_some().then_some(image_rules),
        ..RunTarget::default()
    }
}

/// REST form of the target that a node receives.
pub fn run_target(target: &Target) -> RunTarget {
    match &target.kind {
        TargetKind::Packages { exactly, sources, kernel_command, rules, allow_downgrades: _ } => {
            RunTarget {
                kind: "packages".to_owned(),
                mode: if exactly.is_some() { "exactly" } else { "latest" }.to_owned(),
                packages: exactly.iter().flatten().map(PackageRequirement::to_string).collect(),
                sources: sources.clone(),
                package_rules: Some(policies::package_rules_resource(rules)),
                kernel_command: kernel_command.clone(),
                ..RunTarget::default()
            }
        }
        TargetKind::Image(image) => RunTarget {
            kind: "image".to_owned(),
            os_id: image.os.to_string(),
            image_id: image.image_id.clone(),
            image_url: image.url.clone(),
            sha256: image.sha256.as_str().to_owned(),
            profile_name: image.profile_name.clone(),
            image_rules: Some(policies::image_rules_resource(target.image_rules)),
            ..RunTarget::default()
        },
        TargetKind::Kernel { command } => RunTarget {
            kind: "kernel".to_owned(),
            kernel_command: command.clone(),
            ..RunTarget::default()
        },
    }
}
