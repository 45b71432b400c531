//! Packages that no update may remove by default: those that keep the node running and reachable.

use std::fs;

use super::dpkg::DPKG_INFO_FOLDER;
use super::parse::DpkgPackage;
use super::rules::matches_pattern;
use crate::os;
use crate::owner::OwnerLimits;
use crate::paths::AgentPaths;

/// Packages that are protected by default on every node, with a description.
const ALWAYS_PROTECTED: [(&str, &str); 3] = [
    ("evenkeel-agent", "this agent"),
    ("openssh-server", "the access to this machine"),
    ("dropbear", "the access to this machine"),
];

/// Programs that connect a machine: the package and its systemd unit, or the unit of the program that needs the package.
/// netplan writes the configuration of two others, and ifupdown starts DHCP clients.
const NETWORK_MANAGERS: [(&str, &str); 15] = [
    ("network-manager", "NetworkManager.service"),
    ("systemd", "systemd-networkd.service"),
    ("ifupdown", "networking.service"),
    ("ifupdown2", "networking.service"),
    ("connman", "connman.service"),
    ("dhcpcd", "dhcpcd.service"),
    ("dhcpcd5", "dhcpcd.service"),
    ("wpasupplicant", "wpa_supplicant.service"),
    ("iwd", "iwd.service"),
    ("modemmanager", "ModemManager.service"),
    ("netplan.io", "systemd-networkd.service"),
    ("netplan.io", "NetworkManager.service"),
    ("isc-dhcp-client", "networking.service"),
    ("dhcpcd-base", "networking.service"),
    ("udhcpc", "networking.service"),
];

/// Packages of a kernel, before its release.
const KERNEL_PREFIXES: [&str; 3] = ["linux-image-", "linux-image-unsigned-", "linux-modules-"];

/// systemd's folder of running units, with a link `invocation:UNIT` for each.
const UNITS_FOLDER: &str = "/run/systemd/units";

/// The description of the packages with the running kernel.
const RUNNING_KERNEL: &str = "the running kernel";

/// A package that is protected by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectedPackage {
    /// Debian's name.
    pub name: String,
    /// What it is, for people.
    pub what: &'static str,
}

/// Whether a package is protected because it has the running kernel.
pub fn is_running_kernel(package: &ProtectedPackage) -> bool {
    package.what == RUNNING_KERNEL
}

/// The packages that are protected by default on this node.
pub fn find_protected(paths: &AgentPaths, packages: &[DpkgPackage]) -> Vec<ProtectedPackage> {
    let always = ALWAYS_PROTECTED.map(|(name, what)| (name.to_owned(), what));
    let kernel = os::kernel_release();
    let mut names = KERNEL_PREFIXES.map(|prefix| format!("{prefix}{kernel}")).to_vec();
    names.extend(find_kernel_owners(paths, packages, &kernel));
    let kernel = names.into_iter().map(|name| (name, RUNNING_KERNEL));
    let protected = always.into_iter().chain(kernel).chain(
        active_network_managers(paths, packages)
            .into_iter()
            .map(|name| (name.to_owned(), "the network manager")),
    );
    protected.map(|(name, what)| ProtectedPackage { name, what }).collect()
}

/// The packages that contain a kernel, whatever their names are: kernels of board vendors have other
/// names than those of Debian.
fn find_kernel_owners(paths: &AgentPaths, packages: &[DpkgPackage], release: &str) -> Vec<String> {
    let folder = paths.inside(DPKG_INFO_FOLDER);
    let ends = [format!("/vmlinuz-{release}"), format!("/lib/modules/{release}/kernel")];
    let contains_kernel = |package: &&DpkgPackage| {
        let names = [package.name.clone(), format!("{}:{}", package.name, package.architecture)];
        names.iter().any(|name| {
            let list = fs::read(folder.join(format!("{name}.list"))).unwrap_or_default();
            let list = String::from_utf8_lossy(&list);
            list.lines().any(|file| ends.iter().any(|end| file.ends_with(end.as_str())))
        })
    };
    let candidates = packages.iter().filter(|package| {
        package.is_present()
            && (package.name.starts_with("linux-") || package.name.contains("kernel"))
    });
    candidates.filter(contains_kernel).map(|package| package.name.clone()).collect()
}

/// The installed network managers that run. If none is known to run, for example without systemd,
/// all that are installed.
fn active_network_managers(paths: &AgentPaths, packages: &[DpkgPackage]) -> Vec<&'static str> {
    let is_installed =
        |name: &str| packages.iter().any(|package| package.name == name && package.is_present());
    let installed = NETWORK_MANAGERS.into_iter().filter(|(name, _)| is_installed(name));
    let installed: Vec<_> = installed.collect();
    let units = paths.inside(UNITS_FOLDER);
    let is_running = |unit: &str| {
        // The target of the link is an ID and not a file.
        fs::symlink_metadata(units.join(format!("invocation:{unit}"))).is_ok()
    };
    let running: Vec<_> = installed.iter().filter(|(_, unit)| is_running(unit)).copied().collect();
    let active = if running.is_empty() { installed } else { running };
    let mut names: Vec<_> = active.into_iter().map(|(name, _)| name).collect();
    names.dedup();
    names
}

/// Why the owner does not allow the removal of a package, by its name in apt; `None` if the package
/// is not protected.
pub fn removal_refusal(
    package: &str,
    limits: &OwnerLimits,
    protected: &[ProtectedPackage],
) -> Option<String> {
    let name = package.split(':').next().unwrap_or_default();
    let matches = |patterns: &[String]| patterns.iter().any(|one| matches_pattern(one, name));
    if matches(&limits.protected_packages) {
        return Some(format!("{package}, which `protected_packages` in the limits protects"));
    }
    if matches(&limits.removable_packages) {
        return None;
    }
    let protected = protected.iter().find(|protected| protected.name == name)?;
    let what = protected.what;
    Some(format!("{package} ({what}); `removable_packages` in the limits can allow it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::packages::dpkg_samples::{installed_packages, root_with_info_files};

    #[test]
    fn only_the_running_network_manager_is_protected() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let installed = installed_packages(&["ifupdown", "network-manager", "other"]);
        let active = || active_network_managers(&paths, &installed);
        assert_eq!(active(), ["network-manager", "ifupdown"], "none is known to run");

        let units = paths.inside(UNITS_FOLDER);
        fs::create_dir_all(&units).unwrap();
        let unit = units.join("invocation:networking.service");
        std::os::unix::fs::symlink("0123456789abcdef", unit).unwrap();
        assert_eq!(active(), ["ifupdown"]);
    }

    #[test]
    fn what_the_running_network_manager_needs_is_protected() {
        let installed =
            installed_packages(&["dhcpcd-base", "ifupdown", "isc-dhcp-client", "netplan.io"]);
        for (unit, expected) in [
            ("networking.service", vec!["ifupdown", "isc-dhcp-client", "dhcpcd-base"]),
            ("systemd-networkd.service", vec!["netplan.io"]),
            ("NetworkManager.service", vec!["netplan.io"]),
            ("other.service", vec!["ifupdown", "netplan.io", "isc-dhcp-client", "dhcpcd-base"]),
        ] {
            let root = tempfile::tempdir().unwrap();
            let paths = AgentPaths::new(root.path(), None);
            let units = paths.inside(UNITS_FOLDER);
            fs::create_dir_all(&units).unwrap();
            let link = units.join(format!("invocation:{unit}"));
            std::os::unix::fs::symlink("0123456789abcdef", link).unwrap();
            assert_eq!(active_network_managers(&paths, &installed), expected, "{unit}");
        }
    }

    #[test]
    fn the_package_of_the_running_kernel_is_found_by_its_files() {
        let (_root, paths) = root_with_info_files(&[
            ("board-kernel:amd64.list", "/.\n/lib/modules/6.1.21-v8+/kernel\n"),
            ("linux-image-old.list", "/boot/vmlinuz-6.1.20-v8+\n"),
            ("linux-headers-v8.list", "/lib/modules/6.1.21-v8+\n/lib/modules/6.1.21-v8+/build\n"),
            ("linux-image-v8.list", "/boot/vmlinuz-6.1.21-v8+\n"),
        ]);
        let installed = installed_packages(&[
            "board-kernel",
            "linux-headers-v8",
            "linux-image-old",
            "linux-image-v8",
            "other",
        ]);
        let owners = find_kernel_owners(&paths, &installed, "6.1.21-v8+");
        assert_eq!(owners, ["board-kernel", "linux-image-v8"]);
    }

    #[test]
    fn the_agent_ssh_and_the_running_kernel_are_protected_unless_the_owner_allows_their_removal() {
        let root = tempfile::tempdir().unwrap();
        let protected = find_protected(&AgentPaths::new(root.path(), None), &[]);
        let kernel = format!("linux-image-{}", os::kernel_release());
        let refusal = |package: &str, limits: &OwnerLimits| {
            removal_refusal(package, limits, &protected).unwrap_or_default()
        };
        let limits = OwnerLimits::default();
        for package in ["evenkeel-agent", "openssh-server:i386", kernel.as_str()] {
            let refusal = refusal(package, &limits);
            assert!(refusal.contains("`removable_packages`"), "{package}: {refusal}");
        }
        assert_eq!(refusal("openssh-client", &limits), "");
        assert_eq!(refusal("linux-image-0.0", &limits), "");

        let limits = OwnerLimits {
            protected_packages: vec!["postgres*".into()],
            removable_packages: vec!["openssh-*".into(), "postgresql".into()],
            ..OwnerLimits::default()
        };
        assert_eq!(refusal("openssh-server", &limits), "");
        assert!(refusal("postgresql", &limits).contains("`protected_packages`"));
        assert!(refusal("evenkeel-agent", &limits).contains("this agent"));
    }
}
