//! Keys of this machine that may sign the package sources of an update policy.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use chrono::{DateTime, Utc};

use super::key_block;
use super::key_expiry;
use super::{check_only_root_writes, check_only_root_writes_in, read_trusted};
use crate::paths::AgentPaths;
use crate::text::format_instant;

/// The folder of the keys, as seen from inside the managed root.
pub const SOURCE_KEYS_FOLDER: &str = "/etc/evenkeel/keys.d";

/// A larger file is not a key.
const MAX_KEY_FILE_BYTES: u64 = 1 << 20;

/// Keys of this machine.
#[derive(Clone, Debug, Default)]
pub struct SourceKeys(Vec<SourceKey>);

/// A key of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceKey {
    /// Its file, as seen from inside the managed root.
    pub file: String,
    /// Its fingerprint, in upper-case hexadecimal.
    pub fingerprint: String,
}

impl SourceKeys {
    /// Reads the files `*.asc` and `*.gpg` of the folder, and the files that the limits name. A
    /// missing folder has no keys. Fails if a file is not a key, if another user can write it, or
    /// if apt's user cannot read it: then none of the keys is trusted.
    pub fn load(paths: &AgentPaths, named_files: &[&str]) -> Result<Self, String> {
        let mut files = list_folder(paths)?;
        add_named_files(&mut files, named_files);
        let mut keys = Vec::new();
        for file in files {
            let own = load_key_file(paths, &file)?.fingerprints.into_iter();
            keys.extend(own.map(|fingerprint| SourceKey { file: file.clone(), fingerprint }));
        }
        Ok(Self(keys))
    }

    /// The keys of a file.
    pub fn in_file(&self, file: &str) -> Vec<&SourceKey> {
        self.0.iter().filter(|key| key.file == file).collect()
    }

    /// The key with a fingerprint.
    pub fn with_fingerprint(&self, fingerprint: &str) -> Option<&SourceKey> {
        self.0.iter().find(|key| key.fingerprint == fingerprint)
    }
}

/// The state of all key files, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceKeyReport {
    /// Number of keys in files that can be trusted.
    pub key_count: usize,
    /// Why files cannot be trusted. If there is a reason, no key is trusted.
    pub faults: Vec<String>,
    /// Expired keys. apt accepts no signature of them.
    pub expired: Vec<String>,
}

impl SourceKeyReport {
    /// Reads the same files as `SourceKeys::load`, and does not stop at the first fault.
    pub fn new(paths: &AgentPaths, named_files: &[&str], now: DateTime<Utc>) -> Self {
        let mut report = Self::default();
        let mut files = list_folder(paths).unwrap_or_else(|fault| {
            report.faults.push(fault);
            Vec::new()
        });
        add_named_files(&mut files, named_files);
        for file in files {
            match load_key_file(paths, &file) {
                Ok(key_file) => {
                    report.key_count += key_file.fingerprints.len();
                    let keys = key_expiry::find_expiring_keys(&key_file.content).into_iter();
                    let expired = keys.filter(|key| key.expires <= now);
                    report.expired.extend(expired.map(|key| {
                        let at = format_instant(Some(key.expires));
                        format!("the key {} in {file} expired at {at}", key.fingerprint)
                    }));
                }
                Err(fault) => report.faults.push(fault),
            }
        }
        report
    }
}

/// A key file that can be trusted.
struct TrustedKeyFile {
    content: Vec<u8>,
    fingerprints: Vec<String>,
}

/// The key files of the folder, or why it cannot be trusted.
fn list_folder(paths: &AgentPaths) -> Result<Vec<String>, String> {
    list_key_files(&paths.inside(SOURCE_KEYS_FOLDER))
        .map_err(|why| format!("the keys in {SOURCE_KEYS_FOLDER} cannot be trusted: {why}"))
}

/// Adds the files that the limits name. A file of the folder may be named as well.
fn add_named_files(files: &mut Vec<String>, named_files: &[&str]) {
    for &file in named_files {
        if !files.iter().any(|listed| listed == file) {
            files.push(file.to_owned());
        }
    }
}

fn load_key_file(paths: &AgentPaths, file: &str) -> Result<TrustedKeyFile, String> {
    read_key_file(&paths.inside(file))
        .map_err(|why| format!("the key file {file} cannot be trusted: {why}"))
}

/// The key files of the folder, as seen from inside the managed root, sorted by name.
fn list_key_files(folder: &Path) -> Result<Vec<String>, String> {
    let error_text = |error: io::Error| error.to_string();
    let metadata = match fs::metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        metadata => metadata.map_err(error_text)?,
    };
    check_only_root_writes(&metadata)?;
    // A user who can write to the parent could replace the folder.
    let above = folder.parent().unwrap_or(Path::new("/"));
    check_only_root_writes_in(above).map_err(|why| format!("{}: {why}", above.display()))?;
    check_apt_reads(&metadata, 0o005, "chmod 755")?;
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(error_text)? {
        let name = entry.map_err(error_text)?.file_name();
        // Other names are copies that an editor or dpkg left, or text for people.
        let extension = Path::new(&name).extension();
        if extension.is_some_and(|extension| extension == "asc" || extension == "gpg") {
            let name = name.to_str().ok_or("the name of a file is not UTF-8")?;
            if name.contains(|c: char| c.is_whitespace() || c == ',') {
                return Err(format!("the file name {name:?} has a blank or a comma"));
            }
            files.push(format!("{SOURCE_KEYS_FOLDER}/{name}"));
        }
    }
    files.sort();
    Ok(files)
}

fn read_key_file(path: &Path) -> Result<TrustedKeyFile, String> {
    let content = read_trusted(path, MAX_KEY_FILE_BYTES)?.ok_or("it does not exist")?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    check_only_root_writes_in(folder).map_err(|why| format!("its folder: {why}"))?;
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    check_apt_reads(&metadata, 0o004, "chmod 644")?;
    // apt decides by the name how it reads the file.
    let is_named_armored = path.extension().is_some_and(|extension| extension == "asc");
    let fingerprints = match (key_block::is_armored(&content), is_named_armored) {
        (true, true) => key_block::armored_fingerprints(&String::from_utf8_lossy(&content)),
        (false, false) => key_block::binary_fingerprints(&content),
        (true, false) => Err("it is armored text, so its name must end with .asc".to_owned()),
        (false, true) => Err("it is not armored text, so its name must end with .gpg".to_owned()),
    };
    Ok(TrustedKeyFile { fingerprints: fingerprints?, content })
}

/// Checks that apt's user `_apt` can read a file or a folder.
fn check_apt_reads(metadata: &Metadata, mode: u32, remedy: &str) -> Result<(), String> {
    if metadata.mode() & mode == mode {
        return Ok(());
    }
    Err(format!("apt's user _apt cannot read it; run `{remedy}` on it"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::owner::key_block::testing::armored_key;
    use crate::owner::key_expiry::testing::{EXPIRED_FINGERPRINT, EXPIRED_KEY};

    impl From<Vec<SourceKey>> for SourceKeys {
        fn from(keys: Vec<SourceKey>) -> Self {
            Self(keys)
        }
    }

    struct Machine {
        root: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            let machine = Self { root: tempfile::tempdir().unwrap() };
            fs::create_dir_all(machine.folder()).unwrap();
            machine.set_mode("", 0o755);
            machine
        }

        fn folder(&self) -> std::path::PathBuf {
            self.root.path().join("etc/evenkeel/keys.d")
        }

        fn write(&self, name: &str, content: &str) {
            fs::write(self.folder().join(name), content).unwrap();
            self.set_mode(name, 0o644);
        }

        fn set_mode(&self, name: &str, mode: u32) {
            let path = self.folder().join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }

        fn load(&self, named_files: &[&str]) -> Result<SourceKeys, String> {
            SourceKeys::load(&AgentPaths::new(self.root.path(), None), named_files)
        }
    }

    #[test]
    fn the_keys_of_the_folder_and_of_named_files_are_loaded() {
        let machine = Machine::new();
        let (text, fingerprint) = armored_key(1);
        machine.write("own.asc", &text);
        machine.write("own.asc.dpkg-old", "nonsense");
        let elsewhere = machine.root.path().join("etc/other.asc");
        let (other, second) = armored_key(2);
        fs::write(&elsewhere, other).unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o644)).unwrap();

        let keys = machine.load(&["/etc/other.asc"]).unwrap();
        let file = |fingerprint: &str| keys.with_fingerprint(fingerprint).unwrap().file.clone();
        assert_eq!(file(&fingerprint), "/etc/evenkeel/keys.d/own.asc");
        assert_eq!(file(&second), "/etc/other.asc");
        assert_eq!(keys.in_file("/etc/other.asc").len(), 1);
        assert!(machine.load(&[]).unwrap().with_fingerprint(&second).is_none());
    }

    #[test]
    fn a_machine_without_the_folder_has_no_keys() {
        let root = tempfile::tempdir().unwrap();
        let keys = SourceKeys::load(&AgentPaths::new(root.path(), None), &[]).unwrap();
        assert!(keys.0.is_empty());
    }

    #[test]
    fn a_file_that_others_can_write_or_apt_cannot_read_is_an_error() {
        type Change = fn(&Machine);
        let (text, _) = armored_key(1);
        let cases: [(&str, Change); 8] = [
            ("users other than root", |m| m.set_mode("own.asc", 0o664)),
            ("users other than root", |m| m.set_mode("", 0o777)),
            ("_apt", |m| m.set_mode("own.asc", 0o600)),
            ("_apt", |m| m.set_mode("", 0o700)),
            ("must end with .gpg", |m| m.write("own.asc", "nonsense")),
            ("must end with .asc", |m| m.write("own.gpg", &armored_key(2).0)),
            ("blank", |m| m.write("my key.asc", "")),
            ("symbolic link", |m| symlink("own.asc", m.folder().join("link.asc")).unwrap()),
        ];
        for (why, change) in cases {
            let machine = Machine::new();
            machine.write("own.asc", &text);
            machine.load(&[]).unwrap();
            change(&machine);
            let error = machine.load(&[]).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn a_report_has_each_fault_once_and_the_expired_keys() {
        let machine = Machine::new();
        let report = |named_files: &[&str]| {
            let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
            let paths = AgentPaths::new(machine.root.path(), None);
            SourceKeyReport::new(&paths, named_files, now)
        };
        assert_eq!(report(&[]), SourceKeyReport::default());
        machine.write("own.asc", &armored_key(1).0);
        machine.write("old.asc", EXPIRED_KEY);
        let file = format!("{SOURCE_KEYS_FOLDER}/old.asc");
        let SourceKeyReport { key_count, faults, expired } = report(&[&file]);
        assert_eq!((key_count, faults), (2, Vec::new()));
        let [expired] = &expired[..] else { panic!("{expired:?}") };
        let expected = format!("the key {EXPIRED_FINGERPRINT} in {file} expired at 2020-12-31");
        assert!(expired.starts_with(&expected), "{expired}");

        machine.write("nonsense.asc", "nonsense");
        machine.set_mode("own.asc", 0o600);
        let nonsense = format!("{SOURCE_KEYS_FOLDER}/nonsense.asc");
        let SourceKeyReport { key_count, faults, expired } =
            report(&[&nonsense, "/etc/absent.asc"]);
        assert_eq!((key_count, expired.len()), (1, 1));
        let expected = ["must end with .gpg", "_apt", "/etc/absent.asc cannot be trusted"];
        assert_eq!(faults.len(), expected.len(), "{faults:?}");
        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.contains(expected), "{expected}: {fault}");
        }

        machine.set_mode("", 0o777);
        let SourceKeyReport { key_count, faults, .. } = report(&[]);
        assert_eq!((key_count, faults.len()), (0, 1), "{faults:?}");
    }
}
