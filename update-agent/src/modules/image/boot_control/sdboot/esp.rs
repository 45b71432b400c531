//! The ESP with the loader entries and the kernels of the slots.
//!
//! All functions block while they access the disk.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::super::entries::{self, EntryName, LoaderEntry};
use super::super::files::{self, MAX_ENTRY_BYTES, file_failure};
use super::super::{SystemInterfaces, apply_failure, checks, mounts, units};
use crate::config::{ImageConfig, WatchdogPolicy};
use crate::durable;
use crate::model::Failure;
use crate::modules::image::device::storage_failure;
use crate::modules::image::slots::{BootEntry, BootObservation, Slot, SlotImage};
use crate::modules::image::uki;

pub const IMAGE_KERNELS_FOLDER: &str = "usr/lib/evenkeel/boot";

/// A mounted ESP.
#[derive(Debug)]
pub struct Esp {
    /// Interfaces of the running system.
    pub system: SystemInterfaces,
    /// Mount point, as a path inside the managed root.
    pub mount_point: PathBuf,
    /// Mount point, as a path of this process.
    pub path: PathBuf,
    /// Number of boots of an entry on trial.
    max_tries: u8,
    /// Whether a trial needs a hardware watchdog.
    pub needs_watchdog: bool,
}

impl Esp {
    /// The ESP that is mounted at `at`, a path inside the managed root.
    pub fn new(system: SystemInterfaces, at: PathBuf, config: &ImageConfig) -> Self {
        Self {
            path: system.resolve_in_root(&at),
            system,
            mount_point: at,
            max_tries: config.tries,
            needs_watchdog: matches!(config.watchdog, WatchdogPolicy::Require),
        }
    }

    fn entries_folder(&self) -> PathBuf {
        self.path.join(entries::ENTRIES_FOLDER)
    }

    /// Reads all entries.
    pub fn entries(&self) -> Result<Vec<LoaderEntry>, Failure> {
        read_entries(&self.entries_folder())
    }

    /// Kernels that the loader lists without an entry, as paths relative to the ESP, except
    /// exhausted ones. Their sort order depends on their content.
    pub fn loose_kernels(&self) -> Vec<String> {
        let Ok(folder) = fs::read_dir(self.path.join("EFI/Linux")) else {
            return Vec::new();
        };
        let names = folder.flatten().map(|file| file.file_name());
        let mut kernels: Vec<String> = names
            .filter_map(|name| name.into_string().ok())
            .filter(|name| EntryName::parse(name, "efi").is_some_and(|name| !name.is_exhausted()))
            .map(|name| format!("EFI/Linux/{name}"))
            .collect();
        kernels.sort_unstable();
        kernels
    }

    /// The running slot: the one whose partition is the root. If the root is not on a partition,
    /// the slot that the kernel's command line names, or the slot of the entry that the loader
    /// selected.
    fn find_booted_slot(&self, listed: &[LoaderEntry]) -> Result<Option<Slot>, Failure> {
        let mounts = self.system.mounts()?;
        if let Some(root) = mounts::find_root_partition(&mounts, &self.system.sys) {
            return Ok(mounts::slot_of_label(&root.label));
        }
        if let Some(slot) = mounts::slot_of_cmdline(&self.system.cmdline()) {
            return Ok(Some(slot));
        }
        let selected = self.system.efi.read_text("LoaderEntrySelected").map_err(apply_failure)?;
        Ok(selected.and_then(|id| entries::find_slot_by_id(listed, &id)))
    }

    pub fn find_device(&self, slot: Slot) -> Result<PathBuf, Failure> {
        let found = self.system.find_slot_device(slot, Some(&self.mount_point))?;
        found.ok_or_else(|| {
            storage_failure(format!(
                "no partition on the disk of the running system has the name {}: image updates need the partitions \
                 root-a and root-b there",
                slot.label()
            ))
        })
    }

    /// Whether the ESP has a non-empty file at a relative path. VFAT ignores the case of the name.
    pub fn has_file(&self, path: &str) -> bool {
        fs::metadata(self.path.join(path))
            .is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
    }

    fn check_kernel(&self, slot: Slot) -> Result<(), Failure> {
        if self.has_file(&entries::kernel_path(slot)) {
            return Ok(());
        }
        Err(apply_failure(format!("slot {} has no kernel on the ESP", entries::slot_letter(slot))))
    }

    /// Whether anything can be started without the entries in `removed`. An entry whose file is
    /// missing starts nothing.
    fn can_start_without(&self, listed: &[LoaderEntry], removed: &[&LoaderEntry]) -> bool {
        let stays = |entry: &&LoaderEntry| !removed.iter().any(|other| other.file == entry.file);
        let starts = |entry: &LoaderEntry| {
            let file = entry.target.as_deref();
            !entry.name.is_exhausted() && file.is_some_and(|file| self.has_file(file))
        };
        let is_loose = || self.loose_kernels().iter().any(|kernel| self.has_file(kernel));
        listed.iter().filter(stays).any(starts) || is_loose()
    }

    /// See [`BootControl::look`](super::super::BootControl::look).
    pub fn observe(&self) -> Result<BootObservation, Failure> {
        let listed = self.entries()?;
        let foreign = entries::foreign_entries(&listed).map(|entry| entry.file.clone());
        Ok(BootObservation {
            booted: self.find_booted_slot(&listed)?,
            boot_id: self.system.boot_id()?,
            image: self.system.running_image(),
            a: entries::slot_entry(&listed, Slot::A),
            b: entries::slot_entry(&listed, Slot::B),
            foreign: foreign.chain(self.loose_kernels()).collect(),
        })
    }

    /// See [`BootControl::room`](super::super::BootControl::room).
    pub fn max_image_bytes(&self, slot: Slot) -> Result<u64, Failure> {
        // Until its copy is complete, the new kernel needs space next to the old one. Its size is
        // not known yet, so it is estimated from the existing kernels.
        let kernels = [Slot::A, Slot::B].map(entries::kernel_path);
        let sizes = kernels.iter().filter_map(|kernel| fs::metadata(self.path.join(kernel)).ok());
        let largest = sizes.map(|metadata| metadata.len()).max().unwrap_or(0);
        let needed = largest.saturating_add(largest / 4);
        // The remains of an interrupted copy are removed before the next one.
        let left =
            fs::metadata(self.temporary_kernel_path(slot)).map_or(0, |metadata| metadata.len());
        files::check_free_space(&self.path, needed.saturating_sub(left))?;
        // Opened for reading only, without the lock for writing: another command of the agent may
        // use the device.
        let device = self.find_device(slot)?;
        let size = File::open(&device).and_then(|mut device| device.seek(SeekFrom::End(0)));
        size.map_err(|error| {
            storage_failure(format!("cannot look at {}: {error}", device.display()))
        })
    }

    /// See [`BootControl::withdraw`](super::super::BootControl::withdraw).
    pub fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        let listed = self.entries()?;
        let removed: Vec<&LoaderEntry> =
            listed.iter().filter(|entry| entry.slot() == Some(slot)).collect();
        if !removed.is_empty() && !self.can_start_without(&listed, &removed) {
            return Err(apply_failure(format!(
                "the boot entry {} is not removed: without it, the boot loader could not start anything",
                removed[0].file
            )));
        }
        for entry in removed.iter().filter(|entry| entry.sequence().is_none()) {
            durable::remove_file(&self.entries_folder().join(&entry.file)).map_err(file_failure)?;
        }
        let own_files = read_own_files(&self.entries_folder())?;
        for file in &own_files {
            let is_it = |entry: &&LoaderEntry| entry.file == file.name;
            let is_left_over = listed.iter().filter(is_it).any(LoaderEntry::is_incomplete);
            if file.is_temporary || is_left_over || removed.iter().any(is_it) {
                self.remove_own_file(file, &own_files, &removed)?;
            }
        }
        // The slot may be written only after the removal is on disk: no entry may start an
        // incomplete slot.
        files::flush(&self.path)
    }

    /// Removes a file of ours, if that is safe.
    ///
    /// A rename on VFAT is two writes. A power cut between them leaves two names that share the
    /// same clusters. Removing or replacing one name frees clusters that the other one still uses.
    /// When the other one is removed as well, the clusters are freed twice, and the kernel makes
    /// the whole ESP read-only. So if several names have one sequence number, none of them is
    /// removed: an entry that starts the slot is overwritten in place, and fsck.vfat must repair
    /// the rest.
    fn remove_own_file(
        &self,
        file: &OwnFile,
        own_files: &[OwnFile],
        removed: &[&LoaderEntry],
    ) -> Result<(), Failure> {
        let path = self.entries_folder().join(&file.name);
        // An empty file uses no clusters.
        let shares = |other: &&OwnFile| other.sequence == file.sequence && !other.is_empty;
        if file.is_empty || own_files.iter().filter(shares).count() == 1 {
            return durable::remove_file(&path).map_err(file_failure);
        }
        let starts = |entry: &&LoaderEntry| entry.sequence() == Some(file.sequence);
        if removed.iter().any(starts) {
            tracing::warn!(file = %path.display(), "a boot entry has several names; run fsck.vfat");
            return files::overwrite_entry(&path);
        }
        Ok(())
    }

    /// See [`BootControl::arm`](super::super::BootControl::arm).
    pub fn arm(&self, slot: Slot, image: &SlotImage, sequence: u32) -> Result<(), Failure> {
        let listed = self.entries()?;
        let (mine, others): (Vec<&LoaderEntry>, Vec<&LoaderEntry>) =
            listed.iter().partition(|entry| entry.slot() == Some(slot));
        // The newest entry must come first. The stored sequence may have been lost, so existing
        // names are considered too.
        let number = entries::next_sequence(others).max(sequence);
        let is_armed =
            |entry: &LoaderEntry| entry.sequence() == Some(number) && entry.name.counter.is_some();
        if let Some(entry) = mine.iter().find(|entry| !is_armed(entry)) {
            return Err(apply_failure(format!(
                "slot {} cannot be armed while there is the boot entry {}: remove it",
                entries::slot_letter(slot),
                entry.file
            )));
        }
        self.check_kernel(slot)?;
        // An earlier call may have written the entry already; then only the flush is needed.
        if mine.is_empty() {
            let name = format!("{}+{}.conf", entries::entry_id(number), self.max_tries);
            let names = (image.profile_name.as_str(), image.image_id.as_str());
            let text = entries::format_entry(slot, names, number);
            // The loader sees the entry complete or not at all. This rename arms the slot.
            durable::replace_file(&self.entries_folder().join(name), text.as_bytes(), 0o644)
                .map_err(file_failure)?;
        }
        files::flush(&self.path)
    }

    /// See [`BootControl::bless`](super::super::BootControl::bless).
    pub fn bless(&self, slot: Slot) -> Result<(), Failure> {
        let listed = self.entries()?;
        match entries::slot_entry(&listed, slot) {
            // After a power cut, a name with a counter that cannot be removed may exist as well.
            BootEntry::Plain => {}
            BootEntry::Counted { .. } => {
                let mine = listed.iter().find(|entry| entry.slot() == Some(slot));
                let Some(entry) = mine else {
                    return Err(no_entry_to_bless(slot));
                };
                let plain = self.entries_folder().join(format!("{}.conf", entry.name.id));
                // This rename makes the slot the permanent default.
                fs::rename(self.entries_folder().join(&entry.file), &plain).map_err(|error| {
                    storage_failure(format!("cannot rename the boot entry {}: {error}", entry.file))
                })?;
                durable::flush_folder(&plain).map_err(file_failure)?;
            }
            // An interrupted rename may have lost both names. The running slot has its kernel, so
            // it gets a new entry.
            BootEntry::Absent if self.find_booted_slot(&listed)? == Some(slot) => {
                self.check_kernel(slot)?;
                let number = entries::next_sequence(&listed);
                let image = self.system.running_image().unwrap_or_default();
                let text = entries::format_entry(slot, (&image.0, &image.1), number);
                let path =
                    self.entries_folder().join(format!("{}.conf", entries::entry_id(number)));
                durable::replace_file(&path, text.as_bytes(), 0o644).map_err(file_failure)?;
            }
            BootEntry::Absent | BootEntry::OneShot => return Err(no_entry_to_bless(slot)),
            BootEntry::Invalid(why) => return Err(apply_failure(why)),
        }
        files::flush(&self.path)
    }

    /// Path of a kernel until its copy is complete.
    fn temporary_kernel_path(&self, slot: Slot) -> PathBuf {
        let name = format!("slot-{}.new", entries::slot_letter(slot));
        self.path.join(entries::KERNELS_FOLDER).join(name)
    }

    /// Removes the rest of an interrupted copy of a kernel, which would use the space that the next
    /// copy needs. Returns whether it is gone.
    ///
    /// The file is kept if it may share clusters with the installed kernel, for the reason that
    /// `Esp::remove_own_file` gives. That is the case if both have the same content, because an
    /// installed kernel is not copied again.
    fn remove_temporary_kernel(&self, slot: Slot) -> Result<bool, Failure> {
        let temporary = self.temporary_kernel_path(slot);
        let Ok(mut left) = File::open(&temporary) else {
            return Ok(true);
        };
        let is_empty = left.metadata().is_ok_and(|metadata| metadata.len() == 0);
        let kernel = self.path.join(entries::kernel_path(slot));
        if !is_empty && files::is_copy(&mut left, &kernel).unwrap_or_default() {
            tracing::warn!(file = %temporary.display(), "a kernel has two names; run fsck.vfat");
            return Ok(false);
        }
        durable::remove_file(&temporary).map_err(file_failure)?;
        Ok(true)
    }

    /// Installs the kernel of an image that is mounted at `point`. Fails if the kernel would not
    /// reset the machine when it cannot start, or if the image would bless itself.
    pub fn copy_kernel(&self, point: &Path, slot: Slot, image: &str) -> Result<(), Failure> {
        units::check_image_units(point)
            .map_err(|why| apply_failure(format!("the image {image} cannot be tried: {why}")))?;
        let name = format!("slot-{}.efi", entries::slot_letter(slot));
        let mut source = files::open_below(point, &format!("{IMAGE_KERNELS_FOLDER}/{name}"))?;
        let cannot_be_tried = |why: String| {
            let letter = entries::slot_letter(slot);
            apply_failure(format!(
                "the kernel of the image {image} for slot {letter} cannot be tried: {why}"
            ))
        };
        let judge = |kernel: &Path| {
            uki::read_cmdline(kernel)
                .and_then(|cmdline| checks::check_kernel_cmdline(&cmdline, slot))
        };
        let folder = self.path.join(entries::KERNELS_FOLDER);
        durable::create_folder(&folder, 0o755).map_err(file_failure)?;
        let kernel = folder.join(name);
        let is_removed = self.remove_temporary_kernel(slot)?;
        // An earlier call may have installed the kernel already; then only the check and the flush
        // are needed.
        if files::is_copy(&mut source, &kernel)? {
            judge(&kernel).map_err(cannot_be_tried)?;
            return files::flush(&self.path);
        }
        if !is_removed {
            return Err(apply_failure(format!(
                "after a power cut, {} may be one of two names of the same file, and replacing it would damage the file system: \
                 unmount the ESP, check it with fsck.vfat and mount it again",
                kernel.display()
            )));
        }
        let temporary = self.temporary_kernel_path(slot);
        let bytes = source.metadata().map_or(0, |metadata| metadata.len());
        files::check_free_space(&self.path, bytes)?;
        // The kernel must be complete and on disk before it gets the name that an entry may refer
        // to.
        files::copy_file(&mut source, &temporary)?;
        if let Err(why) = judge(&temporary) {
            durable::remove_file(&temporary).map_err(file_failure)?;
            return Err(cannot_be_tried(why));
        }
        fs::rename(&temporary, &kernel).map_err(|error| {
            storage_failure(format!("cannot replace {}: {error}", kernel.display()))
        })?;
        durable::flush_folder(&kernel).map_err(file_failure)?;
        // An entry may refer to the kernel only after the rename is on disk.
        files::flush(&self.path)
    }
}

fn no_entry_to_bless(slot: Slot) -> Failure {
    apply_failure(format!(
        "slot {} has no boot entry that can be blessed",
        entries::slot_letter(slot)
    ))
}

/// Reads the entries in a folder, sorted as the loader sorts them. A missing folder is empty.
pub fn read_entries(folder: &Path) -> Result<Vec<LoaderEntry>, Failure> {
    let cannot =
        |error: io::Error| storage_failure(format!("cannot read {}: {error}", folder.display()));
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
        let text = if metadata.len() > MAX_ENTRY_BYTES {
            Vec::new()
        } else {
            fs::read(file.path()).map_err(cannot)?
        };
        listed.extend(LoaderEntry::parse(&name, &String::from_utf8_lossy(&text)));
    }
    listed.sort_by(entries::compare_entries);
    Ok(listed)
}

/// A file in the entries folder with a name that the agent can have chosen.
struct OwnFile {
    name: String,
    /// Sequence number of the entry.
    sequence: u32,
    /// Whether it is a temporary file and not an entry.
    is_temporary: bool,
    is_empty: bool,
}

/// Reads the own files in a folder. A missing folder is empty.
fn read_own_files(folder: &Path) -> Result<Vec<OwnFile>, Failure> {
    let cannot =
        |error: io::Error| storage_failure(format!("cannot read {}: {error}", folder.display()));
    let files = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.map_err(cannot)?,
    };
    let mut own_files = Vec::new();
    for file in files {
        let file = file.map_err(cannot)?;
        let name = file.file_name().to_string_lossy().into_owned();
        let Some((sequence, is_temporary)) = entries::parse_own_file_name(&name) else {
            continue;
        };
        let metadata = file.metadata().map_err(cannot)?;
        if metadata.is_file() {
            own_files.push(OwnFile { name, sequence, is_temporary, is_empty: metadata.len() == 0 });
        }
    }
    Ok(own_files)
}
