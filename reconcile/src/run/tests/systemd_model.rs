//! A model of systemd: units are files of a test machine, and links enable them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const UNITS: &str = "etc/systemd/system";
const VENDOR_UNITS: &str = "usr/lib/systemd/system";
const WANTS: &str = "etc/systemd/system/multi-user.target.wants";

/// The state of systemd that is not on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SystemdModel {
    /// Units that run, with the files that they have read when they started.
    pub active: BTreeMap<String, Vec<String>>,
    pub failed: BTreeSet<String>,
    /// Contents of unit files and drop-ins when systemd has read them.
    loaded: BTreeMap<String, Vec<String>>,
    /// Units that fail to start.
    pub broken: BTreeSet<String>,
    /// Files that units read when they start.
    pub files_of_units: BTreeMap<String, Vec<String>>,
}

impl SystemdModel {
    /// Runs systemctl. Returns the exit status and the output, or what it prints as an error.
    pub fn run(&mut self, root: &Path, arguments: &[&str]) -> (i32, String) {
        let words: Vec<&str> =
            arguments.iter().copied().filter(|word| !word.starts_with("--")).collect();
        let (verb, units) = words.split_first().unwrap();
        match *verb {
            "show" => (0, self.show(root, units)),
            "daemon-reload" => {
                self.reload(root);
                (0, String::new())
            }
            "is-enabled" => {
                let is_enabled = is_enabled(root, units[0]);
                (i32::from(!is_enabled), if is_enabled { "enabled\n" } else { "disabled\n" }.into())
            }
            "is-active" => {
                let is_active = self.active.contains_key(units[0]);
                (0, if is_active { "active\n" } else { "inactive\n" }.to_owned())
            }
            verb if units.first().is_some_and(|unit| unit.contains("@*")) => {
                let prefix = units[0].split('*').next().unwrap();
                let instances = self.active.keys().filter(|unit| unit.starts_with(prefix));
                for unit in instances.cloned().collect::<Vec<_>>() {
                    self.change(root, verb, &unit).unwrap();
                }
                (0, String::new())
            }
            verb => match self.change(root, verb, units[0]) {
                Ok(()) => (0, String::new()),
                Err(error) => error,
            },
        }
    }

    fn change(&mut self, root: &Path, verb: &str, unit: &str) -> Result<(), (i32, String)> {
        let missing = || (5, format!("Unit {unit} not found."));
        let has_file = find_file(root, unit).is_some();
        match verb {
            "enable" if !has_file => return Err(missing()),
            "enable" => {
                let link = root.join(WANTS).join(unit);
                let is_installable = has_install_section(root, unit);
                if is_installable && link.symlink_metadata().is_err() {
                    fs::create_dir_all(root.join(WANTS)).unwrap();
                    symlink(format!("/{UNITS}/{unit}"), link).unwrap();
                }
            }
            "disable" => {
                let _ = fs::remove_file(root.join(WANTS).join(unit));
            }
            "stop" => {
                self.active.remove(unit);
                self.failed.remove(unit);
            }
            "start" | "restart" | "try-restart" => {
                let is_active = self.active.contains_key(unit);
                if !has_file {
                    return Err(missing());
                }
                if (verb == "start" && is_active) || (verb == "try-restart" && !is_active) {
                    return Ok(());
                }
                if self.broken.contains(unit) {
                    self.active.remove(unit);
                    self.failed.insert(unit.to_owned());
                    return Err((1, format!("Job for {unit} failed.")));
                }
                let mut content = self.loaded.entry(unit.to_owned());
                let content = match content {
                    std::collections::btree_map::Entry::Vacant(_) => read_unit(root, unit),
                    std::collections::btree_map::Entry::Occupied(ref mut entry) => {
                        entry.get().clone()
                    }
                };
                self.loaded.insert(unit.to_owned(), content.clone());
                let files = self.files_of_units.get(unit).into_iter().flatten();
                let files = files.map(|path| describe(&root.join(path.trim_start_matches('/'))));
                self.active.insert(unit.to_owned(), content.into_iter().chain(files).collect());
                self.failed.remove(unit);
            }
            verb => panic!("systemctl {verb}"),
        }
        Ok(())
    }

    fn reload(&mut self, root: &Path) {
        self.loaded.retain(|unit, _| find_file(root, unit).is_some());
        for (unit, content) in &mut self.loaded {
            *content = read_unit(root, unit);
        }
    }

    fn show(&mut self, root: &Path, units: &[&str]) -> String {
        let mut text = String::new();
        for unit in units {
            let has_file = find_file(root, unit).is_some();
            let is_masked = fs::read_link(root.join(UNITS).join(unit))
                .is_ok_and(|target| target == Path::new("/dev/null"));
            let load = match (is_masked, has_file) {
                (true, _) => "masked",
                (false, true) => "loaded",
                (false, false) => "not-found",
            };
            let is_active = self.active.contains_key(*unit);
            let active = match (is_active, self.failed.contains(*unit)) {
                (true, _) => "active",
                (false, true) => "failed",
                (false, false) => "inactive",
            };
            let file_state = if !has_file {
                ""
            } else if is_enabled(root, unit) {
                "enabled"
            } else if has_install_section(root, unit) {
                "disabled"
            } else {
                "static"
            };
            let is_old =
                self.loaded.get(*unit).is_some_and(|loaded| *loaded != read_unit(root, unit));
            let reload = if is_old { "yes" } else { "no" };
            writeln!(
                text,
                "Type=simple\nTriggeredBy=\nId={unit}\nNames={unit}\nLoadState={load}\n\
                 ActiveState={active}\nSubState=x\nUnitFileState={file_state}\n\
                 NeedDaemonReload={reload}\nConditionResult=no\nConditionTimestampMonotonic=0\n"
            )
            .unwrap();
        }
        text
    }
}

fn find_file(root: &Path, unit: &str) -> Option<PathBuf> {
    let folders = [UNITS, VENDOR_UNITS].iter();
    folders.map(|folder| root.join(folder).join(unit)).find(|path| path.is_file())
}

fn is_enabled(root: &Path, unit: &str) -> bool {
    root.join(WANTS).join(unit).symlink_metadata().is_ok()
}

fn has_install_section(root: &Path, unit: &str) -> bool {
    let path = find_file(root, unit);
    path.is_some_and(|path| fs::read_to_string(path).unwrap().contains("[Install]\nWantedBy="))
}

/// The unit file and the drop-ins.
fn read_unit(root: &Path, unit: &str) -> Vec<String> {
    let file = find_file(root, unit).map(|path| describe(&path));
    let folder = root.join(UNITS).join(format!("{unit}.d"));
    let drop_ins = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut drop_ins: Vec<PathBuf> = drop_ins.map(|entry| entry.path()).collect();
    drop_ins.retain(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.'));
    drop_ins.sort();
    file.into_iter().chain(drop_ins.iter().map(|path| describe(path))).collect()
}

/// Path, attributes and content of a file.
fn describe(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let Ok(metadata) = path.symlink_metadata() else { return format!("{name} is missing") };
    let content = if metadata.is_dir() { Vec::new() } else { fs::read(path).unwrap_or_default() };
    let content = String::from_utf8_lossy(&content).into_owned();
    let (mode, uid, gid) = (metadata.mode(), metadata.uid(), metadata.gid());
    format!("{name} {mode:o} {uid}:{gid} {content}")
}
