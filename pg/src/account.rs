//! The user that Postgres runs as: whoever we are, but never root.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use crate::Error;
use crate::error::on;
use crate::runner::look_up_user;

/// A user of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    gid: u32,
    /// Whether we are root and have to become this user.
    become_it: bool,
}

impl Account {
    /// We ourselves; instead of root `postgres`, or else `nobody`.
    pub(crate) fn choose() -> Result<Self, Error> {
        let uid = rustix::process::geteuid().as_raw();
        if uid != 0 {
            let line = look_up_user(&uid.to_string())?;
            return line
                .and_then(|line| Self::parse(&line, false))
                .ok_or(Error::Nameless { uid });
        }
        for name in ["postgres", "nobody"] {
            let line = look_up_user(name)?;
            if let Some(account) = line.and_then(|line| Self::parse(&line, true)) {
                return Ok(account);
            }
        }
        Err(Error::NoUser)
    }

    fn parse(line: &str, become_it: bool) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let _password = fields.next()?;
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Self {
            name,
            uid,
            gid,
            become_it,
        })
    }

    /// The options of `setpriv` that make a process run as this user.
    pub(crate) fn privileges(&self) -> Vec<String> {
        if !self.become_it {
            return Vec::new();
        }
        vec![
            format!("--reuid={}", self.uid),
            format!("--regid={}", self.gid),
            "--init-groups".to_owned(),
            "--inh-caps=-all".to_owned(),
        ]
    }

    /// Gives a folder that we have just made to this user.
    pub(crate) fn give(&self, folder: &Path) -> io::Result<()> {
        if !self.become_it {
            return Ok(());
        }
        chown(folder, Some(self.uid), Some(self.gid))
    }

    /// Refuses a folder that belongs to somebody else.
    pub(crate) fn must_own(&self, folder: &Path) -> Result<(), Error> {
        let owner = fs::symlink_metadata(folder)
            .map_err(on("look at", folder))?
            .uid();
        if owner == self.uid {
            return Ok(());
        }
        Err(Error::WrongOwner {
            path: folder.to_owned(),
            owner,
            user: self.name.clone(),
            wanted: self.uid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_user_database_is_an_account() {
        let line = "postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash";
        let account = Account::parse(line, true).unwrap();
        assert_eq!(
            (account.name.as_str(), account.uid, account.gid),
            ("postgres", 101, 104)
        );
        assert_eq!(Account::parse("nonsense", true), None);
    }

    #[test]
    fn postgres_never_runs_as_root() {
        let account = Account::choose().unwrap();
        assert_ne!(account.uid, 0);
    }
}
