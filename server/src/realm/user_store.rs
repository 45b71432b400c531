//! File of users, if one is configured: read at startup, and again whenever it changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use evenkeel_auth::{Users, UsersFile};
use figment::Figment;
use figment::providers::{Format, Toml};

use crate::file_state::{FileStamp, ReloadedFile, is_readable_by_others};

/// Users who may log in, loaded from a file.
#[derive(Debug)]
pub(super) struct UserStore {
    path: Option<PathBuf>,
    current: Mutex<LoadedUsers>,
}

#[derive(Debug)]
struct LoadedUsers {
    users: Arc<Users>,
    stamp: Option<FileStamp>,
}

impl UserStore {
    /// Reads the file, which must be valid.
    pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            let users = Arc::new(Users::new(UsersFile::default())?);
            tracing::info!("login with a password is enabled for the users in the database");
            let loaded = LoadedUsers { users, stamp: None };
            return Ok(Self { path: None, current: Mutex::new(loaded) });
        };
        let stamp = FileStamp::read(path);
        let users = read_users(path)?;
        log_rejected(&users);
        tracing::info!(path = %path.display(), users = users.count(), "login with a password is enabled");
        if is_readable_by_others(path) {
            tracing::warn!(path = %path.display(), "{READABLE_BY_OTHERS}");
        }
        let loaded = LoadedUsers { users: Arc::new(users), stamp };
        Ok(Self { path: Some(path.to_owned()), current: Mutex::new(loaded) })
    }

    /// Returns the users of the current file, or the previous users if the file cannot be read.
    /// Blocking: do not call it in an async task.
    pub(super) fn current_users(&self) -> Arc<Users> {
        let mut loaded = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &self.path else {
            return Arc::clone(&loaded.users);
        };
        let stamp = FileStamp::read(path);
        if loaded.stamp != stamp {
            // An unreadable file is not read again before it changes.
            loaded.stamp = stamp;
            match read_users(path) {
                Ok(users) => {
                    log_rejected(&users);
                    tracing::info!(users = users.count(), "the file of users was reloaded");
                    loaded.users = Arc::new(users);
                    ReloadedFile::Users.count(true);
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "the file of users is not usable; the previous users remain valid"
                    );
                    ReloadedFile::Users.count(false);
                }
            }
        }
        Arc::clone(&loaded.users)
    }
}

fn log_rejected(users: &Users) {
    for error in users.rejected() {
        tracing::error!(%error, "a user cannot log in because the entry in the file of users is invalid");
    }
}

/// Reads a file of users.
pub(crate) fn read_users(path: &Path) -> anyhow::Result<Users> {
    let unusable = || format!("the file of users {} is not usable", path.display());
    let file = Figment::from(Toml::file_exact(path)).extract();
    let file: UsersFile =
        file.map_err(|error| without_source_line(&error)).with_context(unusable)?;
    Users::new(file).with_context(unusable)
}

/// Drops the excerpt of the file from the error, because it may contain a password hash. The caller
/// names the file.
fn without_source_line(error: &figment::Error) -> anyhow::Error {
    let kind = error.kind.to_string();
    let first = kind.lines().next().unwrap_or_default();
    let setting = error.path.join(".");
    let message = if setting.is_empty() { first.to_owned() } else { format!("{setting}: {first}") };
    anyhow::Error::msg(message)
}

/// Warning of a file that other users of this machine can read.
pub(crate) const READABLE_BY_OTHERS: &str =
    "all users of this machine can read the password hashes";

#[cfg(test)]
mod tests {
    use std::fs;

    use evenkeel_kit::Secret;

    use super::*;

    fn user(name: &str, hash: &str) -> String {
        format!(
            "[[users]]\nname = '{name}'\npassword_hash = '{hash}'\nroles = ['evenkeel-admin']\n"
        )
    }

    fn hash(password: &str) -> String {
        evenkeel_auth::users::hash_password(&Secret::new(password)).unwrap()
    }

    #[test]
    fn a_changed_file_applies_at_once_and_an_invalid_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        fs::write(&path, user("alice", &hash("one"))).unwrap();
        let people = UserStore::open(Some(&path)).unwrap();
        let may = |name: &str, password: &str| {
            let users = people.current_users();
            users.log_in(name, &Secret::new(password)).is_some()
        };
        assert!(may("alice", "one"));

        fs::write(&path, user("bob", &hash("other phrase"))).unwrap();
        assert!(may("bob", "other phrase") && !may("alice", "one"));

        fs::write(&path, "[[users]]\nname = 5\n").unwrap();
        assert!(may("bob", "other phrase"));
        fs::remove_file(&path).unwrap();
        assert!(may("bob", "other phrase"));
        fs::write(&path, "").unwrap();
        assert!(!may("bob", "other phrase"), "no user is left");
    }

    #[test]
    fn an_invalid_user_does_not_affect_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        let no_roles = "[[users]]\nname = 'carol'\n";
        let text = format!("{}{}{no_roles}", user("alice", "sesame"), user("bob", &hash("one")));
        fs::write(&path, text).unwrap();
        let users = UserStore::open(Some(&path)).unwrap().current_users();
        assert!(users.log_in("bob", &Secret::new("one")).is_some());
        assert!(users.log_in("alice", &Secret::new("sesame")).is_none());
        assert_eq!((users.count(), users.rejected().len()), (1, 2));
    }

    #[test]
    fn an_unusable_file_is_named_at_startup() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        let error = format!("{:#}", UserStore::open(Some(&path)).unwrap_err());
        assert!(error.contains("users.toml"), "{error}");
        for (text, why) in [
            ("[[people]]\nname = 'alice'\n".to_owned(), "people"),
            ("[[users]\n".to_owned(), "users.toml"),
            ("[[users]]\npassword_hash = $argon2id$sesame\n".to_owned(), "line 2"),
        ] {
            fs::write(&path, &text).unwrap();
            let error = format!("{:#}", UserStore::open(Some(&path)).unwrap_err());
            assert!(!error.contains("sesame"), "{error}");
            assert!(error.contains(why) && error.contains("users.toml"), "{error}");
        }
    }
}
