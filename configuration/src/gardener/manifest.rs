//! The fields of the resource as written. All of them are optional, so that [`super::rules`]
//! reports every missing one.

use crate::document::FileMode;
use crate::yaml::Node;

#[derive(Debug, Default)]
pub(super) struct Manifest {
    pub api_version: Option<String>,
    pub kind: Option<String>,
    /// `metadata.name`.
    pub name: Option<String>,
    pub spec: Option<ManifestSpec>,
    pub status: Option<ManifestStatus>,
}

#[derive(Debug, Default)]
pub(super) struct ManifestSpec {
    pub kind: Option<String>,
    pub purpose: Option<String>,
    pub units: Vec<ManifestUnit>,
    pub files: Vec<ManifestFile>,
    pub cri_config: Option<CriConfig>,
    /// `cri` of releases before the node agent, which has only a name.
    pub old_cri: Option<CriConfig>,
    pub has_os_updates: bool,
    pub has_provider_config: bool,
    /// Releases before the node agent had this field.
    pub has_reload_path: bool,
}

#[derive(Debug, Default)]
pub(super) struct ManifestStatus {
    pub units: Vec<ManifestUnit>,
    pub files: Vec<ManifestFile>,
    pub has_os_updates: bool,
    /// Fields of releases before the node agent: `command`, `units` and `files`.
    pub old_fields: Vec<&'static str>,
}

#[derive(Debug, Default)]
pub(super) struct ManifestUnit {
    pub name: Option<String>,
    pub command: Option<String>,
    pub enable: Option<bool>,
    pub content: Option<String>,
    pub drop_ins: Vec<ManifestDropIn>,
    pub file_paths: Vec<String>,
    /// Releases before `filePaths` had this field.
    pub has_files: bool,
}

#[derive(Debug, Default)]
pub(super) struct ManifestDropIn {
    pub name: Option<String>,
    pub content: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct ManifestFile {
    pub path: Option<String>,
    pub permissions: Option<FileMode>,
    pub content: Option<ManifestContent>,
    pub host_name: Option<String>,
    /// Examples in old pages have an encoding here. Gardener never had the field.
    pub has_encoding: bool,
}

#[derive(Debug, Default)]
pub(super) struct ManifestContent {
    pub inline: Option<InlineContent>,
    pub secret_ref: Option<SecretKeyRef>,
    pub image_ref: Option<ImageRef>,
    pub transmit_unencoded: Option<bool>,
}

#[derive(Debug, Default)]
pub(super) struct InlineContent {
    pub encoding: Option<String>,
    pub data: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct SecretKeyRef {
    pub name: Option<String>,
    pub data_key: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct ImageRef {
    pub image: Option<String>,
    pub file_path_in_image: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct CriConfig {
    pub name: Option<String>,
    pub cgroup_driver: Option<String>,
    pub containerd: Option<ContainerdConfig>,
}

#[derive(Debug, Default)]
pub(super) struct ContainerdConfig {
    pub sandbox_image: Option<String>,
    pub registries: Vec<RegistryConfig>,
    pub plugins: Vec<PluginConfig>,
}

#[derive(Debug, Default)]
pub(super) struct RegistryConfig {
    pub upstream: Option<String>,
    pub server: Option<String>,
    pub hosts: Vec<RegistryHost>,
}

#[derive(Debug, Default)]
pub(super) struct RegistryHost {
    pub url: Option<String>,
    pub capabilities: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct PluginConfig {
    pub op: Option<String>,
    pub path: Vec<String>,
    pub values: Option<Node>,
}

impl Manifest {
    /// The lists of files with their paths.
    pub fn files(&self) -> [(&'static str, &[ManifestFile]); 2] {
        let spec = self.spec.as_ref().map(|spec| spec.files.as_slice());
        let status = self.status.as_ref().map(|status| status.files.as_slice());
        [
            ("spec.files", spec.unwrap_or_default()),
            ("status.extensionFiles", status.unwrap_or_default()),
        ]
    }

    /// The lists of units with their paths.
    pub fn units(&self) -> [(&'static str, &[ManifestUnit]); 2] {
        let spec = self.spec.as_ref().map(|spec| spec.units.as_slice());
        let status = self.status.as_ref().map(|status| status.units.as_slice());
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
