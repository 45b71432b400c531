//! Why the system waits for a reboot.

use std::fs;

use crate::identity;
use crate::os;
use crate::place::Place;

/// More reasons than this are not told.
const MOST_REASONS: usize = 100;

/// Whether a reboot is required, for which packages, and why in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reboot {
    /// Whether it is.
    pub required: bool,
    /// The packages that asked for it.
    pub by: Vec<String>,
    /// Why, for people; empty if it is not required.
    pub reasons: Vec<String>,
}

/// Looks at the mark that packages leave and, on a machine of its own, at the kernels in `/boot`.
pub fn look(place: &Place, running: &str) -> Reboot {
    let (marked, by) = os::reboot_required(place).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot tell whether a reboot is required");
        (false, Vec::new())
    });
    let mut reasons: Vec<String> = Vec::new();
    if marked {
        let told = by.iter().map(|package| format!("{package} asks for it"));
        reasons.extend(told.take(MOST_REASONS));
        if reasons.is_empty() {
            reasons.push("/run/reboot-required is there".to_owned());
        }
    }
    // The kernel of a container, or of the system around another root, is not the one that is installed there.
    if place.is_own_system() && !identity::in_container(place.root()) {
        let newer = newer_kernel(place, running);
        reasons.extend(
            newer.map(|newer| format!("the kernel {running} runs and {newer} is installed")),
        );
    }
    Reboot {
        required: !reasons.is_empty(),
        by,
        reasons,
    }
}

/// The newest kernel in `/boot` of the same flavour, if it is newer than the running one.
fn newer_kernel(place: &Place, running: &str) -> Option<String> {
    let (runs, flavour) = kernel(running)?;
    let files = fs::read_dir(place.inside("/boot")).ok()?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let kernels = names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned));
    let newer = kernels.filter_map(|release| {
        let (version, same) = kernel(&release)?;
        (same == flavour && version > runs).then_some((version, release))
    });
    newer.max().map(|(_, release)| release)
}

/// The numbers and the flavour of a kernel's release: `6.1.0-40-cloud-amd64` is 6.1.0.40 and `cloud-amd64`.
fn kernel(release: &str) -> Option<(Vec<u64>, String)> {
    let mut parts = release.split('-').peekable();
    let mut numbers = Vec::new();
    while let Some(part) = parts.next_if(|part| part.starts_with(|c: char| c.is_ascii_digit())) {
        let digits = part.split(|c: char| !c.is_ascii_digit());
        for digits in digits.filter(|digits| !digits.is_empty()) {
            numbers.push(digits.parse().ok()?);
        }
    }
    let flavour: Vec<_> = parts.collect();
    (!numbers.is_empty() && !flavour.is_empty()).then(|| (numbers, flavour.join("-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_that_ask_for_a_reboot_are_its_reasons() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        assert_eq!(look(&place, "6.1.0-1-amd64"), Reboot::default());
        fs::create_dir(root.path().join("run")).unwrap();
        fs::write(root.path().join("run/reboot-required"), "").unwrap();
        let reboot = look(&place, "6.1.0-1-amd64");
        assert!(reboot.required);
        assert_eq!(reboot.reasons, ["/run/reboot-required is there"]);
        fs::write(
            root.path().join("run/reboot-required.pkgs"),
            "libc6\ndbus\n",
        )
        .unwrap();
        let reboot = look(&place, "6.1.0-1-amd64");
        assert_eq!(reboot.reasons, ["dbus asks for it", "libc6 asks for it"]);
        assert_eq!(reboot.by, ["dbus", "libc6"]);
    }

    #[test]
    fn another_roots_kernels_are_not_compared_with_the_one_that_runs() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        fs::create_dir(root.path().join("boot")).unwrap();
        fs::write(root.path().join("boot/vmlinuz-6.1.0-40-amd64"), "").unwrap();
        assert_eq!(look(&place, "6.1.0-9-amd64"), Reboot::default());
    }

    #[test]
    fn a_newer_kernel_is_one_of_the_same_flavour_with_a_higher_number() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let boot = root.path().join("boot");
        fs::create_dir(&boot).unwrap();
        for release in [
            "6.1.0-9-amd64",
            "6.1.0-40-amd64",
            "6.12.41+deb13-cloud-amd64",
            "6.12.9+deb13-cloud-amd64",
            "7.0-rescue",
            "old",
        ] {
            fs::write(boot.join(format!("vmlinuz-{release}")), "").unwrap();
        }
        for (running, newer) in [
            ("6.1.0-9-amd64", Some("6.1.0-40-amd64")),
            ("6.1.0-40-amd64", None),
            ("6.1.0-41-amd64", None),
            (
                "6.12.9+deb13-cloud-amd64",
                Some("6.12.41+deb13-cloud-amd64"),
            ),
            ("6.12.41+deb13-cloud-amd64", None),
            ("6.1.0-9-rt-amd64", None),
            ("6.6.30", None),
            ("", None),
        ] {
            let found = newer_kernel(&place, running);
            assert_eq!(found.as_deref(), newer, "beside {running}");
        }
    }
}
