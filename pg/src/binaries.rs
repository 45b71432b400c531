//! Finds the installed Postgres.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// The oldest version that supports the schema.
const MIN_VERSION: u32 = 15;

/// The folder with `initdb` and `postgres`. An existing cluster needs its own version; a new one gets the newest.
pub(crate) fn find_binaries(folder: &Path, data: &Path) -> Result<PathBuf, Error> {
    let made_by = fs::read_to_string(data.join("PG_VERSION"))
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    let mut installed = list_installed(folder);
    installed.sort_by_key(|(version, _)| *version);
    if let Some(version) = made_by {
        let fits = installed.into_iter().find(|(candidate, _)| *candidate == version);
        return fits
            .map(|(_, bin)| bin)
            .ok_or_else(|| Error::OtherVersion { data: data.to_owned(), version });
    }
    let newest = installed.pop().filter(|(version, _)| *version >= MIN_VERSION);
    newest
        .map(|(_, bin)| bin)
        .ok_or_else(|| Error::NoBinaries { searched: folder.to_owned(), oldest: MIN_VERSION })
}

fn list_installed(folder: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let bin = entry.path().join("bin");
            let complete = ["initdb", "postgres"].iter().all(|name| bin.join(name).is_file());
            complete.then_some((version, bin))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(folder: &Path, version: &str) {
        let bin = folder.join(version).join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("initdb"), "").unwrap();
        fs::write(bin.join("postgres"), "").unwrap();
    }

    #[test]
    fn a_new_cluster_uses_the_newest_version() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["9.6", "15", "17", "16"] {
            install(folder.path(), version);
        }
        fs::create_dir_all(folder.path().join("18")).unwrap(); // A version with the client only.
        let bin = find_binaries(folder.path(), Path::new("/nowhere")).unwrap();
        assert_eq!(bin, folder.path().join("17/bin"));
    }

    #[test]
    fn an_existing_cluster_uses_its_own_version() {
        let folder = tempfile::tempdir().unwrap();
        install(folder.path(), "15");
        install(folder.path(), "17");
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("PG_VERSION"), "15\n").unwrap();
        let bin = find_binaries(folder.path(), data.path()).unwrap();
        assert_eq!(bin, folder.path().join("15/bin"));
    }

    #[test]
    fn a_missing_version_names_its_package() {
        let folder = tempfile::tempdir().unwrap();
        install(folder.path(), "17");
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("PG_VERSION"), "15\n").unwrap();
        let error = find_binaries(folder.path(), data.path()).unwrap_err().to_string();
        assert!(error.ends_with("install the Debian package `postgresql-15`"), "{error}");
    }

    #[test]
    fn a_too_old_postgres_names_the_package() {
        let folder = tempfile::tempdir().unwrap();
        install(folder.path(), "14");
        let error = find_binaries(folder.path(), Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("no Postgres 15 or newer"), "{error}");
        assert!(error.contains("install the Debian package `postgresql`"), "{error}");
    }
}
