//! Operating systems: the catalogue of what nodes run or may run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

wire_enum! {
    /// How an operating system is updated.
    OsType {
        Unspecified = "OS_TYPE_UNSPECIFIED",
        Mutable = "OS_TYPE_MUTABLE",
        Immutable = "OS_TYPE_IMMUTABLE",
    }
}

wire_enum! {
    /// Who provides an operating system.
    OsProviderKind {
        Unspecified = "OS_PROVIDER_KIND_UNSPECIFIED",
        Infra = "OS_PROVIDER_KIND_INFRA",
        Lenovo = "OS_PROVIDER_KIND_LENOVO",
    }
}

wire_enum! {
    /// How an installation is protected.
    SecurityFeature {
        Unspecified = "SECURITY_FEATURE_UNSPECIFIED",
        None = "SECURITY_FEATURE_NONE",
        SecureBootAndFullDiskEncryption = "SECURITY_FEATURE_SECURE_BOOT_AND_FULL_DISK_ENCRYPTION",
    }
}

/// One operating system that nodes run or may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatingSystemResource {
    /// Its id.
    pub resource_id: String,
    /// Repeats `resourceId`.
    #[serde(rename = "osResourceID")]
    pub os_resource_id: String,
    /// For people; unique in its project.
    pub name: String,
    /// Such as `x86_64`.
    pub architecture: String,
    /// Where the image lies.
    pub image_url: String,
    /// The version of the image.
    pub image_id: String,
    /// Of the image; 64 zeros if there is none.
    pub sha256: String,
    /// Statements on the image, which nodes check by themselves: each the SHA-256 of the public key, a colon, and the
    /// signature in base64.
    pub image_signatures: Vec<String>,
    /// The line of releases that it is one of; unique in its project together with `imageId`.
    pub profile_name: String,
    /// The version of the profile: its revision if it came from a registry.
    pub profile_version: String,
    /// For people.
    pub description: String,
    /// What is installed, JSON as text. Only answers about operating systems themselves have it, and lists only if it
    /// has at most 500,000 bytes; a page of more than ten only if it has at most 5,000,000 bytes divided by how many
    /// are on the page.
    pub installed_packages: String,
    /// Where the list of installed packages lies.
    pub installed_packages_url: String,
    /// How it is protected.
    pub security_feature: SecurityFeature,
    /// How it is updated.
    pub os_type: OsType,
    /// Who provides it.
    pub os_provider: OsProviderKind,
    /// What is installed beside it, as its profile says it; opaque to us. Only answers about operating systems
    /// themselves have it.
    pub platform_bundle: String,
    /// A JSON object as text.
    pub metadata: String,
    /// Base64 of the CA that signs the image's server.
    pub tls_ca_cert: String,
    /// Where the list of its open vulnerabilities lies.
    pub existing_cves_url: String,
    /// Its open vulnerabilities, a JSON array as text; shown where `installedPackages` are, within the same bound.
    pub existing_cves: String,
    /// Where the list of its mended vulnerabilities lies.
    pub fixed_cves_url: String,
    /// Its mended vulnerabilities, a JSON array as text; shown where `installedPackages` are, within the same bound.
    pub fixed_cves: String,
    /// Where its package repository lies.
    pub repo_url: String,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,

    /// The registry that it came from, by the name that the server knows it by; empty if it came from none. Only
    /// answers about operating systems themselves have it, as all behind it.
    pub registry: String,
    /// The tag that led to its profile in the registry.
    pub revision: String,
    /// Of the artefact that holds its profile, such as `sha256:` and 64 hexadecimal digits.
    pub artifact_digest: String,
    /// Who vouches for the artefact; null if nobody whom the server trusts.
    pub signature: Option<OsSignature>,
}

/// The signature of an artefact, with all that is needed to check it without the registry: the signature is of the
/// payload, which names the digest of the manifest, which names that of the profile, which names that of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSignature {
    /// What is signed, in base64.
    pub payload: String,
    /// The signature, in base64.
    pub signature: String,
    /// The SHA-256 of the public key, as hexadecimal digits.
    pub key: String,
    /// The manifest of the artefact, as it came.
    pub manifest: String,
    /// The profile, as it came.
    pub profile: String,
}

/// A page of operating systems.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatingSystemList {
    /// The operating systems of this page.
    #[serde(rename = "OperatingSystemResources")]
    pub operating_system_resources: Vec<OperatingSystemResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// Where the next page begins, for `pageToken`; empty if there is none.
    pub next_page_token: String,
}

/// An operating system to be added to the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatingSystemInput {
    /// For people; unique in its project.
    #[serde(default)]
    #[schema(max_length = 128)]
    pub name: String,
    /// Such as `x86_64`.
    #[serde(default)]
    #[schema(max_length = 20)]
    pub architecture: String,
    /// Where the image lies.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub image_url: String,
    /// The version of the image.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub image_id: String,
    /// Of the image; 64 zeros if there is none.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub sha256: String,
    /// Statements on the image, which nodes check by themselves: each the SHA-256 of the public key in small hexadecimal
    /// digits, a colon, and the signature in base64, together at most 256 bytes. They are of `profileName`, `imageId`,
    /// `sha256` and `architecture` as they are written here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 8)]
    pub image_signatures: Vec<String>,
    /// The line of releases that it is one of.
    #[serde(default)]
    #[schema(max_length = 128)]
    pub profile_name: String,
    /// For people.
    #[serde(default)]
    #[schema(max_length = 1000)]
    pub description: String,
    /// Where the list of installed packages lies.
    #[serde(default)]
    #[schema(max_length = 200)]
    pub installed_packages_url: String,
    /// How it is protected.
    #[serde(default)]
    pub security_feature: SecurityFeature,
    /// How it is updated.
    #[serde(default)]
    pub os_type: OsType,
    /// Who provides it.
    #[serde(default)]
    pub os_provider: OsProviderKind,
    /// A JSON object as text.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub metadata: String,
    /// Base64 of the CA that signs the image's server.
    #[serde(default)]
    #[schema(max_length = 10000)]
    pub tls_ca_cert: String,
    /// Where the list of its open vulnerabilities lies.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub existing_cves_url: String,
    /// Where the list of its mended vulnerabilities lies.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub fixed_cves_url: String,
    /// Where its package repository lies.
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

/// What of an operating system can be changed. What it is cannot: those keys are accepted, so that what was read can be
/// written back, and ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OperatingSystemPatch {
    /// The name that it has, or none; another one is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub name: Option<String>,
    /// Such as `x86_64`.
    #[schema(max_length = 20)]
    pub architecture: String,
    /// A JSON object as text.
    #[schema(max_length = 500)]
    pub metadata: String,
    /// Statements on the image, which nodes check by themselves. What is left out or null stays as it is; an empty list
    /// takes all away. They are of the architecture too: who changes that gives new ones with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 8)]
    pub image_signatures: Option<Vec<String>>,
}

impl Input for OperatingSystemPatch {
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
