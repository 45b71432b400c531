//! The index of a layout, which maps tags to manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

use evenkeel_fetch::{Digest, sync_parent_folder, write_atomically};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{RegistryError, RegistryResult, malformed};
use crate::source::{Blob, Repository, Tag};

use super::blob_path;

/// File name of the index.
pub(crate) const INDEX_FILE: &str = "index.json";

/// Name of the file that marks a folder as a layout.
pub(crate) const LAYOUT_FILE: &str = "oci-layout";

/// Content of that file.
const LAYOUT_FILE_CONTENT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// File to lock while the index is replaced.
const LOCK_FILE: &str = ".lock";

/// Largest index, in bytes.
pub(crate) const MAX_INDEX_BYTES: u64 = 16 * 1024 * 1024;

/// Maximum number of manifests in an index. The whole index is rewritten for every tag, so it must
/// stay small.
pub(crate) const MAX_MANIFESTS: usize = 20_000;

/// The annotation that holds `repository:tag`.
const REF_NAME_ANNOTATION: &str = "org.opencontainers.image.ref.name";

/// The content of `index.json`. Unknown fields are preserved.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    schema_version: u32,
    #[serde(default, deserialize_with = "bounded_manifests")]
    manifests: Vec<IndexEntry>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A manifest in an index.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IndexEntry {
    /// Media type of the manifest.
    pub media_type: String,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Size of the manifest in bytes.
    pub size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The manifest that a tag refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TagTarget {
    /// Digest of the manifest.
    pub digest: Digest,
    /// Media type of the manifest.
    pub media_type: String,
}

/// The tags of each repository.
pub(crate) type TagMap = BTreeMap<Repository, BTreeMap<Tag, TagTarget>>;

impl Default for Index {
    fn default() -> Self {
        Self { schema_version: 2, manifests: Vec::new(), rest: Map::new() }
    }
}

impl Index {
    /// Opens the index of a folder; `None` if it does not exist.
    pub fn open(folder: &Path) -> io::Result<Option<File>> {
        match File::open(folder.join(INDEX_FILE)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads an open index.
    pub fn read(file: &File) -> io::Result<RegistryResult<Self>> {
        let mut content = Vec::new();
        file.take(MAX_INDEX_BYTES + 1).read_to_end(&mut content)?;
        Ok(Self::parse(&content))
    }

    /// Parses the content of an index.
    pub fn parse(content: &[u8]) -> RegistryResult<Self> {
        if content.len() as u64 > MAX_INDEX_BYTES {
            return Err(RegistryError::TooLarge { limit: MAX_INDEX_BYTES });
        }
        let index: Self = serde_json::from_slice(content)
            .map_err(|error| malformed("index", error.to_string()))?;
        if index.schema_version != 2 {
            return Err(malformed("index", "its schemaVersion is not 2"));
        }
        Ok(index)
    }

    /// All manifests.
    pub fn manifests(&self) -> &[IndexEntry] {
        &self.manifests
    }

    /// The targets of all tags. Entries without a repository in their name are skipped. If two
    /// entries have the same name, the first one counts.
    pub fn tags(&self) -> TagMap {
        let mut tags = TagMap::new();
        for entry in &self.manifests {
            let Some((repository, tag)) = entry.parse_tag() else {
                continue;
            };
            let of_it = tags.entry(repository).or_default();
            of_it.entry(tag).or_insert_with(|| TagTarget {
                digest: entry.digest,
                media_type: entry.media_type.clone(),
            });
        }
        tags
    }

    /// Sets tags. Returns whether the index changed.
    fn set_tags(&mut self, all: &[TagUpdate]) -> bool {
        let names =
            all.iter().map(|update| (format_ref_name(&update.repository, &update.tag), update));
        let mut new: BTreeMap<String, &TagUpdate> = names.collect();
        let mut own: BTreeMap<&str, Vec<&IndexEntry>> = BTreeMap::new();
        for entry in &self.manifests {
            if let Some(name) = entry.ref_name().filter(|name| new.contains_key(*name)) {
                own.entry(name).or_default().push(entry);
            }
        }
        let led_there: BTreeSet<String> = new
            .iter()
            .filter(|(name, update)| {
                matches!(own.get(name.as_str()).map(Vec::as_slice), Some([only])
                    if only.blob() == update.blob && only.media_type == update.media_type)
            })
            .map(|(name, _)| name.clone())
            .collect();
        new.retain(|name, _| !led_there.contains(name));
        if new.is_empty() {
            return false;
        }
        let is_other =
            |entry: &IndexEntry| entry.ref_name().is_none_or(|name| !new.contains_key(name));
        self.manifests.retain(is_other);
        self.manifests.extend(new.into_iter().map(|(name, update)| IndexEntry {
            media_type: update.media_type.clone(),
            digest: update.blob.digest,
            size: update.blob.size,
            annotations: BTreeMap::from([(REF_NAME_ANNOTATION.to_owned(), name)]),
            rest: Map::new(),
        }));
        self.manifests.sort_by_cached_key(|entry| entry.ref_name().map(str::to_owned));
        true
    }
}

/// A tag and the manifest that it shall refer to.
#[derive(Clone, Debug)]
pub(crate) struct TagUpdate {
    /// Repository of the tag.
    pub repository: Repository,
    /// Name of the tag.
    pub tag: Tag,
    /// The manifest, which exists already.
    pub blob: Blob,
    /// Media type of the manifest.
    pub media_type: String,
}

impl IndexEntry {
    /// Digest and size of the manifest.
    pub fn blob(&self) -> Blob {
        Blob { digest: self.digest, size: self.size }
    }

    /// Name of the form `repository:tag`.
    fn ref_name(&self) -> Option<&str> {
        self.annotations.get(REF_NAME_ANNOTATION).map(String::as_str)
    }

    fn parse_tag(&self) -> Option<(Repository, Tag)> {
        let (repository, tag) = self.ref_name()?.rsplit_once(':')?;
        Some((repository.parse().ok()?, tag.parse().ok()?))
    }
}

fn format_ref_name(repository: &Repository, tag: &Tag) -> String {
    format!("{repository}:{tag}")
}

/// Reads the manifests of an index, up to the maximum.
fn bounded_manifests<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<IndexEntry>, D::Error> {
    struct ManifestsVisitor;

    impl<'de> Visitor<'de> for ManifestsVisitor {
        type Value = Vec<IndexEntry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the manifests of an index")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<IndexEntry>, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = all.next_element()? {
                if entries.len() == MAX_MANIFESTS {
                    let why = format!("it names more than {MAX_MANIFESTS} manifests");
                    return Err(A::Error::custom(why));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    deserializer.deserialize_seq(ManifestsVisitor)
}

/// Turns a folder into a layout unless it is one.
pub(crate) fn create_layout(folder: &Path) -> io::Result<()> {
    let blob_folder = folder.join("blobs").join("sha256");
    let layout_file = folder.join(LAYOUT_FILE);
    if layout_file.exists() && blob_folder.is_dir() {
        return Ok(());
    }
    // Always sync the three folders of the layout: an earlier run may have been killed after
    // creating them.
    let folders = blob_folder.ancestors().enumerate();
    let folders = folders.take_while(|(depth, path)| *depth < 3 || !path.exists());
    let folders: Vec<&Path> = folders.map(|(_, path)| path).collect();
    let was_there = folder.is_dir();
    fs::create_dir_all(&blob_folder)?;
    let _lock = lock_layout(folder)?;
    // The layout file comes last: once it exists, the names of all folders are on the disk.
    for path in folders {
        match sync_parent_folder(path) {
            // If the folder existed before, its own name need not be synced, and its parent may be
            // unreadable.
            Err(error)
                if was_there
                    && path == folder
                    && error.kind() == io::ErrorKind::PermissionDenied => {}
            flushed => flushed?,
        }
    }
    write_atomically(&layout_file, LAYOUT_FILE_CONTENT)
}

/// Sets all tags or none.
pub(crate) fn write_tags(folder: &Path, all: &[TagUpdate]) -> io::Result<RegistryResult<()>> {
    let Some(some) = all.first() else {
        return Ok(Ok(()));
    };
    let _lock = lock_layout(folder)?;
    let mut index = match Index::open(folder)? {
        None => Index::default(),
        Some(file) => match Index::read(&file)? {
            Ok(index) => index,
            Err(error) => return Ok(Err(error)),
        },
    };
    let index_path = folder.join(INDEX_FILE);
    if !index.set_tags(all) {
        // An earlier run may have been killed before the name of the index was synced.
        return sync_parent_folder(&index_path).map(Ok);
    }
    if index.manifests.len() > MAX_MANIFESTS {
        let limit = MAX_MANIFESTS as u64;
        return Ok(Err(RegistryError::TooLarge { limit }));
    }
    let content = serde_json::to_vec_pretty(&index)?;
    if content.len() as u64 > MAX_INDEX_BYTES {
        return Ok(Err(RegistryError::TooLarge { limit: MAX_INDEX_BYTES }));
    }
    // The blobs must be on the disk before the index refers to them, whoever wrote them.
    sync_parent_folder(&blob_path(folder, &some.blob.digest))?;
    write_atomically(&index_path, &content).map(Ok)
}

/// Locks the index. Waits for other processes that replace it.
fn lock_layout(folder: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(LOCK_FILE))?;
    file.lock()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tag that shall refer to a manifest with this content.
    fn tag_update(repository: &str, tag: &str, content: &[u8]) -> TagUpdate {
        TagUpdate {
            repository: repository.parse().expect("a name"),
            tag: tag.parse().expect("a tag"),
            blob: Blob::new(content),
            media_type: "form".to_owned(),
        }
    }

    #[test]
    fn unknown_fields_of_an_index_are_preserved() {
        let text = r#"{"schemaVersion":2,"annotations":{"a":"b"},"manifests":[{"mediaType":"x","digest":
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0,"platform":{"os":"linux"}}]}"#;
        let mut index = Index::parse(text.as_bytes()).unwrap();
        assert!(index.tags().is_empty());
        let TagUpdate { repository, tag, .. } = tag_update("a/b", "1.0.0", b"");
        assert!(index.set_tags(&[tag_update("a/b", "1.0.0", b"one")]));
        assert!(index.set_tags(&[tag_update("a/b", "1.0.0", b"two")]));
        assert!(!index.set_tags(&[tag_update("a/b", "1.0.0", b"two")]));
        assert_eq!(index.manifests().len(), 2);
        let target = TagTarget { digest: Digest::compute(b"two"), media_type: "form".to_owned() };
        let of_it = BTreeMap::from([(tag, target)]);
        assert_eq!(index.tags(), TagMap::from([(repository, of_it)]));
        let again = serde_json::to_value(&index).unwrap();
        assert_eq!(again["annotations"]["a"], "b");
        assert_eq!(again["manifests"][0]["platform"]["os"], "linux");
    }

    #[test]
    fn an_invalid_index_is_refused() {
        for text in ["", "[]", "{}", r#"{"schemaVersion":1,"manifests":[]}"#, "<html>"] {
            assert!(Index::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn an_index_does_not_become_too_long() {
        let entry = |number: usize| {
            format!(
                r#"{{"mediaType":"x","digest":"{}","size":0,"annotations":{{"{REF_NAME_ANNOTATION}":"a:{number}"}}}}"#,
                Digest::compute(b"")
            )
        };
        let with = |count: usize| {
            let entries: Vec<String> = (0..count).map(entry).collect();
            let entries = entries.join(",");
            format!(r#"{{"schemaVersion":2,"manifests":[{entries}]}}"#)
        };
        let error = Index::parse(with(MAX_MANIFESTS + 1).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("more than 20000"), "{error}");

        let temp_dir = tempfile::tempdir().unwrap();
        let folder = temp_dir.path();
        create_layout(folder).unwrap();
        let full = with(MAX_MANIFESTS);
        fs::write(folder.join(INDEX_FILE), &full).unwrap();
        let pointed = write_tags(folder, &[tag_update("a", "more", b"one")]);
        let limit = MAX_MANIFESTS as u64;
        assert!(matches!(
            pointed.unwrap(),
            Err(RegistryError::TooLarge { limit: actual }) if actual == limit
        ));
        assert_eq!(fs::read_to_string(folder.join(INDEX_FILE)).unwrap(), full);
    }

    #[test]
    fn no_index_is_written_before_the_folder_of_its_blobs_is_on_the_disk() {
        let temp_dir = tempfile::tempdir().unwrap();
        assert!(write_tags(temp_dir.path(), &[tag_update("a", "main", b"one")]).is_err());
        assert!(!temp_dir.path().join(INDEX_FILE).exists());
    }

    #[test]
    fn many_tags_are_set_together_or_not_at_all() {
        let temp_dir = tempfile::tempdir().unwrap();
        let folder = temp_dir.path();
        create_layout(folder).unwrap();
        let many = |from: usize, to: usize| {
            let one = |number: usize| tag_update("a", &format!("0.0.{number}"), b"one");
            (from..to).map(one).collect::<Vec<TagUpdate>>()
        };
        write_tags(folder, &many(0, 10)).unwrap().unwrap();
        let read = || Index::parse(&fs::read(folder.join(INDEX_FILE)).unwrap()).unwrap();
        assert_eq!(read().manifests().len(), 10);
        write_tags(folder, &many(5, MAX_MANIFESTS)).unwrap().unwrap();
        assert_eq!(read().manifests().len(), MAX_MANIFESTS);
        let before = fs::read(folder.join(INDEX_FILE)).unwrap();
        let mut more = many(0, 2);
        more.push(tag_update("a", "main", b"one"));
        assert!(write_tags(folder, &more).unwrap().is_err());
        assert_eq!(fs::read(folder.join(INDEX_FILE)).unwrap(), before);
    }

    /// Shows nothing if the user may read every folder, as root may.
    #[test]
    fn a_layout_can_be_created_below_an_unreadable_folder() {
        use std::os::unix::fs::PermissionsExt as _;

        let temp_dir = tempfile::tempdir().unwrap();
        let closed = temp_dir.path().join("closed");
        let folder = closed.join("ours");
        fs::create_dir_all(&folder).unwrap();
        let may = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode));
        may(0o300).unwrap();
        let result = create_layout(&folder);
        may(0o700).unwrap();
        result.unwrap();
        assert!(folder.join(LAYOUT_FILE).is_file());
    }

    #[test]
    fn missing_parent_folders_of_a_layout_are_created() {
        let temp_dir = tempfile::tempdir().unwrap();
        let folder = temp_dir.path().join("one/two/three");
        for _ in 0..2 {
            create_layout(&folder).unwrap();
            assert!(folder.join("blobs/sha256").is_dir());
        }
        fs::remove_dir_all(folder.join("blobs")).unwrap();
        create_layout(&folder).unwrap();
        assert!(folder.join("blobs/sha256").is_dir());
    }
}
