//! What is inside the operating systems that came from a registry, and where they came from.
//!
//! It stands beside `os_profiles`, which every poll reads. Lists of packages and vulnerabilities are
//! [contents](crate::contents).

mod keep;

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::{File, FileRole};
use evenkeel_domain::os::{Image, OsSpec};
use evenkeel_domain::tenant::TenantId;
use sea_orm::{FromQueryResult, QueryResult};
use serde_json::Value;

use crate::contents::Digest;
use crate::error::StoreError;
use crate::os_profiles::{ImageRow, KindOfImage};
use crate::rows::{Kept as Json, named};
use crate::tx::{FleetTx, Tx, all, ids_in};

pub use keep::keep;

const TABLE: &str = "os_inside";

/// What is inside an operating system, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The name that the server knows the registry by.
    pub registry: String,
    /// Where in the registry its profile lies.
    pub repository: String,
    /// The tag that led to the profile.
    pub revision: String,
    /// Of the artefact that holds the profile.
    pub artifact: Digest,
    /// What is installed beside it, as JSON; at most [`Inside::MAX_PLATFORM_BUNDLE`] bytes.
    pub platform_bundle: String,
    /// The signature of the artefact with all that is needed to check it, a JSON object; none if there is none.
    pub signature: Option<Value>,
    /// Its files.
    pub files: Vec<File>,
    /// The list of its packages, as it is shown.
    pub packages: Option<Digest>,
    /// The list of its open vulnerabilities, as it is shown.
    pub existing_cves: Option<Digest>,
    /// The list of its mended vulnerabilities, as it is shown.
    pub fixed_cves: Option<Digest>,
    /// When something of it was changed last.
    pub refreshed_at: Time,
}

impl Inside {
    /// The longest platform bundle, in bytes.
    pub const MAX_PLATFORM_BUNDLE: usize = 10_000;
}

/// An operating system that was made of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// What it is.
    pub spec: OsSpec,
    /// What is inside it.
    pub inside: Inside,
}

/// What became of an operating system that was made of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is new.
    Made {
        /// The new entry.
        os: OsId,
        /// Its name was taken, so it has another one.
        renamed: bool,
    },
    /// It was there, and now says what the profile says.
    Refreshed(OsId),
    /// It was there and says all that already.
    Same(OsId),
    /// There is one of this line and version with another image. It stays as it was.
    OtherImage(OsId),
}

/// What is inside an operating system, with its lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// What is inside it.
    pub inside: Inside,
    /// The list of its packages; none if there is none, or one that is too long.
    pub packages: Option<String>,
    /// The list of its open vulnerabilities; none if there is none, or one that is too long.
    pub existing_cves: Option<String>,
    /// The list of its mended vulnerabilities; none if there is none, or one that is too long.
    pub fixed_cves: Option<String>,
}

/// A file that is served to the nodes of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The project.
    pub tenant: TenantId,
    /// The name that the server knows the registry by.
    pub registry: String,
    /// The file; its digest is known.
    pub file: File,
}

/// What is inside those of these operating systems that came from a registry.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_many(tx: &Tx, ids: &[OsId]) -> Result<HashMap<OsId, Inside>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = format!(
        "SELECT {COLUMNS} FROM os_inside i WHERE i.tenant_id = $1 AND i.os_id = ANY ({})",
        ids_in(2)
    );
    let values = [tx.tenant().uuid().into(), bits(ids).into()];
    let rows = all(tx.conn(), sql, values).await?;
    rows.iter().map(from_row).collect()
}

/// The same with the lists that are at most `longest` bytes long.
///
/// # Errors
/// The database cannot be reached.
pub async fn shown(
    tx: &Tx,
    ids: &[OsId],
    longest: u32,
) -> Result<HashMap<OsId, Shown>, StoreError> {
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
        "SELECT {COLUMNS}, {}, {}, {} FROM os_inside i WHERE i.tenant_id = $1 AND i.os_id = ANY ({})",
        body("packages"),
        body("existing_cves"),
        body("fixed_cves"),
        ids_in(2)
    );
    let values = [
        tx.tenant().uuid().into(),
        bits(ids).into(),
        i64::from(longest).into(),
    ];
    let mut found = HashMap::new();
    for row in all(tx.conn(), sql, values).await? {
        let (os, inside) = from_row(&row)?;
        let shown = Shown {
            inside,
            packages: row.try_get("", "packages")?,
            existing_cves: row.try_get("", "existing_cves")?,
            fixed_cves: row.try_get("", "fixed_cves")?,
        };
        found.insert(os, shown);
    }
    Ok(found)
}

/// The newest operating system of a profile line; none if there is none.
///
/// # Errors
/// The database cannot be reached.
pub async fn default_of(tx: &Tx, profile_name: &str) -> Result<Option<OsId>, StoreError> {
    let sql = format!(
        "SELECT {} FROM os_profiles WHERE tenant_id = $1 AND profile_name = $2 ORDER BY created_at, id",
        ImageRow::COLUMNS
    );
    let values = [tx.tenant().uuid().into(), profile_name.into()];
    let rows = all(tx.conn(), sql, values).await?;
    let images = rows.iter().map(image);
    let images = images.collect::<Result<Vec<_>, _>>()?;
    Ok(Image::newest(&images).map(|image| image.os))
}

/// The files of all projects that are served to nodes: those whose digests are known.
///
/// # Errors
/// The database cannot be reached.
pub async fn offers(tx: &FleetTx) -> Result<Vec<Offer>, StoreError> {
    let sql =
        "SELECT i.tenant_id, i.registry, i.files FROM os_inside i ORDER BY i.tenant_id, i.os_id";
    let mut offers = Vec::new();
    for row in all(tx.conn(), sql, []).await? {
        offers.extend(offered(&row)?);
    }
    Ok(offers)
}

/// The images of the lines that nodes run an image of, each with its file, of all projects.
///
/// # Errors
/// The database cannot be reached.
pub async fn in_use(tx: &FleetTx) -> Result<Vec<(Image, Offer)>, StoreError> {
    let sql = format!(
        "WITH line AS MATERIALIZED (SELECT DISTINCT r.tenant_id, r.profile_name FROM os_profiles r \
         WHERE r.kind = 'immutable' AND EXISTS (SELECT FROM node_states n \
         WHERE n.tenant_id = r.tenant_id AND n.os_id = r.id)), \
         o AS (SELECT p.tenant_id AS project, {} FROM os_profiles p JOIN line USING (tenant_id, profile_name) \
         WHERE p.kind = 'immutable') \
         SELECT o.*, i.tenant_id, i.registry, i.files FROM o \
         JOIN os_inside i ON i.tenant_id = o.project AND i.os_id = o.id ORDER BY i.tenant_id, i.os_id",
        ImageRow::COLUMNS
    );
    let mut used = Vec::new();
    for row in all(tx.conn(), sql, []).await? {
        let image = image(&row)?;
        let files = offered(&row)?.into_iter();
        let of_image = files.filter(|offer| offer.file.role == FileRole::Image);
        used.extend(of_image.map(|offer| (image.clone(), offer)));
    }
    Ok(used)
}

fn bits(ids: &[OsId]) -> Vec<i32> {
    ids.iter().map(|id| id.bits().cast_signed()).collect()
}

fn image(row: &QueryResult) -> Result<Image, StoreError> {
    let row = ImageRow::from_query_result(row, "")?;
    Ok(KindOfImage::try_from(row)?.image)
}

/// The files of a row that are served.
fn offered(row: &QueryResult) -> Result<Vec<Offer>, StoreError> {
    let row = OfferRow::from_query_result(row, "")?;
    let tenant = TenantId::new(row.tenant_id);
    let served = row.files.0.into_iter().filter(|file| file.sha256.is_some());
    let offers = served.map(|file| Offer {
        tenant,
        registry: row.registry.clone(),
        file,
    });
    Ok(offers.collect())
}

#[derive(Debug, FromQueryResult)]
struct OfferRow {
    tenant_id: uuid::Uuid,
    registry: String,
    files: Json<Vec<File>>,
}

/// What of `os_inside` is read.
const COLUMNS: &str = "i.os_id, i.registry, i.repository, i.revision, i.artifact, i.platform_bundle, i.signature, i.files, \
     i.packages_digest, i.existing_cves_digest, i.fixed_cves_digest, i.refreshed_at";

#[derive(Debug, FromQueryResult)]
struct Row {
    os_id: i32,
    registry: String,
    repository: String,
    revision: String,
    artifact: Vec<u8>,
    platform_bundle: String,
    signature: Option<Value>,
    files: Json<Vec<File>>,
    packages_digest: Option<Vec<u8>>,
    existing_cves_digest: Option<Vec<u8>>,
    fixed_cves_digest: Option<Vec<u8>>,
    refreshed_at: Time,
}

fn from_row(row: &QueryResult) -> Result<(OsId, Inside), StoreError> {
    let row = Row::from_query_result(row, "")?;
    let digest = |bytes: Vec<u8>, column| {
        let digest = Digest::try_from(bytes);
        named(digest.ok(), TABLE, row.os_id, column)
    };
    let list =
        |bytes: Option<Vec<u8>>, column| bytes.map(|bytes| digest(bytes, column)).transpose();
    let inside = Inside {
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
    Ok((OsId::from_bits(row.os_id.cast_unsigned()), inside))
}
