//! `compute/os`: the catalogue of operating systems.

use std::fmt::Write;

use axum::extract::State;
use axum::response::Response;
use evenkeel_api as api;
use evenkeel_api::os::{
    OperatingSystemInput, OperatingSystemList, OperatingSystemPatch, OperatingSystemResource,
    OsProviderKind, OsSignature, OsType,
};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::Time;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::{OsKind, OsProfile, OsProvider, OsSpec, SecurityFeature, Sha256};
use evenkeel_store::contents::Digest;
use evenkeel_store::listing::in_order;
use evenkeel_store::os_inside::{self, Shown};
use evenkeel_store::{Tx, os_profiles};

use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams};
use crate::{App, Inventory};

const WHAT: &str = "operating_system_resource";

/// How long what is inside an operating system may be to stand in a list, in bytes each,
const LONGEST_LISTED: u32 = 500_000;

/// and how long that of one kind may be in all on a page, or in a piece of a whole list.
const MOST_LISTED: u32 = 5_000_000;

/// The list of operating systems.
struct OperatingSystems;

impl Listed for OperatingSystems {
    const RESOURCE: Resource = Resource::Os;
    const KEY: &'static str = "OperatingSystemResources";
    // One can hold lists of packages and vulnerabilities of a megabyte and a half.
    const PIECE: u32 = 10;
    type Item = OperatingSystemResource;

    async fn load(
        &self,
        _app: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<OperatingSystemResource>, Problem> {
        let wanted: Vec<_> = ids.iter().copied().map(OsId::from_bits).collect();
        let found = os_profiles::find_many(tx, &wanted).await?;
        let found = in_order(ids, found, |os| os.id.bits());
        let mut shown = os_inside::shown(tx, &wanted, longest_listed(ids.len())).await?;
        let told = found.iter().map(|os| whole(os, shown.remove(&os.id)));
        told.collect()
    }
}

/// How long what is inside each of so many operating systems may be to be listed with them.
fn longest_listed(count: usize) -> u32 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    (MOST_LISTED / count.max(1)).min(LONGEST_LISTED)
}

/// List the operating systems.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/os", tag = "operating systems", params(InProject, ListParams),
    responses(
        (status = 200, description = "The operating systems, by id if nothing else is said.", body = OperatingSystemList),
        Problem,
    ),
)]
pub async fn list_operating_systems(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    listing::answer(OperatingSystems, &app, &call, &params).await
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
    one(&tx, &os).await
}

/// Describe an operating system anew: its architecture and its labels. What is left out of these is emptied; what it is
/// stays, and so do the statements on its image if they are left out.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/os/{resourceId}", tag = "operating systems", params(Item),
    request_body = OperatingSystemPatch,
    responses((status = 200, description = "The operating system.", body = OperatingSystemResource), Problem),
)]
pub async fn put_operating_system(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<OperatingSystemPatch>,
) -> Answer<OperatingSystemResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: OsId = id_of_path(WHAT, &path.resource_id)?;
    let os = os_profiles::find(&tx, id).await?;
    let os = changed(&tx, os, body, app.clock.now()).await?;
    let answer = one(&tx, &os).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change an operating system: its architecture, its labels or the statements on its image.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/os/{resourceId}", tag = "operating systems",
    params(Item, MaskParams), request_body = OperatingSystemPatch,
    responses((status = 200, description = "The operating system.", body = OperatingSystemResource), Problem),
)]
pub async fn patch_operating_system(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<OperatingSystemPatch>,
) -> Answer<OperatingSystemResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: OsId = id_of_path(WHAT, &path.resource_id)?;
    let os = os_profiles::find(&tx, id).await?;
    let now = OperatingSystemPatch {
        name: Some(os.spec.name.clone()),
        architecture: os.spec.architecture.clone(),
        metadata: os.spec.metadata.clone(),
        image_signatures: Some(os.spec.image_signatures.clone()),
    };
    let wanted = change.over(&now, params.text("fieldMask"))?;
    let os = changed(&tx, os, wanted, app.clock.now()).await?;
    let answer = one(&tx, &os).await?;
    tx.commit().await?;
    Ok(answer)
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

/// An operating system that is described otherwise, if it is otherwise. It keeps its name; an empty one says nothing.
/// It keeps the statements on its image too if nothing is said of them: clients that do not know them write back what
/// they know.
async fn changed(
    tx: &Tx,
    os: OsProfile,
    wanted: OperatingSystemPatch,
    now: Time,
) -> Result<OsProfile, Problem> {
    let name = wanted.name.unwrap_or_default();
    if !name.is_empty() && name != os.spec.name {
        return Err(Problem::invalid("name", "it cannot be changed"));
    }
    let signatures = wanted.image_signatures;
    let spec = OsSpec {
        architecture: wanted.architecture,
        metadata: wanted.metadata,
        image_signatures: signatures.unwrap_or_else(|| os.spec.image_signatures.clone()),
        ..os.spec.clone()
    };
    if spec == os.spec {
        return Ok(os);
    }
    Ok(os_profiles::change(tx, os.id, &spec.checked()?, now).await?)
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
        image_signatures: body.image_signatures,
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

/// An operating system with all that is inside it, however much that is.
async fn one(tx: &Tx, os: &OsProfile) -> Answer<OperatingSystemResource> {
    let mut shown = os_inside::shown(tx, &[os.id], u32::MAX).await?;
    whole(os, shown.remove(&os.id)).map(Json)
}

/// An operating system with what is inside it and where it came from, if it came from a registry.
fn whole(os: &OsProfile, shown: Option<Shown>) -> Result<OperatingSystemResource, Problem> {
    let Some(shown) = shown else {
        return Ok(resource(os));
    };
    let inside = shown.inside;
    let signature = inside.signature.map(serde_json::from_value::<OsSignature>);
    let signature = signature.transpose().map_err(|error| {
        tracing::error!(%error, os = %os.id, "the signature of an operating system cannot be shown");
        Problem::internal()
    })?;
    Ok(OperatingSystemResource {
        profile_version: inside.revision.clone(),
        installed_packages: shown.packages.unwrap_or_default(),
        platform_bundle: inside.platform_bundle,
        existing_cves: shown.existing_cves.unwrap_or_default(),
        fixed_cves: shown.fixed_cves.unwrap_or_default(),
        registry: inside.registry,
        revision: inside.revision,
        artifact_digest: digest_text(&inside.artifact),
        signature,
        ..resource(os)
    })
}

/// A digest as registries write it.
fn digest_text(digest: &Digest) -> String {
    let mut text = String::from("sha256:");
    for byte in digest {
        write!(text, "{byte:02x}").ok();
    }
    text
}

/// An operating system on the wire, by itself: as it stands in what refers to it.
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
