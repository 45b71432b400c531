//! Runs scripts in a folder, which has the paths of a document, the marker, units and systemctl.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use evenkeel_configuration::document::FileState;
use evenkeel_configuration::user_data::MARKER_PATH;

/// Records its arguments. The unit `unknown.service` does not exist, `failing.service` fails.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> "$(dirname "$0")/../calls"
case "$*" in
  *failing.service) exit 1 ;;
  "cat -- unknown.service") exit 1 ;;
esac
"#;

#[derive(Debug)]
pub struct TestMachine {
    root: PathBuf,
}

#[derive(Debug)]
pub struct ScriptResult {
    success: bool,
    error: String,
}

impl ScriptResult {
    pub fn expect_success(self) {
        assert!(self.success, "{}", self.error);
        assert_eq!(self.error, "");
    }

    pub fn expect_failure(self) -> String {
        assert!(!self.success, "the script succeeded");
        self.error
    }
}

impl TestMachine {
    pub fn create(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("user-data").join(name);
        if root.exists() {
            fs::remove_dir_all(&root).unwrap();
        }
        let machine = Self { root };
        machine.write("bin/systemctl", SYSTEMCTL);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(machine.root.join("bin/systemctl"), mode).unwrap();
        machine
    }

    /// A path in the folder.
    pub fn path(&self, path: &str) -> String {
        self.root.join(path).to_str().unwrap().to_owned()
    }

    /// The state of a file with the user and the group of the test.
    pub fn owned_state(&self) -> FileState {
        let metadata = fs::metadata(&self.root).unwrap();
        FileState {
            owner: Some(metadata.uid().to_string()),
            group: Some(metadata.gid().to_string()),
            ..FileState::default()
        }
    }

    /// Checks the syntax of a script and runs it.
    pub fn run(&self, script: &str) -> ScriptResult {
        let script = script
            .replace(MARKER_PATH, &self.path("marker"))
            .replace("/etc/systemd/system", &self.path("units"))
            .replace(" root:root", &format!(" {}", self.account()));
        self.write("script", &script);
        let syntax = std::process::Command::new("bash").arg("-n").arg(self.path("script")).output();
        assert!(syntax.unwrap().status.success(), "{script}");
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.path("bin"));
        let output = std::process::Command::new("bash")
            .arg(self.path("script"))
            .current_dir(&self.root)
            .env_clear()
            .env("PATH", path)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ScriptResult { success: output.status.success(), error }
    }

    fn account(&self) -> String {
        let metadata = fs::metadata(&self.root).unwrap();
        format!("{}:{}", metadata.uid(), metadata.gid())
    }

    pub fn write(&self, path: &str, content: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn link(&self, path: &str, target: &str) {
        symlink(target, self.root.join(path)).unwrap();
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.root.join(path)).unwrap()
    }

    pub fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    pub fn has_marker(&self) -> bool {
        self.exists("marker")
    }

    pub fn remove_marker(&self) {
        fs::remove_file(self.root.join("marker")).unwrap();
    }

    pub fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.root.join(path)).unwrap().mode() & 0o7777
    }

    pub fn target(&self, path: &str) -> String {
        fs::read_link(self.root.join(path)).unwrap().to_str().unwrap().to_owned()
    }

    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The calls of systemctl, one per line.
    pub fn systemctl_calls(&self) -> String {
        String::from_utf8(self.read("calls")).unwrap()
    }
}
