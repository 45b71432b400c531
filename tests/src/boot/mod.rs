//! What the boot chain of a machine with two slots would start, read from an image of its disk: the partition table
//! ([`gpt`]), the file system of the boot partition ([`fat`]), and the entries of systemd-boot in the loader's order
//! ([`loader`]). A second reading beside the agent's own: it shares no code with it, and it reads as the firmware does,
//! which has no journal and repairs nothing.

pub mod fat;
pub mod gpt;
pub mod loader;

use std::ops::Range;

pub use loader::Entry;

/// The type of an EFI system partition, as it lies on the disk.
const ESP: [u8; 16] = [
    0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b,
];

/// What starts at the next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The entry that the loader takes.
    pub entry: Entry,
    /// The slot whose kernel it names: its letter.
    pub slot: char,
    /// Where that kernel lies on the disk, in bytes and in its order. Empty if it is not there or cannot be read.
    pub kernel: Vec<Range<usize>>,
    /// Where the slot lies that this kernel takes for its root, in bytes.
    pub root: Range<usize>,
}

/// Where the boot partition of a disk lies, in bytes.
pub fn partition(disk: &[u8]) -> Result<Range<usize>, String> {
    let partitions = gpt::partitions(disk)?;
    let esp = partitions
        .into_iter()
        .find(|partition| partition.kind == ESP);
    let esp = esp.ok_or("there is no boot partition")?;
    Ok(esp.place)
}

/// What a machine with this disk would start. Fails if nothing at all.
pub fn starts(disk: &[u8]) -> Result<Start, String> {
    let esp = partition(disk)?;
    let volume = fat::Volume::open(&disk[esp.clone()])?;
    let entry = loader::first(&volume)?;
    let slot = loader::slot(&entry.starts)
        .ok_or_else(|| format!("{} starts no slot, but {}", entry.file, entry.starts))?;
    let name = format!("root-{slot}");
    let partitions = gpt::partitions(disk)?;
    let root = partitions.iter().find(|partition| partition.name == name);
    let root = root.ok_or_else(|| format!("there is no partition {name}"))?;
    let kernel = volume.find(&entry.starts);
    let kernel = kernel.and_then(|file| volume.extents(&file).ok());
    let begin = esp.start;
    let on_disk = |part: Range<usize>| begin + part.start..begin + part.end;
    Ok(Start {
        slot,
        kernel: kernel.into_iter().flatten().map(on_disk).collect(),
        root: root.place.clone(),
        entry,
    })
}

/// Numbers as they lie on a disk: the little end first. None beyond its end.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let found = bytes.get(at..at.checked_add(N)?)?;
    let digits = found.iter().rev();
    Some(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Where the boot partition lies, in sectors.
    const AT: u64 = 8;

    /// A disk with these entries and kernels, and two slots.
    pub(crate) fn disk(entries: &[(&str, &str)], kernels: &[(&str, &[u8])]) -> Vec<u8> {
        let volume = fat::tests::boot_partition(entries, kernels).bytes;
        let end = AT + volume.len() as u64 / 512;
        let (a, b) = ("root-a", "root-b");
        let places = [
            ("esp", ESP, AT..end),
            (a, [1; 16], end..end + 4),
            (b, [1; 16], end + 4..end + 8),
        ];
        let mut disk = gpt::tests::disk(512, &places);
        let begin = usize::try_from(AT).expect("a small number") * 512;
        disk[begin..begin + volume.len()].copy_from_slice(&volume);
        disk
    }

    /// The text of an entry.
    pub(crate) fn entry(number: u32, slot: char) -> String {
        format!("sort-key evenkeel\nversion {number:06}\nefi /EFI/evenkeel/slot-{slot}.efi\n")
    }

    #[test]
    fn what_starts_is_the_newest_entry_with_its_kernel_and_its_root() {
        let (old, new) = (entry(1, 'a'), entry(2, 'b'));
        let entries = [
            ("evenkeel-000001.conf", old.as_str()),
            ("evenkeel-000002+2-1.conf", new.as_str()),
        ];
        let disk = disk(
            &entries,
            &[("slot-a.efi", &[1; 700]), ("slot-b.efi", &[2; 700])],
        );
        let start = starts(&disk).expect("something that starts");
        assert_eq!((start.slot, start.entry.counter), ('b', Some((2, 1))));
        let kernel: Vec<u8> = start
            .kernel
            .into_iter()
            .flat_map(|part| &disk[part])
            .copied()
            .collect();
        assert_eq!(kernel, [2; 700]);
        assert_eq!(start.root.len(), 4 * 512);
    }

    #[test]
    fn a_kernel_that_is_not_there_is_no_kernel_and_no_entry_is_no_start() {
        let old = entry(1, 'a');
        let start = starts(&disk(&[("evenkeel-000001.conf", &old)], &[])).expect("an entry");
        assert_eq!((start.slot, start.kernel), ('a', Vec::new()));
        assert!(starts(&disk(&[], &[("slot-a.efi", &[1; 700])])).is_err());
        assert!(starts(&disk(&[("any.conf", "efi /EFI/other.efi")], &[])).is_err());
        assert!(starts(&[]).is_err());
    }
}
