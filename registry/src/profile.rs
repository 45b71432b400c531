//! The profile of an operating system: the YAML file that is published, and what it says.

mod field;
mod yaml;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_domain::os::{OsKind, OsProvider, OsSpec, SecurityFeature, Sha256, compare_versions};

use self::field::Fields;
use crate::finding::{Finding, FindingKind};

/// The largest profile, in bytes.
pub const MAX_BYTES: usize = 256 * 1024;

/// The longest text that metadata may become, in bytes.
const MAX_METADATA: usize = 500;

/// The longest text that a platform bundle may become, in bytes.
const MAX_BUNDLE: usize = 10_000;

/// How many unknown keys are named.
const MAX_REMARKS: usize = 20;

/// What a profile says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The operating system. Whether any of the signatures of its image is right is checked by who knows the keys.
    pub spec: OsSpec,
    /// Scripts for provisioning: a JSON object as text, empty if there are none.
    pub platform_bundle: String,
    /// Where the list of its packages lies; empty if there is none.
    pub manifest_url: String,
    /// The release that it says it was published as; empty if it does not say.
    pub release: String,
    /// What is odd about it and does no harm.
    pub remarks: Vec<Finding>,
}

/// Reads the profile of an operating system. `file` is the name that it was published under.
///
/// # Errors
/// Says the first thing that is wrong with it.
pub fn profile(file: &str, yaml: &[u8]) -> Result<Profile, Finding> {
    let stem = stem(file)?;
    if yaml.len() > MAX_BYTES {
        let message = format!("the profile is larger than {MAX_BYTES} bytes");
        return Err(Finding::new(FindingKind::TooLarge, message));
    }
    let document = yaml::read(yaml)?;
    let fields = Fields(&document.spec);
    let profile_name = fields.given("profileName")?;
    if profile_name != stem {
        let message = format!("it is {profile_name:?}, but the file is named {file:?}");
        return Err(Finding::about(
            FindingKind::OtherProfile,
            "spec.profileName",
            message,
        ));
    }
    let spec = OsSpec {
        name: fields.given("name")?,
        kind: fields.one_of("type", &KINDS)?,
        provider: fields.one_of("provider", &PROVIDERS)?,
        architecture: fields.text("architecture"),
        profile_name,
        image_id: fields.given("osImageVersion")?,
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
        is_an_image(&spec)?;
    }
    let spec = spec.checked().map_err(|invalid| {
        Finding::about(
            FindingKind::BadField,
            field::path(invalid.field),
            invalid.why,
        )
    })?;
    Ok(Profile {
        spec,
        platform_bundle: bundle(&document.bundle)?,
        manifest_url: fields.url("osPackageManifestURL")?,
        release: document
            .metadata
            .get("release")
            .cloned()
            .unwrap_or_default(),
        remarks: remarks(&document.unknown),
    })
}

const KINDS: [(&str, OsKind); 2] = [
    ("OS_TYPE_MUTABLE", OsKind::Mutable),
    ("OS_TYPE_IMMUTABLE", OsKind::Immutable),
];

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

/// The name of the profile that a file of this name holds.
fn stem(file: &str) -> Result<&str, Finding> {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let stem = file.strip_suffix(".yaml").unwrap_or_default();
    if stem.is_empty() || stem.starts_with('.') || !stem.chars().all(is_inside) {
        let message = format!("a profile is a file as microvisor-nonrt.yaml, not {file:?}");
        return Err(Finding::new(FindingKind::NotAProfile, message));
    }
    Ok(stem)
}

/// What must be so for a node to be brought to an image.
fn is_an_image(spec: &OsSpec) -> Result<(), Finding> {
    let bad = |field: &str, why: &str| Err(Finding::about(FindingKind::BadField, field, why));
    if spec.image_url.is_empty() {
        return bad("spec.osImageUrl", "an image must lie somewhere");
    }
    if spec.sha256 == Sha256::NONE {
        return bad(
            "spec.osImageSha256",
            "an image must have a digest, and not of zeros",
        );
    }
    if compare_versions(&spec.image_id, &spec.image_id).is_none() {
        let why = "versions of images are numbers between dots and dashes, so that the newer one is known";
        return bad("spec.osImageVersion", why);
    }
    Ok(())
}

fn sha256(fields: &Fields<'_>) -> Result<Sha256, Finding> {
    match fields.text("osImageSha256").as_str() {
        "" => Ok(Sha256::NONE),
        digest => Sha256::parse("osImageSha256", digest).map_err(|invalid| {
            Finding::about(FindingKind::BadField, "spec.osImageSha256", invalid.why)
        }),
    }
}

/// The signatures of the image, if each is made as one.
fn signatures(written: Vec<String>) -> Result<Vec<String>, Finding> {
    let bad = |field: &str, why: String| Err(Finding::about(FindingKind::BadField, field, why));
    let (many, long) = (OsSpec::MAX_IMAGE_SIGNATURES, OsSpec::MAX_IMAGE_SIGNATURE);
    if written.len() > many {
        let why = format!("{} signatures are more than {many}", written.len());
        return bad("spec.osImageSignatures", why);
    }
    for (at, signature) in written.iter().enumerate() {
        if signature.len() > long || !is_signature(signature) {
            let why = format!(
                "must be the SHA-256 of the key in 64 small hexadecimal digits, a colon, and the \
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
        && STANDARD
            .decode(signature)
            .is_ok_and(|bytes| !bytes.is_empty())
}

/// Values stay as they are written: `true` is a text.
fn metadata(values: &BTreeMap<String, String>) -> Result<String, Finding> {
    let bad = |why: String| Finding::about(FindingKind::BadField, "metadata", why);
    for text in values.iter().flat_map(|(key, value)| [key, value]) {
        if let Some(c) = text.chars().find(|c| c.is_uppercase() || c.is_control()) {
            return Err(bad(format!(
                "{c:?} is not allowed; small letters are, in {text:?}"
            )));
        }
    }
    object(values, MAX_METADATA).ok_or_else(|| bad(format!("longer than {MAX_METADATA} bytes")))
}

fn bundle(values: &BTreeMap<String, String>) -> Result<String, Finding> {
    let bad = |why: String| Finding::about(FindingKind::BadField, "spec.platformBundle", why);
    if values
        .values()
        .chain(values.keys())
        .any(|text| text.contains('\0'))
    {
        return Err(bad("a zero byte is not allowed".to_owned()));
    }
    object(values, MAX_BUNDLE).ok_or_else(|| bad(format!("longer than {MAX_BUNDLE} bytes")))
}

/// A JSON object as text, its keys sorted; empty if it has none. None if it is too long.
fn object(values: &BTreeMap<String, String>, longest: usize) -> Option<String> {
    if values.is_empty() {
        return Some(String::new());
    }
    let json = serde_json::to_string(values).ok()?;
    (json.len() <= longest).then_some(json)
}

fn remarks(unknown: &[String]) -> Vec<Finding> {
    let remark =
        |key: &String| Finding::about(FindingKind::UnknownKey, key, "nobody knows it; left out");
    let mut remarks: Vec<_> = unknown.iter().take(MAX_REMARKS).map(remark).collect();
    if let Some(more @ 1..) = unknown.len().checked_sub(MAX_REMARKS) {
        let message = format!("{more} more keys are unknown");
        remarks.push(Finding::new(FindingKind::UnknownKey, message));
    }
    remarks
}

#[cfg(test)]
mod tests;
