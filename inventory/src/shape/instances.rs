//! REST form of instances.

use evenkeel_api as api;
use evenkeel_api::Timestamps;
use evenkeel_api::instance::{
    InstanceBadImage, InstanceCondition, InstanceForeignChange, InstanceHeldBackPackage,
    InstanceResource, InstanceSlot, InstanceStaleUnit,
};
use evenkeel_domain::condition::Condition;
use evenkeel_domain::instance::{
    FailedImage, ForeignChange, HeldBackUpdate, ImageSlot, Instance, InstanceKind, InstanceState,
    StaleService,
};
use evenkeel_store::related::Related;

use super::{operating_systems as os, policies, status_fields};

/// REST form of an instance with its operating system and policy, without its host.
pub fn resource(instance: &Instance, related: &Related) -> InstanceResource {
    let policy = instance.policy.and_then(|id| related.policies.get(&id));
    InstanceResource {
        os: related.oses.get(&instance.summary.os).map(os::resource),
        update_policy: policy.map(|policy| policies::resource(policy, None)),
        ..shallow(instance)
    }
}

/// REST form of an instance without related resources.
pub fn shallow(instance: &Instance) -> InstanceResource {
    let summary = &instance.summary;
    let (instance_status, instance_status_indicator, instance_status_timestamp) =
        status_fields(&summary.status);
    let (update_status, update_status_indicator, update_status_timestamp) =
        status_fields(&summary.update_status);
    let configs = &instance.custom_configs;
    let facts = &summary.facts;
    InstanceResource {
        resource_id: instance.id.to_string(),
        instance_id: instance.id.to_string(),
        kind: kind_to(instance.kind),
        name: instance.name.to_string(),
        desired_state: state(instance.desired),
        current_state: state(instance.current),
        host_id: instance.host.to_string(),
        os_id: summary.os.to_string(),
        local_account_id: instance.local_account.map(|id| id.to_string()).unwrap_or_default(),
        custom_config_id: configs.iter().map(ToString::to_string).collect(),
        security_feature: os::security_to(instance.security_feature),
        instance_status,
        instance_status_indicator,
        instance_status_timestamp,
        provisioning_status: if summary.provisioned { "Provisioned" } else { "Not Provisioned" }
            .to_owned(),
        provisioning_status_indicator: if summary.provisioned {
            api::status::StatusIndication::Idle
        } else {
            api::status::StatusIndication::Unspecified
        },
        update_status,
        update_status_indicator,
        update_status_timestamp,
        trusted_attestation_status: "Unknown".to_owned(),
        os_update_available: summary.os_update_available.clone(),
        timestamps: Some(Timestamps::new(instance.created_at, instance.updated_at)),
        conditions: summary.conditions.iter().map(condition).collect(),
        kernel_release: facts.kernel_release.clone().unwrap_or_default(),
        reboot_required: facts.reboot_required,
        package_lists_refreshed_at: facts.package_lists_refreshed_at,
        package_lists_error: facts.package_lists_error.clone().unwrap_or_default(),
        security_updates: facts.security_updates,
        held_back_updates: facts.held_back_updates,
        stale_services: facts.stale_services,
        ..InstanceResource::default()
    }
}

fn condition(condition: &Condition) -> InstanceCondition {
    InstanceCondition {
        kind: condition.kind.name().to_owned(),
        message: condition.text.clone(),
        since: condition.since,
    }
}

/// REST form of an update that the node holds back.
pub fn held_back_package(update: HeldBackUpdate) -> InstanceHeldBackPackage {
    InstanceHeldBackPackage {
        security: update.is_security(),
        name: update.name,
        architecture: update.architecture,
        installed: update.installed_version,
        available: update.available_version,
        cause: update.cause,
        detail: update.detail,
        suites: update.suites,
        origins: update.origins,
    }
}

/// REST form of a service that still runs replaced files.
pub fn stale_unit(service: StaleService) -> InstanceStaleUnit {
    InstanceStaleUnit { name: service.name, files: service.files }
}

/// REST form of a change of packages that the agent did not make.
pub fn foreign_change(change: ForeignChange) -> InstanceForeignChange {
    InstanceForeignChange {
        changed_at: change.changed_at,
        count: change.count,
        packages: change.packages,
    }
}

/// REST form of an image slot, as reported by the node.
pub fn slot(slot: ImageSlot) -> InstanceSlot {
    InstanceSlot { name: slot.name, state: slot.state, image_id: slot.image_id }
}

/// REST form of an image that failed on a node, as reported by the node.
pub fn bad_image(image: FailedImage) -> InstanceBadImage {
    InstanceBadImage { sha256: image.sha256, image_id: image.image_id, reason: image.reason }
}

/// Kind of an instance, from its REST form.
pub const fn kind_from(kind: api::instance::InstanceKind) -> InstanceKind {
    match kind {
        api::instance::InstanceKind::Unspecified => InstanceKind::Unspecified,
        api::instance::InstanceKind::Metal => InstanceKind::Metal,
    }
}

const fn kind_to(kind: InstanceKind) -> api::instance::InstanceKind {
    match kind {
        InstanceKind::Unspecified => api::instance::InstanceKind::Unspecified,
        InstanceKind::Metal => api::instance::InstanceKind::Metal,
    }
}

const fn state(state: InstanceState) -> api::instance::InstanceState {
    use api::instance::InstanceState as Wire;
    match state {
        InstanceState::Unspecified => Wire::Unspecified,
        InstanceState::Running => Wire::Running,
        InstanceState::Untrusted => Wire::Untrusted,
        InstanceState::Deleted => Wire::Deleted,
    }
}
