//! Import of an operating system from a registry into a project.

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::{OsProfile, OsSpec};
use serde_json::Value;

use super::{ImportOutcome, ImportedOs, OsDetails, find_many};
use crate::contents::{self, ContentDigest};
use crate::error::{Conflict, StoreError};
use crate::keyed::KeyedEntity;
use crate::os_profiles;
use crate::rows::{JsonColumn as Json, os_profile};
use crate::tx::{Tx, execute};

/// How often an import is tried if a concurrent transaction creates the same entry or takes its
/// name.
const MAX_ATTEMPTS: usize = 2;

/// Imports an operating system read from a profile; its profile name and image id identify the
/// entry. An existing entry is updated from the profile except for its name. Changes by a user stay
/// until the profile changes. The lists must already be stored as
/// [contents](contents::insert_if_missing). An unchanged entry writes nothing.
///
/// # Errors
/// The import is invalid: a text is too long or not accepted by the database, a list is missing, or
/// no name is free. This is detected before the first write, so the transaction remains usable.
pub async fn import(
    tx: &Tx,
    imported: &ImportedOs,
    now: Time,
) -> Result<ImportOutcome, StoreError> {
    tx.lock_for_change().await?;
    let spec = validate(imported)?;
    for _ in 0..MAX_ATTEMPTS {
        let existing = os_profiles::find_image(tx, &spec.profile_name, &spec.image_id).await?;
        if let Some(existing) = existing {
            return update_existing(tx, &existing, imported, now).await;
        }
        touch_lists(tx, &imported.details, now).await?;
        let name = os_profiles::free_name(tx, &spec).await?;
        let renamed = name != spec.name;
        let spec_with_name = OsSpec { name, ..spec.clone() };
        if let Some(os) = os_profiles::create_if_free(tx, &spec_with_name, now).await? {
            write_details(tx, os, &imported.details).await?;
            return Ok(ImportOutcome::Created { os, renamed });
        }
    }
    Err(Conflict::AlreadyExists { what: os_profile::Entity::RESOURCE, field: "name" }.into())
}

/// Updates an existing entry from a profile.
async fn update_existing(
    tx: &Tx,
    existing: &OsProfile,
    imported: &ImportedOs,
    now: Time,
) -> Result<ImportOutcome, StoreError> {
    let (os, spec) = (existing.id, &existing.spec);
    if existing.has_unknown_kind {
        // Only the release that wrote the entry can compare it.
        return Ok(ImportOutcome::Unchanged(os));
    }
    let image = |spec: &OsSpec| (spec.kind, spec.sha256.clone(), spec.image_url.clone());
    if image(spec) != image(&imported.spec) {
        return Ok(ImportOutcome::OtherImage(os));
    }
    let before = find_many(tx, &[os]).await?.remove(&os);
    let is_same_profile =
        before.as_ref().is_some_and(|before| before.artifact == imported.details.artifact);
    if before.is_some_and(|before| is_unchanged(before, &imported.details)) {
        return Ok(ImportOutcome::Unchanged(os));
    }
    touch_lists(tx, &imported.details, now).await?;
    let described = OsSpec { name: spec.name.clone(), ..imported.spec.clone() };
    if !is_same_profile && described != *spec {
        os_profiles::update_description(tx, os, &described, now).await?;
    }
    write_details(tx, os, &imported.details).await?;
    Ok(ImportOutcome::Updated(os))
}

/// Whether there is nothing to write.
fn is_unchanged(before: OsDetails, imported: &OsDetails) -> bool {
    let refreshed_at = imported.refreshed_at;
    *imported == OsDetails { refreshed_at, ..before }
}

/// The specification, if the database accepts all of it: a failing statement would abort the whole
/// transaction.
fn validate(imported: &ImportedOs) -> Result<OsSpec, Conflict> {
    let rule = |rule: String| Conflict::Rule { rule };
    let spec = imported.spec.clone().validated();
    let spec = spec.map_err(|invalid| rule(invalid.to_string()))?;
    let details = &imported.details;
    let max_bytes = OsDetails::MAX_PLATFORM_BUNDLE;
    if details.platform_bundle.len() > max_bytes {
        let why = format!("platformBundle: longer than {max_bytes} bytes");
        return Err(rule(why));
    }
    if details.signature.as_ref().is_some_and(|one| !one.is_object()) {
        return Err(rule("signature: not a JSON object".to_owned()));
    }
    if has_nul(details) {
        return Err(rule("a text contains the character NUL".to_owned()));
    }
    Ok(spec)
}

fn has_nul(details: &OsDetails) -> bool {
    let texts =
        [&details.registry, &details.repository, &details.revision, &details.platform_bundle];
    let file_texts = details.files.iter().flat_map(|file| [&file.path, &file.source]);
    let mut texts = texts.into_iter().chain(file_texts);
    texts.any(|text| text.contains('\0')) || details.signature.as_ref().is_some_and(holds_nul)
}

fn holds_nul(json: &Value) -> bool {
    match json {
        Value::String(text) => text.contains('\0'),
        Value::Array(list) => list.iter().any(holds_nul),
        Value::Object(object) => {
            object.iter().any(|(key, value)| key.contains('\0') || holds_nul(value))
        }
        _ => false,
    }
}

/// Checks that the lists exist and keeps them, so that they can be referred to.
async fn touch_lists(tx: &Tx, details: &OsDetails, now: Time) -> Result<(), StoreError> {
    let lists = [
        (&details.packages, "installedPackages"),
        (&details.existing_cves, "existingCves"),
        (&details.fixed_cves, "fixedCves"),
    ];
    for (digest, field) in lists {
        if let Some(digest) = digest
            && !contents::touch(tx, digest, now).await?
        {
            let what = "content";
            return Err(Conflict::MissingReference { what, field }.into());
        }
    }
    Ok(())
}

/// Replaces the details of an operating system.
async fn write_details(tx: &Tx, os: OsId, details: &OsDetails) -> Result<(), StoreError> {
    let sql = "INSERT INTO os_details (tenant_id, os_id, registry, repository, revision, artifact, platform_bundle, \
               signature, files, packages_digest, existing_cves_digest, fixed_cves_digest, refreshed_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
               ON CONFLICT (tenant_id, os_id) DO UPDATE SET registry = excluded.registry, \
               repository = excluded.repository, revision = excluded.revision, artifact = excluded.artifact, \
               platform_bundle = excluded.platform_bundle, signature = excluded.signature, \
               files = excluded.files, packages_digest = excluded.packages_digest, \
               existing_cves_digest = excluded.existing_cves_digest, \
               fixed_cves_digest = excluded.fixed_cves_digest, refreshed_at = excluded.refreshed_at";
    let list = |digest: Option<ContentDigest>| digest.map(|digest| digest.to_vec());
    let values = [
        tx.tenant().uuid().into(),
        os.bits().cast_signed().into(),
        details.registry.as_str().into(),
        details.repository.as_str().into(),
        details.revision.as_str().into(),
        details.artifact.to_vec().into(),
        details.platform_bundle.as_str().into(),
        details.signature.clone().into(),
        Json(&details.files).into(),
        list(details.packages).into(),
        list(details.existing_cves).into(),
        list(details.fixed_cves).into(),
        details.refreshed_at.into(),
    ];
    execute(tx.conn(), sql, values).await.map(drop)
}
