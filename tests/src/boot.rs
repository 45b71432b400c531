//! What a machine with two slots would boot, read from an image of its disk: the partition table ([`gpt`]), the
//! file system of the boot partition ([`fat`]), and the entries in the order of systemd-boot ([`loader`]) or the
//! variables of GRUB ([`grub`]).
//!
//! This is an independent implementation. It shares no code with the agent, and like the firmware it reads the
//! disk without a journal and without repairs.

pub mod fat;
pub mod gpt;
pub mod grub;
pub mod loader;

use std::ops::Range;

use ::gpt::partition_types::EFI;
pub use loader::LoaderEntry;

/// What the machine starts at its next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextBoot {
    /// The entry that the loader selects.
    pub entry: LoaderEntry,
    /// Letter of the slot whose kernel the entry names.
    pub slot: char,
    /// Byte ranges of the kernel on the disk, in order. Empty if the kernel is missing or unreadable.
    pub kernel: Vec<Range<usize>>,
    /// Byte range of the slot that the kernel uses as its root.
    pub root: Range<usize>,
}

/// Byte range of the boot partition on the disk.
pub fn boot_partition_range(disk: &[u8]) -> Result<Range<usize>, String> {
    let partitions = gpt::partitions(disk)?;
    let esp = partitions.into_iter().find(|partition| partition.kind == EFI.guid);
    let esp = esp.ok_or("there is no boot partition")?;
    Ok(esp.range)
}

/// What a machine with this disk boots next. Fails if it boots nothing.
pub fn next_boot(disk: &[u8]) -> Result<NextBoot, String> {
    let esp = boot_partition_range(disk)?;
    let volume = fat::FatVolume::open(&disk[esp.clone()])?;
    let entry = loader::select_entry(&volume)?;
    let slot = loader::slot_of_kernel(&entry.kernel_path)
        .ok_or_else(|| format!("{} starts {}, which is no slot", entry.file, entry.kernel_path))?;
    let name = format!("root-{slot}");
    let partitions = gpt::partitions(disk)?;
    let root = partitions.iter().find(|partition| partition.name == name);
    let root = root.ok_or_else(|| format!("there is no partition {name}"))?;
    let kernel = volume.find(&entry.kernel_path);
    let kernel = kernel.and_then(|file| volume.extents(&file).ok());
    let begin = esp.start;
    let on_disk = |part: Range<usize>| begin + part.start..begin + part.end;
    Ok(NextBoot {
        slot,
        kernel: kernel.into_iter().flatten().map(on_disk).collect(),
        root: root.range.clone(),
        entry,
    })
}

/// Reads a little-endian number of `N` bytes. `None` if the bytes are too short.
fn read_number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(N)?)?;
    let digits = field.iter().rev();
    Some(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
pub(crate) mod tests {
    use uuid::Uuid;

    use super::*;

    /// First sector of the boot partition.
    const ESP_SECTOR: u64 = 40;

    /// A disk with these loader entries and kernels, and with two slots.
    pub(crate) fn disk(entries: &[(&str, &str)], kernels: &[(&str, &[u8])]) -> Vec<u8> {
        let volume = fat::tests::boot_partition(entries, kernels).bytes;
        let end = ESP_SECTOR + volume.len() as u64 / 512;
        let (a, b, slot) = ("root-a", "root-b", Uuid::from_u128(1));
        let partitions = [
            ("esp", EFI.guid, ESP_SECTOR..end),
            (a, slot, end..end + 4),
            (b, slot, end + 4..end + 8),
        ];
        let mut disk = gpt::tests::disk(512, &partitions);
        let begin = usize::try_from(ESP_SECTOR).expect("a small number") * 512;
        disk[begin..begin + volume.len()].copy_from_slice(&volume);
        disk
    }

    /// Text of a loader entry.
    pub(crate) fn entry(number: u32, slot: char) -> String {
        format!("sort-key evenkeel\nversion {number:06}\nefi /EFI/evenkeel/slot-{slot}.efi\n")
    }

    #[test]
    fn the_newest_entry_starts_with_its_kernel_and_root() {
        let (old, new) = (entry(1, 'a'), entry(2, 'b'));
        let entries =
            [("evenkeel-000001.conf", old.as_str()), ("evenkeel-000002+2-1.conf", new.as_str())];
        let disk = disk(&entries, &[("slot-a.efi", &[1; 700]), ("slot-b.efi", &[2; 700])]);
        let start = next_boot(&disk).expect("something that starts");
        assert_eq!((start.slot, start.entry.counter), ('b', Some((2, 1))));
        let kernel: Vec<u8> =
            start.kernel.into_iter().flat_map(|part| &disk[part]).copied().collect();
        assert_eq!(kernel, [2; 700]);
        assert_eq!(start.root.len(), 4 * 512);
    }

    #[test]
    fn a_missing_kernel_is_empty_and_a_missing_entry_is_an_error() {
        let old = entry(1, 'a');
        let start = next_boot(&disk(&[("evenkeel-000001.conf", &old)], &[])).expect("an entry");
        assert_eq!((start.slot, start.kernel), ('a', Vec::new()));
        assert!(next_boot(&disk(&[], &[("slot-a.efi", &[1; 700])])).is_err());
        assert!(next_boot(&disk(&[("any.conf", "efi /EFI/other.efi")], &[])).is_err());
        assert!(next_boot(&[]).is_err());
    }
}
