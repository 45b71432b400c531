//! Sources that a wish brings along: a copy of the system's own with them added, used only for that wish.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::durable::{self, FileError};
use crate::place::Place;

/// The folder as seen from inside the managed root.
const FOLDER: &str = "/var/lib/evenkeel-agent/sources";

/// What makes apt use the folder and nothing else.
pub fn options() -> [String; 4] {
    [
        "-o".to_owned(),
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        "-o".to_owned(),
        format!("Dir::Etc::SourceParts={FOLDER}"),
    ]
}

/// Makes the folder anew.
pub fn write(place: &Place, stanzas: &[String]) -> Result<(), FileError> {
    clean(place)?;
    let folder = place.inside(FOLDER);
    // Sources may hold passwords. apt reads them as root.
    durable::make_folder(&folder, 0o700)?;
    for file in of_system(place)? {
        let name = file.file_name().unwrap_or(OsStr::new("sources.list"));
        let content = fs::read(&file).map_err(FileError::while_doing("read", &file))?;
        durable::replace(&folder.join(name), &content, 0o600)?;
    }
    let stanzas: Vec<_> = stanzas.iter().map(|text| text.trim_end()).collect();
    let own = folder.join("evenkeel-wish.sources");
    durable::replace(&own, (stanzas.join("\n\n") + "\n").as_bytes(), 0o600)
}

/// Removes the folder.
pub fn clean(place: &Place) -> Result<(), FileError> {
    let folder = place.inside(FOLDER);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::while_doing("remove", &folder)(error))
        }
        _ => Ok(()),
    }
}

fn of_system(place: &Place) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::new();
    let list = place.inside("/etc/apt/sources.list");
    if list.is_file() {
        files.push(list);
    }
    let parts = place.inside("/etc/apt/sources.list.d");
    let entries = match fs::read_dir(&parts) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
        Err(error) => return Err(FileError::while_doing("read", &parts)(error)),
    };
    for entry in entries {
        let path = entry
            .map_err(FileError::while_doing("read", &parts))?
            .path();
        if is_source(&path) && path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

fn is_source(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "list" || extension == "sources")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_sources_of_a_wish_lie_beside_copies_of_the_systems_own() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        write(&place, &["Types: deb\n".to_owned()]).unwrap();
        let apt = root.path().join("etc/apt/sources.list.d");
        fs::create_dir_all(&apt).unwrap();
        fs::write(root.path().join("etc/apt/sources.list"), "deb x").unwrap();
        fs::write(apt.join("a.sources"), "Types: deb").unwrap();
        fs::write(apt.join("a.sources.bak"), "old").unwrap();

        write(
            &place,
            &[
                "Types: deb\nURIs: a\n".to_owned(),
                "Types: deb\nURIs: b".to_owned(),
            ],
        )
        .unwrap();

        let folder = place.inside(FOLDER);
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["a.sources", "evenkeel-wish.sources", "sources.list"]
        );
        assert_eq!(
            fs::read_to_string(folder.join("evenkeel-wish.sources")).unwrap(),
            "Types: deb\nURIs: a\n\nTypes: deb\nURIs: b\n"
        );
        for entry in fs::read_dir(&folder).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "for its owner only");
        }

        clean(&place).unwrap();
        assert!(!folder.exists());
    }
}
