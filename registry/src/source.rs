//! What all registries can be asked, and what they have.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Got, RegistryError, malformed};

/// The form of a manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// The form of a manifest as Docker writes it.
pub const DOCKER_MANIFEST_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The annotation of a layer that holds the name of its file.
pub const TITLE: &str = "org.opencontainers.image.title";

/// The form of a configuration that says nothing.
const EMPTY_CONFIG_TYPE: &str = "application/vnd.oci.empty.v1+json";

/// A configuration that says nothing.
pub const EMPTY_CONFIG: &[u8] = b"{}";

/// The longest name of a repository.
const LONGEST_REPOSITORY: usize = 255;

/// The longest tag.
const LONGEST_TAG: usize = 128;

/// A content as it comes, piece by piece.
pub type Body = Pin<Box<dyn Stream<Item = Got<Bytes>> + Send>>;

/// Where a content can be had, more than once and from any place.
#[async_trait]
pub trait Origin: Send + Sync {
    /// The content from a byte on.
    async fn open(&self, from: u64) -> Got<Body>;
}

#[async_trait]
impl Origin for Bytes {
    async fn open(&self, from: u64) -> Got<Body> {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.len());
        let rest = self.slice(from..);
        Ok(Box::pin(futures_util::stream::iter([Ok(rest)])))
    }
}

/// A registry: whatever has tags, manifests and blobs.
#[async_trait]
pub trait Registry: Send + Sync + fmt::Debug {
    /// The tags of a repository.
    async fn tags(&self, repository: &Repository) -> Got<Vec<Tag>>;

    /// A manifest, or none if there is no such. Its digest is that of its content; asked for by digest, it is that one.
    async fn manifest(&self, repository: &Repository, at: &At) -> Got<Option<Manifest>>;

    /// The whole of a small blob. Its size and its digest are checked.
    async fn small(&self, repository: &Repository, blob: &Blob, limit: u64) -> Got<Bytes>;

    /// A blob from a byte on. Its digest is not checked.
    async fn open(&self, repository: &Repository, blob: &Blob, from: u64) -> Got<Body>;

    /// Whether a blob is there.
    async fn has(&self, repository: &Repository, digest: &Digest) -> Got<bool>;

    /// Puts a blob in.
    async fn push_blob(&self, repository: &Repository, blob: &Blob, from: &dyn Origin) -> Got<()>;

    /// Puts a manifest in, under a tag or by its digest alone. What it names must be there.
    async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> Got<()>;

    /// Lets tags lead to manifests that are there already, one after the other where they cannot be given at once.
    ///
    /// # Errors
    /// With the number of the tag that it is about, unless it is about all of them.
    async fn give(&self, tags: &[Tagged]) -> Result<(), (Option<usize>, RegistryError)> {
        for (number, one) in tags.iter().enumerate() {
            let failed = |error| (Some(number), error);
            // It is read once more, so the manifests of many are not in memory together, and no tag leads to what did not
            // arrive.
            let at = At::Digest(one.digest);
            let manifest = self.manifest(&one.repository, &at).await;
            let manifest = manifest.and_then(|found| found.ok_or(RegistryError::NotThere));
            let manifest = manifest.map_err(failed)?;
            self.push_manifest(&one.repository, Some(&one.tag), &manifest)
                .await
                .map_err(failed)?;
        }
        Ok(())
    }
}

/// A tag, and where it is to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// In which repository.
    pub repository: Repository,
    /// The tag.
    pub tag: Tag,
    /// To which manifest.
    pub digest: Digest,
}

/// The name of a repository, such as `edge-orch/en/files/os-profile/microvisor-nonrt`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repository(String);

impl Repository {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Repository {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > LONGEST_REPOSITORY {
            return Err(malformed("name of the repository", "it is too long"));
        }
        if !text.split('/').all(is_part_of_repository) {
            return Err(malformed(
                "name of the repository",
                "its parts must be small letters and digits, with `.`, `_` or `-` between them",
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

/// Whether a text is small letters and digits, with `.`, `_`, `__` or any number of `-` between them.
fn is_part_of_repository(part: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let ends_well = part.starts_with(is_plain) && part.ends_with(is_plain);
    ends_well
        && part.split(is_plain).all(|between| {
            matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-')
        })
}

/// A tag: a name that may be given to another manifest later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(String);

impl Tag {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tag {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let starts_well = text
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
        if starts_well && text.len() <= LONGEST_TAG && text.bytes().all(is_inner) {
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

/// Which manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The one that has a tag now.
    Tag(Tag),
    /// That very one.
    Digest(Digest),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => tag.fmt(f),
            Self::Digest(digest) => fmt::Display::fmt(digest, f),
        }
    }
}

/// A content in a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blob {
    /// What it is.
    pub digest: Digest,
    /// How many bytes it has.
    pub size: u64,
}

impl Blob {
    /// The blob that a content makes.
    pub fn of(content: &[u8]) -> Self {
        Self {
            digest: Digest::of(content),
            size: content.len() as u64,
        }
    }
}

/// One of the contents of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The content.
    pub blob: Blob,
    /// Its form.
    pub media_type: String,
    /// The name of its file.
    pub title: Option<String>,
    /// What else is said of it, the title as well.
    pub annotations: BTreeMap<String, String>,
}

/// What belongs together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The digest of `bytes`.
    pub digest: Digest,
    /// As it was written.
    pub bytes: Bytes,
    /// Its form.
    pub media_type: String,
    /// What kind of thing it describes.
    pub artifact_type: Option<String>,
    /// Its configuration. A registry takes a manifest only when this is there too.
    pub config: Option<Blob>,
    /// Its contents.
    pub layers: Vec<Layer>,
}

impl Manifest {
    /// Reads a manifest.
    pub fn read(bytes: Bytes, media_type: &str) -> Got<Self> {
        let written: WrittenManifest = serde_json::from_slice(&bytes)
            .map_err(|error| malformed("manifest", error.to_string()))?;
        if written.manifests.is_some() {
            return Err(malformed("manifest", "it is a list of other manifests"));
        }
        if written.schema_version != 2 {
            return Err(malformed("manifest", "its schemaVersion is not 2"));
        }
        // Some servers say `application/json` or nothing; then what the manifest says of itself counts.
        let said = media_type.split(';').next().unwrap_or_default().trim();
        let media_type = [said, written.media_type.as_deref().unwrap_or(MANIFEST_TYPE)]
            .into_iter()
            .find(|kind| matches!(*kind, MANIFEST_TYPE | DOCKER_MANIFEST_TYPE))
            .ok_or_else(|| malformed("manifest", format!("{said:?} is not its form")))?
            .to_owned();
        let layers = written.layers.unwrap_or_default();
        let layers: Got<Vec<Layer>> = layers.into_iter().map(WrittenBlob::into_layer).collect();
        Ok(Self {
            digest: Digest::of(&bytes),
            bytes,
            media_type,
            artifact_type: written.artifact_type.or_else(|| {
                let config = written.config.as_ref()?;
                is_telling(&config.media_type).then(|| config.media_type.clone())
            }),
            config: written.config.map(|config| config.blob()),
            layers: layers?,
        })
    }

    /// Writes the manifest of an artefact of a kind. Its configuration is [`EMPTY_CONFIG`].
    pub fn artifact(kind: &str, layers: Vec<Layer>) -> Self {
        let config = Blob::of(EMPTY_CONFIG);
        let layers: Vec<Layer> = layers.into_iter().map(Layer::with_title_noted).collect();
        let written = WrittenManifest {
            schema_version: 2,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            artifact_type: Some(kind.to_owned()),
            config: Some(WrittenBlob {
                media_type: EMPTY_CONFIG_TYPE.to_owned(),
                digest: config.digest,
                size: config.size,
                annotations: None,
            }),
            layers: Some(layers.iter().map(WrittenBlob::of).collect()),
            manifests: None,
        };
        // Texts and numbers can always be written.
        let bytes = Bytes::from(serde_json::to_vec(&written).unwrap_or_default());
        Self {
            digest: Digest::of(&bytes),
            bytes,
            media_type: MANIFEST_TYPE.to_owned(),
            artifact_type: Some(kind.to_owned()),
            config: Some(config),
            layers,
        }
    }

    /// All contents that it names, its configuration as well.
    pub fn blobs(&self) -> impl Iterator<Item = Blob> + '_ {
        let layers = self.layers.iter().map(|layer| layer.blob);
        self.config.into_iter().chain(layers)
    }
}

/// Whether the form of a configuration says what kind of artefact it belongs to.
fn is_telling(config_type: &str) -> bool {
    !matches!(
        config_type,
        "" | EMPTY_CONFIG_TYPE
            | "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json"
            | "application/vnd.unknown.config.v1+json"
    )
}

impl Layer {
    /// A layer that is a file.
    pub fn file(blob: Blob, media_type: &str, title: &str) -> Self {
        Self {
            blob,
            media_type: media_type.to_owned(),
            title: Some(title.to_owned()),
            annotations: BTreeMap::new(),
        }
        .with_title_noted()
    }

    fn with_title_noted(mut self) -> Self {
        if let Some(title) = &self.title {
            self.annotations.insert(TITLE.to_owned(), title.clone());
        }
        self
    }
}

/// A manifest as it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenManifest {
    schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<WrittenBlob>,
    layers: Option<Vec<WrittenBlob>>,
    #[serde(default, skip_serializing)]
    manifests: Option<serde::de::IgnoredAny>,
}

/// A content as a manifest names it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenBlob {
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
}

impl WrittenBlob {
    fn of(layer: &Layer) -> Self {
        Self {
            media_type: layer.media_type.clone(),
            digest: layer.blob.digest,
            size: layer.blob.size,
            annotations: (!layer.annotations.is_empty()).then(|| layer.annotations.clone()),
        }
    }

    const fn blob(&self) -> Blob {
        Blob {
            digest: self.digest,
            size: self.size,
        }
    }

    fn into_layer(self) -> Got<Layer> {
        if i64::try_from(self.size).is_err() {
            return Err(malformed("manifest", "a size in it is too large"));
        }
        let blob = self.blob();
        let annotations = self.annotations.unwrap_or_default();
        Ok(Layer {
            blob,
            media_type: self.media_type,
            title: annotations.get(TITLE).cloned(),
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
    fn an_artefact_is_read_as_it_was_written() {
        let layer = Layer::file(Blob::of(b"name: a"), "application/x-yaml", "a.yaml");
        let written = Manifest::artifact("application/vnd.example", vec![layer]);
        let read = Manifest::read(written.bytes.clone(), MANIFEST_TYPE).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.layers[0].title.as_deref(), Some("a.yaml"));
        assert_eq!(read.blobs().count(), 2);
        let same = Manifest::artifact("application/vnd.example", written.layers.clone());
        assert_eq!(same.digest, written.digest);
    }

    #[test]
    fn the_configuration_says_the_kind_where_nothing_else_does() {
        let manifest = |config: &str| {
            let config_blob = Blob::of(b"{}");
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
    fn what_is_no_manifest_is_refused() {
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
