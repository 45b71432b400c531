//! `compute/os`: the catalogue of operating systems.

use std::fmt::Write;

use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::os::{
    OperatingSystemInput, OperatingSystemList, OperatingSystemPatch, OperatingSystemResource,
    OsProviderKind, OsSignature, OsType,
};
use evenkeel_domain::Time;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::{OsKind, OsProfile, OsProvider, OsSpec, Sha256};
use evenkeel_store::contents::ContentDigest;
use evenkeel_store::listing::in_order;
use evenkeel_store::os_details::{self, OsDetailsWithLists};
use evenkeel_store::{Tx, os_profiles};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::problem::Problem;
use crate::shape::operating_systems::{resource, security_from};
use crate::shape::{Answer, InProject, Item, MaskParams};

const RESOURCE_KIND: &str = "operating_system_resource";

/// In a list, the contents of an operating system are omitted if they are longer than this, in
/// bytes.
const MAX_LISTED_BYTES_PER_OS: u32 = 500_000;

/// Most bytes of contents of one kind on a page, or in a chunk of a whole list.
const MAX_LISTED_BYTES_PER_PAGE: u32 = 5_000_000;

struct OperatingSystems;

impl Listable for OperatingSystems {
    const RESOURCE: Resource = Resource::Os;
    const KEY: &'static str = "OperatingSystemResources";
    // One operating system can have package and CVE lists of 1.5 MB.
    const CHUNK_SIZE: u32 = 10;
    type Item = OperatingSystemResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<OperatingSystemResource>, Problem> {
        let os_ids: Vec<_> = ids.iter().copied().map(OsId::from_bits).collect();
        let profiles = os_profiles::find_many(tx, &os_ids).await?;
        let profiles = in_order(ids, profiles, |os| os.id.bits());
        let mut contents =
            os_details::find_many_with_lists(tx, &os_ids, max_listed_bytes(ids.len())).await?;
        let resources =
            profiles.iter().map(|os| resource_with_contents(os, contents.remove(&os.id)));
        resources.collect()
    }
}

/// Longest contents that are included in a list of this many operating systems, in bytes.
fn max_listed_bytes(count: usize) -> u32 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    (MAX_LISTED_BYTES_PER_PAGE / count.max(1)).min(MAX_LISTED_BYTES_PER_OS)
}

/// List operating systems
///
/// Package and CVE lists longer than 500,000 bytes, or than their share of 5,000,000 bytes on a
/// page, are empty. Get the operating system to see them.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/os", tag = "operating systems", params(InProject, ListParams),
    responses(
        (status = 200, description = "The operating systems; by default ordered by id.", body = OperatingSystemList),
        Problem,
    ),
)]
pub async fn list_operating_systems(call: Call, params: Params) -> Result<Response, Problem> {
    listing::answer(OperatingSystems, &call, &params).await
}

/// Create an operating system
///
/// Adds an operating system to the catalogue of the project. The server stores and forwards the
/// image signatures; only nodes verify them.
///
/// The server refuses a name that exists, and a `profileName` that exists with this `imageId`
/// (`failed-precondition`). It refuses an unspecified `osType`, and metadata that are not a JSON
/// object (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/os", tag = "operating systems", params(InProject),
    request_body = OperatingSystemInput,
    responses((status = 200, description = "The operating system.", body = OperatingSystemResource), Problem),
)]
pub async fn create_operating_system(
    call: Call,
    Json(body): Json<OperatingSystemInput>,
) -> Answer<OperatingSystemResource> {
    let tx = call.write().await?;
    let profile = os_profiles::create(&tx, &parse_spec(body)?, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(resource(&profile)))
}

/// Get an operating system
///
/// Returns the operating system with its complete package and CVE lists, and with its origin and
/// signature if it comes from a registry.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/os/{resourceId}", tag = "operating systems", params(Item),
    responses((status = 200, description = "The operating system.", body = OperatingSystemResource), Problem),
)]
pub async fn get_operating_system(
    call: Call,
    Path(path): Path<Item>,
) -> Answer<OperatingSystemResource> {
    let tx = call.read().await?;
    let id: OsId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let os = os_profiles::find(&tx, id).await?;
    load_os_resource(&tx, &os).await
}

/// Replace an operating system
///
/// Sets the architecture and the metadata; those that are missing are cleared. The image signatures
/// stay unchanged if they are missing. The server ignores the other fields of an operating system.
/// A repeated request has the same result.
///
/// The server refuses another name (`invalid-argument`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/os/{resourceId}", tag = "operating systems", params(Item),
    request_body = OperatingSystemPatch,
    responses((status = 200, description = "The operating system.", body = OperatingSystemResource), Problem),
)]
pub async fn put_operating_system(
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<OperatingSystemPatch>,
) -> Answer<OperatingSystemResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: OsId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let os = os_profiles::find(&tx, id).await?;
    let os = apply_change(&tx, os, body, tx.database_time()).await?;
    let answer = load_os_resource(&tx, &os).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change an operating system
///
/// Changes the architecture, the metadata or the image signatures. The server ignores the other
/// fields of an operating system.
///
/// The server refuses another name (`invalid-argument`).
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/os/{resourceId}", tag = "operating systems",
    params(Item, MaskParams), request_body = OperatingSystemPatch,
    responses((status = 200, description = "The operating system.", body = OperatingSystemResource), Problem),
)]
pub async fn patch_operating_system(
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<OperatingSystemPatch>,
) -> Answer<OperatingSystemResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: OsId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let os = os_profiles::find(&tx, id).await?;
    let now = OperatingSystemPatch {
        name: Some(os.spec.name.clone()),
        architecture: os.spec.architecture.clone(),
        metadata: os.spec.metadata.clone(),
        image_signatures: Some(os.spec.image_signatures.clone()),
    };
    let desired = change.apply_to(&now, params.text("fieldMask"))?;
    let os = apply_change(&tx, os, desired, tx.database_time()).await?;
    let answer = load_os_resource(&tx, &os).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete an operating system
///
/// Deletes the operating system with its package and CVE lists.
///
/// The server refuses an operating system that an instance or a policy uses
/// (`failed-precondition`).
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/os/{resourceId}", tag = "operating systems", params(Item),
    responses((status = 200, description = "The operating system is deleted.", body = Empty), Problem),
)]
pub async fn delete_operating_system(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: OsId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    os_profiles::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Applies the changes, if there are any. The name cannot be changed; an empty one is ignored.
/// Missing image signatures stay unchanged, because EIM's clients do not know the field and do not
/// send it back.
async fn apply_change(
    tx: &Tx,
    os: OsProfile,
    desired: OperatingSystemPatch,
    now: Time,
) -> Result<OsProfile, Problem> {
    let name = desired.name.unwrap_or_default();
    if !name.is_empty() && name != os.spec.name {
        return Err(Problem::invalid("name", "it cannot be changed"));
    }
    let signatures = desired.image_signatures;
    let spec = OsSpec {
        architecture: desired.architecture,
        metadata: desired.metadata,
        image_signatures: signatures.unwrap_or_else(|| os.spec.image_signatures.clone()),
        ..os.spec.clone()
    };
    if spec == os.spec {
        return Ok(os);
    }
    Ok(os_profiles::change(tx, os.id, &spec.validated()?, now).await?)
}

fn parse_spec(body: OperatingSystemInput) -> Result<OsSpec, Problem> {
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
    Ok(spec.validated()?)
}

/// REST form of one operating system with its whole contents.
async fn load_os_resource(tx: &Tx, os: &OsProfile) -> Answer<OperatingSystemResource> {
    let mut contents = os_details::find_many_with_lists(tx, &[os.id], u32::MAX).await?;
    resource_with_contents(os, contents.remove(&os.id)).map(Json)
}

/// REST form of an operating system with its contents and its origin, if it came from a registry.
fn resource_with_contents(
    os: &OsProfile,
    contents: Option<OsDetailsWithLists>,
) -> Result<OperatingSystemResource, Problem> {
    let Some(contents) = contents else {
        return Ok(resource(os));
    };
    let inside = contents.details;
    let signature = inside.signature.map(serde_json::from_value::<OsSignature>);
    let signature = signature.transpose().map_err(|error| {
        tracing::error!(%error, os = %os.id, "the stored signature of an operating system is invalid");
        Problem::internal()
    })?;
    Ok(OperatingSystemResource {
        profile_version: inside.revision.clone(),
        installed_packages: contents.packages.unwrap_or_default(),
        platform_bundle: inside.platform_bundle,
        existing_cves: contents.existing_cves.unwrap_or_default(),
        fixed_cves: contents.fixed_cves.unwrap_or_default(),
        registry: inside.registry,
        revision: inside.revision,
        artifact_digest: digest_text(&inside.artifact),
        signature,
        ..resource(os)
    })
}

/// A digest in the form that registries use.
fn digest_text(digest: &ContentDigest) -> String {
    let mut text = String::from("sha256:");
    for byte in digest {
        write!(text, "{byte:02x}").ok();
    }
    text
}
