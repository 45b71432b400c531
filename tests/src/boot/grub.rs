//! What GRUB starts next with the configuration of the lab (`tests/lab/rauc/guest/grub.cfg`).

use std::collections::BTreeMap;
use std::ops::Range;

use super::{fat, gpt};

/// The configuration, which the machine never writes.
const CONFIG: &str = include_str!("../../lab/rauc/guest/grub.cfg");

/// First line of an environment block.
const SIGNATURE: &str = "# GRUB Environment Block\n";

/// A slot that GRUB starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrubSlot {
    /// Letter of the slot.
    pub slot: char,
    /// Byte range of the slot on the disk.
    pub range: Range<usize>,
}

/// The slot that a machine with this disk starts next. Fails if it starts nothing.
pub fn next_slot(disk: &[u8]) -> Result<GrubSlot, String> {
    let partitions = gpt::partitions(disk)?;
    let find = |name: &str| {
        let partition = partitions.iter().find(|partition| partition.name == name);
        let range = partition.map(|partition| partition.range.clone());
        range.ok_or_else(|| format!("there is no partition {name}"))
    };
    let volume = fat::FatVolume::open(&disk[find("grubenv")?])?;
    let read = |name: &str| volume.read(&volume.find(name)?).ok();
    if read("grub.cfg").as_deref() != Some(CONFIG.as_bytes()) {
        return Err("the configuration of GRUB cannot be read".to_owned());
    }
    // GRUB continues without variables if it cannot read them.
    let block = read("grubenv").unwrap_or_default();
    let slot = select_slot(&parse_variables(&String::from_utf8_lossy(&block)));
    let range = find(&format!("root-{slot}"))?;
    Ok(GrubSlot { slot, range })
}

/// Parses an environment block. A block that GRUB refuses has no variables.
pub fn parse_variables(block: &str) -> BTreeMap<String, String> {
    let lines = block.strip_prefix(SIGNATURE).unwrap_or_default().lines();
    let variables =
        lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The first slot of the order that is good and was not started since it was last confirmed. If
/// there is none, GRUB gives each good slot another start; if no slot is good, it starts A.
fn select_slot(variables: &BTreeMap<String, String>) -> char {
    let has_value = |slot: &str, name: &str, value: &str| {
        variables.get(&format!("{slot}_{name}")).map_or("0", String::as_str) == value
    };
    let order = variables.get("ORDER").map_or("A B", String::as_str);
    let good: Vec<&str> = order.split(' ').filter(|slot| has_value(slot, "OK", "1")).collect();
    let unused = good.iter().find(|slot| has_value(slot, "TRY", "0"));
    match unused.or(good.first()) {
        Some(&"B") => 'b',
        _ => 'a',
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::boot::fat::tests::FatImage;

    const KIND: Uuid = Uuid::from_u128(1);

    /// First sector of the partition with the variables.
    const ENV_SECTOR: u64 = 40;

    fn block(variables: &str) -> String {
        format!("{SIGNATURE}{variables}{}", "#".repeat(100))
    }

    /// A disk with this configuration and environment block.
    fn disk(config: &str, block: &str) -> Vec<u8> {
        let mut image = FatImage::new();
        let files = [("grub.cfg", config), ("grubenv", block)];
        let entries = files.map(|(name, content)| image.add_file(name, 0, content.as_bytes()));
        image.write_root_folder(&entries.concat());
        let end = ENV_SECTOR + image.bytes.len() as u64 / 512;
        let partitions = [
            ("grubenv", KIND, ENV_SECTOR..end),
            ("root-a", KIND, end..end + 4),
            ("root-b", KIND, end + 4..end + 8),
        ];
        let mut disk = gpt::tests::disk(512, &partitions);
        let begin = usize::try_from(ENV_SECTOR).expect("a small number") * 512;
        disk[begin..begin + image.bytes.len()].copy_from_slice(&image.bytes);
        disk
    }

    #[test]
    fn the_first_good_slot_that_was_not_started_since_it_was_confirmed_is_selected() {
        let select = |order: &str, a: (u8, u8), b: (u8, u8)| {
            let text = format!(
                "ORDER={order}\nA_OK={}\nA_TRY={}\nB_OK={}\nB_TRY={}\n",
                a.0, a.1, b.0, b.1
            );
            select_slot(&parse_variables(&block(&text)))
        };
        assert_eq!(select("A B", (1, 0), (1, 0)), 'a');
        assert_eq!(select("B A", (1, 0), (1, 0)), 'b');
        assert_eq!(select("B A", (1, 0), (1, 1)), 'a');
        assert_eq!(select("B A", (1, 0), (0, 0)), 'a');
        // Each good slot gets another start.
        assert_eq!(select("B A", (1, 1), (1, 1)), 'b');
        assert_eq!(select("A B", (0, 0), (1, 1)), 'b');
        // No slot is good.
        assert_eq!(select("B A", (0, 0), (0, 0)), 'a');
    }

    #[test]
    fn variables_that_are_lost_start_slot_a_and_a_lost_configuration_starts_nothing() {
        let variables = block("ORDER=B A\nA_OK=1\nA_TRY=0\nB_OK=1\nB_TRY=0\n");
        let slot = |block: &str| next_slot(&disk(CONFIG, block)).expect("a slot");
        assert_eq!(slot(&variables).slot, 'b');
        assert_eq!(slot(&variables).range.len(), 4 * 512);
        assert_eq!(slot("").slot, 'a');
        assert_eq!(slot(&variables[1..]).slot, 'a');
        next_slot(&disk("", &variables)).unwrap_err();
        next_slot(&[]).unwrap_err();
    }
}
