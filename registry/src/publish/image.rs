//! The signatures of images, by which nodes know what they may start.
//!
//! A node reads no profile: it is told an image with its signatures, and takes it only if one is by a key of its own.
//! What is signed names the profile, the version, the architecture and the digest, so nobody can give nodes an old image
//! for a newer one, or that of one profile for another's.

use bytes::Bytes;
use evenkeel_domain::os::{OsKind, OsSpec};

use super::{Ready, Release, edit, in_file};
use crate::finding::{Finding, FindingKind};
use crate::profile::profile;
use crate::trust::SigningKey;

/// Where a profile has the signatures of its image.
const SECTION: &str = "spec";
const KEY: &str = "osImageSignatures";

impl Release {
    /// The same, but the image of each profile is signed: `spec.osImageSignatures` is filled, as a list in one line.
    /// Signatures by other keys that stand there stay. A profile without an image stays as it is.
    ///
    /// # Errors
    /// All lists that cannot be filled, because they are written over several lines or full.
    pub fn signing_images(self, key: &SigningKey) -> Result<Self, Vec<Finding>> {
        let mut profiles = Vec::new();
        let mut findings = Vec::new();
        for ready in self.profiles {
            let file = format!("{}.yaml", ready.name);
            match signed(&file, &ready.yaml, key) {
                Ok(yaml) => profiles.push(Ready { yaml, ..ready }),
                Err(finding) => findings.push(in_file(&file, &finding)),
            }
        }
        if findings.is_empty() {
            Ok(Self { profiles, ..self })
        } else {
            Err(findings)
        }
    }
}

/// A profile with the signature of its image.
fn signed(file: &str, yaml: &Bytes, key: &SigningKey) -> Result<Bytes, Finding> {
    let before = profile(file, yaml)?;
    if before.spec.kind != OsKind::Immutable {
        return Ok(yaml.clone());
    }
    let bad = |error: String| Finding::new(FindingKind::Yaml, error);
    let text = str::from_utf8(yaml).map_err(|error| bad(error.to_string()))?;
    let own = key.sign_text(&statement(&before.spec));
    let by = |one: &str| one.split(':').next().map(str::to_owned);
    let mut all = before.spec.image_signatures;
    all.retain(|one| by(one) != by(&own));
    all.push(own);
    // A list of texts is written in YAML as in JSON.
    let list = serde_json::to_string(&all).map_err(|error| bad(error.to_string()))?;
    let new = edit::set(text, SECTION, KEY, &list).ok_or_else(cannot_be_filled)?;
    // If the line was something else than it looked like, it is noticed here and not where it is fetched.
    if profile(file, new.as_bytes())?.spec.image_signatures == all {
        Ok(new.into())
    } else {
        Err(cannot_be_filled())
    }
}

/// What is signed of an image.
fn statement(spec: &OsSpec) -> String {
    let OsSpec {
        profile_name,
        image_id,
        architecture,
        sha256,
        ..
    } = spec;
    let sha256 = sha256.as_str();
    format!("evenkeel-image-1\n{profile_name}\n{image_id}\n{architecture}\n{sha256}\n")
}

fn cannot_be_filled() -> Finding {
    let why = "it cannot be filled; write it as a list of texts in one line, or not at all";
    Finding::about(FindingKind::BadField, format!("{SECTION}.{KEY}"), why)
}
