//! How the tool names slots and kernels.

use super::super::mounts::Partition;
use crate::modules::image::slots::Slot;

/// The two kernels. Each belongs to the slot that runs it.
const NAMES: [&str; 2] = ["linux.efi", "linux-2.efi"];

/// The numbers of the partitions of the two slots.
const NUMBERS: [(Slot, u32); 2] = [(Slot::A, 2), (Slot::B, 6)];

/// The kernel that was started, and the one beside it.
pub fn kernels(selected: &str) -> (&'static str, &'static str) {
    let [first, second] = NAMES;
    // Before its first update the system has one kernel of any name, which the tool renames to the first.
    if second.eq_ignore_ascii_case(selected) {
        (second, first)
    } else {
        (first, second)
    }
}

/// Whether the loader was told to start this kernel.
pub fn is(named: Option<&str>, kernel: &str) -> bool {
    named.is_some_and(|named| named.eq_ignore_ascii_case(kernel))
}

/// The slot of a device below `/dev`.
pub fn slot_of(node: &str, partitions: &[Partition]) -> Option<Slot> {
    match node {
        "mapper/rootfs_a" => Some(Slot::A),
        "mapper/rootfs_b" => Some(Slot::B),
        _ => {
            let mut partitions = partitions.iter();
            slot_of_partition(partitions.find(|partition| partition.node == node)?)
        }
    }
}

/// The slot that a partition is.
pub fn slot_of_partition(partition: &Partition) -> Option<Slot> {
    let is_it = |(_, number): &&(Slot, u32)| *number == partition.number;
    let (slot, _) = NUMBERS.iter().find(is_it)?;
    partition.label.starts_with("rootfs").then_some(*slot)
}
