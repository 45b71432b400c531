//! Names what this machine has that Evenkeel does not support or does not update.

use std::fs;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::{CheckOutcome, DoctorFinding};
use crate::module_registry::ModuleRegistry;
use crate::needrestart::{NEEDRESTART_NOTE, has_needrestart};
use crate::os;
use crate::paths::AgentPaths;

const CHECK: &str = "platform";

/// Page with the details.
const PAGE: &str = "/usr/share/doc/evenkeel-agent/supported-systems.md";

/// Variable of the firmware: attributes in four bytes, then 1 if Secure Boot is on.
const SECURE_BOOT: &str =
    "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// The loaded profiles of `AppArmor`, one per line, each with its mode.
const APPARMOR_PROFILES: &str = "/sys/kernel/security/apparmor/profiles";

/// Something that a machine may have.
struct PlatformFeature {
    outcome: CheckOutcome,
    is_present: fn(&AgentPaths) -> bool,
    /// What it means.
    meaning: &'static str,
}

const fn unsupported(
    is_present: fn(&AgentPaths) -> bool,
    meaning: &'static str,
) -> PlatformFeature {
    PlatformFeature { outcome: CheckOutcome::Warning, is_present, meaning }
}

const fn note(is_present: fn(&AgentPaths) -> bool, meaning: &'static str) -> PlatformFeature {
    PlatformFeature { outcome: CheckOutcome::Note, is_present, meaning }
}

static FEATURES: [PlatformFeature; 17] = [
    unsupported(
        |paths| exists(paths, "/run/ostree-booted") || exists(paths, "/ostree"),
        "ostree manages this system: the agent cannot update it",
    ),
    unsupported(
        |paths| exists(paths, "/etc/NIXOS"),
        "this is NixOS: the agent cannot update its packages",
    ),
    unsupported(
        |paths| has_rpm_database(paths) && !os::has_dpkg(paths),
        "this system has rpm packages: the agent updates only those of dpkg",
    ),
    unsupported(
        |paths| read_file(paths, "/sys/fs/selinux/enforce").starts_with(b"1"),
        "SELinux is enforcing: there is no policy for the agent, and updates with it are not tested",
    ),
    note(
        has_enforced_profiles,
        "AppArmor is enforcing: there is no profile for the agent, so it runs unconfined",
    ),
    note(has_needrestart, NEEDRESTART_NOTE),
    note(
        |paths| read_file(paths, SECURE_BOOT).get(4) == Some(&1),
        "Secure Boot is on: the firmware checks what starts. The agent does not check the firmware's signature of an \
         image's kernel; a kernel without one fails its trial",
    ),
    note(
        |paths| has_mapped_disk(paths, b"CRYPT-LUKS"),
        "a disk is encrypted (LUKS): packages are updated as usual; image slots must not be encrypted",
    ),
    note(
        |paths| has_mapped_disk(paths, b"CRYPT-VERITY"),
        "dm-verity is in use: the agent does not write hash partitions of image slots",
    ),
    note(
        |paths| exists(paths, "/usr/bin/mender") || exists(paths, "/usr/bin/mender-update"),
        "Mender is installed: only one of the two may install images",
    ),
    note(
        |paths| exists(paths, "/etc/rauc/system.conf"),
        "RAUC is configured: the agent installs images with it only if image.boot_control is \"rauc\"",
    ),
    note(
        |paths| exists(paths, "/usr/bin/snap"),
        "snaps are not updated by Evenkeel: snapd does that",
    ),
    note(|paths| exists(paths, "/usr/bin/flatpak"), "flatpaks are not updated by Evenkeel"),
    note(
        |paths| exists(paths, "/var/lib/ubuntu-advantage/private/machine-token.json"),
        "Ubuntu Pro is attached: updates of its sources are installed as those of any source; Livepatch is not managed",
    ),
    note(
        |paths| has_entries(paths, "/var/lib/dkms"),
        "DKMS builds kernel modules: a build that fails is a failure of the package's script; the result of the build is \
         not checked",
    ),
    note(
        |paths| exists(paths, "/usr/bin/fwupdmgr"),
        "firmware is not updated by Evenkeel: fwupd does that",
    ),
    note(
        |paths| exists(paths, "/usr/bin/swupdate"),
        "SWUpdate is installed: only one of the two may install images",
    ),
];

/// Checks for the features of the machine. Without any there is one finding that has passed.
pub fn check_platform(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let mut findings = find_features(registry.paths);
    let has_slots = !matches!(registry.images(), Ok(None));
    if !has_slots && os::has_dpkg(registry.paths) && is_read_only(registry.paths, "/usr") {
        let meaning =
            "/usr is read-only and there is no second image slot: updates of packages fail";
        let advice = format!("mount /usr writable, or prepare the machine for images: {PAGE}");
        findings.push(DoctorFinding::warning(CHECK, meaning, advice));
    }
    if findings.is_empty() {
        findings.push(DoctorFinding::passed(CHECK, "nothing on this machine is unsupported"));
    }
    findings
}

fn find_features(paths: &AgentPaths) -> Vec<DoctorFinding> {
    let present = FEATURES.iter().filter(|feature| (feature.is_present)(paths));
    let findings = present.map(|feature| {
        let is_unsupported = feature.outcome == CheckOutcome::Warning;
        let advice = if is_unsupported { format!("see {PAGE}") } else { String::new() };
        DoctorFinding {
            check: CHECK,
            outcome: feature.outcome,
            result: feature.meaning.to_owned(),
            advice,
        }
    });
    findings.collect()
}

fn exists(paths: &AgentPaths, path: &str) -> bool {
    paths.inside(path).exists()
}

/// The content of a file; empty if it cannot be read.
fn read_file(paths: &AgentPaths, path: &str) -> Vec<u8> {
    fs::read(paths.inside(path)).unwrap_or_default()
}

fn has_enforced_profiles(paths: &AgentPaths) -> bool {
    String::from_utf8_lossy(&read_file(paths, APPARMOR_PROFILES)).contains("(enforce)")
}

fn has_entries(paths: &AgentPaths, folder: &str) -> bool {
    fs::read_dir(paths.inside(folder)).is_ok_and(|mut entries| entries.next().is_some())
}

fn has_rpm_database(paths: &AgentPaths) -> bool {
    has_entries(paths, "/var/lib/rpm") || has_entries(paths, "/usr/lib/sysimage/rpm")
}

/// Whether the device mapper has a device whose UUID starts with `kind`.
fn has_mapped_disk(paths: &AgentPaths, kind: &[u8]) -> bool {
    let Ok(devices) = fs::read_dir(paths.inside("/sys/block")) else {
        return false;
    };
    let mut ids = devices
        .filter_map(Result::ok)
        .map(|device| fs::read(device.path().join("dm/uuid")).unwrap_or_default());
    ids.any(|id| id.starts_with(kind))
}

fn is_read_only(paths: &AgentPaths, path: &str) -> bool {
    statvfs(paths.inside(path)).is_ok_and(|stats| stats.f_flag.contains(StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_found_by_its_files_and_nothing_else_is() {
        let secure: &[u8] = &[6, 0, 0, 0, 1];
        let cases: [(&str, &[u8], CheckOutcome, &str); 18] = [
            ("/run/ostree-booted", b"", CheckOutcome::Warning, "ostree"),
            ("/etc/NIXOS", b"", CheckOutcome::Warning, "NixOS"),
            ("/usr/lib/sysimage/rpm/rpmdb.sqlite", b"", CheckOutcome::Warning, "rpm"),
            ("/sys/fs/selinux/enforce", b"1", CheckOutcome::Warning, "SELinux"),
            (
                APPARMOR_PROFILES,
                b"man_groff (complain)\n/usr/sbin/mysqld (enforce)\n",
                CheckOutcome::Note,
                "AppArmor",
            ),
            ("/usr/sbin/needrestart", b"", CheckOutcome::Note, "`--restart-services`"),
            (SECURE_BOOT, secure, CheckOutcome::Note, "Secure Boot"),
            ("/sys/block/dm-0/dm/uuid", b"CRYPT-LUKS2-ab", CheckOutcome::Note, "LUKS"),
            ("/sys/block/dm-1/dm/uuid", b"CRYPT-VERITY-ab", CheckOutcome::Note, "dm-verity"),
            ("/usr/bin/mender-update", b"", CheckOutcome::Note, "Mender"),
            ("/etc/rauc/system.conf", b"", CheckOutcome::Note, "RAUC"),
            ("/usr/bin/snap", b"", CheckOutcome::Note, "snaps"),
            ("/usr/bin/flatpak", b"", CheckOutcome::Note, "flatpaks"),
            (
                "/var/lib/ubuntu-advantage/private/machine-token.json",
                b"{}",
                CheckOutcome::Note,
                "Ubuntu Pro",
            ),
            ("/var/lib/dkms/nvidia/source", b"", CheckOutcome::Note, "DKMS"),
            ("/usr/bin/fwupdmgr", b"", CheckOutcome::Note, "fwupd"),
            ("/usr/bin/swupdate", b"", CheckOutcome::Note, "SWUpdate"),
            ("/usr/bin/mender", b"", CheckOutcome::Note, "Mender"),
        ];
        for (path, content, outcome, name) in cases {
            let root = tempfile::tempdir().unwrap();
            let paths = AgentPaths::new(root.path(), None);
            assert!(find_features(&paths).is_empty());
            let file = paths.inside(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
            let findings = find_features(&paths);
            let [finding] = findings.as_slice() else { panic!("{path}: {findings:?}") };
            assert_eq!(finding.outcome, outcome, "{path}");
            assert!(finding.result.contains(name), "{finding:?}");
        }
    }

    #[test]
    fn a_feature_that_is_off_or_belongs_to_a_dpkg_system_is_no_finding() {
        let off: &[u8] = &[6, 0, 0, 0, 0];
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let files: [(&str, &[u8]); 8] = [
            ("/sys/fs/selinux/enforce", b"0"),
            (APPARMOR_PROFILES, b"man_groff (complain)\n"),
            // The configuration remains when the package is removed.
            ("/etc/needrestart/needrestart.conf", b""),
            (SECURE_BOOT, off),
            ("/sys/block/dm-0/dm/uuid", b"LVM-ab"),
            ("/var/lib/dkms.txt", b""),
            // The tools of rpm create a database on Debian, too.
            ("/var/lib/rpm/Packages", b""),
            ("/var/lib/dpkg/status", b""),
        ];
        for (path, content) in files {
            let file = paths.inside(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        fs::create_dir_all(paths.inside("/var/lib/dkms")).unwrap();
        let findings = find_features(&paths);
        assert!(findings.is_empty(), "{findings:?}");
    }
}
