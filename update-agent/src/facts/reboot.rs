//! Why the system needs a reboot.

use std::fs;

use crate::identity;
use crate::os;
use crate::paths::AgentPaths;

/// Maximum number of reported reasons.
const MAX_REASONS: usize = 100;

/// Whether a reboot is required, for which packages, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebootStatus {
    pub required: bool,
    /// Packages that requested the reboot.
    pub by: Vec<String>,
    /// Reasons for people; empty if no reboot is required.
    pub reasons: Vec<String>,
}

/// Reads the file that packages create to request a reboot and, on a real machine, the kernels in
/// `/boot`.
pub fn read_reboot_status(paths: &AgentPaths, running: &str) -> RebootStatus {
    let (marked, by) = os::reboot_required(paths).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot determine whether a reboot is required");
        (false, Vec::new())
    });
    let mut reasons: Vec<String> = Vec::new();
    if marked {
        let requests = by.iter().map(|package| format!("{package} requires it"));
        reasons.extend(requests.take(MAX_REASONS));
        if reasons.is_empty() {
            reasons.push("/run/reboot-required exists".to_owned());
        }
    }
    if has_own_kernel(paths) {
        let newer = newer_kernel(paths, running);
        reasons.extend(
            newer.map(|newer| format!("the kernel {running} is running, but {newer} is installed")),
        );
    }
    RebootStatus { required: !reasons.is_empty(), by, reasons }
}

/// The release of the running kernel, if the kernel belongs to the managed root.
pub fn own_kernel_release(paths: &AgentPaths) -> Option<String> {
    has_own_kernel(paths).then(os::kernel_release)
}

/// Whether the running kernel belongs to the managed root: not in a container or in another root.
fn has_own_kernel(paths: &AgentPaths) -> bool {
    paths.is_own_system() && !identity::is_container(paths.root())
}

/// The newest kernel in `/boot` of the same flavour, if it is newer than the running one.
fn newer_kernel(paths: &AgentPaths, running: &str) -> Option<String> {
    let (runs, flavour) = parse_release(running)?;
    let files = fs::read_dir(paths.inside("/boot")).ok()?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let kernels = names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned));
    let newer = kernels.filter_map(|release| {
        let (version, same) = parse_release(&release)?;
        (same == flavour && version > runs).then_some((version, release))
    });
    newer.max().map(|(_, release)| release)
}

/// Parses the version and the flavour of a kernel release: `6.1.0-40-cloud-amd64` is 6.1.0.40 and
/// `cloud-amd64`.
fn parse_release(release: &str) -> Option<(Vec<u64>, String)> {
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
    fn packages_that_request_a_reboot_are_its_reasons() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        assert_eq!(read_reboot_status(&paths, "6.1.0-1-amd64"), RebootStatus::default());
        fs::create_dir(root.path().join("run")).unwrap();
        fs::write(root.path().join("run/reboot-required"), "").unwrap();
        let reboot = read_reboot_status(&paths, "6.1.0-1-amd64");
        assert!(reboot.required);
        assert_eq!(reboot.reasons, ["/run/reboot-required exists"]);
        fs::write(root.path().join("run/reboot-required.pkgs"), "libc6\ndbus\n").unwrap();
        let reboot = read_reboot_status(&paths, "6.1.0-1-amd64");
        assert_eq!(reboot.reasons, ["dbus requires it", "libc6 requires it"]);
        assert_eq!(reboot.by, ["dbus", "libc6"]);
    }

    #[test]
    fn kernels_of_another_root_are_not_compared_with_the_running_one() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        fs::create_dir(root.path().join("boot")).unwrap();
        fs::write(root.path().join("boot/vmlinuz-6.1.0-40-amd64"), "").unwrap();
        assert_eq!(read_reboot_status(&paths, "6.1.0-9-amd64"), RebootStatus::default());
    }

    #[test]
    fn a_newer_kernel_is_one_of_the_same_flavour_with_a_higher_number() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
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
            ("6.12.9+deb13-cloud-amd64", Some("6.12.41+deb13-cloud-amd64")),
            ("6.12.41+deb13-cloud-amd64", None),
            ("6.1.0-9-rt-amd64", None),
            ("6.6.30", None),
            ("", None),
        ] {
            let result = newer_kernel(&paths, running);
            assert_eq!(result.as_deref(), newer, "running {running}");
        }
    }
}
