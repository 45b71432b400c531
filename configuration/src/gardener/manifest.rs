//! The fields of the resource as written. All of them are optional, so that [`super::rules`]
//! reports every missing one.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, Visitor};
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options};

use crate::document::FileMode;
use crate::validation::FieldError;

/// Maximum number of bytes of a resource. Kubernetes stores less than 2 MiB.
const MAX_MANIFEST_BYTES: usize = 2 * 1024 * 1024;

/// Highest mode: all permissions, set-user-ID, set-group-ID and sticky bit.
const MAX_MODE: u32 = 0o7777;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Manifest {
    pub api_version: Option<String>,
    pub kind: Option<String>,
    pub metadata: Option<ManifestMetadata>,
    pub spec: Option<ManifestSpec>,
    pub status: Option<ManifestStatus>,
}

/// Fields that begin with an underscore are accepted, because every resource of a cluster has them.
/// They do not describe a node.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ManifestMetadata {
    pub name: Option<String>,
    #[serde(rename = "annotations")]
    _annotations: IgnoredAny,
    #[serde(rename = "creationTimestamp")]
    _creation_timestamp: IgnoredAny,
    #[serde(rename = "deletionGracePeriodSeconds")]
    _deletion_grace_period_seconds: IgnoredAny,
    #[serde(rename = "deletionTimestamp")]
    _deletion_timestamp: IgnoredAny,
    #[serde(rename = "finalizers")]
    _finalizers: IgnoredAny,
    #[serde(rename = "generateName")]
    _generate_name: IgnoredAny,
    #[serde(rename = "generation")]
    _generation: IgnoredAny,
    #[serde(rename = "labels")]
    _labels: IgnoredAny,
    #[serde(rename = "managedFields")]
    _managed_fields: IgnoredAny,
    #[serde(rename = "namespace")]
    _namespace: IgnoredAny,
    #[serde(rename = "ownerReferences")]
    _owner_references: IgnoredAny,
    #[serde(rename = "resourceVersion")]
    _resource_version: IgnoredAny,
    #[serde(rename = "selfLink")]
    _self_link: IgnoredAny,
    #[serde(rename = "uid")]
    _uid: IgnoredAny,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ManifestSpec {
    pub purpose: Option<String>,
    pub units: Option<Vec<ManifestUnit>>,
    pub files: Option<Vec<ManifestFile>>,
    pub cri_config: Option<CriConfig>,
    #[serde(rename = "inPlaceUpdates")]
    pub os_updates: Option<IgnoredAny>,
    pub provider_config: Option<IgnoredAny>,
    /// Releases before the node agent had this field.
    pub reload_config_file_path: Option<IgnoredAny>,
    #[serde(rename = "class")]
    _class: IgnoredAny,
    #[serde(rename = "type")]
    _kind: IgnoredAny,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ManifestStatus {
    pub extension_units: Option<Vec<ManifestUnit>>,
    pub extension_files: Option<Vec<ManifestFile>>,
    #[serde(rename = "inPlaceUpdates")]
    pub os_updates: Option<IgnoredAny>,
    /// Releases before the node agent had this field, and `units` and `files`.
    pub command: Option<IgnoredAny>,
    pub units: Option<IgnoredAny>,
    pub files: Option<IgnoredAny>,
    #[serde(rename = "cloudConfig")]
    _cloud_config: IgnoredAny,
    #[serde(rename = "conditions")]
    _conditions: IgnoredAny,
    #[serde(rename = "lastError")]
    _last_error: IgnoredAny,
    #[serde(rename = "lastOperation")]
    _last_operation: IgnoredAny,
    #[serde(rename = "observedGeneration")]
    _observed_generation: IgnoredAny,
    #[serde(rename = "providerStatus")]
    _provider_status: IgnoredAny,
    #[serde(rename = "resources")]
    _resources: IgnoredAny,
    #[serde(rename = "state")]
    _state: IgnoredAny,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ManifestUnit {
    pub name: Option<String>,
    pub command: Option<String>,
    pub enable: Option<bool>,
    pub content: Option<String>,
    pub drop_ins: Option<Vec<ManifestDropIn>>,
    pub file_paths: Option<Vec<String>>,
    /// Releases before `filePaths` had this field.
    pub files: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ManifestDropIn {
    pub name: Option<String>,
    pub content: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ManifestFile {
    pub path: Option<String>,
    pub permissions: Option<Permissions>,
    pub content: Option<ManifestContent>,
    pub host_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ManifestContent {
    pub inline: Option<InlineContent>,
    pub secret_ref: Option<SecretKeyRef>,
    pub image_ref: Option<ImageRef>,
    pub transmit_unencoded: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct InlineContent {
    pub encoding: Option<String>,
    pub data: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SecretKeyRef {
    pub name: Option<String>,
    pub data_key: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ImageRef {
    pub image: Option<String>,
    pub file_path_in_image: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CriConfig {
    pub name: Option<String>,
    pub cgroup_driver: Option<String>,
    pub containerd: Option<ContainerdConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ContainerdConfig {
    pub sandbox_image: Option<String>,
    pub registries: Option<Vec<RegistryConfig>>,
    pub plugins: Option<Vec<PluginConfig>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RegistryConfig {
    pub upstream: Option<String>,
    pub server: Option<String>,
    pub hosts: Option<Vec<RegistryHost>>,
    #[serde(rename = "readinessProbe")]
    _readiness_probe: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RegistryHost {
    pub url: Option<String>,
    pub capabilities: Option<Vec<String>>,
    #[serde(rename = "caCerts")]
    _ca_certs: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PluginConfig {
    pub op: Option<String>,
    pub path: Option<Vec<String>>,
    pub values: Option<Value>,
}

/// Permissions of a file. Kubernetes accepts an integer only. In its YAML, `0644` and `0o644` are
/// octal and `420` is decimal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permissions(pub FileMode);

impl<'de> Deserialize<'de> for Permissions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PermissionsVisitor)
    }
}

struct PermissionsVisitor;

impl Visitor<'_> for PermissionsVisitor {
    type Value = Permissions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("permissions as an integer without quotes, such as 0644 (octal) or 420")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Permissions, E> {
        match u32::try_from(value) {
            Ok(mode) if mode <= MAX_MODE => Ok(Permissions(FileMode(mode))),
            _ => Err(E::custom(format!(
                "{value} is octal {value:o}; permissions are at most octal 7777. An octal number \
                 begins with 0, such as 0644; in JSON, write its value: 420"
            ))),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Permissions, E> {
        let value = u64::try_from(value).map_err(|_| {
            E::custom(format!("{value} is negative; write an integer, such as 0644 or 420"))
        })?;
        self.visit_u64(value)
    }
}

/// Parses a resource in YAML or JSON.
///
/// # Errors
/// The text is too large, is not YAML, or has a field that is unknown or has another type.
pub(super) fn parse(text: &str) -> Result<Manifest, FieldError> {
    if text.len() > MAX_MANIFEST_BYTES {
        let bytes = text.len();
        let message = format!("the text has {bytes} bytes; at most {MAX_MANIFEST_BYTES} are read");
        return Err(FieldError::new("", message));
    }
    let mut path = String::new();
    serde_saphyr::with_deserializer_from_str_with_options(text, options(), |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            path = error.path().to_string();
            error.into_inner()
        })
    })
    .map_err(|error| {
        let path = if path == "." { String::new() } else { path };
        FieldError::new(path, error.to_string())
    })
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_anchors: 32,
            max_aliases: 32,
            max_documents: 1,
            max_depth: 32,
            max_nodes: 100_000,
            max_merge_keys: 32,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 10_000,
            max_replay_stack_depth: 8,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Merge,
        // Kubernetes reads YAML 1.1, in which 0644 is octal.
        legacy_octal_numbers: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

impl Manifest {
    /// The lists of files with their paths.
    pub fn files(&self) -> [(&'static str, &[ManifestFile]); 2] {
        let spec = self.spec.as_ref().and_then(|spec| spec.files.as_deref());
        let status = self.status.as_ref().and_then(|status| status.extension_files.as_deref());
        [
            ("spec.files", spec.unwrap_or_default()),
            ("status.extensionFiles", status.unwrap_or_default()),
        ]
    }

    /// The lists of units with their paths.
    pub fn units(&self) -> [(&'static str, &[ManifestUnit]); 2] {
        let spec = self.spec.as_ref().and_then(|spec| spec.units.as_deref());
        let status = self.status.as_ref().and_then(|status| status.extension_units.as_deref());
        [
            ("spec.units", spec.unwrap_or_default()),
            ("status.extensionUnits", status.unwrap_or_default()),
        ]
    }

    /// The purpose. An empty text is an absent purpose, as in Kubernetes.
    pub fn purpose(&self) -> Option<&str> {
        let purpose = self.spec.as_ref().and_then(|spec| spec.purpose.as_deref());
        purpose.filter(|purpose| !purpose.is_empty())
    }
}

/// The elements of lists with the path of each.
pub(super) fn with_paths<'a, T>(
    lists: [(&'static str, &'a [T]); 2],
) -> impl Iterator<Item = (String, &'a T)> {
    lists.into_iter().flat_map(|(list, elements)| {
        let indexed = elements.iter().enumerate();
        indexed.map(move |(index, element)| (format!("{list}[{index}]"), element))
    })
}
