//! Names of the slots and kernels for the tool.

use super::super::mounts::Partition;
use crate::modules::image::slots::Slot;

/// Names of the two kernels. Each belongs to the slot that it starts.
const KERNEL_NAMES: [&str; 2] = ["linux.efi", "linux-2.efi"];

/// Numbers of the partitions of the two slots.
const SLOT_PARTITION_NUMBERS: [(Slot, u32); 2] = [(Slot::A, 2), (Slot::B, 6)];

/// The kernel that was started, and the other one.
pub fn started_and_other_kernel(selected: &str) -> (&'static str, &'static str) {
    let [first, second] = KERNEL_NAMES;
    // Before its first update, the system has one kernel of any name. The tool renames it to the
    // first name.
    if second.eq_ignore_ascii_case(selected) { (second, first) } else { (first, second) }
}

/// Whether a variable of the loader names this kernel.
pub fn is_kernel(name: Option<&str>, kernel: &str) -> bool {
    name.is_some_and(|name| name.eq_ignore_ascii_case(kernel))
}

/// The slot of a device with this path relative to `/dev`.
pub fn slot_of_device(node: &str, partitions: &[Partition]) -> Option<Slot> {
    match node {
        "mapper/rootfs_a" => Some(Slot::A),
        "mapper/rootfs_b" => Some(Slot::B),
        _ => {
            let mut partitions = partitions.iter();
            slot_of_partition(partitions.find(|partition| partition.node == node)?)
        }
    }
}

pub fn slot_of_partition(partition: &Partition) -> Option<Slot> {
    let is_it = |(_, number): &&(Slot, u32)| *number == partition.number;
    let (slot, _) = SLOT_PARTITION_NUMBERS.iter().find(is_it)?;
    partition.label.starts_with("rootfs").then_some(*slot)
}
