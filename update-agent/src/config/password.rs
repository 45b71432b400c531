//! A password in the configuration file must not be readable by other users.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use figment::Figment;
use figment::providers::{Format, Toml};

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

fn has_password(file: &Path) -> bool {
    let proxy = Figment::from(Toml::file_exact(file)).extract_inner::<String>("proxy");
    proxy.is_ok_and(|address| address.contains('@'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
}
