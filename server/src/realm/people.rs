//! The file of users: read at the start, and again when it was changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use evenkeel_auth::{Users, UsersFile};
use figment::Figment;
use figment::providers::{Format, Toml};

/// Everybody who may log in, as a file says.
#[derive(Debug)]
pub(super) struct People {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    users: Arc<Users>,
    stamp: Option<Stamp>,
}

/// What changes with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl People {
    /// Reads the file, which must be usable now.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let stamp = stamp(path);
        let users = read(path)?;
        tracing::info!(path = %path.display(), users = users.count(), "people can log in with a password");
        warn_if_open(path);
        let known = Known {
            users: Arc::new(users),
            stamp,
        };
        Ok(Self {
            path: path.to_owned(),
            known: Mutex::new(known),
        })
    }

    /// Everybody as the file says now; as it said before, if it cannot be read now. Reads a file: not for a task that
    /// others wait for.
    pub(super) fn now(&self) -> Arc<Users> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.path);
        if known.stamp != stamp {
            // Also what cannot be read is not read again before it changes.
            known.stamp = stamp;
            match read(&self.path) {
                Ok(users) => {
                    tracing::info!(users = users.count(), "the file of users was changed");
                    known.users = Arc::new(users);
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "the file of users is not usable; the former one counts"
                    );
                }
            }
        }
        Arc::clone(&known.users)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some(Stamp {
        inode: found.ino(),
        size: found.size(),
        seconds: found.mtime(),
        nanoseconds: found.mtime_nsec(),
    })
}

fn read(path: &Path) -> anyhow::Result<Users> {
    let unusable = || format!("the file of users {} is not usable", path.display());
    let file = Figment::from(Toml::file_exact(path)).extract();
    let file: UsersFile = file
        .map_err(|error| without_the_place(&error))
        .with_context(unusable)?;
    Users::new(file).with_context(unusable)
}

/// What is wrong with the file, without the line of it that would be shown below: there may be a hash in it.
fn without_the_place(error: &figment::Error) -> anyhow::Error {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    anyhow::Error::msg(first.to_owned())
}

/// Says so when others can read the hashes.
fn warn_if_open(path: &Path) {
    if fs::metadata(path).is_ok_and(|found| found.mode() & 0o007 != 0) {
        tracing::warn!(path = %path.display(), "the hashes of passwords can be read by everybody on this machine");
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_kit::Secret;

    use super::*;

    fn user(name: &str, hash: &str) -> String {
        format!(
            "[[users]]\nname = '{name}'\npassword_hash = '{hash}'\nroles = ['evenkeel-admin']\n"
        )
    }

    fn hash(password: &str) -> String {
        evenkeel_auth::users::hash(&Secret::new(password)).unwrap()
    }

    #[test]
    fn a_file_that_is_changed_counts_at_once_and_a_broken_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        fs::write(&path, user("alice", &hash("one"))).unwrap();
        let people = People::open(&path).unwrap();
        let may = |name: &str, password: &str| {
            let users = people.now();
            users.log_in(name, &Secret::new(password)).is_some()
        };
        assert!(may("alice", "one"));

        fs::write(&path, user("bob", &hash("other words"))).unwrap();
        assert!(may("bob", "other words") && !may("alice", "one"));

        fs::write(&path, "[[users]]\nname = 5\n").unwrap();
        assert!(may("bob", "other words"));
        fs::remove_file(&path).unwrap();
        assert!(may("bob", "other words"));
        fs::write(&path, "").unwrap();
        assert!(!may("bob", "other words"), "nobody is left");
    }

    #[test]
    fn a_file_that_is_not_usable_is_named_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        let error = format!("{:#}", People::open(&path).unwrap_err());
        assert!(error.contains("users.toml"), "{error}");
        for (text, why) in [
            (
                user("alice", "open sesame"),
                "user \"alice\": password_hash",
            ),
            (user("alice", "$argon2id$v=19$m=8,t=1,p=1"), "no salt"),
            ("[[users]]\nname = 'alice'\n".to_owned(), "password_hash"),
            ("[[people]]\nname = 'alice'\n".to_owned(), "people"),
            ("[[users]\n".to_owned(), "users.toml"),
            (
                "[[users]]\npassword_hash = $argon2id$sesame\n".to_owned(),
                "line 2",
            ),
        ] {
            fs::write(&path, &text).unwrap();
            let error = format!("{:#}", People::open(&path).unwrap_err());
            assert!(!error.contains("sesame"), "{error}");
            assert!(
                error.contains(why) && error.contains("users.toml"),
                "{error}"
            );
        }
    }
}
