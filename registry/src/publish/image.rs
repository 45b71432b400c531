//! Signatures of images, which nodes verify before they start an image.
//!
//! A node does not read profiles. It receives an image with its signatures and accepts it only if
//! one of them is by a trusted key. The signed statement names profile, version, architecture and
//! digest. So an old image cannot be passed off as a newer one, nor the image of one profile as
//! that of another.

use bytes::Bytes;
use evenkeel_domain::os::{OsKind, OsSpec};

use super::{PreparedProfile, Release, edit, with_file_name};
use crate::finding::{Finding, FindingKind};
use crate::profile::read_profile;
use crate::trust::SigningKey;

/// Location of the signatures in a profile.
const SIGNATURES_SECTION: &str = "spec";
const SIGNATURES_KEY: &str = "osImageSignatures";

impl Release {
    /// Signs the image of each profile and adds the signature to `spec.osImageSignatures`, a list
    /// in one line. Signatures by other keys stay. A profile without an image is not changed.
    ///
    /// # Errors
    /// All lists that cannot be edited, because they have several lines or are full.
    pub fn sign_images(self, key: &SigningKey) -> Result<Self, Vec<Finding>> {
        let mut profiles = Vec::new();
        let mut findings = Vec::new();
        for ready in self.profiles {
            let file = format!("{}.yaml", ready.name);
            match sign_profile(&file, &ready.yaml, key) {
                Ok(yaml) => profiles.push(PreparedProfile { yaml, ..ready }),
                Err(finding) => findings.push(with_file_name(&file, &finding)),
            }
        }
        if findings.is_empty() { Ok(Self { profiles, ..self }) } else { Err(findings) }
    }
}

/// Adds the signature of its image to a profile.
fn sign_profile(file: &str, yaml: &Bytes, key: &SigningKey) -> Result<Bytes, Finding> {
    let original = read_profile(file, yaml)?;
    if original.spec.kind != OsKind::Immutable {
        return Ok(yaml.clone());
    }
    let bad = |error: String| Finding::new(FindingKind::Yaml, error);
    let text = str::from_utf8(yaml).map_err(|error| bad(error.to_string()))?;
    let own = key.sign_text(&signed_statement(&original.spec));
    let by = |one: &str| one.split(':').next().map(str::to_owned);
    let mut all = original.spec.image_signatures;
    all.retain(|one| by(one) != by(&own));
    all.push(own);
    // YAML accepts a JSON list of strings.
    let list = serde_json::to_string(&all).map_err(|error| bad(error.to_string()))?;
    let new = edit::set_value(text, SIGNATURES_SECTION, SIGNATURES_KEY, &list)
        .ok_or_else(unsupported_list)?;
    // Parse the result, in case the edited line was not what it seemed to be.
    if read_profile(file, new.as_bytes())?.spec.image_signatures == all {
        Ok(new.into())
    } else {
        Err(unsupported_list())
    }
}

/// The statement that is signed for an image.
fn signed_statement(spec: &OsSpec) -> String {
    let OsSpec { profile_name, image_id, architecture, sha256, .. } = spec;
    let sha256 = sha256.as_str();
    format!("evenkeel-image-1\n{profile_name}\n{image_id}\n{architecture}\n{sha256}\n")
}

fn unsupported_list() -> Finding {
    let why = "the list cannot be edited; write it as a list of texts in one line, or remove it";
    Finding::about(FindingKind::BadField, format!("{SIGNATURES_SECTION}.{SIGNATURES_KEY}"), why)
}
