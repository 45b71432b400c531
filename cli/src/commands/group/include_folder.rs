//! Reads files that a file of Bcfg2 includes.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::commands::configuration::source::read_text;

/// The folder of a file. Files outside of it cannot be included, also not by a symbolic link.
#[derive(Debug)]
pub struct IncludeFolder {
    folder: PathBuf,
}

impl IncludeFolder {
    /// The folder in which `file` is.
    pub fn from_file(file: &Path) -> Self {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        Self { folder: folder.unwrap_or(Path::new(".")).to_owned() }
    }

    /// Reads a file. None if there is no such file.
    ///
    /// # Errors
    /// It is outside of the folder, cannot be read, is too large, or is not UTF-8.
    pub fn read_file(&self, path: &Path) -> Result<Option<String>, String> {
        let folder = fs::canonicalize(&self.folder).map_err(|error| error.to_string())?;
        let file = match fs::canonicalize(folder.join(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| error.to_string())?,
        };
        if !file.starts_with(&folder) {
            return Err(format!("it is not in the folder {}", self.folder.display()));
        }
        // A named pipe would block the command.
        if !file.is_file() {
            return Err("it is not a file".to_owned());
        }
        let source = read_text(&file, &mut io::empty());
        source.map(|source| Some(source.text)).map_err(|failure| failure.to_string())
    }
}
