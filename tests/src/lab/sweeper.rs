//! Cleans up when the test program ends, however it ends, because statics are never dropped.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

use super::machine::as_root;

/// Waits for the end of this program, which closes its pipe. Then stops a process, if there is one, and removes a
/// folder.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
cat
if [ -n "$2" ]; then
  kill -TERM "$2"
  left=300
  while kill -0 "$2" && [ $left -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
fi
rm -rf "$1"
"#;

/// A process that cleans up when it is dropped or when this program ends.
#[derive(Debug)]
pub(super) struct Sweeper {
    /// It waits for the end of its standard input.
    _waiting: Child,
}

impl Sweeper {
    /// Starts a sweeper that will stop a process, if there is one, and remove a folder.
    pub(super) fn start(folder: &Path, process: Option<u32>) -> Self {
        let process = process.map_or_else(String::new, |id| id.to_string());
        let waiting = as_root("sh", &[])
            .args(["-c", SCRIPT, "sweeper"])
            .arg(folder)
            .arg(process)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        Self { _waiting: waiting.expect("a sweeper") }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lab::machine::{command, until};

    #[test]
    fn the_process_is_stopped_and_the_folder_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut left = command("sleep").arg("1000").spawn().expect("a process");
        let sweeper = Sweeper::start(folder.path(), Some(left.id()));
        assert!(left.try_wait().expect("a child of ours").is_none());
        drop(sweeper);
        let limit = Duration::from_secs(20);
        until("the process is stopped", limit, || left.try_wait().expect("a child of ours"));
        until("the folder is gone", limit, || (!folder.path().exists()).then_some(()));
    }
}
