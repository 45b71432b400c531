//! Cache of the index of a layout, so it is not read for every tag.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::index::{INDEX_FILE, Index, TagMap};
use crate::error::RegistryResult;

/// Cache of the index of a layout.
#[derive(Debug, Default)]
pub(crate) struct IndexCache(Mutex<Option<CachedIndex>>);

/// An index as last read.
#[derive(Debug)]
struct CachedIndex {
    /// Stays open so the kernel does not reuse its inode number for another file.
    _file: File,
    version: FileVersion,
    tags: Arc<TagMap>,
}

/// Identifies a file and its content, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl FileVersion {
    fn from_metadata(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }
}

impl IndexCache {
    /// The current targets of all tags; `None` if the layout has no index.
    pub fn tags(&self, folder: &Path) -> io::Result<RegistryResult<Option<Arc<TagMap>>>> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let current = match fs::metadata(folder.join(INDEX_FILE)) {
            Ok(metadata) => FileVersion::from_metadata(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(None)),
            Err(error) => return Err(error),
        };
        if let Some(read) = cached.as_ref().filter(|read| read.version == current) {
            return Ok(Ok(Some(Arc::clone(&read.tags))));
        }
        let Some(file) = Index::open(folder)? else {
            return Ok(Ok(None));
        };
        let version = FileVersion::from_metadata(&file.metadata()?);
        let tags = match Index::read(&file)? {
            Ok(index) => Arc::new(index.tags()),
            Err(error) => return Ok(Err(error)),
        };
        *cached = Some(CachedIndex { _file: file, version, tags: Arc::clone(&tags) });
        Ok(Ok(Some(tags)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::{TagUpdate, create_layout, write_tags};
    use super::*;
    use crate::source::{Blob, Tag};

    fn tags(cache: &IndexCache, folder: &Path) -> Option<Arc<TagMap>> {
        let tags = cache.tags(folder).expect("the index can be read");
        tags.expect("the index is valid")
    }

    fn write_tag(folder: &Path, name: &str) {
        let update = TagUpdate {
            repository: "a/b".parse().expect("a name"),
            tag: name.parse().expect("a tag"),
            blob: Blob::new(b"one"),
            media_type: "form".to_owned(),
        };
        let pointed = write_tags(folder, &[update]);
        pointed.expect("the index is written").expect("the index is valid");
    }

    #[test]
    fn an_index_is_read_once_and_again_after_a_change() {
        let temp_dir = tempfile::tempdir().unwrap();
        let (folder, cache) = (temp_dir.path(), IndexCache::default());
        assert!(tags(&cache, folder).is_none());
        create_layout(folder).unwrap();
        write_tag(folder, "0.1.0");
        let first = tags(&cache, folder).unwrap();
        assert!(Arc::ptr_eq(&first, &tags(&cache, folder).unwrap()));
        write_tag(folder, "0.2.0");
        let second = tags(&cache, folder).unwrap();
        let names = second.values().flat_map(|of_one| of_one.keys());
        let names: Vec<&str> = names.map(Tag::as_str).collect();
        assert_eq!(names, ["0.1.0", "0.2.0"]);
        // A writer may change the file in place instead of replacing it.
        fs::write(folder.join(INDEX_FILE), r#"{"schemaVersion":2}"#).unwrap();
        assert!(tags(&cache, folder).unwrap().is_empty());
        fs::remove_file(folder.join(INDEX_FILE)).unwrap();
        assert!(tags(&cache, folder).is_none());
    }

    #[test]
    fn an_unchanged_tag_is_not_written_again() {
        let temp_dir = tempfile::tempdir().unwrap();
        let (folder, cache) = (temp_dir.path(), IndexCache::default());
        create_layout(folder).unwrap();
        write_tag(folder, "0.1.0");
        let first = tags(&cache, folder).unwrap();
        write_tag(folder, "0.1.0");
        assert!(Arc::ptr_eq(&first, &tags(&cache, folder).unwrap()));
    }
}
