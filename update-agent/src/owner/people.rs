//! Who is logged in. logind writes a file for each session, and those of people are told apart there from those of
//! greeters, of services and of the managers that run for a user who is away; the list that it prints on Debian 12
//! does not tell. utmp is not kept any more on Debian 13.

use std::fs;
use std::path::Path;

/// logind's folder of sessions. Without logind it is not there, and nobody counts as logged in.
pub const SESSIONS: &str = "/run/systemd/sessions";

/// Whether a person has a session that is not being closed.
pub fn are_logged_in(sessions: &Path) -> bool {
    let Ok(folder) = fs::read_dir(sessions) else {
        return false;
    };
    // Beside each session lies a pipe, which would be waited for.
    let files = folder
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    files
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .any(|session| is_of_a_person(&session))
}

fn is_of_a_person(session: &str) -> bool {
    let value = |key: &str| {
        session
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    // Besides `user` there are `user-early`, `user-light` and others.
    value("CLASS").is_some_and(|class| class.starts_with("user"))
        && value("STATE") != Some("closing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn someone(files: &[(&str, &str)]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            folder.path().join("1.ref"),
            rustix::fs::Mode::RUSR,
        )
        .unwrap();
        are_logged_in(folder.path())
    }

    #[test]
    fn a_person_at_a_terminal_or_over_the_network_is_logged_in() {
        let session = "# This is private data. Do not parse.\nUID=1000\nUSER=ada\nACTIVE=1\n\
                       IS_DISPLAY=0\nSTATE=active\nREMOTE=1\nTYPE=tty\nCLASS=user\n";
        assert!(someone(&[("1", session)]));
        assert!(someone(&[("c2", "CLASS=user-early\nSTATE=online\n")]));
    }

    #[test]
    fn greeters_services_and_who_is_leaving_are_not_logged_in() {
        assert!(!someone(&[]));
        assert!(!someone(&[
            ("c1", "STATE=active\nCLASS=greeter\n"),
            ("2", "STATE=active\nCLASS=background\n"),
            ("3", "STATE=active\nCLASS=manager\n"),
            ("4", "STATE=closing\nCLASS=user\n"),
            ("5", ""),
        ]));
        assert!(!are_logged_in(Path::new("/no/such/folder")));
    }
}
