//! Finds the system's Postgres.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// The oldest version that has what the schema needs.
const OLDEST: u32 = 15;

/// The folder with `initdb` and `postgres` for this cluster: the version that made it, or the newest for a new one.
pub(crate) fn find(folder: &Path, data: &Path) -> Result<PathBuf, Error> {
    let made_by = fs::read_to_string(data.join("PG_VERSION"))
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    let mut installed = installed(folder);
    installed.sort_by_key(|(version, _)| *version);
    if let Some(version) = made_by {
        let fits = installed.into_iter().find(|(found, _)| *found == version);
        return fits.map(|(_, bin)| bin).ok_or_else(|| Error::OtherVersion {
            data: data.to_owned(),
            version,
        });
    }
    let newest = installed.pop().filter(|(version, _)| *version >= OLDEST);
    newest.map(|(_, bin)| bin).ok_or_else(|| Error::NoBinaries {
        searched: folder.to_owned(),
        oldest: OLDEST,
    })
}

fn installed(folder: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let bin = entry.path().join("bin");
            let complete = ["initdb", "postgres"]
                .iter()
                .all(|name| bin.join(name).is_file());
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
    fn the_newest_version_is_taken_for_a_new_cluster() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["9.6", "15", "17", "16"] {
            install(folder.path(), version);
        }
        fs::create_dir_all(folder.path().join("18")).unwrap(); // Only the client is installed.
        let bin = find(folder.path(), Path::new("/nowhere")).unwrap();
        assert_eq!(bin, folder.path().join("17/bin"));
    }

    #[test]
    fn the_version_that_made_a_cluster_is_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        install(folder.path(), "15");
        install(folder.path(), "17");
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("PG_VERSION"), "15\n").unwrap();
        let bin = find(folder.path(), data.path()).unwrap();
        assert_eq!(bin, folder.path().join("15/bin"));
    }

    #[test]
    fn a_cluster_of_a_version_that_is_gone_names_the_package() {
        let folder = tempfile::tempdir().unwrap();
        install(folder.path(), "17");
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("PG_VERSION"), "15\n").unwrap();
        let error = find(folder.path(), data.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("install the Debian package `postgresql-15`"),
            "{error}"
        );
    }

    #[test]
    fn without_a_new_enough_postgres_the_package_is_named() {
        let folder = tempfile::tempdir().unwrap();
        install(folder.path(), "14");
        let error = find(folder.path(), Path::new("/nowhere"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no Postgres 15 or newer"), "{error}");
        assert!(
            error.contains("install the Debian package `postgresql`"),
            "{error}"
        );
    }
}
