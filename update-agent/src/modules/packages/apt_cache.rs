//! Packages that apt has downloaded into its own cache, for example ahead of an update by `apt-daily`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::files::Deb;
use super::staging::{copy, open_regular};
use crate::durable::FileError;
use crate::paths::AgentPaths;

/// The folder, as a path inside the managed root.
const APT_CACHE_FOLDER: &str = "/var/cache/apt/archives";

/// The folder.
#[derive(Debug)]
pub struct AptCache {
    folder: PathBuf,
}

impl AptCache {
    /// The cache of the managed root.
    pub fn new(paths: &AgentPaths) -> Self {
        Self { folder: paths.inside(APT_CACHE_FOLDER) }
    }

    /// Names of the files that the cache has with the expected size. Their content is not checked.
    pub fn find_files(&self, debs: &[Deb]) -> BTreeSet<String> {
        let is_there = |deb: &&Deb| {
            let opened = open_regular(&self.folder.join(&deb.name));
            matches!(opened, Ok(Some((_, size))) if size == deb.size)
        };
        debs.iter().filter(is_there).map(|deb| deb.name.clone()).collect()
    }

    /// Copies the files that the cache has with the expected size into another folder, as files of root. The caller must
    /// check the copies: other programs can change the cache, so a check of the original would prove nothing. A file that
    /// cannot be opened counts as missing.
    pub fn copy_files(&self, debs: &[&Deb], target: &Path) -> Result<(), FileError> {
        for deb in debs {
            match open_regular(&self.folder.join(&deb.name)) {
                Ok(Some((file, size))) if size == deb.size => {
                    let path = target.join(&deb.name);
                    copy(file, deb.size, &path).map_err(FileError::while_doing("write", &path))?;
                    tracing::debug!(file = deb.name, "copied from the cache of apt");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, file = deb.name, "cannot read the cache of apt");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::modules::packages::files::deb_of_five_bytes;

    #[test]
    fn only_regular_files_of_the_expected_size_are_copied() {
        let root = tempfile::tempdir().unwrap();
        let cache = AptCache::new(&AgentPaths::new(root.path(), None));
        let debs = ["whole", "short", "link", "folder", "none"].map(deb_of_five_bytes);
        assert!(cache.find_files(&debs).is_empty(), "there is no cache");
        fs::create_dir_all(cache.folder.join("folder")).unwrap();
        fs::write(cache.folder.join("whole"), "hello").unwrap();
        fs::write(cache.folder.join("short"), "hel").unwrap();
        symlink(cache.folder.join("whole"), cache.folder.join("link")).unwrap();

        assert_eq!(cache.find_files(&debs), ["whole".to_owned()].into());
        let target = root.path().join("target");
        fs::create_dir(&target).unwrap();
        let debs: Vec<&Deb> = debs.iter().collect();
        cache.copy_files(&debs, &target).unwrap();
        let names: Vec<_> =
            fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["whole"]);
        // It is a copy and not a link: a later change of the cache does not change it.
        fs::write(cache.folder.join("whole"), "other").unwrap();
        assert_eq!(fs::read_to_string(target.join("whole")).unwrap(), "hello");
    }
}
