//! Checks that GRUB for a BIOS can be updated.
//!
//! The package `grub-pc` writes the boot loader to the disks that its settings name. If a disk is
//! not there, for example in a cloned machine, an update replaces the modules in `/boot/grub` and
//! not the boot loader that loads them. The machine may then not boot again.

use std::fs;

use super::parse::{DpkgPackage, Simulation};
use super::rules::AptVersion;
use crate::commands::doctor::{CheckOutcome, DoctorFinding};
use crate::paths::AgentPaths;

const CHECK: &str = "boot loader";

/// The package that writes GRUB for a BIOS to disks.
const GRUB: &str = "grub-pc";

/// debconf's database of settings.
const DEBCONF_FILE: &str = "/var/cache/debconf/config.dat";

/// Exists if the machine was booted by an EFI.
const EFI_FOLDER: &str = "/sys/firmware/efi";

const ADVICE: &str = "run `dpkg-reconfigure grub-pc` and choose the disk that this machine boots from; \
                      until then, updates of all packages hold grub-pc back; exclude linux-image-* from updates, too";

/// The planned version of `grub-pc` if one of its disks does not exist.
pub fn find_blocked_grub(
    paths: &AgentPaths,
    packages: &[DpkgPackage],
    simulation: &Simulation,
) -> Option<AptVersion> {
    let install = simulation.installs.iter().find(|install| install.name() == GRUB)?;
    let finding = check_grub_disks(paths, packages)?;
    (finding.outcome == CheckOutcome::Failed)
        .then(|| (install.package.clone(), install.after.clone()))
}

/// Checks the disks of `grub-pc`. `None` if the machine does not boot with it.
pub fn check_grub_disks(paths: &AgentPaths, packages: &[DpkgPackage]) -> Option<DoctorFinding> {
    let is_grub = |package: &DpkgPackage| package.name == GRUB && package.is_present();
    if !packages.iter().any(is_grub) || paths.inside(EFI_FOLDER).exists() {
        return None;
    }
    let settings = fs::read(paths.inside(DEBCONF_FILE)).unwrap_or_default();
    let settings = String::from_utf8_lossy(&settings);
    if read_setting(&settings, "grub-pc/install_devices_empty") == Some("true") {
        return Some(DoctorFinding::passed(CHECK, "updates of grub-pc write to no disk, as set"));
    }
    let disks = read_setting(&settings, "grub-pc/install_devices").unwrap_or_default();
    let disks: Vec<&str> = disks.split(", ").filter(|disk| !disk.is_empty()).collect();
    if disks.is_empty() {
        let result = "grub-pc has no disk to which it writes the boot loader";
        return Some(DoctorFinding::warning(CHECK, result, ADVICE));
    }
    let missing: Vec<&str> =
        disks.iter().copied().filter(|disk| !paths.inside(disk).exists()).collect();
    if missing.is_empty() {
        let result = format!("grub-pc writes to {}", disks.join(", "));
        return Some(DoctorFinding::passed(CHECK, result));
    }
    let result = format!(
        "grub-pc writes the boot loader to a disk that does not exist: {}",
        missing.join(", ")
    );
    Some(DoctorFinding::failed(CHECK, result, ADVICE))
}

/// The value of a setting in debconf's database: stanzas with `Name` and `Value`.
fn read_setting<'a>(settings: &'a str, name: &str) -> Option<&'a str> {
    let field = |stanza: &'a str, key: &str| {
        stanza.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found == key).then(|| value.trim())
        })
    };
    let mut stanzas = settings.split("\n\n");
    let stanza = stanzas.find(|stanza| field(stanza, "Name") == Some(name))?;
    field(stanza, "Value")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::packages::parse::PlannedInstall;

    fn check(settings: &str, disks: &[&str], package: &str) -> Option<CheckOutcome> {
        let root = machine(settings, disks);
        let paths = AgentPaths::new(root.path(), None);
        check_grub_disks(&paths, &[installed(package)]).map(|finding| finding.outcome)
    }

    /// A root with the settings of debconf and these disks.
    fn machine(settings: &str, disks: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let file = paths.inside(DEBCONF_FILE);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, settings).unwrap();
        fs::create_dir_all(paths.inside("/dev/disk/by-id")).unwrap();
        for disk in disks {
            fs::write(paths.inside(disk), "").unwrap();
        }
        root
    }

    fn installed(package: &str) -> DpkgPackage {
        DpkgPackage {
            name: package.into(),
            architecture: "amd64".into(),
            version: "2.06-13".into(),
            want: "install".into(),
            state: "installed".into(),
            flag: "ok".into(),
            size: 0,
        }
    }

    #[test]
    fn a_planned_version_of_grub_is_held_back_only_without_its_disk() {
        let settings = "Name: grub-pc/install_devices\nValue: /dev/sda\n\n";
        let install = |name: &str| PlannedInstall {
            package: name.into(),
            before: Some("1".into()),
            after: "2".into(),
            architecture: "amd64".into(),
            origins: Vec::new(),
        };
        let blocked = |disks: &[&str], planned: &str| {
            let root = machine(settings, disks);
            let paths = AgentPaths::new(root.path(), None);
            let simulation =
                Simulation { installs: vec![install(planned)], ..Simulation::default() };
            find_blocked_grub(&paths, &[installed("grub-pc")], &simulation)
        };
        assert_eq!(blocked(&[], "grub-pc"), Some(("grub-pc".to_owned(), "2".to_owned())));
        assert_eq!(blocked(&["/dev/sda"], "grub-pc"), None);
        assert_eq!(blocked(&[], "other"), None);
    }

    #[test]
    fn a_disk_of_grub_that_does_not_exist_is_reported() {
        use CheckOutcome as C;
        let settings = "Name: grub-pc/hidden_timeout\nTemplate: grub-pc/hidden_timeout\nValue: \n\n\
                        Name: grub-pc/install_devices\nTemplate: grub-pc/install_devices\n\
                        Value: /dev/disk/by-id/ata-1, /dev/sdb\nOwners: grub-pc\nFlags: seen\n\n";
        let (first, second) = ("/dev/disk/by-id/ata-1", "/dev/sdb");
        assert_eq!(check(settings, &[first, second], "grub-pc"), Some(C::Passed));
        assert_eq!(check(settings, &[first], "grub-pc"), Some(C::Failed));
        assert_eq!(check(settings, &[], "grub-efi-amd64"), None);
        assert_eq!(check("", &[], "grub-pc"), Some(C::Warning));
        let empty = "Name: grub-pc/install_devices_empty\nValue: true\n\n";
        assert_eq!(check(empty, &[], "grub-pc"), Some(C::Passed));
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn a_setting_is_one_line_of_the_database() {
        let samples = [
            "Name: grub-pc/hidden\nTemplate: x\nValue: \n\nName: grub-pc/disks\nValue: /dev/sda, /dev/sdb\nFlags: seen\n\n",
            "Value: x\nName: grub-pc/disks\nVariables:\n RAW = y\n\nName: grub-pc/disks\n",
        ];
        fuzz("debconf", |rng| {
            let settings = text(rng, &samples, " \n\r\t:,/-adegrubV\u{0}\u{e9}");
            let Some(value) = read_setting(&settings, "grub-pc/disks") else {
                return;
            };
            assert!(!value.contains('\n') && value.trim() == value, "{value:?}");
            let stanza = format!("Name: grub-pc/disks\nValue: {value}\n");
            assert_eq!(read_setting(&stanza, "grub-pc/disks"), Some(value));
        });
    }
}
