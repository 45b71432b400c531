//! Units of systemd, in the running system or in a mounted image: whether they exist, and whether
//! they are masked.
//!
//! systemd.unit(5) describes the search path and how units are masked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::paths::AgentPaths;

/// Unit that blesses the entry as soon as the system is up.
pub const BLESS_UNIT: &str = "systemd-bless-boot.service";

/// Unit of RAUC that keeps the running slot as soon as the system is up.
pub const RAUC_MARK_GOOD_UNIT: &str = "rauc-mark-good.service";

/// Unit that resets the machine if an image on trial does not prove itself in time.
const TRIAL_UNIT: &str = "evenkeel-trial.service";

/// The same for an image for RAUC, and the script that it starts.
const RAUC_TRIAL_UNIT: &str = "evenkeel-rauc-trial.service";
const RAUC_TRIAL_SCRIPT: &str = "usr/lib/evenkeel/rauc-trial-guard";

/// Unit that confirms the boots of a node with RAUC that is not enrolled, and the script that it
/// starts.
const RAUC_CONFIRM_UNIT: &str = "evenkeel-rauc-confirm.service";
const RAUC_CONFIRM_SCRIPT: &str = "usr/lib/evenkeel/rauc-confirm-boot";

/// Folder with the link that enables this unit.
const CONFIRM_UNIT_LINKS: &str = "multi-user.target.wants";

/// Folder with the link that enables the unit of a guard.
const TRIAL_UNIT_LINKS: &str = "sysinit.target.wants";

/// Search path of systemd for units, highest priority first.
const UNIT_FOLDERS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// Size limit of a unit's file, in bytes.
const MAX_UNIT_BYTES: u64 = 64 << 10;

/// Paths of systemd itself.
const SYSTEMD_BINARIES: [&str; 2] = ["usr/lib/systemd/systemd", "lib/systemd/systemd"];

/// Maximum number of symbolic links in a path, as in the kernel.
const MAX_SYMLINKS: usize = 40;

/// State of a unit in a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitState {
    /// There is no such unit.
    Absent,
    /// The unit exists, and nothing can start it.
    Masked,
    /// The unit exists and can be started.
    Available,
}

/// State of the unit with this name in the system below `root`.
pub fn unit_state(root: &Path, name: &str) -> UnitState {
    let mut paths =
        UNIT_FOLDERS.iter().filter_map(|folder| resolve_path(root, &format!("{folder}/{name}")));
    let Some(path) = paths.find(|path| path.symlink_metadata().is_ok()) else {
        return UnitState::Absent;
    };
    // A masked unit is a link to /dev/null, or an empty file.
    let is_masked = match fs::read_link(&path) {
        Ok(target) => target == Path::new("/dev/null"),
        Err(_) => {
            fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
        }
    };
    if is_masked { UnitState::Masked } else { UnitState::Available }
}

/// Checks that the units of an image that is mounted at `root` permit a trial; else says why not.
/// An image with another init than systemd needs no unit.
pub fn check_image_units(root: &Path) -> Result<(), String> {
    if unit_state(root, BLESS_UNIT) == UnitState::Available {
        return Err(format!(
            "its {BLESS_UNIT} would bless it before it is known to be healthy: build the image without that unit, or mask the \
             unit with a link to /dev/null in /etc/systemd/system"
        ));
    }
    check_guard(root, TRIAL_UNIT)
}

/// Checks that an image with systemd has its guard, which is a unit with this name.
fn check_guard(root: &Path, unit: &str) -> Result<(), String> {
    let has_systemd = SYSTEMD_BINARIES.iter().any(|path| has_file(root, path));
    if has_systemd && !is_enabled(root, unit, TRIAL_UNIT_LINKS) {
        return Err(format!(
            "it has systemd, and its {unit} is missing, masked or not enabled, so nothing would reset the machine if the \
             agent does not start: build the image with that unit enabled ({TRIAL_UNIT_LINKS})"
        ));
    }
    Ok(())
}

/// Whether a unit can be started and a link in the folder of a target enables it.
fn is_enabled(root: &Path, unit: &str, links: &str) -> bool {
    [unit.to_owned(), format!("{links}/{unit}")]
        .iter()
        .all(|name| unit_state(root, name) == UnitState::Available)
}

/// Whether a path exists in the system below `root`.
fn has_file(root: &Path, path: &str) -> bool {
    resolve_path(root, path).is_some_and(|path| path.symlink_metadata().is_ok())
}

/// Checks that no unit of an image for RAUC that is mounted at `root` keeps the image before it is
/// known to be healthy, and that the image has its guard; else says what to change. The guard finds
/// the mark of the trial in the state directory, a path inside the image.
pub fn check_rauc_image_units(root: &Path, state: &Path) -> Result<(), String> {
    if unit_state(root, RAUC_MARK_GOOD_UNIT) == UnitState::Available {
        return Err(format!(
            "its {RAUC_MARK_GOOD_UNIT} would keep it before it is known to be healthy: build the image without that unit, or \
             mask the unit with a link to /dev/null in /etc/systemd/system"
        ));
    }
    check_guard(root, RAUC_TRIAL_UNIT)?;
    if unit_state(root, RAUC_TRIAL_UNIT) == UnitState::Available {
        check_script(root, RAUC_TRIAL_UNIT, RAUC_TRIAL_SCRIPT, state)
            .map_err(|why| format!("its {why}"))?;
    }
    Ok(())
}

/// Checks that a unit confirms the boots of a machine with RAUC that is not enrolled, and that its
/// script gets the state directory of the agent, a path inside `root`; else says what to change.
pub fn check_rauc_confirm_unit(root: &Path, state: &Path) -> Result<(), String> {
    let unit = RAUC_CONFIRM_UNIT;
    if !is_enabled(root, unit, CONFIRM_UNIT_LINKS) {
        return Err(format!(
            "{unit} is missing, masked or not enabled: build the image with that unit enabled ({CONFIRM_UNIT_LINKS})"
        ));
    }
    check_script(root, unit, RAUC_CONFIRM_SCRIPT, state)
}

/// Checks that a unit starts an existing script with the state directory.
fn check_script(root: &Path, unit: &str, script: &str, state: &Path) -> Result<(), String> {
    if !has_file(root, script) {
        return Err(format!("{unit} has no /{script} to start: build the image with that file"));
    }
    let text = unit_text(root, unit);
    let mut commands = text.lines().filter_map(|line| line.trim().strip_prefix("ExecStart="));
    let command = commands.rfind(|command| !command.is_empty()).unwrap_or_default();
    let mut words = command.split_whitespace();
    let is_script = words.any(|word| word.ends_with(script));
    let argument = words.next().map_or_else(default_state, PathBuf::from);
    if is_script && argument == state {
        return Ok(());
    }
    let state = state.display();
    Err(format!(
        "{unit} does not start its script with the state directory {state}: add a drop-in for the unit with ExecStart= and \
         ExecStart=/bin/sh /{script} {state}"
    ))
}

/// The state directory that scripts use without an argument.
fn default_state() -> PathBuf {
    AgentPaths::new("/", None).state().to_owned()
}

/// The text of a unit and of its drop-ins, in the order in which systemd reads them.
fn unit_text(root: &Path, name: &str) -> String {
    let mut files = UNIT_FOLDERS.iter().map(|folder| format!("{folder}/{name}"));
    let unit = files.find_map(|file| read_unit_file(&resolve_path(root, &file)?));
    let mut drop_ins = BTreeMap::new();
    // A file replaces those of the same name in folders of lower priority.
    for folder in UNIT_FOLDERS.iter().rev() {
        let file = resolve_path(root, &format!("{folder}/{name}.d/file"));
        let entries = file.and_then(|file| fs::read_dir(file.parent()?).ok());
        for entry in entries.into_iter().flatten().flatten() {
            drop_ins.insert(entry.file_name(), entry.path());
        }
    }
    let is_used = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "conf");
    let drop_ins = drop_ins.into_values().filter(is_used);
    let texts = unit.into_iter().chain(drop_ins.filter_map(|path| read_unit_file(&path)));
    texts.collect::<Vec<_>>().join("\n")
}

/// The text of a regular file of limited size; `None` for any other file. A link could lead out of
/// an image.
fn read_unit_file(path: &Path) -> Option<String> {
    let metadata = path.symlink_metadata().ok()?;
    if !metadata.is_file() || metadata.len() > MAX_UNIT_BYTES {
        return None;
    }
    fs::read_to_string(path).ok()
}

/// Resolves a path of the system below `root` as that system would, so that no link leads out of
/// it. The last component is not followed. `None` if there are too many links.
fn resolve_path(root: &Path, path: &str) -> Option<PathBuf> {
    let mut left = reversed_components(Path::new(path));
    let mut at = PathBuf::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(&part);
        if left.is_empty() {
            break;
        }
        // Not a link: it is a folder, or it does not exist, and then nothing below it does.
        let Ok(target) = fs::read_link(root.join(&at)) else {
            continue;
        };
        links += 1;
        if links > MAX_SYMLINKS {
            return None;
        }
        if target.is_absolute() {
            at.clear();
        } else {
            at.pop();
        }
        left.extend(reversed_components(&target));
    }
    Some(root.join(at))
}

/// Components of a path, in reverse order.
fn reversed_components(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with these files. Content that starts with an arrow makes a link.
    fn create_files(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
            match content.strip_prefix("-> ") {
                Some(target) => symlink(target, path).expect("a link"),
                None => fs::write(path, content).expect("a file"),
            }
        }
        root
    }

    const SYSTEMD_FILE: (&str, &str) = ("usr/lib/systemd/systemd", "ELF");
    const TRIAL_UNIT_FILE: (&str, &str) =
        ("usr/lib/systemd/system/evenkeel-trial.service", "[Unit]");
    const TRIAL_UNIT_ENABLED: (&str, &str) = (
        "etc/systemd/system/sysinit.target.wants/evenkeel-trial.service",
        "-> /usr/lib/systemd/system/evenkeel-trial.service",
    );
    const BLESS_UNIT_FILE: (&str, &str) =
        ("usr/lib/systemd/system/systemd-bless-boot.service", "[Unit]");

    #[test]
    fn an_image_that_does_not_bless_itself_and_has_its_trial_guard_is_accepted() {
        let enabling_link = "usr/lib/systemd/system/sysinit.target.wants/evenkeel-trial.service";
        let masked = ("etc/systemd/system/systemd-bless-boot.service", "-> /dev/null");
        let emptied = ("etc/systemd/system/systemd-bless-boot.service", "");
        let good: [&[(&str, &str)]; 6] = [
            // Images with another init.
            &[],
            &[("sbin/init", "-> ../bin/busybox"), TRIAL_UNIT_FILE],
            &[SYSTEMD_FILE, TRIAL_UNIT_FILE, TRIAL_UNIT_ENABLED],
            &[SYSTEMD_FILE, TRIAL_UNIT_FILE, (enabling_link, "-> ../evenkeel-trial.service")],
            &[SYSTEMD_FILE, TRIAL_UNIT_FILE, TRIAL_UNIT_ENABLED, BLESS_UNIT_FILE, masked],
            &[SYSTEMD_FILE, TRIAL_UNIT_FILE, TRIAL_UNIT_ENABLED, BLESS_UNIT_FILE, emptied],
        ];
        for files in good {
            assert_eq!(check_image_units(create_files(files).path()), Ok(()), "{files:?}");
        }
    }

    #[test]
    fn an_image_that_blesses_itself_is_refused() {
        let alias = (
            "etc/systemd/system/systemd-bless-boot.service",
            "-> /usr/lib/systemd/system/systemd-bless-boot.service",
        );
        let bad: [&[(&str, &str)]; 3] = [
            &[BLESS_UNIT_FILE],
            &[SYSTEMD_FILE, TRIAL_UNIT_FILE, TRIAL_UNIT_ENABLED, BLESS_UNIT_FILE],
            &[SYSTEMD_FILE, TRIAL_UNIT_FILE, TRIAL_UNIT_ENABLED, BLESS_UNIT_FILE, alias],
        ];
        for files in bad {
            let why = check_image_units(create_files(files).path()).unwrap_err();
            assert!(why.starts_with("its systemd-bless-boot.service"), "{why}");
        }
    }

    #[test]
    fn an_image_with_systemd_and_without_its_trial_guard_is_refused() {
        let masked = ("etc/systemd/system/evenkeel-trial.service", "-> /dev/null");
        let bad: [&[(&str, &str)]; 4] = [
            &[SYSTEMD_FILE],
            &[SYSTEMD_FILE, TRIAL_UNIT_FILE],
            &[SYSTEMD_FILE, TRIAL_UNIT_ENABLED],
            &[SYSTEMD_FILE, TRIAL_UNIT_FILE, TRIAL_UNIT_ENABLED, masked],
        ];
        for files in bad {
            let why = check_image_units(create_files(files).path()).unwrap_err();
            assert!(why.contains("evenkeel-trial.service is missing"), "{why}");
        }
    }

    #[test]
    fn an_image_for_rauc_whose_mark_good_unit_is_not_masked_is_refused() {
        let unit = ("usr/lib/systemd/system/rauc-mark-good.service", "[Unit]");
        let masked = ("etc/systemd/system/rauc-mark-good.service", "-> /dev/null");
        let state = default_state();
        assert_eq!(check_rauc_image_units(create_files(&[unit, masked]).path(), &state), Ok(()));
        let why = check_rauc_image_units(create_files(&[unit]).path(), &state).unwrap_err();
        assert!(why.starts_with("its rauc-mark-good.service"), "{why}");
    }

    #[test]
    fn an_image_for_rauc_with_systemd_needs_its_guard_and_the_script_of_it() {
        let unit = ("usr/lib/systemd/system/evenkeel-rauc-trial.service", GUARD_UNIT_TEXT);
        let enabled = (
            "usr/lib/systemd/system/sysinit.target.wants/evenkeel-rauc-trial.service",
            "-> ../evenkeel-rauc-trial.service",
        );
        let script = ("usr/lib/evenkeel/rauc-trial-guard", "#!/bin/sh");
        let check = |files: &[(&str, &str)]| {
            check_rauc_image_units(create_files(files).path(), &default_state())
        };
        assert_eq!(check(&[]), Ok(()), "another init");
        assert_eq!(check(&[SYSTEMD_FILE, unit, enabled, script]), Ok(()));
        let bad: [(&[(&str, &str)], &str); 4] = [
            (&[SYSTEMD_FILE], "evenkeel-rauc-trial.service is missing"),
            (&[SYSTEMD_FILE, unit, script], "not enabled"),
            (&[SYSTEMD_FILE, TRIAL_UNIT_FILE, TRIAL_UNIT_ENABLED, script], "is missing"),
            (&[SYSTEMD_FILE, unit, enabled], "/usr/lib/evenkeel/rauc-trial-guard"),
        ];
        for (files, reason) in bad {
            let why = check(files).unwrap_err();
            assert!(why.contains(reason), "{why}");
        }
    }

    /// Without the mark of the trial, the guard does nothing.
    #[test]
    fn the_guard_of_an_image_for_rauc_must_use_the_state_directory_of_the_agent() {
        let unit = ("usr/lib/systemd/system/evenkeel-rauc-trial.service", GUARD_UNIT_TEXT);
        let script = ("usr/lib/evenkeel/rauc-trial-guard", "#!/bin/sh");
        let drop_in = (
            "etc/systemd/system/evenkeel-rauc-trial.service.d/state.conf",
            "[Service]\nExecStart=\nExecStart=/bin/sh /usr/lib/evenkeel/rauc-trial-guard /data/agent\n",
        );
        let check = |files: &[(&str, &str)]| {
            check_rauc_image_units(create_files(files).path(), Path::new("/data/agent"))
        };
        assert_eq!(check(&[unit, script, drop_in]), Ok(()));
        let why = check(&[unit, script]).unwrap_err();
        assert!(why.contains("/usr/lib/evenkeel/rauc-trial-guard /data/agent"), "{why}");

        // A link is read as little as a masked drop-in: it could lead out of the image.
        let outside = create_files(&[("state.conf", drop_in.1)]);
        let link = format!("-> {}/state.conf", outside.path().display());
        check(&[unit, script, (drop_in.0, link.as_str())]).unwrap_err();
    }

    const GUARD_UNIT_TEXT: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/image/evenkeel-rauc-trial.service"
    ));

    const CONFIRM_UNIT_TEXT: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/image/evenkeel-rauc-confirm.service"
    ));

    /// Files by path, or links with `-> TARGET`.
    type FileTree<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn the_unit_that_confirms_boots_must_be_enabled_and_find_the_state() {
        let unit = ("usr/lib/systemd/system/evenkeel-rauc-confirm.service", CONFIRM_UNIT_TEXT);
        let enabled = (
            "etc/systemd/system/multi-user.target.wants/evenkeel-rauc-confirm.service",
            "-> /usr/lib/systemd/system/evenkeel-rauc-confirm.service",
        );
        let masked = ("etc/systemd/system/evenkeel-rauc-confirm.service", "-> /dev/null");
        let script = ("usr/lib/evenkeel/rauc-confirm-boot", "#!/bin/sh");
        let with_argument = "[Service]\nExecStart=\nExecStart=/bin/sh /usr/lib/evenkeel/rauc-confirm-boot /data/agent\n";
        let drop_in =
            ("etc/systemd/system/evenkeel-rauc-confirm.service.d/state.conf", with_argument);
        let other_program = (
            "run/systemd/system/evenkeel-rauc-confirm.service.d/zz.conf",
            "[Service]\nExecStart=\nExecStart=/bin/true\n",
        );
        let (usual, moved) = ("/var/lib/evenkeel-agent", "/data/agent");
        let cases: [(FileTree<'_>, &str, Option<&str>); 9] = [
            (&[unit, enabled, script], usual, None),
            (&[unit, enabled, script, drop_in], moved, None),
            (&[], usual, Some("is missing, masked or not enabled")),
            (&[unit, script], usual, Some("is missing, masked or not enabled")),
            (&[unit, enabled, masked, script], usual, Some("is missing, masked or not enabled")),
            (&[unit, enabled], usual, Some("/usr/lib/evenkeel/rauc-confirm-boot")),
            (&[unit, enabled, script], moved, Some("/data/agent")),
            (&[unit, enabled, script, drop_in], usual, Some(usual)),
            (&[unit, enabled, script, drop_in, other_program], moved, Some("does not start")),
        ];
        for (files, state, fault) in cases {
            let root = create_files(files);
            let checked = check_rauc_confirm_unit(root.path(), Path::new(state));
            match fault {
                None => assert_eq!(checked, Ok(()), "{files:?}"),
                Some(fault) => {
                    let why = checked.unwrap_err();
                    assert!(why.contains(fault), "{why}");
                }
            }
        }
    }

    #[test]
    fn links_of_an_image_are_resolved_inside_it() {
        let outside = create_files(&[BLESS_UNIT_FILE, ("systemd-bless-boot.service", "[Unit]")]);
        let out = format!("-> {}", outside.path().display());
        // Inside the image, the absolute link refers to a folder of the image.
        let root = create_files(&[("etc/systemd/system", out.as_str()), ("usr/lib/x", "")]);
        assert_eq!(unit_state(root.path(), BLESS_UNIT), UnitState::Absent);
        let merged = create_files(&[
            ("lib", "-> usr/lib"),
            ("usr/lib/systemd", "-> /opt/../../opt/systemd"),
            ("opt/systemd/system/systemd-bless-boot.service", "[Unit]"),
        ]);
        assert_eq!(unit_state(merged.path(), BLESS_UNIT), UnitState::Available);
        let circle = create_files(&[("etc", "-> etc")]);
        assert_eq!(unit_state(circle.path(), BLESS_UNIT), UnitState::Absent);
    }
}
