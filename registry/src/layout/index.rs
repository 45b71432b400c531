//! The index of a layout: which manifest a tag leads to.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::error::{Got, RegistryError, malformed};
use crate::source::{Blob, Repository, Tag};

use super::part::replace;

/// The name of the index.
pub(crate) const INDEX: &str = "index.json";

/// The name of the file that says that a folder is a layout.
pub(crate) const MARK: &str = "oci-layout";

/// What that file says.
const MARKED: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// The file that is locked while the index is replaced.
const LOCK: &str = ".lock";

/// The largest index.
pub(crate) const LARGEST: u64 = 64 * 1024 * 1024;

/// The annotation that holds `repository:tag`.
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// What an index says. What we do not know of it stays as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    schema_version: u32,
    #[serde(default)]
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
    /// Reads the index of a folder; none if there is none.
    pub fn read(folder: &Path) -> io::Result<Got<Option<Self>>> {
        let file = match File::open(folder.join(INDEX)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(None)),
            Err(error) => return Err(error),
        };
        let mut content = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut content)?;
        Ok(Self::parse(&content).map(Some))
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

    /// All tags. What others put in without a repository is none.
    pub fn tags(&self) -> Vec<(Repository, Tag)> {
        self.manifests.iter().filter_map(Entry::tag).collect()
    }

    /// Where a tag leads.
    pub fn find(&self, repository: &Repository, tag: &Tag) -> Option<&Entry> {
        let name = reference(repository, tag);
        self.manifests.iter().find(|entry| entry.has(&name))
    }

    fn point(&mut self, repository: &Repository, tag: &Tag, blob: &Blob, form: &str) {
        let name = reference(repository, tag);
        self.manifests.retain(|entry| !entry.has(&name));
        self.manifests.push(Entry {
            media_type: form.to_owned(),
            digest: blob.digest,
            size: blob.size,
            annotations: BTreeMap::from([(REFERENCE.to_owned(), name)]),
            rest: Map::new(),
        });
        let name = |entry: &Entry| entry.annotations.get(REFERENCE).cloned();
        self.manifests.sort_by_cached_key(name);
    }
}

impl Entry {
    /// What lies there.
    pub fn blob(&self) -> Blob {
        Blob {
            digest: self.digest,
            size: self.size,
        }
    }

    fn has(&self, name: &str) -> bool {
        self.annotations.get(REFERENCE).is_some_and(|n| n == name)
    }

    fn tag(&self) -> Option<(Repository, Tag)> {
        let (repository, tag) = self.annotations.get(REFERENCE)?.rsplit_once(':')?;
        Some((repository.parse().ok()?, tag.parse().ok()?))
    }
}

fn reference(repository: &Repository, tag: &Tag) -> String {
    format!("{repository}:{tag}")
}

/// Makes of a folder a layout, if it is none yet.
pub(crate) fn begin(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join("blobs").join("sha256"))?;
    let mark = folder.join(MARK);
    if mark.exists() {
        return Ok(());
    }
    let _lock = lock(folder)?;
    replace(&mark, MARKED)
}

/// Makes a tag lead to a manifest that is there.
pub(crate) fn point(
    folder: &Path,
    (repository, tag): (&Repository, &Tag),
    blob: &Blob,
    form: &str,
) -> io::Result<Got<()>> {
    let _lock = lock(folder)?;
    let mut index = match Index::read(folder)? {
        Ok(index) => index.unwrap_or_default(),
        Err(error) => return Ok(Err(error)),
    };
    index.point(repository, tag, blob, form);
    let content = serde_json::to_vec_pretty(&index)?;
    if content.len() as u64 > LARGEST {
        return Ok(Err(RegistryError::TooLarge { limit: LARGEST }));
    }
    replace(&folder.join(INDEX), &content).map(Ok)
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

    #[test]
    fn what_others_wrote_into_an_index_stays() {
        let text = r#"{"schemaVersion":2,"annotations":{"a":"b"},"manifests":[{"mediaType":"x","digest":
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0,"platform":{"os":"linux"}}]}"#;
        let mut index = Index::parse(text.as_bytes()).unwrap();
        assert!(index.tags().is_empty());
        let (repository, tag) = ("a/b".parse().unwrap(), "1.0.0".parse().unwrap());
        index.point(&repository, &tag, &Blob::of(b"one"), "form");
        index.point(&repository, &tag, &Blob::of(b"two"), "form");
        assert_eq!(index.manifests().len(), 2);
        let found = index.find(&repository, &tag).unwrap();
        assert_eq!(found.blob(), Blob::of(b"two"));
        assert_eq!(index.tags(), [(repository, tag)]);
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
}
