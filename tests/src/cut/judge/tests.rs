use super::*;
use crate::boot::tests::{disk, entry};
use crate::cut::recording::Write;

const SECTOR: usize = 512;
/// What is in the slots of the disks here.
const ROOTS: [u8; 2] = [b'A', b'B'];
const SIZE: usize = 2 * SECTOR;

fn release(version: &str, kernel: u8, root: u8) -> Release {
    let kernel = digest(&[kernel; 1500]);
    Release {
        version: version.to_owned(),
        kernels: [('a', kernel), ('b', kernel)],
        root: digest(&[root; SIZE]),
        size: SIZE,
        is_over: false,
    }
}

/// A disk whose slot B has a whole root, with this kernel for it, and an entry for it under this name.
fn with(kernel: u8, name: &str) -> Vec<u8> {
    let (old, new) = (entry(1, 'a'), entry(2, 'b'));
    let entries = [("evenkeel-000001.conf", old.as_str()), (name, &new)];
    let kernels = [
        ("slot-a.efi", &[1; 1500][..]),
        ("slot-b.efi", &[kernel; 1500]),
    ];
    let mut disk = disk(&entries, &kernels);
    for (slot, fill) in ['a', 'b'].into_iter().zip(ROOTS) {
        let name = format!("root-{slot}");
        let partitions = boot::gpt::partitions(&disk).expect("a table");
        let partition = partitions.iter().find(|partition| partition.name == name);
        let begin = partition.expect("a slot").place.start;
        disk[begin..begin + SIZE].fill(fill);
    }
    disk
}

/// What must be written to make one disk of another.
fn between(from: &[u8], to: &[u8]) -> Vec<Write> {
    let sectors = from.chunks(SECTOR).zip(to.chunks(SECTOR)).zip(0..);
    let changed = sectors.filter(|((from, to), _)| from != to);
    let writes = changed.map(|((_, to), number): (_, u64)| Write {
        offset: number * SECTOR as u64,
        data: to.to_owned(),
        is_forced: false,
    });
    writes.collect()
}

/// An update to the kernel 3 with an entry of this name, in this order.
fn update(name: &str, kernel_first: bool) -> (Vec<u8>, Recording) {
    let hidden = name.replace(".conf", ".beside").replace(".beside", ".tmpf");
    let before = with(2, &hidden);
    let middle = if kernel_first {
        with(3, &hidden)
    } else {
        with(2, name)
    };
    let after = with(3, name);
    let recording = Recording {
        stretches: vec![between(&before, &middle), between(&middle, &after)],
        spared: 0,
    };
    (before, recording)
}

fn judge() -> Judge {
    Judge::new(vec![
        release("0.9", 2, b'Z').over(),
        release("1.0", 1, ROOTS[0]),
        release("1.1", 3, ROOTS[1]),
    ])
}

#[test]
fn with_the_kernel_first_the_old_or_the_new_release_starts_after_any_cut() {
    let (before, recording) = update("evenkeel-000002+3.conf", true);
    let outcome = cut_everywhere(&recording, before, &mut judge(), (100, 1));
    assert_eq!(outcome.bad(), 0, "{outcome}");
    let ends: Vec<_> = outcome
        .ends
        .keys()
        .map(|(lossy, end)| (*lossy, end.to_string()))
        .collect();
    for lossy in [false, true] {
        for end in ["1.0 in slot a", "1.1 in slot b on trial"] {
            assert!(ends.contains(&(lossy, end.to_owned())), "{outcome}");
        }
    }
    assert_eq!(outcome.tried(true), 200);
    assert_eq!(outcome.tried(false), recording.writes() as u64);
}

#[test]
fn with_the_entry_first_the_counter_saves_the_machine_or_nothing_does() {
    let (before, recording) = update("evenkeel-000002+3.conf", false);
    let outcome = cut_everywhere(&recording, before, &mut judge(), (100, 1));
    assert!(outcome.bad() > 0 && outcome.dead() == 0, "{outcome}");

    let (before, recording) = update("evenkeel-000002.conf", false);
    let outcome = cut_everywhere(&recording, before, &mut judge(), (0, 1));
    assert!(outcome.dead() > 0, "{outcome}");
}

#[test]
fn without_flushes_the_right_order_is_not_enough() {
    let (before, recording) = update("evenkeel-000002+3.conf", true);
    let length = before.len() as u64;
    let never = recording.never_flushed(&(0..length));
    let lost = cut_after(&never, before, &mut judge(), 1, (400, 1));
    assert!(lost.bad() > 0, "{lost}");
    assert_eq!((lost.tried(true), lost.tried(false)), (400, 0));
}

#[test]
fn a_release_that_was_given_up_must_not_start() {
    let old = release("0.9", 2, ROOTS[1]);
    let disk = Memory::new(with(2, "evenkeel-000002.conf"));
    let verdict = Judge::new(vec![old.clone()]).judge(&disk);
    assert_eq!(verdict.to_string(), "0.9 in slot b");
    let verdict = Judge::new(vec![old.over()]).judge(&disk);
    assert!(matches!(verdict, Verdict::Dead(_)), "{verdict}");
}

#[test]
fn a_root_of_another_release_than_the_kernel_is_no_release() {
    let mut bytes = with(3, "evenkeel-000002.conf");
    let end = bytes.len();
    let mut judge = judge();
    let verdict = judge.judge(&Memory::new(bytes.clone()));
    assert_eq!(verdict.to_string(), "1.1 in slot b");
    bytes[..end]
        .iter_mut()
        .filter(|byte| **byte == ROOTS[1])
        .take(1)
        .for_each(|byte| *byte = 0);
    let verdict = judge.judge(&Memory::new(bytes));
    assert!(matches!(verdict, Verdict::Dead(_)), "{verdict}");
}
