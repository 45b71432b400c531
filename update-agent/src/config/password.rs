//! A password in the configuration file must not be readable by other users.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use figment::Figment;
use figment::providers::{Format, Toml};
use rustix::process::geteuid;

use super::CONFIG_FILE;

/// Fails if `proxy` in the file contains a password and users other than the file's owner can read
/// the file. The error says what to do. Without a file, checks the default one, which may be
/// missing.
pub fn check_password_file(file: Option<&Path>) -> Result<(), String> {
    let file = file.unwrap_or(Path::new(CONFIG_FILE));
    let Ok(metadata) = fs::metadata(file) else {
        return Ok(());
    };
    let shared_bits = metadata.mode() & 0o077;
    if shared_bits == 0 || !has_password(file) {
        return Ok(());
    }
    let file = file.display();
    Err(format!(
        "{file} contains a password in `proxy`, and other users can read it: run `chmod 600 {file}`, and change the password"
    ))
}

/// Removes the access of other users to a file that [`check_password_file`] refuses. Returns whether
/// the file was changed. A file that belongs to another user is left as it is, with the same error.
pub fn restrict_password_file(file: Option<&Path>) -> Result<bool, String> {
    let Err(problem) = check_password_file(file) else { return Ok(false) };
    let restricted = restrict_to_owner(file.unwrap_or(Path::new(CONFIG_FILE)));
    restricted.map(|()| true).map_err(|error| format!("{problem} (the agent cannot: {error})"))
}

fn restrict_to_owner(file: &Path) -> io::Result<()> {
    // The opened file cannot be replaced by another one.
    let file = File::open(file)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it is no regular file of the agent's user"));
    }
    file.set_permissions(Permissions::from_mode(0o600))
}

fn has_password(file: &Path) -> bool {
    let proxy = Figment::from(Toml::file_exact(file)).extract_inner::<String>("proxy");
    proxy.is_ok_and(|address| address.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_password_that_others_can_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let secret = "proxy = \"http://keel:secret@proxy:3128\"\n";
        let cases = [
            (secret, 0o644, false),
            (secret, 0o640, false),
            (secret, 0o600, true),
            ("proxy = \"http://proxy:3128\"\n", 0o644, true),
            ("# proxy = \"http://keel:secret@proxy:3128\"\n", 0o644, true),
            ("proxy =", 0o644, true),
        ];
        for (text, mode, is_valid) in cases {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let result = check_password_file(Some(&file));
            assert_eq!(result.is_ok(), is_valid, "{text} {mode:o}");
            assert!(!result.is_err_and(|error| error.contains("secret")));
        }
        assert_eq!(check_password_file(Some(Path::new("/no/such/file"))), Ok(()));
    }

    #[test]
    fn a_password_that_others_can_read_is_restricted_to_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let secret = "proxy = \"http://keel:secret@proxy:3128\"\n";
        let cases = [
            (secret, 0o644, true, 0o600),
            (secret, 0o640, true, 0o600),
            (secret, 0o400, false, 0o400),
            ("proxy = \"http://proxy:3128\"\n", 0o644, false, 0o644),
        ];
        for (text, mode, is_changed, expected) in cases {
            fs::remove_file(&file).ok();
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert_eq!(restrict_password_file(Some(&file)), Ok(is_changed), "{text} {mode:o}");
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, expected, "{text} {mode:o}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(restrict_password_file(Some(Path::new("/no/such/file"))), Ok(false));
    }

    #[test]
    fn only_a_regular_file_is_restricted() {
        let folder = tempfile::tempdir().unwrap();
        restrict_to_owner(folder.path()).unwrap_err();
    }
}
