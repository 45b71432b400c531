//! The GUID partition table, read by the crate `gpt`.

use std::io::Cursor;
use std::ops::Range;

use ::gpt::disk::LogicalBlockSize;
use ::gpt::header::read_header_from_arbitrary_device;
use ::gpt::partition::file_read_partitions;
use uuid::Uuid;

/// Only this sector size is supported.
const SECTOR_SIZE: usize = 512;
const BLOCK_SIZE: LogicalBlockSize = LogicalBlockSize::Lb512;

/// Size of a partition entry in bytes. The crate panics at any other.
const ENTRY_SIZE: u32 = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    /// Partition type.
    pub kind: Uuid,
    /// Position on the disk in bytes.
    pub range: Range<usize>,
}

/// Reads the partitions of a disk. Uses the table at the end of the disk if the one at the beginning is
/// broken, as firmware does. The crate itself uses it only if the header at the beginning is broken.
pub fn partitions(disk: &[u8]) -> Result<Vec<Partition>, String> {
    let last = (disk.len() / SECTOR_SIZE).saturating_sub(1);
    let table = [1, last].into_iter().find_map(|sector| parse_table(disk, sector));
    table.ok_or_else(|| "both partition tables are broken".to_owned())
}

/// Reads the table whose header is in this sector, if header and entries are valid.
fn parse_table(disk: &[u8], sector: usize) -> Option<Vec<Partition>> {
    // The crate expects the header in the second sector.
    let from = disk.get(sector.checked_sub(1)? * SECTOR_SIZE..)?;
    let header = read_header_from_arbitrary_device(&mut Cursor::new(from), BLOCK_SIZE).ok()?;
    if header.current_lba != sector as u64 || header.part_size != ENTRY_SIZE {
        return None;
    }
    let entries = file_read_partitions(&mut Cursor::new(disk), &header, BLOCK_SIZE).ok()?;
    let used = entries.into_values().filter(::gpt::partition::Partition::is_used);
    used.map(|entry| locate(entry, disk.len())).collect()
}

/// The partition of an entry, if it is on the disk.
fn locate(entry: ::gpt::partition::Partition, disk_size: usize) -> Option<Partition> {
    let start = usize::try_from(entry.bytes_start(BLOCK_SIZE).ok()?).ok()?;
    let end = start.checked_add(usize::try_from(entry.bytes_len(BLOCK_SIZE).ok()?).ok()?)?;
    (end <= disk_size).then_some(Partition {
        name: entry.name,
        kind: entry.part_type_guid.guid,
        range: start..end,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A disk with these partitions (name, type, sectors), and a table at the beginning and at the end.
    pub fn disk(sectors: usize, partitions: &[(&str, Uuid, Range<u64>)]) -> Vec<u8> {
        let mut disk = vec![0; sectors * SECTOR_SIZE];
        let config = ::gpt::GptConfig::new().writable(true);
        let table = config.create_from_device(Cursor::new(&mut disk), Some(Uuid::nil()));
        let mut table = table.expect("an empty table");
        let entry = |(name, kind, range): &(&str, Uuid, Range<u64>)| ::gpt::partition::Partition {
            part_type_guid: (*kind).into(),
            part_guid: Uuid::nil(),
            first_lba: range.start,
            last_lba: range.end - 1,
            flags: 0,
            name: (*name).to_owned(),
        };
        let entries = (1..).zip(partitions.iter().map(entry)).collect();
        table.update_partitions(entries).expect("room for all partitions");
        table.write().expect("a table");
        disk
    }

    #[test]
    fn the_table_at_the_end_replaces_a_broken_one_at_the_beginning() {
        let kinds = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut disk = disk(128, &[("esp", kinds.0, 40..48), ("root-a", kinds.1, 48..52)]);
        let parsed = partitions(&disk).expect("a table");
        assert_eq!(parsed.len(), 2);
        assert_eq!((parsed[0].name.as_str(), parsed[0].kind), ("esp", kinds.0));
        assert_eq!(parsed[0].range, 40 * SECTOR_SIZE..48 * SECTOR_SIZE);
        assert_eq!((parsed[1].name.as_str(), parsed[1].kind), ("root-a", kinds.1));

        disk[2 * SECTOR_SIZE + 40] ^= 1;
        assert_eq!(partitions(&disk).expect("the other table"), parsed);
        disk[127 * SECTOR_SIZE + 30] ^= 1;
        assert!(partitions(&disk).is_err());
        assert!(partitions(&[]).is_err());
    }

    #[test]
    fn a_partition_that_is_not_on_the_disk_breaks_its_table() {
        let disk = disk(128, &[("esp", Uuid::from_u128(1), 40..129)]);
        assert!(partitions(&disk).is_err());
    }
}
