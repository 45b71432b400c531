//! The folder of the socket. Its mode protects this Postgres: whoever can enter the folder can connect.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::account::Account;
use crate::error::{path_error, system_error};
use crate::runner::Runner;

/// The file name of the socket is fixed, and the kernel allows paths of 107 characters.
const MAX_FOLDER_BYTES: usize = 107 - "/.s.PGSQL.5432".len();

/// Creates the folder of the socket, and returns its path: below `dir` if possible, otherwise below `/tmp`, where it
/// stays the same for each start.
pub(crate) fn prepare_folder(
    dir: &Path,
    account: &Account,
    runner: &Runner,
) -> Result<PathBuf, Error> {
    let in_directory = dir.join("socket");
    if is_plain(&in_directory) && runner.can_reach(dir)? {
        if !create_private_folder(&in_directory, account)? && !is_ours(&in_directory, account) {
            account.check_owner(&in_directory)?;
            let closed = fs::Permissions::from_mode(0o700);
            fs::set_permissions(&in_directory, closed)
                .map_err(path_error("close", &in_directory))?;
        }
        return Ok(in_directory);
    }
    folder_in_tmp(&dir.join("socket-at"), account)
}

/// The folder of the socket of a Postgres that runs in `dir`.
pub(crate) fn find_folder(dir: &Path) -> Option<PathBuf> {
    let recorded = fs::read_to_string(dir.join("socket-at")).unwrap_or_default();
    [dir.join("socket"), PathBuf::from(recorded.trim())]
        .into_iter()
        .find(|folder| folder.join(".s.PGSQL.5432").exists())
}

fn folder_in_tmp(note: &Path, account: &Account) -> Result<PathBuf, Error> {
    let recorded = fs::read_to_string(note).unwrap_or_default();
    let recorded = PathBuf::from(recorded.trim());
    if recorded.is_absolute()
        && is_plain(&recorded)
        && (is_ours(&recorded, account) || create_private_folder(&recorded, account)?)
    {
        return Ok(recorded);
    }
    loop {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(system_error("get random numbers"))?;
        let fresh = format!("/tmp/evenkeel-{:016x}", u64::from_ne_bytes(random));
        let fresh = PathBuf::from(fresh);
        if create_private_folder(&fresh, account)? {
            let text = fresh.to_string_lossy().into_owned();
            fs::write(note, text).map_err(path_error("write", note))?;
            return Ok(fresh);
        }
    }
}

/// Creates a folder of mode 0700. Returns false if the path exists.
fn create_private_folder(folder: &Path, account: &Account) -> Result<bool, Error> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {
            account.chown_folder(folder).map_err(path_error("change the owner of", folder))?;
            Ok(true)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(path_error("create", folder)(error)),
    }
}

/// Whether this is a real folder, not a link, that only the account can enter.
fn is_ours(folder: &Path, account: &Account) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == account.uid && metadata.mode() & 0o7777 == 0o700
    })
}

/// Whether the path is short enough for the kernel, and needs no quoting in a URL or a Postgres list.
fn is_plain(folder: &Path) -> bool {
    folder.to_str().is_some_and(|text| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        text.len() <= MAX_FOLDER_BYTES && text.bytes().all(plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_or_one_with_special_characters_is_not_plain() {
        assert!(is_plain(Path::new("/var/lib/evenkeel/postgres/socket")));
        assert!(!is_plain(Path::new("/home/me/my data/socket")));
        assert!(!is_plain(Path::new("/srv/a,b/socket")));
        assert!(is_plain(Path::new(&format!("/{}", "x".repeat(MAX_FOLDER_BYTES - 1)))));
        assert!(!is_plain(Path::new(&format!("/{}", "x".repeat(MAX_FOLDER_BYTES)))));
    }

    #[test]
    fn the_folder_in_tmp_stays_until_its_name_is_taken() {
        let account = Account::choose().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("socket-at");

        let first = folder_in_tmp(&note, &account).unwrap();
        assert_eq!(folder_in_tmp(&note, &account).unwrap(), first);
        fs::remove_dir(&first).unwrap();
        assert_eq!(folder_in_tmp(&note, &account).unwrap(), first);

        fs::remove_dir(&first).unwrap();
        std::os::unix::fs::symlink("/", &first).unwrap();
        let second = folder_in_tmp(&note, &account).unwrap();
        assert_ne!(second, first);

        fs::remove_file(&first).unwrap();
        fs::remove_dir(&second).unwrap();
    }
}
