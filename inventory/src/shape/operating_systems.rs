//! REST form of operating systems.

use evenkeel_api as api;
use evenkeel_api::Timestamps;
use evenkeel_api::os::{OperatingSystemResource, OsProviderKind, OsType};
use evenkeel_domain::os::{OsKind, OsProfile, OsProvider, SecurityFeature};

/// REST form of an operating system without its contents, as other resources embed it.
pub fn resource(os: &OsProfile) -> OperatingSystemResource {
    let spec = &os.spec;
    OperatingSystemResource {
        resource_id: os.id.to_string(),
        os_resource_id: os.id.to_string(),
        name: spec.name.clone(),
        architecture: spec.architecture.clone(),
        image_url: spec.image_url.clone(),
        image_id: spec.image_id.clone(),
        sha256: spec.sha256.as_str().to_owned(),
        image_signatures: spec.image_signatures.clone(),
        profile_name: spec.profile_name.clone(),
        description: spec.description.clone(),
        installed_packages_url: spec.installed_packages_url.clone(),
        security_feature: security_to(spec.security_feature),
        os_type: match spec.kind {
            _ if os.has_unknown_kind => OsType::Unspecified,
            OsKind::Mutable => OsType::Mutable,
            OsKind::Immutable => OsType::Immutable,
        },
        os_provider: match spec.provider {
            OsProvider::Unspecified => OsProviderKind::Unspecified,
            OsProvider::Infra => OsProviderKind::Infra,
            OsProvider::Lenovo => OsProviderKind::Lenovo,
        },
        metadata: spec.metadata.clone(),
        tls_ca_cert: spec.tls_ca_cert.clone(),
        existing_cves_url: spec.existing_cves_url.clone(),
        fixed_cves_url: spec.fixed_cves_url.clone(),
        repo_url: spec.repo_url.clone(),
        timestamps: Some(Timestamps::new(os.created_at, os.updated_at)),
        ..OperatingSystemResource::default()
    }
}

/// Security feature, from its REST form.
pub const fn security_from(feature: api::os::SecurityFeature) -> SecurityFeature {
    use api::os::SecurityFeature as Wire;
    match feature {
        Wire::Unspecified => SecurityFeature::Unspecified,
        Wire::None => SecurityFeature::None,
        Wire::SecureBootAndFullDiskEncryption => SecurityFeature::SecureBootAndFullDiskEncryption,
    }
}

/// REST form of a security feature.
pub const fn security_to(feature: SecurityFeature) -> api::os::SecurityFeature {
    use api::os::SecurityFeature as Wire;
    match feature {
        SecurityFeature::Unspecified => Wire::Unspecified,
        SecurityFeature::None => Wire::None,
        SecurityFeature::SecureBootAndFullDiskEncryption => Wire::SecureBootAndFullDiskEncryption,
    }
}
