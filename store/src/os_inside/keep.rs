//! How an operating system of a registry comes into a project.

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::{OsProfile, OsSpec};
use serde_json::Value;

use super::{Inside, Kept, Made, find_many};
use crate::contents::{self, Digest};
use crate::error::{Conflict, StoreError};
use crate::keyed::Keyed;
use crate::os_profiles;
use crate::rows::{Kept as Json, os_profile};
use crate::tx::{Tx, execute};

/// How often it is looked whether somebody made the same, or took the name, at the same moment.
const LOOKS: usize = 2;

/// Keeps an operating system that was made of a profile: it is the one of its line and version. If it is there already,
/// it comes to say what the profile says, but for its name; what a person has changed in it stays until the profile is
/// another one. Its lists are [contents](contents::put) that were put before. One that says the same writes nothing.
///
/// # Errors
/// It cannot be kept: a text is too long or none that the database takes, a list is not there, or no name is free. That
/// is found before anything of it is written, so what else was done in the transaction stays, and more can be done.
pub async fn keep(tx: &Tx, made: &Made, now: Time) -> Result<Kept, StoreError> {
    tx.write_wanted().await?;
    let spec = check(made)?;
    for _ in 0..LOOKS {
        let found = os_profiles::find_image(tx, &spec.profile_name, &spec.image_id).await?;
        if let Some(found) = found {
            return refresh(tx, &found, made, now).await;
        }
        refer(tx, &made.inside, now).await?;
        let name = os_profiles::free_name(tx, &spec).await?;
        let renamed = name != spec.name;
        let named = OsSpec {
            name,
            ..spec.clone()
        };
        if let Some(os) = os_profiles::create_if_free(tx, &named, now).await? {
            write(tx, os, &made.inside).await?;
            return Ok(Kept::Made { os, renamed });
        }
    }
    Err(Conflict::Taken {
        what: os_profile::Entity::WHAT,
        field: "name",
    }
    .into())
}

/// Makes an entry that is there say what a profile says.
async fn refresh(tx: &Tx, found: &OsProfile, made: &Made, now: Time) -> Result<Kept, StoreError> {
    let (os, spec) = (found.id, &found.spec);
    let image = |spec: &OsSpec| (spec.kind, spec.sha256.clone(), spec.image_url.clone());
    if image(spec) != image(&made.spec) {
        return Ok(Kept::OtherImage(os));
    }
    let before = find_many(tx, &[os]).await?.remove(&os);
    let is_same_profile = before
        .as_ref()
        .is_some_and(|before| before.artifact == made.inside.artifact);
    if before.is_some_and(|before| is_same(before, &made.inside)) {
        return Ok(Kept::Same(os));
    }
    refer(tx, &made.inside, now).await?;
    let told = OsSpec {
        name: spec.name.clone(),
        ..made.spec.clone()
    };
    if !is_same_profile && told != *spec {
        os_profiles::describe(tx, os, &told, now).await?;
    }
    write(tx, os, &made.inside).await?;
    Ok(Kept::Refreshed(os))
}

/// Whether there is nothing to write.
fn is_same(before: Inside, made: &Inside) -> bool {
    let refreshed_at = made.refreshed_at;
    *made
        == Inside {
            refreshed_at,
            ..before
        }
}

/// What an operating system is, if the database takes all of it: one statement that fails would undo the whole
/// transaction.
fn check(made: &Made) -> Result<OsSpec, Conflict> {
    let rule = |rule: String| Conflict::Rule { rule };
    let spec = made.spec.clone().checked();
    let spec = spec.map_err(|invalid| rule(invalid.to_string()))?;
    let inside = &made.inside;
    let longest = Inside::MAX_PLATFORM_BUNDLE;
    if inside.platform_bundle.len() > longest {
        let why = format!("platformBundle: longer than {longest} bytes");
        return Err(rule(why));
    }
    if inside
        .signature
        .as_ref()
        .is_some_and(|one| !one.is_object())
    {
        return Err(rule("signature: not a JSON object".to_owned()));
    }
    if has_nul(inside) {
        return Err(rule("a text holds the character NUL".to_owned()));
    }
    Ok(spec)
}

fn has_nul(inside: &Inside) -> bool {
    let texts = [
        &inside.registry,
        &inside.repository,
        &inside.revision,
        &inside.platform_bundle,
    ];
    let of_files = inside
        .files
        .iter()
        .flat_map(|file| [&file.path, &file.place]);
    let mut texts = texts.into_iter().chain(of_files);
    texts.any(|text| text.contains('\0')) || inside.signature.as_ref().is_some_and(holds_nul)
}

fn holds_nul(json: &Value) -> bool {
    match json {
        Value::String(text) => text.contains('\0'),
        Value::Array(list) => list.iter().any(holds_nul),
        Value::Object(object) => object
            .iter()
            .any(|(key, value)| key.contains('\0') || holds_nul(value)),
        _ => false,
    }
}

/// Sees to it that the lists are there and stay, so that they can be referred to.
async fn refer(tx: &Tx, inside: &Inside, now: Time) -> Result<(), StoreError> {
    let lists = [
        (&inside.packages, "installedPackages"),
        (&inside.existing_cves, "existingCves"),
        (&inside.fixed_cves, "fixedCves"),
    ];
    for (digest, field) in lists {
        if let Some(digest) = digest
            && !contents::touch(tx, digest, now).await?
        {
            let what = "content";
            return Err(Conflict::Dangling { what, field }.into());
        }
    }
    Ok(())
}

/// Writes what is inside an operating system, in place of what was said before.
async fn write(tx: &Tx, os: OsId, inside: &Inside) -> Result<(), StoreError> {
    let sql = "INSERT INTO os_inside (tenant_id, os_id, registry, repository, revision, artifact, platform_bundle, \
               signature, files, packages_digest, existing_cves_digest, fixed_cves_digest, refreshed_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
               ON CONFLICT (tenant_id, os_id) DO UPDATE SET registry = excluded.registry, \
               repository = excluded.repository, revision = excluded.revision, artifact = excluded.artifact, \
               platform_bundle = excluded.platform_bundle, signature = excluded.signature, \
               files = excluded.files, packages_digest = excluded.packages_digest, \
               existing_cves_digest = excluded.existing_cves_digest, \
               fixed_cves_digest = excluded.fixed_cves_digest, refreshed_at = excluded.refreshed_at";
    let list = |digest: Option<Digest>| digest.map(|digest| digest.to_vec());
    let values = [
        tx.tenant().uuid().into(),
        os.bits().cast_signed().into(),
        inside.registry.as_str().into(),
        inside.repository.as_str().into(),
        inside.revision.as_str().into(),
        inside.artifact.to_vec().into(),
        inside.platform_bundle.as_str().into(),
        inside.signature.clone().into(),
        Json(&inside.files).into(),
        list(inside.packages).into(),
        list(inside.existing_cves).into(),
        list(inside.fixed_cves).into(),
        inside.refreshed_at.into(),
    ];
    execute(tx.conn(), sql, values).await.map(drop)
}
