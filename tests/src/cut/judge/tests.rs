use super::*;
use crate::boot::tests::{disk, entry};
use crate::cut::recording::Write;

const SECTOR_SIZE: usize = 512;
/// Content of the slots.
const ROOT_BYTES: [u8; 2] = [b'A', b'B'];
const ROOT_SIZE: usize = 2 * SECTOR_SIZE;

fn release(version: &str, kernel: u8, root: u8) -> ReleaseDigests {
    let kernel = sha256(&[kernel; 1500]);
    ReleaseDigests {
        version: version.to_owned(),
        kernels: [('a', kernel), ('b', kernel)],
        root: sha256(&[root; ROOT_SIZE]),
        size: ROOT_SIZE,
        is_retired: false,
    }
}

/// A disk whose slot B has a complete root, this kernel, and an entry file with this name.
fn disk_with(kernel: u8, name: &str) -> Vec<u8> {
    let (old, new) = (entry(1, 'a'), entry(2, 'b'));
    let entries = [("evenkeel-000001.conf", old.as_str()), (name, &new)];
    let kernels = [("slot-a.efi", &[1; 1500][..]), ("slot-b.efi", &[kernel; 1500])];
    let mut disk = disk(&entries, &kernels);
    for (slot, fill) in ['a', 'b'].into_iter().zip(ROOT_BYTES) {
        let name = format!("root-{slot}");
        let partitions = boot::gpt::partitions(&disk).expect("a table");
        let partition = partitions.iter().find(|partition| partition.name == name);
        let begin = partition.expect("a slot").range.start;
        disk[begin..begin + ROOT_SIZE].fill(fill);
    }
    disk
}

/// Writes that turn one disk into the other.
fn writes_between(from: &[u8], to: &[u8]) -> Vec<Write> {
    let sectors = from.chunks(SECTOR_SIZE).zip(to.chunks(SECTOR_SIZE)).zip(0..);
    let changed = sectors.filter(|((from, to), _)| from != to);
    let writes = changed.map(|((_, to), number): (_, u64)| Write {
        offset: number * SECTOR_SIZE as u64,
        data: to.to_owned(),
        is_forced: false,
    });
    writes.collect()
}

/// An update to kernel 3 with an entry file of this name, in the given order.
fn update(name: &str, kernel_first: bool) -> (Vec<u8>, Recording) {
    let hidden = name.replace(".conf", ".tmpf");
    let before = disk_with(2, &hidden);
    let middle = if kernel_first { disk_with(3, &hidden) } else { disk_with(2, name) };
    let after = disk_with(3, name);
    let recording = Recording {
        stretches: vec![writes_between(&before, &middle), writes_between(&middle, &after)],
        spared: 0,
    };
    (before, recording)
}

fn judge() -> BootJudge {
    BootJudge::new(vec![
        release("0.9", 2, b'Z').into_retired(),
        release("1.0", 1, ROOT_BYTES[0]),
        release("1.1", 3, ROOT_BYTES[1]),
    ])
}

#[test]
fn with_the_kernel_first_the_old_or_the_new_release_starts_after_any_cut() {
    let (before, recording) = update("evenkeel-000002+3.conf", true);
    let statistics = cut_everywhere(&recording, before, &mut judge(), (100, 1));
    assert_eq!(statistics.count_bad(), 0, "{statistics}");
    let ends: Vec<_> =
        statistics.verdicts.keys().map(|(lossy, end)| (*lossy, end.to_string())).collect();
    for lossy in [false, true] {
        for end in ["1.0 in slot a", "1.1 in slot b on trial"] {
            assert!(ends.contains(&(lossy, end.to_owned())), "{statistics}");
        }
    }
    assert_eq!(statistics.count_cuts(true), 200);
    assert_eq!(statistics.count_cuts(false), recording.writes() as u64);
}

#[test]
fn with_the_entry_first_the_counter_saves_the_machine_or_nothing_does() {
    let (before, recording) = update("evenkeel-000002+3.conf", false);
    let statistics = cut_everywhere(&recording, before, &mut judge(), (100, 1));
    assert!(statistics.count_bad() > 0 && statistics.count_dead() == 0, "{statistics}");

    let (before, recording) = update("evenkeel-000002.conf", false);
    let statistics = cut_everywhere(&recording, before, &mut judge(), (0, 1));
    assert!(statistics.count_dead() > 0, "{statistics}");
}

#[test]
fn without_flushes_the_right_order_is_not_enough() {
    let (before, recording) = update("evenkeel-000002+3.conf", true);
    let length = before.len() as u64;
    let never = recording.never_flushed(&(0..length));
    let lost = cut_after(&never, before, &mut judge(), 1, (400, 1));
    assert!(lost.count_bad() > 0, "{lost}");
    assert_eq!((lost.count_cuts(true), lost.count_cuts(false)), (400, 0));
}

#[test]
fn a_retired_release_must_not_start() {
    let old = release("0.9", 2, ROOT_BYTES[1]);
    let disk = MemoryDisk::new(disk_with(2, "evenkeel-000002.conf"));
    let verdict = BootJudge::new(vec![old.clone()]).judge(&disk);
    assert_eq!(verdict.to_string(), "0.9 in slot b");
    let verdict = BootJudge::new(vec![old.into_retired()]).judge(&disk);
    assert!(matches!(verdict, BootVerdict::Dead(_)), "{verdict}");
}

#[test]
fn a_root_of_another_release_than_the_kernel_is_no_release() {
    let mut bytes = disk_with(3, "evenkeel-000002.conf");
    let end = bytes.len();
    let mut judge = judge();
    let verdict = judge.judge(&MemoryDisk::new(bytes.clone()));
    assert_eq!(verdict.to_string(), "1.1 in slot b");
    bytes[..end]
        .iter_mut()
        .filter(|byte| **byte == ROOT_BYTES[1])
        .take(1)
        .for_each(|byte| *byte = 0);
    let verdict = judge.judge(&MemoryDisk::new(bytes));
    assert!(matches!(verdict, BootVerdict::Dead(_)), "{verdict}");
}
