//! Interface and data model of registries.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_fetch::Digest;
use futures_util::Stream;
use serde::{Deserialize, Serialize};

use crate::error::{RegistryError, RegistryResult, malformed};

/// Media type of an OCI manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// Media type of a Docker manifest.
pub const DOCKER_MANIFEST_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Annotation of a layer with the name of its file.
pub const TITLE_ANNOTATION: &str = "org.opencontainers.image.title";

/// Media type of the empty configuration.
const EMPTY_CONFIG_TYPE: &str = "application/vnd.oci.empty.v1+json";

/// The empty configuration.
pub const EMPTY_CONFIG: &[u8] = b"{}";

/// Longest name of a repository, in bytes.
const MAX_REPOSITORY_BYTES: usize = 255;

/// Longest tag, in bytes.
const MAX_TAG_BYTES: usize = 128;

/// Content of a blob or file as a stream of chunks.
pub type BlobStream = Pin<Box<dyn Stream<Item = RegistryResult<Bytes>> + Send>>;

/// Content that can be opened several times, at any offset.
#[async_trait]
pub trait Origin: Send + Sync {
    /// Opens the content at an offset.
    async fn open(&self, from: u64) -> RegistryResult<BlobStream>;
}

#[async_trait]
impl Origin for Bytes {
    async fn open(&self, from: u64) -> RegistryResult<BlobStream> {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.len());
        let rest = self.slice(from..);
        Ok(Box::pin(futures_util::stream::iter([Ok(rest)])))
    }
}

/// A registry: tags, manifests and blobs in repositories.
#[async_trait]
pub trait Registry: Send + Sync + fmt::Debug {
    /// Lists the tags of a repository.
    async fn tags(&self, repository: &Repository) -> RegistryResult<Vec<Tag>>;

    /// Reads a manifest; `None` if it does not exist. Its digest is computed from its content and,
    /// if it was requested by digest, checked.
    async fn manifest(
        &self,
        repository: &Repository,
        at: &ManifestRef,
    ) -> RegistryResult<Option<Manifest>>;

    /// Reads a whole small blob. Its size and its digest are checked.
    async fn blob(&self, repository: &Repository, blob: &Blob, limit: u64)
    -> RegistryResult<Bytes>;

    /// Opens a blob at an offset. Its digest is not checked.
    async fn open_blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        from: u64,
    ) -> RegistryResult<BlobStream>;

    /// Whether a blob exists.
    async fn has_blob(&self, repository: &Repository, digest: &Digest) -> RegistryResult<bool>;

    /// Pushes a blob.
    async fn push_blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        from: &dyn Origin,
    ) -> RegistryResult<()>;

    /// Pushes a manifest, under a tag or by its digest only. The blobs that it names must exist.
    async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> RegistryResult<()>;

    /// Sets tags on existing manifests. Registries that cannot set all at once set them one by one.
    ///
    /// # Errors
    /// The index of the failed tag, unless the error concerns all of them.
    async fn push_tags(
        &self,
        tags: &[TagAssignment],
    ) -> Result<(), (Option<usize>, RegistryError)> {
        for (number, assignment) in tags.iter().enumerate() {
            let failed = |error| (Some(number), error);
            // Read the manifest again instead of holding all in memory. This also ensures that no
            // tag refers to a missing manifest.
            let at = ManifestRef::Digest(assignment.digest);
            let manifest = self.manifest(&assignment.repository, &at).await;
            let manifest = manifest.and_then(|existing| existing.ok_or(RegistryError::NotFound));
            let manifest = manifest.map_err(failed)?;
            self.push_manifest(&assignment.repository, Some(&assignment.tag), &manifest)
                .await
                .map_err(failed)?;
        }
        Ok(())
    }
}

/// A tag and the manifest that it shall refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagAssignment {
    /// Repository of the tag.
    pub repository: Repository,
    /// Name of the tag.
    pub tag: Tag,
    /// Digest of the manifest.
    pub digest: Digest,
}

/// The name of a repository, such as `edge-orch/en/files/os-profile/microvisor-nonrt`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repository(String);

impl Repository {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Repository {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_REPOSITORY_BYTES {
            return Err(malformed("name of the repository", "it is too long"));
        }
        if !text.split('/').all(is_repository_component) {
            return Err(malformed(
                "name of the repository",
                "its parts must be lowercase letters and digits, with `.`, `_` or `-` between them",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text is lowercase letters and digits, with `.`, `_`, `__` or any number of `-` between
/// them.
fn is_repository_component(part: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let ends_well = part.starts_with(is_plain) && part.ends_with(is_plain);
    ends_well
        && part.split(is_plain).all(|between| {
            matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-')
        })
}

/// A tag: a name that can be moved to another manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(String);

impl Tag {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tag {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let starts_well =
            text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
        if starts_well && text.len() <= MAX_TAG_BYTES && text.bytes().all(is_inner) {
            Ok(Self(text.to_owned()))
        } else {
            Err(malformed(
                "tag",
                "it must be letters, digits, `_`, `.` and `-`, and not begin with the last two",
            ))
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reference to a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestRef {
    /// The manifest that has this tag now.
    Tag(Tag),
    /// The manifest with this digest.
    Digest(Digest),
}

impl fmt::Display for ManifestRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => tag.fmt(f),
            Self::Digest(digest) => fmt::Display::fmt(digest, f),
        }
    }
}

/// Digest and size of content in a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blob {
    /// Digest of the content.
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
}

impl Blob {
    /// The blob with this content.
    pub fn new(content: &[u8]) -> Self {
        Self { digest: Digest::compute(content), size: content.len() as u64 }
    }
}

/// A layer of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Content of the layer.
    pub blob: Blob,
    /// Media type of the content.
    pub media_type: String,
    /// Name of the file in the layer.
    pub title: Option<String>,
    /// All annotations, including the title.
    pub annotations: BTreeMap<String, String>,
}

/// A manifest, which describes an artifact and its blobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Digest of `bytes`.
    pub digest: Digest,
    /// The manifest as stored, byte for byte.
    pub bytes: Bytes,
    /// Media type of the manifest.
    pub media_type: String,
    /// Artifact type.
    pub artifact_type: Option<String>,
    /// The configuration. A registry accepts the manifest only if this blob exists too.
    pub config: Option<Blob>,
    /// The layers, in order.
    pub layers: Vec<Layer>,
}

impl Manifest {
    /// Parses a manifest.
    pub fn read(bytes: Bytes, media_type: &str) -> RegistryResult<Self> {
        let written: ManifestJson = serde_json::from_slice(&bytes)
            .map_err(|error| malformed("manifest", error.to_string()))?;
        if written.manifests.is_some() {
            return Err(malformed("manifest", "it is a list of other manifests"));
        }
        if written.schema_version != 2 {
            return Err(malformed("manifest", "its schemaVersion is not 2"));
        }
        // Some servers send `application/json` or nothing. Then use the media type in the manifest.
        let content_type = media_type.split(';').next().unwrap_or_default().trim();
        let media_type = [content_type, written.media_type.as_deref().unwrap_or(MANIFEST_TYPE)]
            .into_iter()
            .find(|kind| matches!(*kind, MANIFEST_TYPE | DOCKER_MANIFEST_TYPE))
            .ok_or_else(|| {
                malformed("manifest", format!("its media type {content_type:?} is not supported"))
            })?
            .to_owned();
        let layers = written.layers.unwrap_or_default();
        let layers: RegistryResult<Vec<Layer>> =
            layers.into_iter().map(DescriptorJson::into_layer).collect();
        Ok(Self {
            digest: Digest::compute(&bytes),
            bytes,
            media_type,
            artifact_type: written.artifact_type.or_else(|| {
                let config = written.config.as_ref()?;
                names_artifact_type(&config.media_type).then(|| config.media_type.clone())
            }),
            config: written.config.map(|config| config.blob()),
            layers: layers?,
        })
    }

    /// Creates the manifest of an artifact of this type. Its configuration is [`EMPTY_CONFIG`].
    pub fn artifact(kind: &str, layers: Vec<Layer>) -> Self {
        let config = Blob::new(EMPTY_CONFIG);
        let layers: Vec<Layer> = layers.into_iter().map(Layer::with_title_annotation).collect();
        let written = ManifestJson {
            schema_version: 2,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            artifact_type: Some(kind.to_owned()),
            config: Some(DescriptorJson {
                media_type: EMPTY_CONFIG_TYPE.to_owned(),
                digest: config.digest,
                size: config.size,
                annotations: None,
            }),
            layers: Some(layers.iter().map(DescriptorJson::from_layer).collect()),
            manifests: None,
        };
        // Serializing strings and numbers cannot fail.
        let bytes = Bytes::from(serde_json::to_vec(&written).unwrap_or_default());
        Self {
            digest: Digest::compute(&bytes),
            bytes,
            media_type: MANIFEST_TYPE.to_owned(),
            artifact_type: Some(kind.to_owned()),
            config: Some(config),
            layers,
        }
    }

    /// All blobs that the manifest names, including its configuration.
    pub fn blobs(&self) -> impl Iterator<Item = Blob> + '_ {
        let layers = self.layers.iter().map(|layer| layer.blob);
        self.config.into_iter().chain(layers)
    }
}

/// Whether the media type of a configuration identifies the type of the artifact.
fn names_artifact_type(config_type: &str) -> bool {
    !matches!(
        config_type,
        "" | EMPTY_CONFIG_TYPE
            | "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json"
            | "application/vnd.unknown.config.v1+json"
    )
}

impl Layer {
    /// A layer with one file.
    pub fn file(blob: Blob, media_type: &str, title: &str) -> Self {
        Self {
            blob,
            media_type: media_type.to_owned(),
            title: Some(title.to_owned()),
            annotations: BTreeMap::new(),
        }
        .with_title_annotation()
    }

    fn with_title_annotation(mut self) -> Self {
        if let Some(title) = &self.title {
            self.annotations.insert(TITLE_ANNOTATION.to_owned(), title.clone());
        }
        self
    }
}

/// A manifest as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestJson {
    schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<DescriptorJson>,
    layers: Option<Vec<DescriptorJson>>,
    #[serde(default, skip_serializing)]
    manifests: Option<serde::de::IgnoredAny>,
}

/// A descriptor in a manifest, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DescriptorJson {
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
}

impl DescriptorJson {
    fn from_layer(layer: &Layer) -> Self {
        Self {
            media_type: layer.media_type.clone(),
            digest: layer.blob.digest,
            size: layer.blob.size,
            annotations: (!layer.annotations.is_empty()).then(|| layer.annotations.clone()),
        }
    }

    const fn blob(&self) -> Blob {
        Blob { digest: self.digest, size: self.size }
    }

    fn into_layer(self) -> RegistryResult<Layer> {
        if i64::try_from(self.size).is_err() {
            return Err(malformed("manifest", "a size in it is too large"));
        }
        let blob = self.blob();
        let annotations = self.annotations.unwrap_or_default();
        Ok(Layer {
            blob,
            media_type: self.media_type,
            title: annotations.get(TITLE_ANNOTATION).cloned(),
            annotations,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_named_as_registries_name_them() {
        for text in [
            "a",
            "edge-orch/en/files/os-profile/microvisor-nonrt",
            "os-profile/ubuntu-22.04-lts-generic-ext/files",
            "a__b/c--d/0.1_2",
        ] {
            assert_eq!(text.parse::<Repository>().unwrap().as_str(), text);
        }
        let long = "a".repeat(256);
        for text in [
            "", "/", "a/", "/a", "a//b", "A", "a b", "..", "a/../b", "-a", "a-", "a___b", "a..b",
            "a%2fb", "a?b", "\u{e9}", &long,
        ] {
            assert!(text.parse::<Repository>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_tag_is_named_as_registries_name_them() {
        for text in ["0.3.1", "main", "v1", "_", "0.8.12-dev"] {
            assert_eq!(text.parse::<Tag>().unwrap().as_str(), text);
        }
        let long = "a".repeat(129);
        for text in ["", ".", "-a", "a/b", "a b", "a:b", "1+meta", "../x", &long] {
            assert!(text.parse::<Tag>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_artifact_is_read_as_it_was_written() {
        let layer = Layer::file(Blob::new(b"name: a"), "application/x-yaml", "a.yaml");
        let written = Manifest::artifact("application/vnd.example", vec![layer]);
        let read = Manifest::read(written.bytes.clone(), MANIFEST_TYPE).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.layers[0].title.as_deref(), Some("a.yaml"));
        assert_eq!(read.blobs().count(), 2);
        let same = Manifest::artifact("application/vnd.example", written.layers.clone());
        assert_eq!(same.digest, written.digest);
    }

    #[test]
    fn the_type_of_the_configuration_is_the_fallback_of_the_artifact_type() {
        let manifest = |config: &str| {
            let config_blob = Blob::new(b"{}");
            let text = format!(
                r#"{{"schemaVersion":2,"config":{{"mediaType":"{config}","digest":"{}","size":2}},"layers":[]}}"#,
                config_blob.digest
            );
            Manifest::read(Bytes::from(text), "application/json").unwrap()
        };
        let kind = manifest("application/vnd.intel.orch.en").artifact_type;
        assert_eq!(kind.as_deref(), Some("application/vnd.intel.orch.en"));
        let kind = manifest("application/vnd.oci.image.config.v1+json").artifact_type;
        assert_eq!(kind, None);
    }

    #[test]
    fn an_invalid_manifest_is_refused() {
        for text in [
            "",
            "<html>",
            "[]",
            "{}",
            r#"{"schemaVersion":1}"#,
            r#"{"schemaVersion":2,"manifests":[]}"#,
            r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json"}"#,
            r#"{"schemaVersion":2,"schemaVersion":2}"#,
            r#"{"schemaVersion":2,"layers":[{"mediaType":"a","digest":"sha256:00","size":1}]}"#,
            r#"{"schemaVersion":2,"layers":[{"mediaType":"a","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":-1}]}"#,
            r#"{"schemaVersion":2,"layers":[{"mediaType":"a","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":18446744073709551615}]}"#,
        ] {
            let read = Manifest::read(Bytes::copy_from_slice(text.as_bytes()), "");
            assert!(read.is_err(), "{text}");
        }
    }
}
