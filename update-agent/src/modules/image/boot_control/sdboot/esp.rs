//! The ESP with the entries of its loader and the kernels of the slots.
//!
//! All of it blocks for as long as the disk does.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::super::entries::{self, Listed, Name};
use super::super::files::{self, MOST_ENTRY, broken};
use super::super::{System, checks, failed, mounts, units};
use crate::config::{ImageConfig, Watchdog};
use crate::durable;
use crate::model::Failure;
use crate::modules::image::device::{Device, storage};
use crate::modules::image::slots::{Entry, Seen, Slot, What};
use crate::modules::image::uki;

/// Where an image has its kernels.
pub const IN_IMAGE: &str = "usr/lib/evenkeel/boot";

/// An ESP that is mounted.
#[derive(Debug)]
pub struct Esp {
    /// The system that runs.
    pub system: System,
    /// Where it is, as seen from inside the managed root.
    pub at: PathBuf,
    /// The same as the agent sees it.
    pub path: PathBuf,
    /// How often an entry on trial may be started.
    tries: u8,
    /// Whether a trial must be watched by hardware.
    pub needs_watchdog: bool,
}

impl Esp {
    /// The one that is mounted at `at`, as seen from inside the managed root.
    pub fn new(system: System, at: PathBuf, config: &ImageConfig) -> Self {
        Self {
            path: system.inside(&at),
            system,
            at,
            tries: config.tries,
            needs_watchdog: matches!(config.watchdog, Watchdog::Require),
        }
    }

    fn folder(&self) -> PathBuf {
        self.path.join(entries::FOLDER)
    }

    /// All entries of the folder.
    pub fn entries(&self) -> Result<Vec<Listed>, Failure> {
        listed(&self.folder())
    }

    /// Kernels that the loader lists without an entry, as paths below the ESP, but for those it has given up. Where
    /// they are sorted says something inside them.
    pub fn loose_kernels(&self) -> Vec<String> {
        let Ok(folder) = fs::read_dir(self.path.join("EFI/Linux")) else {
            return Vec::new();
        };
        let names = folder.flatten().map(|file| file.file_name());
        let mut kernels: Vec<String> = names
            .filter_map(|name| name.into_string().ok())
            .filter(|name| Name::parse(name, "efi").is_some_and(|name| !name.is_spent()))
            .map(|name| format!("EFI/Linux/{name}"))
            .collect();
        kernels.sort_unstable();
        kernels
    }

    /// The slot that runs: that whose partition is the root; where that cannot be told, as the kernel or the loader was
    /// told.
    fn booted(&self, listed: &[Listed]) -> Result<Option<Slot>, Failure> {
        let mounts = self.system.mounts()?;
        if let Some(root) = mounts::of_root(&mounts, &self.system.sys) {
            return Ok(mounts::slot_of_label(&root.label));
        }
        if let Some(slot) = mounts::slot_of_cmdline(&self.system.cmdline()) {
            return Ok(Some(slot));
        }
        let selected = self
            .system
            .efi
            .text("LoaderEntrySelected")
            .map_err(failed)?;
        Ok(selected.and_then(|id| entries::slot_of_id(listed, &id)))
    }

    /// The device of a slot.
    pub fn device(&self, slot: Slot) -> Result<PathBuf, Failure> {
        Device::find(slot.label(), &self.system.sys)
    }

    /// Whether there is a file with content at a path below the ESP. VFAT itself finds it whatever the case of its name.
    pub fn holds(&self, path: &str) -> bool {
        fs::metadata(self.path.join(path)).is_ok_and(|found| found.is_file() && found.len() > 0)
    }

    fn must_have_kernel(&self, slot: Slot) -> Result<(), Failure> {
        if self.holds(&entries::kernel(slot)) {
            return Ok(());
        }
        Err(failed(format!(
            "slot {} has no kernel on the ESP",
            entries::letter(slot)
        )))
    }

    /// Whether anything can be started that is not one of `gone`. An entry whose file is not there starts nothing.
    fn something_starts_without(&self, listed: &[Listed], gone: &[&Listed]) -> bool {
        let stays = |entry: &&Listed| !gone.iter().any(|other| other.file == entry.file);
        let starts = |entry: &Listed| {
            let file = entry.starts.as_deref();
            !entry.name.is_spent() && file.is_some_and(|file| self.holds(file))
        };
        let is_loose = || self.loose_kernels().iter().any(|kernel| self.holds(kernel));
        listed.iter().filter(stays).any(starts) || is_loose()
    }

    /// See [`BootControl::look`](super::super::BootControl::look).
    pub fn look(&self) -> Result<Seen, Failure> {
        let listed = self.entries()?;
        let foreign = entries::foreign(&listed).map(|entry| entry.file.clone());
        Ok(Seen {
            booted: self.booted(&listed)?,
            boot_id: self.system.boot_id()?,
            image: self.system.image(),
            a: entries::of_slot(&listed, Slot::A),
            b: entries::of_slot(&listed, Slot::B),
            foreign: foreign.chain(self.loose_kernels()).collect(),
        })
    }

    /// See [`BootControl::room`](super::super::BootControl::room).
    pub fn room(&self, slot: Slot) -> Result<u64, Failure> {
        // The new kernel lies beside the old one until it is whole. It is not known yet; those that are there tell.
        let kernels = [Slot::A, Slot::B].map(entries::kernel);
        let sizes = kernels
            .iter()
            .filter_map(|kernel| fs::metadata(self.path.join(kernel)).ok());
        let largest = sizes.map(|found| found.len()).max().unwrap_or(0);
        let needed = largest.saturating_add(largest / 4);
        // What an interrupted copy left goes before the next one.
        let left = fs::metadata(self.beside(slot)).map_or(0, |found| found.len());
        files::must_fit(&self.path, needed.saturating_sub(left))?;
        // Only looked at, not held as for writing: another command of the agent may be at work on it.
        let device = self.device(slot)?;
        let size = File::open(&device).and_then(|mut device| device.seek(SeekFrom::End(0)));
        size.map_err(|error| storage(format!("cannot look at {}: {error}", device.display())))
    }

    /// See [`BootControl::withdraw`](super::super::BootControl::withdraw).
    pub fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        let listed = self.entries()?;
        let gone: Vec<&Listed> = listed
            .iter()
            .filter(|entry| entry.slot() == Some(slot))
            .collect();
        if !gone.is_empty() && !self.something_starts_without(&listed, &gone) {
            return Err(failed(format!(
                "the boot entry {} stays: without it the boot loader would have nothing to start",
                gone[0].file
            )));
        }
        for entry in gone.iter().filter(|entry| entry.sequence().is_none()) {
            durable::remove(&self.folder().join(&entry.file)).map_err(broken)?;
        }
        let named = named(&self.folder())?;
        for file in &named {
            let is_it = |entry: &&Listed| entry.file == file.name;
            let is_left_over = listed.iter().filter(is_it).any(Listed::is_left_over);
            if file.is_beside || is_left_over || gone.iter().any(is_it) {
                self.remove(file, &named, &gone)?;
            }
        }
        // Only when this is on the disk may the slot be written: nothing may start what is half written.
        files::flush(&self.path)
    }

    /// Removes a file of ours, or as much of it as can be.
    ///
    /// A rename on VFAT is two writes, and a power cut between them leaves both names with the same clusters. To remove
    /// one of them, or to put another file in its place, frees what the other one still has; and with the other one the
    /// same clusters are freed once more, of which the kernel makes the whole ESP read-only. So of several names with
    /// one number none is removed: what starts the slot is overwritten where it lies. The rest is left to fsck.vfat.
    fn remove(&self, file: &Named, named: &[Named], gone: &[&Listed]) -> Result<(), Failure> {
        let path = self.folder().join(&file.name);
        // An empty file has no clusters.
        let shares = |other: &&Named| other.sequence == file.sequence && !other.is_empty;
        if file.is_empty || named.iter().filter(shares).count() == 1 {
            return durable::remove(&path).map_err(broken);
        }
        let starts = |entry: &&Listed| entry.sequence() == Some(file.sequence);
        if gone.iter().any(starts) {
            tracing::warn!(file = %path.display(), "one of several names of one boot entry; run fsck.vfat");
            return files::blot(&path);
        }
        Ok(())
    }

    /// See [`BootControl::arm`](super::super::BootControl::arm).
    pub fn arm(&self, slot: Slot, what: &What, sequence: u32) -> Result<(), Failure> {
        let listed = self.entries()?;
        let (mine, others): (Vec<&Listed>, Vec<&Listed>) =
            listed.iter().partition(|entry| entry.slot() == Some(slot));
        // The newest entry comes first. The record that counts may have been lost; names tell what was given.
        let number = entries::next(others).max(sequence);
        let is_armed =
            |entry: &Listed| entry.sequence() == Some(number) && entry.name.counter.is_some();
        if let Some(entry) = mine.iter().find(|entry| !is_armed(entry)) {
            return Err(failed(format!(
                "slot {} cannot be armed while there is the boot entry {}: remove it",
                entries::letter(slot),
                entry.file
            )));
        }
        self.must_have_kernel(slot)?;
        // An earlier try came so far; what is left is to be sure of the disk.
        if mine.is_empty() {
            let name = format!("{}+{}.conf", entries::id(number), self.tries);
            let image = (what.profile_name.as_str(), what.image_id.as_str());
            let text = entries::text(slot, image, number);
            // Under the name that the loader reads it is either whole or not there. With this rename the slot is armed.
            durable::replace(&self.folder().join(name), text.as_bytes(), 0o644).map_err(broken)?;
        }
        files::flush(&self.path)
    }

    /// See [`BootControl::bless`](super::super::BootControl::bless).
    pub fn bless(&self, slot: Slot) -> Result<(), Failure> {
        let listed = self.entries()?;
        match entries::of_slot(&listed, slot) {
            // A name with a counter may lie beside the plain one after a power cut, and cannot be removed.
            Entry::Plain => {}
            Entry::Counted { .. } => {
                let mine = listed.iter().find(|entry| entry.slot() == Some(slot));
                let Some(entry) = mine else {
                    return Err(nothing_to_bless(slot));
                };
                let plain = self.folder().join(format!("{}.conf", entry.name.id));
                // With this rename the slot is the one that starts from now on.
                fs::rename(self.folder().join(&entry.file), &plain).map_err(|error| {
                    storage(format!(
                        "cannot rename the boot entry {}: {error}",
                        entry.file
                    ))
                })?;
                durable::flush_folder(&plain).map_err(broken)?;
            }
            // A rename that a power cut tore may have lost both names. What runs has its kernel: it gets an entry anew.
            Entry::Absent if self.booted(&listed)? == Some(slot) => {
                self.must_have_kernel(slot)?;
                let number = entries::next(&listed);
                let image = self.system.image().unwrap_or_default();
                let text = entries::text(slot, (&image.0, &image.1), number);
                let path = self.folder().join(format!("{}.conf", entries::id(number)));
                durable::replace(&path, text.as_bytes(), 0o644).map_err(broken)?;
            }
            Entry::Absent | Entry::Once => return Err(nothing_to_bless(slot)),
            Entry::Strange(why) => return Err(failed(why)),
        }
        files::flush(&self.path)
    }

    /// Where a kernel lies until it is whole.
    fn beside(&self, slot: Slot) -> PathBuf {
        let name = format!("slot-{}.new", entries::letter(slot));
        self.path.join(entries::KERNELS).join(name)
    }

    /// Removes what an interrupted copy of a kernel left: it would take the room that the next one needs. Whether it is
    /// gone.
    ///
    /// It stays if it may have its clusters in common with the kernel in its place, for the reason that [`Esp::remove`]
    /// gives. So it is if both hold the same, since nothing is copied that is in its place already.
    fn tidy(&self, slot: Slot) -> Result<bool, Failure> {
        let beside = self.beside(slot);
        let Ok(mut left) = File::open(&beside) else {
            return Ok(true);
        };
        let is_empty = left.metadata().is_ok_and(|found| found.len() == 0);
        let kernel = self.path.join(entries::kernel(slot));
        if !is_empty && files::is_copy(&mut left, &kernel).unwrap_or_default() {
            tracing::warn!(file = %beside.display(), "one of two names of a kernel; run fsck.vfat");
            return Ok(false);
        }
        durable::remove(&beside).map_err(broken)?;
        Ok(true)
    }

    /// Copies the kernel of an image that is mounted at `point`, if the machine is reset when it cannot start, and if
    /// the image does not keep itself.
    pub fn copy_kernel(&self, point: &Path, slot: Slot, image: &str) -> Result<(), Failure> {
        units::judge(point)
            .map_err(|why| failed(format!("the image {image} cannot be tried: {why}")))?;
        let name = format!("slot-{}.efi", entries::letter(slot));
        let mut source = files::open_below(point, &format!("{IN_IMAGE}/{name}"))?;
        let cannot_be_tried = |why: String| {
            let letter = entries::letter(slot);
            failed(format!(
                "the kernel of the image {image} for slot {letter} cannot be tried: {why}"
            ))
        };
        let judge = |kernel: &Path| {
            uki::cmdline(kernel).and_then(|cmdline| checks::cmdline(&cmdline, slot))
        };
        let folder = self.path.join(entries::KERNELS);
        durable::make_folder(&folder, 0o755).map_err(broken)?;
        let kernel = folder.join(name);
        let is_tidy = self.tidy(slot)?;
        // An earlier try came so far; what is left is to be sure of the disk.
        if files::is_copy(&mut source, &kernel)? {
            judge(&kernel).map_err(cannot_be_tried)?;
            return files::flush(&self.path);
        }
        if !is_tidy {
            return Err(failed(format!(
                "since a power cut {} may be one of two names of one file, and to replace it would damage the file system: \
                 unmount the ESP, check it with fsck.vfat and mount it again",
                kernel.display()
            )));
        }
        let beside = self.beside(slot);
        let bytes = source.metadata().map_or(0, |found| found.len());
        files::must_fit(&self.path, bytes)?;
        // Whole and on the disk before it has the name that an entry may give.
        files::copy(&mut source, &beside)?;
        if let Err(why) = judge(&beside) {
            durable::remove(&beside).map_err(broken)?;
            return Err(cannot_be_tried(why));
        }
        fs::rename(&beside, &kernel)
            .map_err(|error| storage(format!("cannot replace {}: {error}", kernel.display())))?;
        durable::flush_folder(&kernel).map_err(broken)?;
        // Only when this is on the disk may an entry name it.
        files::flush(&self.path)
    }
}

fn nothing_to_bless(slot: Slot) -> Failure {
    failed(format!(
        "slot {} has no boot entry that could be kept",
        entries::letter(slot)
    ))
}

/// Reads a folder of entries; an absent one is empty.
pub fn listed(folder: &Path) -> Result<Vec<Listed>, Failure> {
    let cannot = |error: io::Error| storage(format!("cannot read {}: {error}", folder.display()));
    let files = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.map_err(cannot)?,
    };
    let mut listed = Vec::new();
    for file in files {
        let file = file.map_err(cannot)?;
        let name = file.file_name().to_string_lossy().into_owned();
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            continue;
        }
        let text = if metadata.len() > MOST_ENTRY {
            Vec::new()
        } else {
            fs::read(file.path()).map_err(cannot)?
        };
        listed.extend(Listed::parse(&name, &String::from_utf8_lossy(&text)));
    }
    listed.sort_by(entries::order);
    Ok(listed)
}

/// A file in the folder of the entries with a name that the agent could have given it.
struct Named {
    name: String,
    /// The number of the entry.
    sequence: u32,
    /// Whether it only was to become an entry.
    is_beside: bool,
    is_empty: bool,
}

/// Those of a folder; an absent one has none.
fn named(folder: &Path) -> Result<Vec<Named>, Failure> {
    let cannot = |error: io::Error| storage(format!("cannot read {}: {error}", folder.display()));
    let files = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.map_err(cannot)?,
    };
    let mut named = Vec::new();
    for file in files {
        let file = file.map_err(cannot)?;
        let name = file.file_name().to_string_lossy().into_owned();
        let Some((sequence, is_beside)) = entries::ours(&name) else {
            continue;
        };
        let metadata = file.metadata().map_err(cannot)?;
        if metadata.is_file() {
            named.push(Named {
                name,
                sequence,
                is_beside,
                is_empty: metadata.len() == 0,
            });
        }
    }
    Ok(named)
}
