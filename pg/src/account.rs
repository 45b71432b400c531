//! The system user that Postgres runs as: the current user, but never root.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use crate::Error;
use crate::error::path_error;
use crate::runner::look_up_user;

/// A system user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    gid: u32,
    /// Whether this process is root and must switch to this user.
    switch_user: bool,
}

impl Account {
    /// The current user. If that is root: `postgres`, or else `nobody`.
    pub(crate) fn choose() -> Result<Self, Error> {
        let uid = rustix::process::geteuid().as_raw();
        if uid != 0 {
            let line = look_up_user(&uid.to_string())?;
            return line
                .and_then(|line| Self::parse(&line, false))
                .ok_or(Error::UnnamedUser { uid });
        }
        for name in ["postgres", "nobody"] {
            let line = look_up_user(name)?;
            if let Some(account) = line.and_then(|line| Self::parse(&line, true)) {
                return Ok(account);
            }
        }
        Err(Error::NoUser)
    }

    fn parse(line: &str, switch_user: bool) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let _password = fields.next()?;
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Self { name, uid, gid, switch_user })
    }

    /// Options of `setpriv` that make a process run as this user.
    pub(crate) fn privileges(&self) -> Vec<String> {
        if !self.switch_user {
            return Vec::new();
        }
        vec![
            format!("--reuid={}", self.uid),
            format!("--regid={}", self.gid),
            "--init-groups".to_owned(),
            "--inh-caps=-all".to_owned(),
        ]
    }

    /// Makes this user the owner of a folder that this process has just created.
    pub(crate) fn chown_folder(&self, folder: &Path) -> io::Result<()> {
        if !self.switch_user {
            return Ok(());
        }
        chown(folder, Some(self.uid), Some(self.gid))
    }

    /// Fails if the folder belongs to another user.
    pub(crate) fn check_owner(&self, folder: &Path) -> Result<(), Error> {
        let owner = fs::symlink_metadata(folder).map_err(path_error("examine", folder))?.uid();
        if owner == self.uid {
            return Ok(());
        }
        Err(Error::WrongOwner {
            path: folder.to_owned(),
            owner,
            user: self.name.clone(),
            expected: self.uid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_user_database_is_parsed() {
        let line = "postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash";
        let account = Account::parse(line, true).unwrap();
        assert_eq!((account.name.as_str(), account.uid, account.gid), ("postgres", 101, 104));
        assert_eq!(Account::parse("nonsense", true), None);
    }

    #[test]
    fn postgres_never_runs_as_root() {
        let account = Account::choose().unwrap();
        assert_ne!(account.uid, 0);
    }
}
