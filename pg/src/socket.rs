//! The folder of the socket. It is the wall around this Postgres: who gets in may connect.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::account::Account;
use crate::error::{on, to};
use crate::runner::Runner;

/// The name of the socket is fixed, and the kernel takes paths of 107 characters.
const LONGEST_FOLDER: usize = 107 - "/.s.PGSQL.5432".len();

/// Makes the socket's folder and answers where it is: below `dir` if that works, else below `/tmp`, where it stays from
/// start to start.
pub(crate) fn folder(dir: &Path, account: &Account, runner: &Runner) -> Result<PathBuf, Error> {
    let beside = dir.join("socket");
    if is_plain(&beside) && runner.can_reach(dir)? {
        if !make(&beside, account)? && !is_ours(&beside, account) {
            account.must_own(&beside)?;
            let closed = fs::Permissions::from_mode(0o700);
            fs::set_permissions(&beside, closed).map_err(on("close", &beside))?;
        }
        return Ok(beside);
    }
    elsewhere(&dir.join("socket-at"), account)
}

/// Where the socket of a Postgres that runs in `dir` is.
pub(crate) fn known(dir: &Path) -> Option<PathBuf> {
    let noted = fs::read_to_string(dir.join("socket-at")).unwrap_or_default();
    [dir.join("socket"), PathBuf::from(noted.trim())]
        .into_iter()
        .find(|folder| folder.join(".s.PGSQL.5432").exists())
}

fn elsewhere(note: &Path, account: &Account) -> Result<PathBuf, Error> {
    let noted = fs::read_to_string(note).unwrap_or_default();
    let noted = PathBuf::from(noted.trim());
    if noted.is_absolute()
        && is_plain(&noted)
        && (is_ours(&noted, account) || make(&noted, account)?)
    {
        return Ok(noted);
    }
    loop {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(to("get random numbers"))?;
        let fresh = format!("/tmp/evenkeel-{:016x}", u64::from_ne_bytes(random));
        let fresh = PathBuf::from(fresh);
        if make(&fresh, account)? {
            let text = fresh.to_string_lossy().into_owned();
            fs::write(note, text).map_err(on("write", note))?;
            return Ok(fresh);
        }
    }
}

/// Makes a folder of mode 0700. False if the name is taken.
fn make(folder: &Path, account: &Account) -> Result<bool, Error> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {
            account.give(folder).map_err(on("give away", folder))?;
            Ok(true)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(on("make", folder)(error)),
    }
}

/// Whether this is a folder, no link, that only the account can enter.
fn is_ours(folder: &Path, account: &Account) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| {
        found.is_dir() && found.uid() == account.uid && found.mode() & 0o7777 == 0o700
    })
}

/// Short enough for the kernel, and without anything that a URL or a list of Postgres would have to quote.
fn is_plain(folder: &Path) -> bool {
    folder.to_str().is_some_and(|text| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        text.len() <= LONGEST_FOLDER && text.bytes().all(plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_or_strange_path_is_not_plain() {
        assert!(is_plain(Path::new("/var/lib/evenkeel/postgres/socket")));
        assert!(!is_plain(Path::new("/home/me/my data/socket")));
        assert!(!is_plain(Path::new("/srv/a,b/socket")));
        assert!(is_plain(Path::new(&format!(
            "/{}",
            "x".repeat(LONGEST_FOLDER - 1)
        ))));
        assert!(!is_plain(Path::new(&format!(
            "/{}",
            "x".repeat(LONGEST_FOLDER)
        ))));
    }

    #[test]
    fn the_folder_elsewhere_stays_the_same_until_somebody_takes_it() {
        let account = Account::choose().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("socket-at");

        let first = elsewhere(&note, &account).unwrap();
        assert_eq!(elsewhere(&note, &account).unwrap(), first);
        fs::remove_dir(&first).unwrap();
        assert_eq!(elsewhere(&note, &account).unwrap(), first);

        fs::remove_dir(&first).unwrap();
        std::os::unix::fs::symlink("/", &first).unwrap();
        let second = elsewhere(&note, &account).unwrap();
        assert_ne!(second, first);

        fs::remove_file(&first).unwrap();
        fs::remove_dir(&second).unwrap();
    }
}
