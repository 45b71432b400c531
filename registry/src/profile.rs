//! The profile of an operating system, a published YAML file.

mod field;
mod yaml;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_domain::os::{OsKind, OsProvider, OsSpec, SecurityFeature, Sha256, compare_versions};

use self::field::SpecFields;
use crate::finding::{Finding, FindingKind};

/// Largest profile, in bytes.
pub const MAX_PROFILE_BYTES: usize = 256 * 1024;

/// Longest metadata as JSON, in bytes.
const MAX_METADATA_BYTES: usize = 500;

/// Longest platform bundle as JSON, in bytes.
const MAX_BUNDLE_BYTES: usize = 10_000;

/// Maximum number of unknown keys that are named.
const MAX_REMARKS: usize = 20;

/// The content of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The operating system. The signatures of its image are not verified: that needs the keys.
    pub spec: OsSpec,
    /// Provisioning scripts as a JSON object; empty if there are none.
    pub platform_bundle: String,
    /// URL of the package list; empty if there is none.
    pub manifest_url: String,
    /// Release that the profile was published as; empty if it is not given.
    pub release: String,
    /// Harmless problems, such as unknown keys.
    pub remarks: Vec<Finding>,
}

/// Reads the profile of an operating system. `file` is the name of its file.
///
/// # Errors
/// The first problem of the profile.
pub fn read_profile(file: &str, yaml: &[u8]) -> Result<Profile, Finding> {
    let stem = profile_stem(file)?;
    if yaml.len() > MAX_PROFILE_BYTES {
        let message = format!("the profile is larger than {MAX_PROFILE_BYTES} bytes");
        return Err(Finding::new(FindingKind::TooLarge, message));
    }
    let document = yaml::read(yaml)?;
    let fields = SpecFields(&document.spec);
    let profile_name = fields.required("profileName")?;
    if profile_name != stem {
        let message = format!("the profile is named {profile_name:?}, but its file is {file:?}");
        return Err(Finding::about(FindingKind::OtherProfile, "spec.profileName", message));
    }
    let spec = OsSpec {
        name: fields.required("name")?,
        kind: fields.one_of("type", &KINDS)?,
        provider: fields.one_of("provider", &PROVIDERS)?,
        architecture: fields.text("architecture"),
        profile_name,
        image_id: fields.required("osImageVersion")?,
        image_url: fields.url("osImageUrl")?,
        sha256: sha256(&fields)?,
        security_feature: fields.one_of("securityFeature", &FEATURES)?,
        description: fields.text("description"),
        metadata: metadata(&document.metadata)?,
        repo_url: String::new(),
        tls_ca_cert: fields.text("tlsCaCertificate"),
        installed_packages_url: String::new(),
        existing_cves_url: fields.url("osExistingCvesURL")?,
        fixed_cves_url: fields.url("osFixedCvesURL")?,
        image_signatures: signatures(document.signatures)?,
    };
    if spec.kind == OsKind::Immutable {
        check_image(&spec)?;
    }
    let spec = spec.validated().map_err(|invalid| {
        Finding::about(FindingKind::BadField, field::yaml_path(invalid.field), invalid.why)
    })?;
    Ok(Profile {
        spec,
        platform_bundle: bundle(&document.bundle)?,
        manifest_url: fields.url("osPackageManifestURL")?,
        release: document.metadata.get("release").cloned().unwrap_or_default(),
        remarks: remarks(&document.unknown),
    })
}

const KINDS: [(&str, OsKind); 2] =
    [("OS_TYPE_MUTABLE", OsKind::Mutable), ("OS_TYPE_IMMUTABLE", OsKind::Immutable)];

const PROVIDERS: [(&str, OsProvider); 2] = [
    ("OS_PROVIDER_KIND_INFRA", OsProvider::Infra),
    ("OS_PROVIDER_KIND_LENOVO", OsProvider::Lenovo),
];

const FEATURES: [(&str, SecurityFeature); 2] = [
    ("SECURITY_FEATURE_NONE", SecurityFeature::None),
    (
        "SECURITY_FEATURE_SECURE_BOOT_AND_FULL_DISK_ENCRYPTION",
        SecurityFeature::SecureBootAndFullDiskEncryption,
    ),
];

/// Name of the profile in a file of this name.
fn profile_stem(file: &str) -> Result<&str, Finding> {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let stem = file.strip_suffix(".yaml").unwrap_or_default();
    if stem.is_empty() || stem.starts_with('.') || !stem.chars().all(is_inside) {
        let message =
            format!("the file of a profile has a name such as microvisor-nonrt.yaml, not {file:?}");
        return Err(Finding::new(FindingKind::NotAProfile, message));
    }
    Ok(stem)
}

/// Checks what an image-based profile needs for an update.
fn check_image(spec: &OsSpec) -> Result<(), Finding> {
    let bad = |field: &str, why: &str| Err(Finding::about(FindingKind::BadField, field, why));
    if spec.image_url.is_empty() {
        return bad("spec.osImageUrl", "the URL of the image is required");
    }
    if spec.sha256 == Sha256::NONE {
        return bad(
            "spec.osImageSha256",
            "the digest of the image is required and must not be all zeros",
        );
    }
    if compare_versions(&spec.image_id, &spec.image_id).is_none() {
        let why = "the version of an image must be numbers separated by dots and dashes, so versions can be compared";
        return bad("spec.osImageVersion", why);
    }
    Ok(())
}

fn sha256(fields: &SpecFields<'_>) -> Result<Sha256, Finding> {
    match fields.text("osImageSha256").as_str() {
        "" => Ok(Sha256::NONE),
        digest => Sha256::parse("osImageSha256", digest).map_err(|invalid| {
            Finding::about(FindingKind::BadField, "spec.osImageSha256", invalid.why)
        }),
    }
}

/// Checks the format of the signatures of the image.
fn signatures(written: Vec<String>) -> Result<Vec<String>, Finding> {
    let bad = |field: &str, why: String| Err(Finding::about(FindingKind::BadField, field, why));
    let (max_count, long) = (OsSpec::MAX_IMAGE_SIGNATURES, OsSpec::MAX_IMAGE_SIGNATURE_BYTES);
    if written.len() > max_count {
        let why = format!("{} signatures are more than {max_count}", written.len());
        return bad("spec.osImageSignatures", why);
    }
    for (at, signature) in written.iter().enumerate() {
        if signature.len() > long || !is_signature(signature) {
            let why = format!(
                "must be the SHA-256 of the key in 64 lowercase hexadecimal digits, a colon, and the \
                 signature in base64, in at most {long} bytes"
            );
            return bad(&format!("spec.osImageSignatures[{at}]"), why);
        }
    }
    Ok(written)
}

fn is_signature(text: &str) -> bool {
    let Some((key, signature)) = text.split_once(':') else {
        return false;
    };
    let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    key.len() == 64
        && key.bytes().all(is_digit)
        && STANDARD.decode(signature).is_ok_and(|bytes| !bytes.is_empty())
}

/// Converts the metadata to JSON. Values are stored as written: `true` is a string.
fn metadata(values: &BTreeMap<String, String>) -> Result<String, Finding> {
    let bad = |why: String| Finding::about(FindingKind::BadField, "metadata", why);
    for text in values.iter().flat_map(|(key, value)| [key, value]) {
        if let Some(c) = text.chars().find(|c| c.is_uppercase() || c.is_control()) {
            return Err(bad(format!("{c:?} is not allowed in {text:?}; use lowercase letters")));
        }
    }
    to_json_object(values, MAX_METADATA_BYTES)
        .ok_or_else(|| bad(format!("longer than {MAX_METADATA_BYTES} bytes")))
}

fn bundle(values: &BTreeMap<String, String>) -> Result<String, Finding> {
    let bad = |why: String| Finding::about(FindingKind::BadField, "spec.platformBundle", why);
    if values.values().chain(values.keys()).any(|text| text.contains('\0')) {
        return Err(bad("a zero byte is not allowed".to_owned()));
    }
    to_json_object(values, MAX_BUNDLE_BYTES)
        .ok_or_else(|| bad(format!("longer than {MAX_BUNDLE_BYTES} bytes")))
}

/// Converts a map to a JSON object with sorted keys; empty if the map is empty. `None` if it is too
/// long.
fn to_json_object(values: &BTreeMap<String, String>, longest: usize) -> Option<String> {
    if values.is_empty() {
        return Some(String::new());
    }
    let json = serde_json::to_string(values).ok()?;
    (json.len() <= longest).then_some(json)
}

fn remarks(unknown: &[String]) -> Vec<Finding> {
    let remark =
        |key: &String| Finding::about(FindingKind::UnknownKey, key, "unknown key, ignored");
    let mut remarks: Vec<_> = unknown.iter().take(MAX_REMARKS).map(remark).collect();
    if let Some(more @ 1..) = unknown.len().checked_sub(MAX_REMARKS) {
        let message = format!("{more} more keys are unknown");
        remarks.push(Finding::new(FindingKind::UnknownKey, message));
    }
    remarks
}

#[cfg(test)]
mod tests;
