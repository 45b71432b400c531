//! The index of a layout: which manifest a tag leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::error::{Got, RegistryError, malformed};
use crate::source::{Blob, Repository, Tag};

use super::blob_path;
use super::part::{flush_folder, replace};

/// The name of the index.
pub(crate) const INDEX: &str = "index.json";

/// The name of the file that says that a folder is a layout.
pub(crate) const MARK: &str = "oci-layout";

/// What that file says.
const MARKED: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// The file that is locked while the index is replaced.
const LOCK: &str = ".lock";

/// The largest index.
pub(crate) const LARGEST: u64 = 16 * 1024 * 1024;

/// The most manifests that an index names. It is written as a whole for every tag, so it must not become too long.
pub(crate) const MOST: usize = 20_000;

/// The annotation that holds `repository:tag`.
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// What an index says. What we do not know of it stays as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    schema_version: u32,
    #[serde(default, deserialize_with = "not_too_many")]
    manifests: Vec<Entry>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// One manifest in an index.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// Its form.
    pub media_type: String,
    /// Which one.
    pub digest: Digest,
    /// Its length.
    pub size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Where a tag leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Led {
    /// To which manifest.
    pub digest: Digest,
    /// Its form.
    pub media_type: String,
}

/// Where the tags of each repository lead.
pub(crate) type Tags = BTreeMap<Repository, BTreeMap<Tag, Led>>;

impl Default for Index {
    fn default() -> Self {
        Self {
            schema_version: 2,
            manifests: Vec::new(),
            rest: Map::new(),
        }
    }
}

impl Index {
    /// Opens the index of a folder; none if there is none.
    pub fn open(folder: &Path) -> io::Result<Option<File>> {
        match File::open(folder.join(INDEX)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads an index that is open.
    pub fn read(file: &File) -> io::Result<Got<Self>> {
        let mut content = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut content)?;
        Ok(Self::parse(&content))
    }

    /// Reads what an index says.
    pub fn parse(content: &[u8]) -> Got<Self> {
        if content.len() as u64 > LARGEST {
            return Err(RegistryError::TooLarge { limit: LARGEST });
        }
        let index: Self = serde_json::from_slice(content)
            .map_err(|error| malformed("index", error.to_string()))?;
        if index.schema_version != 2 {
            return Err(malformed("index", "its schemaVersion is not 2"));
        }
        Ok(index)
    }

    /// Every manifest.
    pub fn manifests(&self) -> &[Entry] {
        &self.manifests
    }

    /// Where all tags lead. What others put in without a repository is none; of two of one name the first counts.
    pub fn tags(&self) -> Tags {
        let mut tags = Tags::new();
        for entry in &self.manifests {
            let Some((repository, tag)) = entry.tag() else {
                continue;
            };
            let of_it = tags.entry(repository).or_default();
            of_it.entry(tag).or_insert_with(|| Led {
                digest: entry.digest,
                media_type: entry.media_type.clone(),
            });
        }
        tags
    }

    /// Makes tags lead somewhere. Whether any of them led anywhere else before.
    fn point(&mut self, all: &[Pointer]) -> bool {
        let names = all
            .iter()
            .map(|one| (reference(&one.repository, &one.tag), one));
        let mut new: BTreeMap<String, &Pointer> = names.collect();
        let mut own: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in &self.manifests {
            if let Some(name) = entry.name().filter(|name| new.contains_key(*name)) {
                own.entry(name).or_default().push(entry);
            }
        }
        let led_there: BTreeSet<String> = new
            .iter()
            .filter(|(name, one)| {
                matches!(own.get(name.as_str()).map(Vec::as_slice), Some([only])
                    if only.blob() == one.blob && only.media_type == one.form)
            })
            .map(|(name, _)| name.clone())
            .collect();
        new.retain(|name, _| !led_there.contains(name));
        if new.is_empty() {
            return false;
        }
        let is_other = |entry: &Entry| entry.name().is_none_or(|name| !new.contains_key(name));
        self.manifests.retain(is_other);
        self.manifests
            .extend(new.into_iter().map(|(name, one)| Entry {
                media_type: one.form.clone(),
                digest: one.blob.digest,
                size: one.blob.size,
                annotations: BTreeMap::from([(REFERENCE.to_owned(), name)]),
                rest: Map::new(),
            }));
        self.manifests
            .sort_by_cached_key(|entry| entry.name().map(str::to_owned));
        true
    }
}

/// A tag, and the manifest that it is to lead to.
#[derive(Clone, Debug)]
pub(crate) struct Pointer {
    /// In which repository.
    pub repository: Repository,
    /// The tag.
    pub tag: Tag,
    /// The manifest, which is there.
    pub blob: Blob,
    /// Its form.
    pub form: String,
}

impl Entry {
    /// What lies there.
    pub fn blob(&self) -> Blob {
        Blob {
            digest: self.digest,
            size: self.size,
        }
    }

    /// Its repository and tag.
    fn name(&self) -> Option<&str> {
        self.annotations.get(REFERENCE).map(String::as_str)
    }

    fn tag(&self) -> Option<(Repository, Tag)> {
        let (repository, tag) = self.name()?.rsplit_once(':')?;
        Some((repository.parse().ok()?, tag.parse().ok()?))
    }
}

fn reference(repository: &Repository, tag: &Tag) -> String {
    format!("{repository}:{tag}")
}

/// Reads the manifests of an index, and no more than there may be.
fn not_too_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Entry>, D::Error> {
    struct Manifests;

    impl<'de> Visitor<'de> for Manifests {
        type Value = Vec<Entry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the manifests of an index")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<Entry>, A::Error> {
            let mut taken = Vec::new();
            while let Some(entry) = all.next_element()? {
                if taken.len() == MOST {
                    let why = format!("it names more than {MOST} manifests");
                    return Err(A::Error::custom(why));
                }
                taken.push(entry);
            }
            Ok(taken)
        }
    }

    deserializer.deserialize_seq(Manifests)
}

/// Makes of a folder a layout, if it is none yet.
pub(crate) fn begin(folder: &Path) -> io::Result<()> {
    let shelf = folder.join("blobs").join("sha256");
    let mark = folder.join(MARK);
    if mark.exists() && shelf.is_dir() {
        return Ok(());
    }
    // The layout's own three in any case: whoever made them may have been killed before they were on the disk.
    let made = shelf.ancestors().enumerate();
    let made = made.take_while(|(depth, path)| *depth < 3 || !path.exists());
    let made: Vec<&Path> = made.map(|(_, path)| path).collect();
    let was_there = folder.is_dir();
    fs::create_dir_all(&shelf)?;
    let _lock = lock(folder)?;
    // The mark comes last: where it is, each of the folders has its name on the disk.
    for path in made {
        match flush_folder(path) {
            // Whoever made the folder for us answers for its name; we need not be able to read what it lies in.
            Err(error)
                if was_there
                    && path == folder
                    && error.kind() == io::ErrorKind::PermissionDenied => {}
            flushed => flushed?,
        }
    }
    replace(&mark, MARKED)
}

/// Makes tags lead to manifests that are there: all of them, or none.
pub(crate) fn point(folder: &Path, all: &[Pointer]) -> io::Result<Got<()>> {
    let Some(some) = all.first() else {
        return Ok(Ok(()));
    };
    let _lock = lock(folder)?;
    let mut index = match Index::open(folder)? {
        None => Index::default(),
        Some(file) => match Index::read(&file)? {
            Ok(index) => index,
            Err(error) => return Ok(Err(error)),
        },
    };
    let place = folder.join(INDEX);
    if !index.point(all) {
        // Whoever wrote it may have been killed before it had its name on the disk.
        return flush_folder(&place).map(Ok);
    }
    if index.manifests.len() > MOST {
        let limit = MOST as u64;
        return Ok(Err(RegistryError::TooLarge { limit }));
    }
    let content = serde_json::to_vec_pretty(&index)?;
    if content.len() as u64 > LARGEST {
        return Ok(Err(RegistryError::TooLarge { limit: LARGEST }));
    }
    // What the index names has its name on the disk before, whoever put it there.
    flush_folder(&blob_path(folder, &some.blob.digest))?;
    replace(&place, &content).map(Ok)
}

/// Waits for other processes that replace the index.
fn lock(folder: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(LOCK))?;
    file.lock()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tag that leads to a manifest with this content.
    fn pointer(repository: &str, tag: &str, content: &[u8]) -> Pointer {
        Pointer {
            repository: repository.parse().expect("a name"),
            tag: tag.parse().expect("a tag"),
            blob: Blob::of(content),
            form: "form".to_owned(),
        }
    }

    #[test]
    fn what_others_wrote_into_an_index_stays() {
        let text = r#"{"schemaVersion":2,"annotations":{"a":"b"},"manifests":[{"mediaType":"x","digest":
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0,"platform":{"os":"linux"}}]}"#;
        let mut index = Index::parse(text.as_bytes()).unwrap();
        assert!(index.tags().is_empty());
        let Pointer {
            repository, tag, ..
        } = pointer("a/b", "1.0.0", b"");
        assert!(index.point(&[pointer("a/b", "1.0.0", b"one")]));
        assert!(index.point(&[pointer("a/b", "1.0.0", b"two")]));
        assert!(!index.point(&[pointer("a/b", "1.0.0", b"two")]));
        assert_eq!(index.manifests().len(), 2);
        let led = Led {
            digest: Digest::of(b"two"),
            media_type: "form".to_owned(),
        };
        let of_it = BTreeMap::from([(tag, led)]);
        assert_eq!(index.tags(), Tags::from([(repository, of_it)]));
        let again = serde_json::to_value(&index).unwrap();
        assert_eq!(again["annotations"]["a"], "b");
        assert_eq!(again["manifests"][0]["platform"]["os"], "linux");
    }

    #[test]
    fn an_index_of_another_form_is_refused() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"schemaVersion":1,"manifests":[]}"#,
            "<html>",
        ] {
            assert!(Index::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn an_index_does_not_become_too_long() {
        let entry = |number: usize| {
            format!(
                r#"{{"mediaType":"x","digest":"{}","size":0,"annotations":{{"{REFERENCE}":"a:{number}"}}}}"#,
                Digest::of(b"")
            )
        };
        let with = |count: usize| {
            let entries: Vec<String> = (0..count).map(entry).collect();
            let entries = entries.join(",");
            format!(r#"{{"schemaVersion":2,"manifests":[{entries}]}}"#)
        };
        let error = Index::parse(with(MOST + 1).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("more than 20000"), "{error}");

        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        begin(folder).unwrap();
        let full = with(MOST);
        fs::write(folder.join(INDEX), &full).unwrap();
        let pointed = point(folder, &[pointer("a", "more", b"one")]);
        let limit = MOST as u64;
        assert!(matches!(
            pointed.unwrap(),
            Err(RegistryError::TooLarge { limit: said }) if said == limit
        ));
        assert_eq!(fs::read_to_string(folder.join(INDEX)).unwrap(), full);
    }

    #[test]
    fn no_index_is_written_before_the_folder_of_its_blobs_is_on_the_disk() {
        let place = tempfile::tempdir().unwrap();
        assert!(point(place.path(), &[pointer("a", "main", b"one")]).is_err());
        assert!(!place.path().join(INDEX).exists());
    }

    #[test]
    fn many_tags_are_given_at_once_or_none_of_them() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        begin(folder).unwrap();
        let many = |from: usize, to: usize| {
            let one = |number: usize| pointer("a", &format!("0.0.{number}"), b"one");
            (from..to).map(one).collect::<Vec<Pointer>>()
        };
        point(folder, &many(0, 10)).unwrap().unwrap();
        let read = || Index::parse(&fs::read(folder.join(INDEX)).unwrap()).unwrap();
        assert_eq!(read().manifests().len(), 10);
        point(folder, &many(5, MOST)).unwrap().unwrap();
        assert_eq!(read().manifests().len(), MOST);
        let before = fs::read(folder.join(INDEX)).unwrap();
        let mut more = many(0, 2);
        more.push(pointer("a", "main", b"one"));
        assert!(point(folder, &more).unwrap().is_err());
        assert_eq!(fs::read(folder.join(INDEX)).unwrap(), before);
    }

    /// Whoever may read everything sees no difference.
    #[test]
    fn a_layout_is_made_in_a_folder_that_lies_in_one_that_nobody_may_read() {
        use std::os::unix::fs::PermissionsExt as _;

        let place = tempfile::tempdir().unwrap();
        let closed = place.path().join("closed");
        let folder = closed.join("ours");
        fs::create_dir_all(&folder).unwrap();
        let may = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode));
        may(0o300).unwrap();
        let begun = begin(&folder);
        may(0o700).unwrap();
        begun.unwrap();
        assert!(folder.join(MARK).is_file());
    }

    #[test]
    fn a_layout_is_made_in_folders_that_are_not_there_yet() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("one/two/three");
        for _ in 0..2 {
            begin(&folder).unwrap();
            assert!(folder.join("blobs/sha256").is_dir());
        }
        fs::remove_dir_all(folder.join("blobs")).unwrap();
        begin(&folder).unwrap();
        assert!(folder.join("blobs/sha256").is_dir());
    }
}
