//! `compute/os`: the catalogue of operating systems.

use axum::extract::State;
use evenkeel_api as api;
use evenkeel_api::os::{
    OperatingSystemInput, OperatingSystemList, OperatingSystemResource, OsProviderKind, OsType,
};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::{OsKind, OsProfile, OsProvider, OsSpec, SecurityFeature, Sha256};
use evenkeel_store::os_profiles;

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Path};
use crate::listing::{ListParams, envelope, page};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};

const WHAT: &str = "operating_system_resource";

/// List the operating systems.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/os", tag = "operating systems", params(InProject, ListParams),
    responses((status = 200, description = "The operating systems, by id.", body = OperatingSystemList), Problem),
)]
pub async fn list_operating_systems(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<OperatingSystemList> {
    params.refuse(&["filter", "orderBy"])?;
    let page = page(&params)?;
    let tx = app.read(&call).await?;
    let listed = os_profiles::list(&tx, page).await?;
    tx.commit().await?;
    let (total_elements, has_next) = envelope(&listed, page);
    let operating_system_resources = listed.items.iter().map(resource).collect();
    Ok(Json(OperatingSystemList {
        operating_system_resources,
        total_elements,
        has_next,
    }))
}

/// Add an operating system to the catalogue.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/os", tag = "operating systems", params(InProject),
    request_body = OperatingSystemInput,
    responses((status = 200, description = "The operating system.", body = OperatingSystemResource), Problem),
)]
pub async fn create_operating_system(
    State(app): State<App>,
    call: Call,
    Json(body): Json<OperatingSystemInput>,
) -> Answer<OperatingSystemResource> {
    let tx = app.write(&call).await?;
    let made = os_profiles::create(&tx, &spec(body)?, app.clock.now()).await?;
    tx.commit().await?;
    Ok(Json(resource(&made)))
}

/// Show an operating system.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/os/{resourceId}", tag = "operating systems", params(Item),
    responses((status = 200, description = "The operating system.", body = OperatingSystemResource), Problem),
)]
pub async fn get_operating_system(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<OperatingSystemResource> {
    let tx = app.read(&call).await?;
    let id: OsId = id_of_path(WHAT, &path.resource_id)?;
    let os = os_profiles::find(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(resource(&os)))
}

/// Delete an operating system that nothing uses.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/os/{resourceId}", tag = "operating systems", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_operating_system(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: OsId = id_of_path(WHAT, &path.resource_id)?;
    os_profiles::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn spec(body: OperatingSystemInput) -> Result<OsSpec, Problem> {
    let spec = OsSpec {
        kind: match body.os_type {
            OsType::Unspecified => {
                return Err(Problem::invalid(
                    "osType",
                    "must be OS_TYPE_MUTABLE or OS_TYPE_IMMUTABLE",
                ));
            }
            OsType::Mutable => OsKind::Mutable,
            OsType::Immutable => OsKind::Immutable,
        },
        provider: match body.os_provider {
            OsProviderKind::Unspecified => OsProvider::Unspecified,
            OsProviderKind::Infra => OsProvider::Infra,
            OsProviderKind::Lenovo => OsProvider::Lenovo,
        },
        sha256: Sha256::parse("sha256", &body.sha256)?,
        security_feature: security_from(body.security_feature),
        name: body.name,
        architecture: body.architecture,
        profile_name: body.profile_name,
        image_id: body.image_id,
        image_url: body.image_url,
        description: body.description,
        metadata: body.metadata,
        repo_url: body.repo_url,
        tls_ca_cert: body.tls_ca_cert,
        installed_packages_url: body.installed_packages_url,
        existing_cves_url: body.existing_cves_url,
        fixed_cves_url: body.fixed_cves_url,
    };
    Ok(spec.checked()?)
}

/// An operating system on the wire.
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
        profile_name: spec.profile_name.clone(),
        description: spec.description.clone(),
        installed_packages_url: spec.installed_packages_url.clone(),
        security_feature: security_to(spec.security_feature),
        os_type: match spec.kind {
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

/// How an installation is protected, from the wire.
pub const fn security_from(feature: api::os::SecurityFeature) -> SecurityFeature {
    use api::os::SecurityFeature as Wire;
    match feature {
        Wire::Unspecified => SecurityFeature::Unspecified,
        Wire::None => SecurityFeature::None,
        Wire::SecureBootAndFullDiskEncryption => SecurityFeature::SecureBootAndFullDiskEncryption,
    }
}

/// How an installation is protected, for the wire.
pub const fn security_to(feature: SecurityFeature) -> api::os::SecurityFeature {
    use api::os::SecurityFeature as Wire;
    match feature {
        SecurityFeature::Unspecified => Wire::Unspecified,
        SecurityFeature::None => Wire::None,
        SecurityFeature::SecureBootAndFullDiskEncryption => Wire::SecureBootAndFullDiskEncryption,
    }
}
