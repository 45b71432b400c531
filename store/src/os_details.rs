//! Contents and origin of the operating systems that came from a registry.
//!
//! Stored apart from `os_profiles`, which every poll reads. Lists of packages and vulnerabilities
//! are [contents](crate::contents).

mod import;

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::{CatalogFile, FileRole};
use evenkeel_domain::os::{Image, OsSpec};
use evenkeel_domain::tenant::TenantId;
use sea_orm::{FromQueryResult, QueryResult};
use serde_json::Value;

use crate::contents::ContentDigest;
use crate::error::StoreError;
use crate::os_profiles::{ImageRow, OsImage};
use crate::rows::{JsonColumn as Json, or_corrupt, readable};
use crate::tx::{FleetTx, Tx, ids_in, query_all};

pub use import::import;

const TABLE: &str = "os_details";

/// The contents and the origin of an operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsDetails {
    /// The configured name of the registry.
    pub registry: String,
    /// The repository of its profile.
    pub repository: String,
    /// The tag of its profile.
    pub revision: String,
    /// Digest of the artifact that contains the profile.
    pub artifact: ContentDigest,
    /// The platform bundle as JSON; at most [`OsDetails::MAX_PLATFORM_BUNDLE`] bytes.
    pub platform_bundle: String,
    /// The signature of the artifact and the data to verify it, as a JSON object; none if unsigned.
    pub signature: Option<Value>,
    pub files: Vec<CatalogFile>,
    /// Digest of its rendered package list.
    pub packages: Option<ContentDigest>,
    /// Digest of its rendered list of open vulnerabilities.
    pub existing_cves: Option<ContentDigest>,
    /// Digest of its rendered list of fixed vulnerabilities.
    pub fixed_cves: Option<ContentDigest>,
    /// Time of the last change.
    pub refreshed_at: Time,
}

impl OsDetails {
    /// The length limit of a platform bundle, in bytes.
    pub const MAX_PLATFORM_BUNDLE: usize = 10_000;
}

/// An operating system read from a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedOs {
    pub spec: OsSpec,
    /// Its contents and origin.
    pub details: OsDetails,
}

/// Result of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    /// The entry is new.
    Created {
        /// The new entry.
        os: OsId,
        /// Whether it got another name because its own was taken.
        renamed: bool,
    },
    /// The entry existed and was updated from the profile.
    Updated(OsId),
    /// The entry existed and already matches the profile.
    Unchanged(OsId),
    /// An entry of this profile name and version has another image. It stays unchanged.
    OtherImage(OsId),
}

/// The contents and origin of an operating system, with its lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsDetailsWithLists {
    /// Its contents and origin.
    pub details: OsDetails,
    /// Its package list; none if it is missing or too long.
    pub packages: Option<String>,
    /// Its list of open vulnerabilities; none if it is missing or too long.
    pub existing_cves: Option<String>,
    /// Its list of fixed vulnerabilities; none if it is missing or too long.
    pub fixed_cves: Option<String>,
}

/// A file that the server offers to the nodes of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub tenant: TenantId,
    /// The configured name of the registry.
    pub registry: String,
    /// The file, with a known digest.
    pub file: CatalogFile,
}

/// The details of those of these operating systems that came from a registry.
pub async fn find_many(tx: &Tx, ids: &[OsId]) -> Result<HashMap<OsId, OsDetails>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = format!(
        "SELECT {COLUMNS} FROM os_details i WHERE i.tenant_id = $1 AND i.os_id = ANY ({})",
        ids_in(2)
    );
    let values = [tx.tenant().uuid().into(), bits(ids).into()];
    let rows = query_all(tx.conn(), sql, values).await?;
    rows.iter().map(from_row).collect()
}

/// The same with the lists of at most `max_bytes` bytes.
pub async fn find_many_with_lists(
    tx: &Tx,
    ids: &[OsId],
    max_bytes: u32,
) -> Result<HashMap<OsId, OsDetailsWithLists>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let body = |of: &str| {
        format!(
            "(SELECT c.body FROM contents c WHERE c.tenant_id = i.tenant_id AND c.digest = i.{of}_digest \
             AND octet_length(c.body) <= $3) AS {of}"
        )
    };
    let sql = format!(
        "SELECT {COLUMNS}, {}, {}, {} FROM os_details i WHERE i.tenant_id = $1 AND i.os_id = ANY ({})",
        body("packages"),
        body("existing_cves"),
        body("fixed_cves"),
        ids_in(2)
    );
    let values = [tx.tenant().uuid().into(), bits(ids).into(), i64::from(max_bytes).into()];
    let mut found_details = HashMap::new();
    for row in query_all(tx.conn(), sql, values).await? {
        let (os, details) = from_row(&row)?;
        let with_lists = OsDetailsWithLists {
            details,
            packages: row.try_get("", "packages")?,
            existing_cves: row.try_get("", "existing_cves")?,
            fixed_cves: row.try_get("", "fixed_cves")?,
        };
        found_details.insert(os, with_lists);
    }
    Ok(found_details)
}

/// The newest operating system of a profile name, if there is one.
pub async fn find_default(tx: &Tx, profile_name: &str) -> Result<Option<OsId>, StoreError> {
    let sql = format!(
        "SELECT {} FROM os_profiles WHERE tenant_id = $1 AND profile_name = $2 ORDER BY created_at, id",
        ImageRow::COLUMNS
    );
    let values = [tx.tenant().uuid().into(), profile_name.into()];
    let rows = query_all(tx.conn(), sql, values).await?;
    let images = rows.iter().map(image_from_row);
    let images = images.collect::<Result<Vec<_>, _>>()?;
    Ok(Image::newest(&images).map(|image| image.os))
}

/// The files of all projects that are offered to nodes: those with a known digest. A row that cannot
/// be read offers nothing, and does not affect the other projects.
pub async fn list_offers(tx: &FleetTx) -> Result<Vec<Offer>, StoreError> {
    let sql =
        "SELECT i.tenant_id, i.registry, i.files FROM os_details i ORDER BY i.tenant_id, i.os_id";
    let mut offers = Vec::new();
    for row in query_all(tx.conn(), sql, []).await? {
        offers.extend(readable(TABLE, offers_from_row(&row)).unwrap_or_default());
    }
    Ok(offers)
}

/// All images with the profile names of images that nodes run, each with its file, of all projects.
/// Leaves out those that cannot be read.
pub async fn list_images_in_use(tx: &FleetTx) -> Result<Vec<(Image, Offer)>, StoreError> {
    let sql = format!(
        "WITH line AS MATERIALIZED (SELECT DISTINCT r.tenant_id, r.profile_name FROM os_profiles r \
         WHERE r.kind = 'immutable' AND EXISTS (SELECT FROM node_states n \
         WHERE n.tenant_id = r.tenant_id AND n.os_id = r.id)), \
         o AS (SELECT p.tenant_id AS project, {} FROM os_profiles p JOIN line USING (tenant_id, profile_name) \
         WHERE p.kind = 'immutable') \
         SELECT o.*, i.tenant_id, i.registry, i.files FROM o \
         JOIN os_details i ON i.tenant_id = o.project AND i.os_id = o.id ORDER BY i.tenant_id, i.os_id",
        ImageRow::COLUMNS
    );
    let mut used = Vec::new();
    for row in query_all(tx.conn(), sql, []).await? {
        let image = image_from_row(&row).and_then(|image| Ok((image, offers_from_row(&row)?)));
        let Some((image, files)) = readable(TABLE, image) else {
            continue;
        };
        let image_files = files.into_iter().filter(|offer| offer.file.role == FileRole::Image);
        used.extend(image_files.map(|offer| (image.clone(), offer)));
    }
    Ok(used)
}

fn bits(ids: &[OsId]) -> Vec<i32> {
    ids.iter().map(|id| id.bits().cast_signed()).collect()
}

fn image_from_row(row: &QueryResult) -> Result<Image, StoreError> {
    let row = ImageRow::from_query_result(row, "")?;
    Ok(OsImage::try_from(row)?.image)
}

/// The offered files of a row.
fn offers_from_row(row: &QueryResult) -> Result<Vec<Offer>, StoreError> {
    let row = OfferRow::from_query_result(row, "")?;
    let tenant = TenantId::new(row.tenant_id);
    let served = row.files.0.into_iter().filter(|file| file.sha256.is_some());
    let offers = served.map(|file| Offer { tenant, registry: row.registry.clone(), file });
    Ok(offers.collect())
}

#[derive(Debug, FromQueryResult)]
struct OfferRow {
    tenant_id: uuid::Uuid,
    registry: String,
    files: Json<Vec<CatalogFile>>,
}

/// The columns of `os_details` that are read.
const COLUMNS: &str = "i.os_id, i.registry, i.repository, i.revision, i.artifact, i.platform_bundle, i.signature, i.files, \
     i.packages_digest, i.existing_cves_digest, i.fixed_cves_digest, i.refreshed_at";

#[derive(Debug, FromQueryResult)]
struct OsDetailsRow {
    os_id: i32,
    registry: String,
    repository: String,
    revision: String,
    artifact: Vec<u8>,
    platform_bundle: String,
    signature: Option<Value>,
    files: Json<Vec<CatalogFile>>,
    packages_digest: Option<Vec<u8>>,
    existing_cves_digest: Option<Vec<u8>>,
    fixed_cves_digest: Option<Vec<u8>>,
    refreshed_at: Time,
}

fn from_row(row: &QueryResult) -> Result<(OsId, OsDetails), StoreError> {
    let row = OsDetailsRow::from_query_result(row, "")?;
    let digest = |bytes: Vec<u8>, column| {
        let digest = ContentDigest::try_from(bytes);
        or_corrupt(digest.ok(), TABLE, row.os_id, column)
    };
    let list =
        |bytes: Option<Vec<u8>>, column| bytes.map(|bytes| digest(bytes, column)).transpose();
    let details = OsDetails {
        artifact: digest(row.artifact, "artifact")?,
        packages: list(row.packages_digest, "packages_digest")?,
        existing_cves: list(row.existing_cves_digest, "existing_cves_digest")?,
        fixed_cves: list(row.fixed_cves_digest, "fixed_cves_digest")?,
        registry: row.registry,
        repository: row.repository,
        revision: row.revision,
        platform_bundle: row.platform_bundle,
        signature: row.signature,
        files: row.files.0,
        refreshed_at: row.refreshed_at,
    };
    Ok((OsId::from_bits(row.os_id.cast_unsigned()), details))
}
