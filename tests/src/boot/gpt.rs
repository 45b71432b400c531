//! Reader for the GUID partition table.

use std::ops::Range;

use super::read_number;

/// Only this sector size is supported.
const SECTOR_SIZE: usize = 512;

/// First bytes of a header.
const HEADER_MAGIC: &[u8] = b"EFI PART";

/// Minimum size of a header in bytes.
const MIN_HEADER_SIZE: usize = 92;

/// Byte range of the header's own checksum. The checksum treats these bytes as zero.
const CHECKSUM_RANGE: Range<usize> = 16..20;

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    /// Partition type, in the byte order of the disk.
    pub kind: [u8; 16],
    /// Position on the disk in bytes.
    pub range: Range<usize>,
}

/// Reads the partitions of a disk. Uses the table at the end of the disk if the one at the beginning is
/// broken, as firmware does.
pub fn partitions(disk: &[u8]) -> Result<Vec<Partition>, String> {
    let last = (disk.len() / SECTOR_SIZE).saturating_sub(1);
    let tables = [1, last].map(|sector| parse_table(disk, sector));
    let table = tables.into_iter().flatten().next();
    table.ok_or_else(|| "both partition tables are broken".to_owned())
}

/// Reads the table whose header is in this sector, if header and entries are valid.
fn parse_table(disk: &[u8], sector: usize) -> Option<Vec<Partition>> {
    let header = disk.get(sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE)?;
    let small = |at| usize::try_from(read_number::<4>(header, at)?).ok();
    let length = small(12)?;
    let own_sector = usize::try_from(read_number::<8>(header, 24)?).ok()?;
    if !header.starts_with(HEADER_MAGIC)
        || !(MIN_HEADER_SIZE..=SECTOR_SIZE).contains(&length)
        || own_sector != sector
    {
        return None;
    }
    let mut checked = header[..length].to_vec();
    checked[CHECKSUM_RANGE].fill(0);
    if Some(u64::from(crc32(&checked))) != read_number::<4>(header, CHECKSUM_RANGE.start) {
        return None;
    }
    let first = usize::try_from(read_number::<8>(header, 72)?).ok()?;
    let (count, size) = (small(80)?, small(84)?);
    let begin = first.checked_mul(SECTOR_SIZE)?;
    let end = begin.checked_add(count.checked_mul(size)?)?;
    let entries = disk.get(begin..end)?;
    if Some(u64::from(crc32(entries))) != read_number::<4>(header, 88) || size < 128 {
        return None;
    }
    let used = entries.chunks(size).filter(|entry| entry[..16] != [0; 16]);
    used.map(|entry| parse_partition(entry, disk.len())).collect()
}

fn parse_partition(entry: &[u8], length: usize) -> Option<Partition> {
    let sector = |at| usize::try_from(read_number::<8>(entry, at)?).ok()?.checked_mul(SECTOR_SIZE);
    // The table stores the last sector, inclusive.
    let range = sector(32)?..sector(40)?.checked_add(SECTOR_SIZE)?;
    let letters = entry[56..128].chunks(2);
    let letters = letters.map(|letter| u16::from_le_bytes([letter[0], letter[1]]));
    let name: Vec<_> = letters.take_while(|letter| *letter != 0).collect();
    let is_there = range.start < range.end && range.end <= length;
    is_there.then(|| Partition {
        name: String::from_utf16_lossy(&name),
        kind: entry[..16].try_into().expect("sixteen bytes"),
        range,
    })
}

/// CRC-32 (IEEE 802.3), as the partition table uses it.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            let carried = sum & 1;
            sum >>= 1;
            if carried == 1 {
                sum ^= 0xedb8_8320;
            }
        }
    }
    !sum
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A disk with these partitions (name, type, sectors), and a table at the beginning and at the end.
    pub fn disk(sectors: usize, partitions: &[(&str, [u8; 16], Range<u64>)]) -> Vec<u8> {
        let mut disk = vec![0; sectors * SECTOR_SIZE];
        let mut entries = vec![0; 128 * 4];
        for (entry, (name, kind, range)) in entries.chunks_mut(128).zip(partitions) {
            entry[..16].copy_from_slice(kind);
            entry[32..40].copy_from_slice(&range.start.to_le_bytes());
            entry[40..48].copy_from_slice(&(range.end - 1).to_le_bytes());
            for (to, letter) in entry[56..].chunks_mut(2).zip(name.encode_utf16()) {
                to.copy_from_slice(&letter.to_le_bytes());
            }
        }
        for (sector, first) in [(1, 2), (sectors - 1, sectors - 2)] {
            let mut header = [0; MIN_HEADER_SIZE];
            header[..8].copy_from_slice(HEADER_MAGIC);
            let mut put = |at: usize, bytes: &[u8]| {
                header[at..at + bytes.len()].copy_from_slice(bytes);
            };
            put(12, &92_u32.to_le_bytes());
            put(24, &(sector as u64).to_le_bytes());
            put(72, &(first as u64).to_le_bytes());
            put(80, &4_u32.to_le_bytes());
            put(84, &128_u32.to_le_bytes());
            put(88, &crc32(&entries).to_le_bytes());
            let sum = crc32(&header);
            header[CHECKSUM_RANGE].copy_from_slice(&sum.to_le_bytes());
            disk[sector * SECTOR_SIZE..][..MIN_HEADER_SIZE].copy_from_slice(&header);
            disk[first * SECTOR_SIZE..][..entries.len()].copy_from_slice(&entries);
        }
        disk
    }

    #[test]
    fn the_checksum_is_crc_32() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn the_table_at_the_end_replaces_a_broken_one_at_the_beginning() {
        let kinds = ([1; 16], [2; 16]);
        let mut disk = disk(64, &[("esp", kinds.0, 8..16), ("root-a", kinds.1, 16..20)]);
        let parsed = partitions(&disk).expect("a table");
        assert_eq!(parsed.len(), 2);
        assert_eq!((parsed[0].name.as_str(), parsed[0].kind), ("esp", kinds.0));
        assert_eq!(parsed[0].range, 8 * SECTOR_SIZE..16 * SECTOR_SIZE);
        assert_eq!((parsed[1].name.as_str(), parsed[1].kind), ("root-a", kinds.1));

        disk[2 * SECTOR_SIZE + 40] ^= 1;
        assert_eq!(partitions(&disk).expect("the other table"), parsed);
        disk[63 * SECTOR_SIZE + 30] ^= 1;
        assert!(partitions(&disk).is_err());
        assert!(partitions(&[]).is_err());
    }

    #[test]
    fn a_partition_that_is_not_on_the_disk_breaks_its_table() {
        let disk = disk(64, &[("esp", [1; 16], 8..65)]);
        assert!(partitions(&disk).is_err());
    }
}
