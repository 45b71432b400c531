//! Determines whether users are logged in, from logind's session files. The class of a session
//! distinguishes people from greeters, services and user managers; `loginctl` on Debian 12 does not
//! show the class, and Debian 13 has no utmp.

use std::fs;
use std::path::Path;

use crate::os;

/// logind's folder of sessions. Without logind it does not exist, and no user counts as logged in.
pub const SESSIONS_FOLDER: &str = "/run/systemd/sessions";

/// Whether a user has a session that is not being closed.
pub fn is_user_logged_in(sessions: &Path) -> bool {
    let Ok(folder) = fs::read_dir(sessions) else {
        return false;
    };
    // There is also a pipe for each session, and reading it would block.
    let files = folder
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    files
        .filter_map(|entry| os::read_lossy(&entry.path()).ok())
        .any(|session| is_user_session(&session))
}

fn is_user_session(session: &str) -> bool {
    let value =
        |key: &str| session.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    // There are also `user-early`, `user-light` and others.
    value("CLASS").is_some_and(|class| class.starts_with("user"))
        && value("STATE") != Some("closing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_logged_in_with(files: &[(&str, &str)]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("1.ref"), rustix::fs::Mode::RUSR)
            .unwrap();
        is_user_logged_in(folder.path())
    }

    #[test]
    fn local_and_remote_users_are_logged_in() {
        let session = "# This is private data. Do not parse.\nUID=1000\nUSER=ada\nACTIVE=1\n\
                       IS_DISPLAY=0\nSTATE=active\nREMOTE=1\nTYPE=tty\nCLASS=user\n";
        assert!(is_logged_in_with(&[("1", session)]));
        assert!(is_logged_in_with(&[("c2", "CLASS=user-early\nSTATE=online\n")]));
    }

    #[test]
    fn a_session_with_a_text_that_is_not_utf8_counts() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("1"), b"DESKTOP=\xff\nSTATE=active\nCLASS=user\n").unwrap();
        assert!(is_user_logged_in(folder.path()));
    }

    #[test]
    fn greeters_services_and_closing_sessions_are_not_logged_in() {
        assert!(!is_logged_in_with(&[]));
        assert!(!is_logged_in_with(&[
            ("c1", "STATE=active\nCLASS=greeter\n"),
            ("2", "STATE=active\nCLASS=background\n"),
            ("3", "STATE=active\nCLASS=manager\n"),
            ("4", "STATE=closing\nCLASS=user\n"),
            ("5", ""),
        ]));
        assert!(!is_user_logged_in(Path::new("/no/such/folder")));
    }
}
