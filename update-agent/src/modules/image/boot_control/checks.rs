//! Checks for faults that prevent a trial on a system with systemd-boot. Each fault is a sentence
//! with its remedy.
//!
//! loader.conf(5), systemd-boot(7) and the [Boot Loader Interface] describe how the loader uses its
//! settings and variables.
//!
//! [Boot Loader Interface]: https://systemd.io/BOOT_LOADER_INTERFACE/

use std::fs;
use std::io;
use std::path::Path;

use super::SystemInterfaces;
use super::entries;
use super::mounts;
use super::sdboot::{Esp, IMAGE_KERNELS_FOLDER, read_entries};
use super::units::{self, UnitState};
use crate::modules::image::slots::{BootEntry, Slot};
use crate::os;

/// Bit of `LoaderFeatures`: the loader supports boot counting.
const FEATURE_BOOT_COUNTING: u64 = 1 << 4;

/// Bit of `LoaderFeatures`: the loader supports sort keys.
const FEATURE_SORT_KEY: u64 = 1 << 8;

/// Versions of systemd-boot that count boots wrongly: systemd issues 40192 and 40405.
const MISCOUNTING_VERSIONS: [&str; 2] = ["258", "259"];

/// Settings that make the loader start another entry than the first one.
const OVERRIDING_SETTINGS: [&str; 2] = ["default", "preferred"];

/// Variables of the firmware that make the loader start another entry than the first one.
const OVERRIDING_VARIABLES: [&str; 3] =
    ["LoaderEntryDefault", "LoaderEntryPreferred", "LoaderEntryOneShot"];

/// Variables that make the loader wait for input, and the `bootctl` command that clears each.
const TIMEOUT_VARIABLES: [(&str, &str); 2] =
    [("LoaderConfigTimeout", "set-timeout"), ("LoaderConfigTimeoutOneShot", "set-timeout-oneshot")];

/// Runs all checks.
pub fn find_faults(esp: &Esp) -> Vec<String> {
    let system = &esp.system;
    let mut faults = Vec::new();
    match check_mount(esp) {
        Some(why) => faults.push(why),
        // The kernel of the running slot can be missed only on a mounted ESP.
        None => faults.extend(check_running_kernel(esp)),
    }
    faults.extend(check_settings(&esp.path));
    faults.extend(check_loader(system));
    faults.extend(check_entry_variables(system));
    faults.extend(check_timeout_variables(system));
    faults.extend(check_bless_unit(system));
    faults.extend(check_entries(esp));
    if esp.needs_watchdog {
        faults.extend(check_watchdog(&system.sys, "its configuration requires one"));
    }
    faults
}

/// The ESP must be mounted and writable.
fn check_mount(esp: &Esp) -> Option<String> {
    let mounts = match esp.system.mounts() {
        Ok(mounts) => mounts,
        Err(failure) => return Some(failure.reason),
    };
    let at = esp.mount_point.display();
    let mount = mounts::find_mount(&mounts, &esp.mount_point);
    match mount.filter(|mount| mount.mount_point != Path::new("/")) {
        None => Some(format!("the ESP is not mounted at {at}: mount it there")),
        Some(mount) if mount.read_only => Some(format!(
            "the ESP at {at} is read-only: check it with fsck.vfat if an error made it read-only, then mount it writable"
        )),
        Some(_) => None,
    }
}

/// A failed trial falls back to the running slot, if that is known, so its kernel must be on the
/// ESP.
fn check_running_kernel(esp: &Esp) -> Option<String> {
    let booted = esp.observe().ok()?.booted?;
    let kernel = entries::kernel_path(booted);
    if esp.has_file(&kernel) {
        return None;
    }
    let letter = entries::slot_letter(booted);
    Some(format!(
        "the ESP has no kernel of the running slot {letter} at {kernel}: a failed trial could not fall back to it; copy it \
         there from /{IMAGE_KERNELS_FOLDER}"
    ))
}

/// The settings must let the loader start the first entry without waiting for input.
fn check_settings(esp: &Path) -> Vec<String> {
    let path = esp.join("loader/loader.conf");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![format!("cannot read {}: {error}", path.display())],
    };
    let settings = text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?, fields.next()?))
    });
    settings
        .filter_map(|(key, value)| {
            let why = if OVERRIDING_SETTINGS.contains(&key) {
                "the boot loader would start that entry in place of the one on trial"
            } else if (key, value) == ("timeout", "menu-force") {
                "the boot loader would wait for input at each boot"
            } else {
                return None;
            };
            Some(format!(
                "{} contains \"{key} {value}\": remove that line, because {why}",
                path.display()
            ))
        })
        .collect()
}

/// systemd-boot, in a version that supports boot counting, must have started this system.
fn check_loader(system: &SystemInterfaces) -> Vec<String> {
    let mut faults = Vec::new();
    match system.efi.read_text("LoaderInfo") {
        Err(why) => faults.push(why),
        Ok(None) => faults.push(
            "no boot loader set its name in the firmware's variables: start the machine by UEFI with systemd-boot, and mount \
             efivarfs at /sys/firmware/efi/efivars"
                .to_owned(),
        ),
        Ok(Some(info)) => faults.extend(check_version(&info)),
    }
    match system.efi.read_number("LoaderFeatures") {
        Err(why) => faults.push(why),
        Ok(features) => {
            let lacks =
                [(FEATURE_BOOT_COUNTING, "count boots"), (FEATURE_SORT_KEY, "sort by sort-key")]
                    .into_iter()
                    .filter(|(bit, _)| features.unwrap_or(0) & bit == 0);
            faults.extend(lacks.map(|(_, feature)| {
                format!("the boot loader does not report that it can {feature}: update it with `bootctl update`")
            }));
        }
    }
    faults
}

/// Checks `LoaderInfo`, for example `systemd-boot 252.39-1~deb12u1`.
fn check_version(info: &str) -> Option<String> {
    let Some(version) = info.strip_prefix("systemd-boot ") else {
        return Some(format!(
            "{info} started this system, and it does not count boots: install systemd-boot with `bootctl install`"
        ));
    };
    let number = version.split(|digit: char| !digit.is_ascii_digit()).next();
    let miscounts = number.is_some_and(|number| MISCOUNTING_VERSIONS.contains(&number));
    miscounts.then(|| {
        format!(
            "the boot loader is {info}, and versions 258 and 259 count boots wrongly: install another version and run \
             `bootctl update`"
        )
    })
}

/// No variable may select the entry to start.
fn check_entry_variables(system: &SystemInterfaces) -> Vec<String> {
    let faults = OVERRIDING_VARIABLES.iter().filter_map(|name| {
        let entry = match system.efi.read_text(name) {
            Ok(entry) => entry?,
            Err(why) => return Some(why),
        };
        let verb = match *name {
            "LoaderEntryDefault" => "set-default",
            "LoaderEntryPreferred" => "set-preferred",
            _ => "set-oneshot",
        };
        Some(format!(
            "the firmware's variable {name} is {entry}, which the boot loader would start in place of the entry on trial: \
             clear it with `bootctl {verb} \"\"`"
        ))
    });
    faults.collect()
}

/// No variable may make the loader wait for input.
fn check_timeout_variables(system: &SystemInterfaces) -> Vec<String> {
    let faults = TIMEOUT_VARIABLES.iter().filter_map(|(name, verb)| {
        let value = match system.efi.read_text(name) {
            Ok(value) => value?,
            Err(why) => return Some(why),
        };
        waits_forever(name, &value).then(|| {
            format!(
                "the firmware's variable {name} is {value}, which makes the boot loader wait for input: clear it with \
                 `bootctl {verb} \"\"`"
            )
        })
    });
    faults.collect()
}

/// Whether the loader waits without a limit. `bootctl` may also write `menu-force` as the largest
/// 32-bit number. Zero means no wait, except in the one-shot variable, where it means no limit.
fn waits_forever(name: &str, value: &str) -> bool {
    match value.parse::<u64>() {
        Ok(0) => name.ends_with("OneShot"),
        Ok(seconds) => seconds >= u64::from(u32::MAX),
        Err(_) => value == "menu-force",
    }
}

/// Only the agent may bless an entry.
fn check_bless_unit(system: &SystemInterfaces) -> Option<String> {
    let is_there =
        units::unit_state(system.paths.root(), units::BLESS_UNIT) == UnitState::Available;
    is_there.then(|| {
        let unit = units::BLESS_UNIT;
        format!(
            "{unit} would bless an image before it is known to be healthy: mask it with `systemctl mask {unit}`"
        )
    })
}

/// Own entries must be as the agent writes them, and foreign entries must not come first.
fn check_entries(esp: &Esp) -> Vec<String> {
    let listed = match esp.entries() {
        Ok(listed) => listed,
        Err(failure) => return vec![failure.reason],
    };
    let mut faults = Vec::new();
    for slot in [Slot::A, Slot::B] {
        if let BootEntry::Invalid(why) = entries::slot_entry(&listed, slot) {
            faults.push(why);
        }
    }
    let first = entries::foreign_entries_before_ours(&listed).into_iter();
    faults.extend(first.map(|entry| precedence_fault(&entry.file)));
    let loose = esp.loose_kernels().into_iter();
    faults.extend(loose.map(|file| {
        format!("the boot loader may start {file} in place of the entry on trial: remove it from the ESP")
    }));
    faults.extend(check_extended_partition(esp));
    faults
}

fn precedence_fault(file: &str) -> String {
    format!(
        "the boot loader may start {file} in place of the entry on trial: remove it, or give it a sort-key after \"{}\"",
        entries::SORT_KEY
    )
}

/// The loader also reads the entries of an extended boot partition, which is mounted at `/boot`.
fn check_extended_partition(esp: &Esp) -> Vec<String> {
    let at = Path::new("/boot");
    let mounts = esp.system.mounts().unwrap_or_default();
    let is_mounted = mounts.iter().any(|mount| mount.mount_point == at && mount.fs_type == "vfat");
    if !is_mounted || esp.mount_point == at {
        return Vec::new();
    }
    let folder = esp.system.resolve_in_root(at).join(entries::ENTRIES_FOLDER);
    let theirs = read_entries(&folder).unwrap_or_default();
    entries::foreign_entries_before_ours(&theirs)
        .into_iter()
        .map(|entry| precedence_fault(&entry.file))
        .collect()
}

/// There must be a watchdog that guards a trial; `why` says why it is needed.
pub fn check_watchdog(sys: &Path, why: &str) -> Option<String> {
    let watchdog = sys.join("class/watchdog/watchdog0");
    if !watchdog.exists() {
        return Some(format!(
            "this machine has no watchdog, and {why}: load the driver of its watchdog"
        ));
    }
    let has_value =
        |file: &str, value: &str| os::first_line(&watchdog.join(file)).as_deref() == Some(value);
    // The agent never starts a watchdog that cannot be stopped: nothing would feed it after the
    // trial.
    let is_of_no_use = has_value("nowayout", "1") && !has_value("state", "active");
    is_of_no_use.then(|| {
        format!(
            "the watchdog of this machine cannot be stopped again (nowayout), so the agent does not use it, and {why}: let \
             systemd feed it (RuntimeWatchdogSec=), or load its driver with nowayout=0"
        )
    })
}

/// Checks that a kernel with this command line resets the machine if it cannot start, and uses the
/// root of its slot.
pub fn check_kernel_cmdline(cmdline: &str, slot: Slot) -> Result<(), String> {
    check_panic_option(cmdline)?;
    let deadline =
        kernel_option(cmdline, "evenkeel.deadline=").and_then(|value| value.parse::<u32>().ok());
    let resets = kernel_option(cmdline, "rd.emergency=") == Some("reboot");
    if !resets && deadline.is_none_or(|seconds| seconds == 0) {
        return Err(
            "its command line has neither evenkeel.deadline=SECONDS nor rd.emergency=reboot, so an initramfs that finds no \
             root would wait without an end: build the image with one of them"
                .to_owned(),
        );
    }
    match mounts::slot_of_cmdline(cmdline) {
        Some(root) if root != slot => Err(format!(
            "its command line names the root of slot {}: build the image with a kernel for each slot",
            entries::slot_letter(root)
        )),
        _ => Ok(()),
    }
}

/// Checks that a kernel with this command line resets the machine when it panics.
pub fn check_panic_option(cmdline: &str) -> Result<(), String> {
    // A negative number resets immediately.
    let seconds = kernel_option(cmdline, "panic=").and_then(|value| value.parse::<i32>().ok());
    if seconds.is_none_or(|seconds| seconds == 0) {
        return Err(
            "its command line has no panic=N, so the machine would hang after a kernel panic: build the image with panic=10"
                .to_owned(),
        );
    }
    Ok(())
}

/// The last value of a kernel option. Arguments after `--` are for init.
fn kernel_option<'a>(cmdline: &'a str, key: &str) -> Option<&'a str> {
    cmdline
        .split_whitespace()
        .take_while(|argument| *argument != "--")
        .filter_map(|argument| argument.strip_prefix(key))
        .fold(None, |_, value| Some(value))
}

#[cfg(test)]
mod tests;
