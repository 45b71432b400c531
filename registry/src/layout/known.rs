//! What is known of the index of a layout, so that it is read once and not for every tag.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::index::{INDEX, Index, Tags};
use crate::error::Got;

/// What is known of an index.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Option<Read>>);

/// An index that was read.
#[derive(Debug)]
struct Read {
    /// It is held open: until then no other file gets its number.
    _file: File,
    version: Version,
    tags: Arc<Tags>,
}

/// What tells a file from another one, and from itself before somebody wrote into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    number: u64,
    length: u64,
    written: (i64, i64),
}

impl Version {
    fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            number: file.ino(),
            length: file.len(),
            written: (file.mtime(), file.mtime_nsec()),
        }
    }
}

impl Known {
    /// Where the tags of a layout lead now; none if it has no index.
    pub fn tags(&self, folder: &Path) -> io::Result<Got<Option<Arc<Tags>>>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let there = match fs::metadata(folder.join(INDEX)) {
            Ok(there) => Version::of(&there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(None)),
            Err(error) => return Err(error),
        };
        if let Some(read) = known.as_ref().filter(|read| read.version == there) {
            return Ok(Ok(Some(Arc::clone(&read.tags))));
        }
        let Some(file) = Index::open(folder)? else {
            return Ok(Ok(None));
        };
        let version = Version::of(&file.metadata()?);
        let tags = match Index::read(&file)? {
            Ok(index) => Arc::new(index.tags()),
            Err(error) => return Ok(Err(error)),
        };
        *known = Some(Read {
            _file: file,
            version,
            tags: Arc::clone(&tags),
        });
        Ok(Ok(Some(tags)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::{Pointer, begin, point};
    use super::*;
    use crate::source::{Blob, Tag};

    fn tags(known: &Known, folder: &Path) -> Option<Arc<Tags>> {
        let tags = known.tags(folder).expect("it can be read");
        tags.expect("it is an index")
    }

    fn put(folder: &Path, name: &str) {
        let one = Pointer {
            repository: "a/b".parse().expect("a name"),
            tag: name.parse().expect("a tag"),
            blob: Blob::of(b"one"),
            form: "form".to_owned(),
        };
        let pointed = point(folder, &[one]);
        pointed.expect("it is written").expect("it is an index");
    }

    #[test]
    fn an_index_is_read_once_and_again_when_it_was_replaced() {
        let place = tempfile::tempdir().unwrap();
        let (folder, known) = (place.path(), Known::default());
        assert!(tags(&known, folder).is_none());
        begin(folder).unwrap();
        put(folder, "0.1.0");
        let first = tags(&known, folder).unwrap();
        assert!(Arc::ptr_eq(&first, &tags(&known, folder).unwrap()));
        put(folder, "0.2.0");
        let second = tags(&known, folder).unwrap();
        let names = second.values().flat_map(|of_one| of_one.keys());
        let names: Vec<&str> = names.map(Tag::as_str).collect();
        assert_eq!(names, ["0.1.0", "0.2.0"]);
        // Somebody may write into it without replacing it.
        fs::write(folder.join(INDEX), r#"{"schemaVersion":2}"#).unwrap();
        assert!(tags(&known, folder).unwrap().is_empty());
        fs::remove_file(folder.join(INDEX)).unwrap();
        assert!(tags(&known, folder).is_none());
    }

    #[test]
    fn a_tag_that_leads_there_already_is_not_written_again() {
        let place = tempfile::tempdir().unwrap();
        let (folder, known) = (place.path(), Known::default());
        begin(folder).unwrap();
        put(folder, "0.1.0");
        let first = tags(&known, folder).unwrap();
        put(folder, "0.1.0");
        assert!(Arc::ptr_eq(&first, &tags(&known, folder).unwrap()));
    }
}
