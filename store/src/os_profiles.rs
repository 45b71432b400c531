//! The catalogue of operating systems of a project.

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::{Image, OsKind, OsProfile, OsProvider, OsSpec, SecurityFeature, Sha256};
use sea_orm::sea_query::OnConflict;
use sea_orm::{ActiveModelTrait, ColumnTrait, EntityTrait, FromQueryResult, QueryFilter, Set};
use serde::Deserialize;

use crate::error::StoreError;
use crate::rows::or_corrupt;
use crate::rows::os_profile::{ActiveModel, Column, Entity, Model};
use crate::tx::{Tx, execute};
use crate::{ids, keyed};

const TABLE: &str = "os_profiles";

/// Creates an entry.
///
/// # Errors
/// The name, or the profile name with the image id, already exists.
pub async fn create(tx: &Tx, spec: &OsSpec, now: Time) -> Result<OsProfile, StoreError> {
    let id = OsId::nth(ids::next(tx.conn(), "os_numbers").await?);
    new_row(tx, id, spec, now).insert(tx.conn()).await?.try_into()
}

/// Creates an entry; none without any change if the name, or the profile name with the image id,
/// already exists. Waits for concurrent transactions that insert the same.
pub(crate) async fn create_if_free(
    tx: &Tx,
    spec: &OsSpec,
    now: Time,
) -> Result<Option<OsId>, StoreError> {
    let id = OsId::nth(ids::next(tx.conn(), "os_numbers").await?);
    let ignore_existing = OnConflict::new().do_nothing().to_owned();
    let inserted = Entity::insert(new_row(tx, id, spec, now))
        .on_conflict(ignore_existing)
        .exec_without_returning(tx.conn())
        .await?;
    Ok((inserted > 0).then_some(id))
}

fn new_row(tx: &Tx, id: OsId, spec: &OsSpec, now: Time) -> ActiveModel {
    ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.clone()),
        kind: Set(spec.kind.name().to_owned()),
        profile_name: Set(spec.profile_name.clone()),
        image_id: Set(spec.image_id.clone()),
        image_url: Set(spec.image_url.clone()),
        sha256: Set(spec.sha256.as_str().to_owned()),
        created_at: Set(now),
        ..description_columns(tx, id, spec, now)
    }
}

/// The columns other than the name and the image.
fn description_columns(tx: &Tx, id: OsId, spec: &OsSpec, now: Time) -> ActiveModel {
    ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        provider: Set(spec.provider.name().to_owned()),
        architecture: Set(spec.architecture.clone()),
        security_feature: Set(spec.security_feature.name().to_owned()),
        description: Set(spec.description.clone()),
        metadata: Set(spec.metadata.clone()),
        repo_url: Set(spec.repo_url.clone()),
        tls_ca_cert: Set(spec.tls_ca_cert.clone()),
        installed_packages_url: Set(spec.installed_packages_url.clone()),
        existing_cves_url: Set(spec.existing_cves_url.clone()),
        fixed_cves_url: Set(spec.fixed_cves_url.clone()),
        image_signatures: Set(spec.image_signatures.clone()),
        updated_at: Set(now),
        ..Default::default()
    }
}

/// The entry of this profile name and image id, or a new one with a free name. Nodes that join at
/// the same time create one entry.
pub async fn find_or_create(tx: &Tx, spec: &OsSpec, now: Time) -> Result<OsProfile, StoreError> {
    let sql = "SELECT pg_advisory_xact_lock(hashtextextended('os/' || $1 || '/' || $2, 0))";
    let line = format!("{}/{}", spec.profile_name, spec.image_id);
    execute(tx.conn(), sql, [tx.tenant().to_string().into(), line.into()]).await?;
    if let Some(existing) = find_image(tx, &spec.profile_name, &spec.image_id).await? {
        return Ok(existing);
    }
    let spec_with_name = OsSpec { name: free_name(tx, spec).await?, ..spec.clone() };
    create(tx, &spec_with_name, now).await
}

/// The name of a new entry: its own, or a distinguishable one if the catalogue already has an entry
/// of this name.
pub(crate) async fn free_name(tx: &Tx, spec: &OsSpec) -> Result<String, StoreError> {
    let same_name = tx.scope::<Entity>().filter(Column::Name.eq(spec.name.as_str()));
    if same_name.one(tx.conn()).await?.is_none() {
        return Ok(spec.name.clone());
    }
    let prefix: String = spec.name.chars().take(60).collect();
    let line: String =
        format!("{} {}", spec.profile_name, spec.image_id).chars().take(60).collect();
    Ok(format!("{prefix} ({})", line.trim_end()))
}

/// The entry with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: OsId) -> Result<OsProfile, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The entries with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[OsId]) -> Result<Vec<OsProfile>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// The entry of a profile name and image id, if there is one.
pub async fn find_image(
    tx: &Tx,
    profile_name: &str,
    image_id: &str,
) -> Result<Option<OsProfile>, StoreError> {
    let row = tx
        .scope::<Entity>()
        .filter(Column::ProfileName.eq(profile_name))
        .filter(Column::ImageId.eq(image_id))
        .one(tx.conn())
        .await?;
    row.map(OsProfile::try_from).transpose()
}

/// Changes an entry: only its architecture, its labels and its image signers can change.
///
/// # Errors
/// It does not exist in the project.
pub async fn change(tx: &Tx, id: OsId, spec: &OsSpec, now: Time) -> Result<OsProfile, StoreError> {
    tx.lock_for_change().await?;
    find(tx, id).await?;
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        architecture: Set(spec.architecture.clone()),
        metadata: Set(spec.metadata.clone()),
        image_signatures: Set(spec.image_signatures.clone()),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?.try_into()
}

/// Replaces everything but the name and the image of an entry.
///
/// # Errors
/// It does not exist in the project.
pub(crate) async fn update_description(
    tx: &Tx,
    id: OsId,
    spec: &OsSpec,
    now: Time,
) -> Result<(), StoreError> {
    let row = description_columns(tx, id, spec, now);
    row.update(tx.conn()).await?;
    Ok(())
}

/// Deletes an entry.
///
/// # Errors
/// It does not exist in the project, or an instance or a policy refers to it.
pub async fn delete(tx: &Tx, id: OsId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    keyed::delete::<Entity>(tx, id.bits()).await
}

/// The columns that decisions use. The rest of the row may be long and is not read.
#[derive(Debug, Deserialize, FromQueryResult)]
pub(crate) struct ImageRow {
    id: i32,
    name: String,
    kind: String,
    profile_name: String,
    image_id: String,
    image_url: String,
    sha256: String,
    architecture: String,
    image_signatures: Vec<String>,
}

impl ImageRow {
    pub(crate) const COLUMNS: &str =
        "id, name, kind, profile_name, image_id, image_url, sha256, architecture, image_signatures";
}

/// An operating system as decisions use it: its kind of update and its image.
#[derive(Clone, Debug)]
pub(crate) struct OsImage {
    pub kind: OsKind,
    pub image: Image,
}

impl OsImage {
    /// Reads a row, and whether this release knows all of its values. A kind that it does not know
    /// becomes that of packages, and a digest that it does not know that of no image.
    pub(crate) fn from_row(row: ImageRow) -> (Self, bool) {
        let kind = OsKind::from_name(&row.kind);
        let sha256 = Sha256::parse("sha256", &row.sha256).ok();
        let is_readable = kind.is_some() && sha256.is_some();
        let image = Image {
            os: OsId::from_bits(row.id.cast_unsigned()),
            sha256: sha256.unwrap_or(Sha256::NONE),
            name: row.name,
            profile_name: row.profile_name,
            image_id: row.image_id,
            url: row.image_url,
            architecture: row.architecture,
            signatures: row.image_signatures,
        };
        (Self { kind: kind.unwrap_or(OsKind::Mutable), image }, is_readable)
    }
}

impl TryFrom<ImageRow> for OsImage {
    type Error = StoreError;

    fn try_from(row: ImageRow) -> Result<Self, StoreError> {
        let id = row.id;
        let (os, is_readable) = Self::from_row(row);
        or_corrupt(is_readable.then_some(os), TABLE, id, "kind or sha256")
    }
}

impl TryFrom<Model> for OsProfile {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let id = row.id;
        let kind = OsKind::from_name(&row.kind);
        let security = SecurityFeature::from_name(&row.security_feature);
        let sha256 = Sha256::parse("sha256", &row.sha256).ok();
        let spec = OsSpec {
            kind: kind.unwrap_or(OsKind::Mutable),
            provider: OsProvider::from_name(&row.provider).unwrap_or(OsProvider::Unspecified),
            sha256: or_corrupt(sha256, TABLE, id, "sha256")?,
            security_feature: security.unwrap_or(SecurityFeature::Unspecified),
            name: row.name,
            architecture: row.architecture,
            profile_name: row.profile_name,
            image_id: row.image_id,
            image_url: row.image_url,
            description: row.description,
            metadata: row.metadata,
            repo_url: row.repo_url,
            tls_ca_cert: row.tls_ca_cert,
            installed_packages_url: row.installed_packages_url,
            existing_cves_url: row.existing_cves_url,
            fixed_cves_url: row.fixed_cves_url,
            image_signatures: row.image_signatures,
        };
        Ok(Self {
            id: OsId::from_bits(id.cast_unsigned()),
            spec,
            has_unknown_kind: kind.is_none(),
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
