//! Units of systemd, in the system that runs or in an image that is mounted: which there are, and which are masked.
//!
//! Where they lie and what masks them is described in systemd.unit(5).

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Takes the counter from the entry as soon as the system is up.
pub const BLESS: &str = "systemd-bless-boot.service";

/// Resets the machine if an image on trial does not prove itself in time.
const GUARD: &str = "evenkeel-trial.service";

/// The link that starts [`GUARD`].
const GUARD_WANTED: &str = "sysinit.target.wants/evenkeel-trial.service";

/// Where systemd looks for a unit; the first that has it decides.
const FOLDERS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// Where systemd itself lies.
const SYSTEMD: [&str; 2] = ["usr/lib/systemd/systemd", "lib/systemd/systemd"];

/// A path that leads over more links leads nowhere, as for the kernel.
const MOST_LINKS: usize = 40;

/// Whether a system has a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It has not.
    Absent,
    /// It has, and nothing can start it.
    Masked,
    /// It has.
    There,
}

/// The unit with this name in the system below `root`.
pub fn unit(root: &Path, name: &str) -> Unit {
    let mut paths = FOLDERS
        .iter()
        .filter_map(|folder| locate(root, &format!("{folder}/{name}")));
    let Some(path) = paths.find(|path| path.symlink_metadata().is_ok()) else {
        return Unit::Absent;
    };
    // Masked is a link to the null device, or an empty file.
    let is_masked = match fs::read_link(&path) {
        Ok(target) => target == Path::new("/dev/null"),
        Err(_) => fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == 0),
    };
    if is_masked { Unit::Masked } else { Unit::There }
}

/// Whether the units of an image that is mounted at `root` let it be tried; else why not. Of an image with another init
/// than systemd nothing is demanded here.
pub fn judge(root: &Path) -> Result<(), String> {
    if unit(root, BLESS) == Unit::There {
        return Err(format!(
            "its {BLESS} would keep it before it is known to be healthy: build the image without that unit, or with a \
             link to /dev/null in /etc/systemd/system in its place"
        ));
    }
    let has_systemd = SYSTEMD
        .iter()
        .filter_map(|path| locate(root, path))
        .any(|path| path.symlink_metadata().is_ok());
    let is_guarded = [GUARD, GUARD_WANTED]
        .iter()
        .all(|name| unit(root, name) == Unit::There);
    if has_systemd && !is_guarded {
        return Err(format!(
            "it has systemd, and its {GUARD} is missing, masked or not enabled, without which nothing resets the machine \
             when its agent does not come up: build the image with that unit enabled (sysinit.target.wants)"
        ));
    }
    Ok(())
}

/// Where a path of the system below `root` lies. Links on the way are followed as that system follows them and never
/// lead out of it; the last part is not followed. `None` if they lead in a circle.
fn locate(root: &Path, path: &str) -> Option<PathBuf> {
    let mut left = parts(Path::new(path));
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
        // What is no link is a folder, or is not there: then neither is what lies below it.
        let Ok(target) = fs::read_link(root.join(&at)) else {
            continue;
        };
        links += 1;
        if links > MOST_LINKS {
            return None;
        }
        if target.is_absolute() {
            at.clear();
        } else {
            at.pop();
        }
        left.extend(parts(&target));
    }
    Some(root.join(at))
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
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

    /// A folder with these files; what begins with an arrow is a link.
    fn image(files: &[(&str, &str)]) -> tempfile::TempDir {
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

    const SYSTEMD_IS: (&str, &str) = ("usr/lib/systemd/systemd", "ELF");
    const GUARD_IS: (&str, &str) = ("usr/lib/systemd/system/evenkeel-trial.service", "[Unit]");
    const ENABLED: (&str, &str) = (
        "etc/systemd/system/sysinit.target.wants/evenkeel-trial.service",
        "-> /usr/lib/systemd/system/evenkeel-trial.service",
    );
    const BLESS_IS: (&str, &str) = (
        "usr/lib/systemd/system/systemd-bless-boot.service",
        "[Unit]",
    );

    #[test]
    fn an_image_that_does_not_keep_itself_and_has_its_guard_may_be_tried() {
        let wanted = "usr/lib/systemd/system/sysinit.target.wants/evenkeel-trial.service";
        let masked = (
            "etc/systemd/system/systemd-bless-boot.service",
            "-> /dev/null",
        );
        let emptied = ("etc/systemd/system/systemd-bless-boot.service", "");
        let good: [&[(&str, &str)]; 6] = [
            // With another init.
            &[],
            &[("sbin/init", "-> ../bin/busybox"), GUARD_IS],
            &[SYSTEMD_IS, GUARD_IS, ENABLED],
            &[
                SYSTEMD_IS,
                GUARD_IS,
                (wanted, "-> ../evenkeel-trial.service"),
            ],
            &[SYSTEMD_IS, GUARD_IS, ENABLED, BLESS_IS, masked],
            &[SYSTEMD_IS, GUARD_IS, ENABLED, BLESS_IS, emptied],
        ];
        for files in good {
            assert_eq!(judge(image(files).path()), Ok(()), "{files:?}");
        }
    }

    #[test]
    fn an_image_that_would_keep_itself_is_refused() {
        let alias = (
            "etc/systemd/system/systemd-bless-boot.service",
            "-> /usr/lib/systemd/system/systemd-bless-boot.service",
        );
        let bad: [&[(&str, &str)]; 3] = [
            &[BLESS_IS],
            &[SYSTEMD_IS, GUARD_IS, ENABLED, BLESS_IS],
            &[SYSTEMD_IS, GUARD_IS, ENABLED, BLESS_IS, alias],
        ];
        for files in bad {
            let why = judge(image(files).path()).unwrap_err();
            assert!(why.starts_with("its systemd-bless-boot.service"), "{why}");
        }
    }

    #[test]
    fn an_image_with_systemd_and_without_its_guard_is_refused() {
        let masked = ("etc/systemd/system/evenkeel-trial.service", "-> /dev/null");
        let bad: [&[(&str, &str)]; 4] = [
            &[SYSTEMD_IS],
            &[SYSTEMD_IS, GUARD_IS],
            &[SYSTEMD_IS, ENABLED],
            &[SYSTEMD_IS, GUARD_IS, ENABLED, masked],
        ];
        for files in bad {
            let why = judge(image(files).path()).unwrap_err();
            assert!(why.contains("evenkeel-trial.service is missing"), "{why}");
        }
    }

    #[test]
    fn links_of_an_image_lead_nowhere_but_into_it() {
        let outside = image(&[BLESS_IS, ("systemd-bless-boot.service", "[Unit]")]);
        let out = format!("-> {}", outside.path().display());
        // As that system has it, the folder is one of its own.
        let root = image(&[("etc/systemd/system", out.as_str()), ("usr/lib/x", "")]);
        assert_eq!(unit(root.path(), BLESS), Unit::Absent);
        let merged = image(&[
            ("lib", "-> usr/lib"),
            ("usr/lib/systemd", "-> /opt/../../opt/systemd"),
            ("opt/systemd/system/systemd-bless-boot.service", "[Unit]"),
        ]);
        assert_eq!(unit(merged.path(), BLESS), Unit::There);
        let circle = image(&[("etc", "-> etc")]);
        assert_eq!(unit(circle.path(), BLESS), Unit::Absent);
    }
}
