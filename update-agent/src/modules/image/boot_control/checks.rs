//! What stands against a trial on a system with systemd-boot. Each fault is a sentence that says what to do.
//!
//! What the loader does with its settings and variables is described in loader.conf(5), systemd-boot(7) and the
//! [Boot Loader Interface].
//!
//! [Boot Loader Interface]: https://systemd.io/BOOT_LOADER_INTERFACE/

use std::fs;
use std::io;
use std::path::Path;

use super::System;
use super::entries;
use super::mounts;
use super::sdboot::{Esp, IN_IMAGE, listed};
use super::units::{self, Unit};
use crate::modules::image::slots::{Entry, Slot};
use crate::os;

/// Bit of `LoaderFeatures`: the loader counts boots.
const COUNTS: u64 = 1 << 4;

/// Bit of `LoaderFeatures`: the loader sorts by sort keys.
const SORTS: u64 = 1 << 8;

/// Versions of systemd-boot that miscount: systemd issues 40192 and 40405.
const MISCOUNT: [&str; 2] = ["258", "259"];

/// What the loader starts in place of the first entry, by its settings and by variables of the firmware.
const SETTINGS: [&str; 2] = ["default", "preferred"];
const VARIABLES: [&str; 3] = [
    "LoaderEntryDefault",
    "LoaderEntryPreferred",
    "LoaderEntryOneShot",
];

/// What else lets the loader wait for somebody, and the word by which `bootctl` clears it.
const TIMEOUTS: [(&str, &str); 2] = [
    ("LoaderConfigTimeout", "set-timeout"),
    ("LoaderConfigTimeoutOneShot", "set-timeout-oneshot"),
];

/// All faults.
pub fn all(esp: &Esp) -> Vec<String> {
    let system = &esp.system;
    let mut faults = Vec::new();
    match writable(esp) {
        Some(why) => faults.push(why),
        // On an ESP that is not mounted nothing is to be missed.
        None => faults.extend(way_back(esp)),
    }
    faults.extend(settings(&esp.path));
    faults.extend(loader(system));
    faults.extend(chosen(system));
    faults.extend(waits(system));
    faults.extend(blessing(system));
    faults.extend(entries_of(esp));
    if esp.needs_watchdog {
        faults.extend(watchdog(&system.sys, "its configuration requires one"));
    }
    faults
}

/// The ESP must be mounted, and be writable.
fn writable(esp: &Esp) -> Option<String> {
    let mounts = match esp.system.mounts() {
        Ok(mounts) => mounts,
        Err(failure) => return Some(failure.reason),
    };
    let at = esp.at.display();
    let mount = mounts::of_path(&mounts, &esp.at);
    match mount.filter(|mount| mount.at != Path::new("/")) {
        None => Some(format!("the ESP is not mounted at {at}: mount it there")),
        Some(mount) if mount.read_only => Some(format!(
            "the ESP at {at} is read-only: mount it writable; if an error made it so, check it with fsck.vfat before"
        )),
        Some(_) => None,
    }
}

/// The way back of a trial is the slot that runs, where that is known, so its kernel must be there.
fn way_back(esp: &Esp) -> Option<String> {
    let booted = esp.look().ok()?.booted?;
    let kernel = entries::kernel(booted);
    if esp.holds(&kernel) {
        return None;
    }
    let letter = entries::letter(booted);
    Some(format!(
        "the ESP has no kernel of slot {letter}, which runs, at {kernel}: without it there is no way back from a trial; copy \
         it there from /{IN_IMAGE}"
    ))
}

/// The settings of the loader must let it take the first entry, and must not let it wait for somebody.
fn settings(esp: &Path) -> Vec<String> {
    let path = esp.join("loader/loader.conf");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![format!("cannot read {}: {error}", path.display())],
    };
    let words = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words.next()?))
    });
    words
        .filter_map(|(key, value)| {
            let why = if SETTINGS.contains(&key) {
                "the boot loader would start that entry in place of the one on trial"
            } else if (key, value) == ("timeout", "menu-force") {
                "the boot loader would wait for somebody at each boot"
            } else {
                return None;
            };
            Some(format!(
                "{} says \"{key} {value}\": remove that line, for {why}",
                path.display()
            ))
        })
        .collect()
}

/// The loader that started this system must be systemd-boot, and one that counts.
fn loader(system: &System) -> Vec<String> {
    let mut faults = Vec::new();
    match system.efi.text("LoaderInfo") {
        Err(why) => faults.push(why),
        Ok(None) => faults.push(
            "no boot loader told the firmware its name: start the machine by UEFI with systemd-boot, and mount efivarfs at \
             /sys/firmware/efi/efivars"
                .to_owned(),
        ),
        Ok(Some(info)) => faults.extend(version(&info)),
    }
    match system.efi.number("LoaderFeatures") {
        Err(why) => faults.push(why),
        Ok(features) => {
            let lacks = [(COUNTS, "count boots"), (SORTS, "sort by sort-key")]
                .into_iter()
                .filter(|(bit, _)| features.unwrap_or(0) & bit == 0);
            faults.extend(lacks.map(|(_, what)| {
                format!("the boot loader does not say that it can {what}: update it with `bootctl update`")
            }));
        }
    }
    faults
}

/// `LoaderInfo` is such as `systemd-boot 252.39-1~deb12u1`.
fn version(info: &str) -> Option<String> {
    let Some(version) = info.strip_prefix("systemd-boot ") else {
        return Some(format!(
            "this system was started by {info}, which counts no boots: install systemd-boot with `bootctl install`"
        ));
    };
    let number = version.split(|digit: char| !digit.is_ascii_digit()).next();
    let miscounts = number.is_some_and(|number| MISCOUNT.contains(&number));
    miscounts.then(|| {
        format!(
            "the boot loader is {info}, and the versions 258 and 259 miscount boots: install another and run `bootctl update`"
        )
    })
}

/// No variable may name the entry to start.
fn chosen(system: &System) -> Vec<String> {
    let told = VARIABLES.iter().filter_map(|name| {
        let entry = match system.efi.text(name) {
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
    told.collect()
}

/// No variable may let the loader wait for somebody.
fn waits(system: &System) -> Vec<String> {
    let told = TIMEOUTS.iter().filter_map(|(name, verb)| {
        let value = match system.efi.text(name) {
            Ok(value) => value?,
            Err(why) => return Some(why),
        };
        waits_for_ever(name, &value).then(|| {
            format!(
                "the firmware's variable {name} is {value}, with which the boot loader waits for somebody: clear it with \
                 `bootctl {verb} \"\"`"
            )
        })
    });
    told.collect()
}

/// Whether the loader waits without an end. `bootctl` writes `menu-force` as the largest number of 32 bits as well; zero
/// seconds are no time, but where they are set for one boot: there they have no end.
fn waits_for_ever(name: &str, value: &str) -> bool {
    match value.parse::<u64>() {
        Ok(0) => name.ends_with("OneShot"),
        Ok(seconds) => seconds >= u64::from(u32::MAX),
        Err(_) => value == "menu-force",
    }
}

/// Nobody else may bless an entry.
fn blessing(system: &System) -> Option<String> {
    let is_there = units::unit(system.place.root(), units::BLESS) == Unit::There;
    is_there.then(|| {
        let unit = units::BLESS;
        format!(
            "{unit} would keep an image before it is known to be healthy: mask it with `systemctl mask {unit}`"
        )
    })
}

/// Entries must be as the agent writes them, and none of others may come first.
fn entries_of(esp: &Esp) -> Vec<String> {
    let listed = match esp.entries() {
        Ok(listed) => listed,
        Err(failure) => return vec![failure.reason],
    };
    let mut faults = Vec::new();
    for slot in [Slot::A, Slot::B] {
        if let Entry::Strange(why) = entries::of_slot(&listed, slot) {
            faults.push(why);
        }
    }
    let first = entries::foreign_first(&listed).into_iter();
    faults.extend(first.map(|entry| before_ours(&entry.file)));
    let loose = esp.loose_kernels().into_iter();
    faults.extend(loose.map(|file| {
        format!("the boot loader may start {file} in place of the entry on trial: remove it from the ESP")
    }));
    faults.extend(extended(esp));
    faults
}

fn before_ours(file: &str) -> String {
    format!(
        "the boot loader may start {file} in place of the entry on trial: remove it, or give it a sort-key behind \"{}\"",
        entries::KEY
    )
}

/// The loader reads the entries of an extended boot partition as well, which lies at `/boot`.
fn extended(esp: &Esp) -> Vec<String> {
    let at = Path::new("/boot");
    let mounts = esp.system.mounts().unwrap_or_default();
    let is_mounted = mounts
        .iter()
        .any(|mount| mount.at == at && mount.kind == "vfat");
    if !is_mounted || esp.at == at {
        return Vec::new();
    }
    let folder = esp.system.inside(at).join(entries::FOLDER);
    let theirs = listed(&folder).unwrap_or_default();
    entries::foreign_first(&theirs)
        .into_iter()
        .map(|entry| before_ours(&entry.file))
        .collect()
}

/// There must be a watchdog that guards a trial; `why` says for whose sake.
pub fn watchdog(sys: &Path, why: &str) -> Option<String> {
    let watchdog = sys.join("class/watchdog/watchdog0");
    if !watchdog.exists() {
        return Some(format!(
            "this machine has no watchdog, and {why}: load the driver of its watchdog"
        ));
    }
    let tells =
        |file: &str, word: &str| os::first_line(&watchdog.join(file)).as_deref() == Some(word);
    // One that cannot be stopped is never started by the agent: nobody would feed it once the image is kept.
    let is_of_no_use = tells("nowayout", "1") && !tells("state", "active");
    is_of_no_use.then(|| {
        format!(
            "the watchdog of this machine could not be stopped again (nowayout), so that it is not used, and {why}: let \
             systemd feed it (RuntimeWatchdogSec=), or load its driver with nowayout=0"
        )
    })
}

/// Whether a kernel with this command line resets the machine when it cannot start, and has the root of its slot.
pub fn cmdline(cmdline: &str, slot: Slot) -> Result<(), String> {
    panics(cmdline)?;
    let deadline = option(cmdline, "evenkeel.deadline=").and_then(|word| word.parse::<u32>().ok());
    let resets = option(cmdline, "rd.emergency=") == Some("reboot");
    if !resets && deadline.is_none_or(|seconds| seconds == 0) {
        return Err(
            "its command line has neither evenkeel.deadline=SECONDS nor rd.emergency=reboot, without which an initramfs \
             that finds no root stays there: build the image with one of them"
                .to_owned(),
        );
    }
    match mounts::slot_of_cmdline(cmdline) {
        Some(root) if root != slot => Err(format!(
            "its command line names the root of slot {}: build the image with a kernel for each slot",
            entries::letter(root)
        )),
        _ => Ok(()),
    }
}

/// Whether a kernel with this command line resets the machine when it panics.
pub fn panics(cmdline: &str) -> Result<(), String> {
    // A negative number resets at once.
    let seconds = option(cmdline, "panic=").and_then(|word| word.parse::<i32>().ok());
    if seconds.is_none_or(|seconds| seconds == 0) {
        return Err(
            "its command line has no panic=N, without which a kernel that panics stays so: build the image with panic=10"
                .to_owned(),
        );
    }
    Ok(())
}

/// The last value of an option of the kernel. What stands behind two dashes is for init.
fn option<'a>(cmdline: &'a str, key: &str) -> Option<&'a str> {
    cmdline
        .split_whitespace()
        .take_while(|word| *word != "--")
        .filter_map(|word| word.strip_prefix(key))
        .fold(None, |_, value| Some(value))
}

#[cfg(test)]
mod tests;
