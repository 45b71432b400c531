//! Runs the program on a machine in a temporary folder.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A machine on which systemd does not run, in a temporary folder.
pub struct ImageRoot {
    folder: tempfile::TempDir,
}

impl ImageRoot {
    pub fn new() -> Self {
        let image = Self { folder: tempfile::tempdir().unwrap() };
        // Another user must be able to read it.
        fs::set_permissions(image.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        image.write(
            "var/lib/dpkg/status",
            "Package: zsh\nStatus: install ok installed\nVersion: 5\nArchitecture: amd64\n",
        );
        image.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nbob:x:1001:100::/:/bin/sh\n");
        image.write("etc/group", "root:x:0:\nusers:x:100:\nweb:x:900:\n");
        image
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, path: &str, content: &str) -> PathBuf {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// `configuration` with this root.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program(env!("CARGO_BIN_EXE_evenkeel-agent"));
        command.arg("configuration").args(arguments).arg("--image-root").arg(self.path());
        command
    }

    /// Runs `configuration` with this root.
    pub fn run(&self, arguments: &[&str], input: &[u8]) -> Output {
        run(self.command(arguments), input)
    }
}

/// A program without the environment of the test.
#[expect(clippy::disallowed_methods, reason = "the exit status is that of a process")]
pub fn program(path: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(path);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Runs a program to its end.
pub fn run(mut command: Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The program may end before it has read everything.
    stdin.write_all(input).ok();
    drop(stdin);
    child.wait_with_output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// One bundle with these entries.
pub fn document(entries: &str) -> String {
    format!("bundles: [{{name: web, entries: [{entries}]}}]")
}

/// The paths in a folder, with what a change would change.
pub fn list_tree(folder: &Path, found: &mut Vec<(PathBuf, u64, u32, i64)>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let metadata = entry.metadata().unwrap();
        let changed = metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec();
        found.push((entry.path(), metadata.ino(), metadata.mode(), changed));
        if metadata.is_dir() {
            list_tree(&entry.path(), found);
        }
    }
}
