//! Operating systems: the catalogue of operating systems for nodes.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Input, Timestamps};

wire_enum! {
    /// How an operating system is updated. A kind that only a newer server knows is unspecified.
    OsType {
        Unspecified = "OS_TYPE_UNSPECIFIED",
        Mutable = "OS_TYPE_MUTABLE",
        Immutable = "OS_TYPE_IMMUTABLE",
    }
}

wire_enum! {
    /// Provider of an operating system.
    OsProviderKind {
        Unspecified = "OS_PROVIDER_KIND_UNSPECIFIED",
        Infra = "OS_PROVIDER_KIND_INFRA",
        Lenovo = "OS_PROVIDER_KIND_LENOVO",
    }
}

wire_enum! {
    /// Security features of an installation.
    SecurityFeature {
        Unspecified = "SECURITY_FEATURE_UNSPECIFIED",
        None = "SECURITY_FEATURE_NONE",
        SecureBootAndFullDiskEncryption = "SECURITY_FEATURE_SECURE_BOOT_AND_FULL_DISK_ENCRYPTION",
    }
}

/// Operating system of the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatingSystemResource {
    /// Resource ID.
    pub resource_id: String,
    /// Same as `resourceId`.
    #[serde(rename = "osResourceID")]
    pub os_resource_id: String,
    /// Display name; unique in the project.
    pub name: String,
    /// CPU architecture, for example `x86_64`.
    pub architecture: String,
    /// URL of the image.
    pub image_url: String,
    /// Version of the image.
    pub image_id: String,
    /// SHA-256 of the image, as hexadecimal digits; 64 zeros if there is no image.
    pub sha256: String,
    /// Signatures of the image, which nodes verify. Format of each: SHA-256 of the public key, a
    /// colon, and the signature in base64.
    pub image_signatures: Vec<String>,
    /// Name of the OS profile, which identifies the series of releases; unique in the project
    /// together with `imageId`.
    pub profile_name: String,
    /// Version of the OS profile; its revision if the profile comes from a registry.
    pub profile_version: String,
    /// Description, as free text.
    pub description: String,
    /// Installed packages: JSON as text. Filled only in responses for operating systems. Lists
    /// contain the text only up to 500,000 bytes; pages of more than ten items only up to 5,000,000
    /// bytes divided by the number of items on the page.
    pub installed_packages: String,
    /// URL of the list of installed packages.
    pub installed_packages_url: String,
    /// Security features of the installation.
    pub security_feature: SecurityFeature,
    /// How the operating system is updated.
    pub os_type: OsType,
    /// Provider of the operating system.
    pub os_provider: OsProviderKind,
    /// Platform bundle of the OS profile; opaque to the server. Filled only in responses for
    /// operating systems.
    pub platform_bundle: String,
    /// Metadata: a JSON object as text.
    pub metadata: String,
    /// Certificate of the CA of the image server, in base64.
    pub tls_ca_cert: String,
    /// URL of the list of open vulnerabilities.
    pub existing_cves_url: String,
    /// Open vulnerabilities: a JSON array as text. Same size limits as `installedPackages`.
    pub existing_cves: String,
    /// URL of the list of fixed vulnerabilities.
    pub fixed_cves_url: String,
    /// Fixed vulnerabilities: a JSON array as text. Same size limits as `installedPackages`.
    pub fixed_cves: String,
    /// URL of the package repository.
    pub repo_url: String,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,

    /// Registry of the OS profile, by its name in the server's configuration; empty if the profile
    /// does not come from a registry. This field and the following ones are filled only in
    /// responses for operating systems.
    pub registry: String,
    /// Tag of the OS profile in the registry.
    pub revision: String,
    /// Digest of the artifact with the OS profile: `sha256:` and 64 hexadecimal digits.
    pub artifact_digest: String,
    /// Signature of the artifact; null if the artifact has no signature of a trusted key.
    pub signature: Option<OsSignature>,
}

/// Signature of an artifact, with everything that is needed to verify it without the registry. The
/// signature covers the payload. The payload names the digest of the manifest, the manifest names
/// the digest of the profile, and the profile names the digest of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSignature {
    /// Signed payload, in base64.
    pub payload: String,
    /// Signature, in base64.
    pub signature: String,
    /// SHA-256 of the public key, as hexadecimal digits.
    pub key: String,
    /// Manifest of the artifact, unchanged.
    pub manifest: String,
    /// OS profile, unchanged.
    pub profile: String,
}

/// A page of operating systems.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatingSystemList {
    /// Operating systems on this page.
    #[serde(rename = "OperatingSystemResources")]
    pub operating_system_resources: Vec<OperatingSystemResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Number of resources on this page that cannot be read, because a newer server wrote them; the
    /// server's log names them. Omitted if all can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_elements: Option<u32>,
}

/// Operating system to add to the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatingSystemInput {
    /// Display name: at most 128 letters, digits, spaces and `-_./:()`; unique in the project.
    #[serde(default)]
    #[schema(max_length = 128)]
    pub name: String,
    /// CPU architecture, for example `x86_64`: letters, digits, `-` and `_`.
    #[serde(default)]
    #[schema(max_length = 20)]
    pub architecture: String,
    /// URL of the image.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub image_url: String,
    /// Version of the image; unique in the project together with `profileName`.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub image_id: String,
    /// SHA-256 of the image, as lower-case hexadecimal digits; 64 zeros if there is no image.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub sha256: String,
    /// Signatures of the image, which nodes verify. Format of each: SHA-256 of the public key as
    /// lower-case hexadecimal digits, a colon, and the signature in base64; at most 256 bytes. A
    /// signature covers `profileName`, `imageId`, `sha256` and `architecture` exactly as they are
    /// given here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 8)]
    pub image_signatures: Vec<String>,
    /// Name of the OS profile, which identifies the series of releases: letters, digits, spaces and
    /// `-_./:`.
    #[serde(default)]
    #[schema(max_length = 128)]
    pub profile_name: String,
    /// Description, as free text.
    #[serde(default)]
    #[schema(max_length = 1000)]
    pub description: String,
    /// URL of the list of installed packages.
    #[serde(default)]
    #[schema(max_length = 200)]
    pub installed_packages_url: String,
    /// Security features of the installation.
    #[serde(default)]
    pub security_feature: SecurityFeature,
    /// How the operating system is updated; `OS_TYPE_UNSPECIFIED` is refused.
    #[serde(default)]
    pub os_type: OsType,
    /// Provider of the operating system.
    #[serde(default)]
    pub os_provider: OsProviderKind,
    /// Metadata: a JSON object as text; empty for none.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub metadata: String,
    /// Certificate of the CA of the image server, in base64.
    #[serde(default)]
    #[schema(max_length = 10000)]
    pub tls_ca_cert: String,
    /// URL of the list of open vulnerabilities.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub existing_cves_url: String,
    /// URL of the list of fixed vulnerabilities.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub fixed_cves_url: String,
    /// URL of the package repository.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub repo_url: String,
}

impl Input for OperatingSystemInput {
    const READ_ONLY: &[&str] = &[
        "resourceId",
        "osResourceID",
        "profileVersion",
        "installedPackages",
        "platformBundle",
        "existingCves",
        "fixedCves",
        "timestamps",
        "registry",
        "revision",
        "artifactDigest",
        "signature",
    ];
}

/// Changes to an operating system. Its identity cannot be changed: the other keys are accepted, so
/// that a client can send back the whole resource, and ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OperatingSystemPatch {
    /// Current name, or omitted. Another name is rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub name: Option<String>,
    /// CPU architecture, for example `x86_64`.
    #[schema(max_length = 20)]
    pub architecture: String,
    /// Metadata: a JSON object as text; empty for none.
    #[schema(max_length = 500)]
    pub metadata: String,
    /// Signatures of the image, which nodes verify. Null or omitted leaves them unchanged; an empty
    /// list removes them. Signatures cover the architecture, so a change of `architecture` needs
    /// new signatures.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 8)]
    pub image_signatures: Option<Vec<String>>,
}

impl Input for OperatingSystemPatch {
    const CREATE_ONLY: &[&str] = &["name"];

    // EIM's clients must send the digest, although it cannot be changed.
    fn invalid_read_only(body: &Value) -> Option<(&'static str, &'static str)> {
        let is_empty = body.get("sha256").is_some_and(|digest| digest == "");
        is_empty.then_some(("sha256", "must be 64 lower-case hexadecimal digits, or omitted"))
    }

    const READ_ONLY: &[&str] = &[
        "resourceId",
        "osResourceID",
        "imageUrl",
        "imageId",
        "sha256",
        "profileName",
        "profileVersion",
        "description",
        "installedPackages",
        "installedPackagesUrl",
        "securityFeature",
        "osType",
        "osProvider",
        "platformBundle",
        "tlsCaCert",
        "existingCvesUrl",
        "existingCves",
        "fixedCvesUrl",
        "fixedCves",
        "repoUrl",
        "timestamps",
        "registry",
        "revision",
        "artifactDigest",
        "signature",
    ];
}
