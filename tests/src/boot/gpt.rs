//! The partition table.

use std::ops::Range;

use super::number;

/// Sectors of no other size are known here.
const SECTOR: usize = 512;

/// What a header begins with.
const MAGIC: &[u8] = b"EFI PART";

/// How long a header is, at the least.
const HEADER: usize = 92;

/// How long the place of its own checksum is, and where: it counts as zeroes.
const CHECKSUM: Range<usize> = 16..20;

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// What it is for, as it lies on the disk.
    pub kind: [u8; 16],
    /// Where it lies, in bytes.
    pub place: Range<usize>,
}

/// The partitions of a disk: by the table at its beginning, or by the one at its end if that is broken, as the firmware
/// has it.
pub fn partitions(disk: &[u8]) -> Result<Vec<Partition>, String> {
    let last = (disk.len() / SECTOR).saturating_sub(1);
    let tables = [1, last].map(|sector| table(disk, sector));
    let table = tables.into_iter().flatten().next();
    table.ok_or_else(|| "both partition tables are broken".to_owned())
}

/// The partitions of the table whose header lies in a sector, if that table is whole.
fn table(disk: &[u8], sector: usize) -> Option<Vec<Partition>> {
    let header = disk.get(sector * SECTOR..(sector + 1) * SECTOR)?;
    let small = |at| usize::try_from(number::<4>(header, at)?).ok();
    let length = small(12)?;
    let place = usize::try_from(number::<8>(header, 24)?).ok()?;
    if !header.starts_with(MAGIC) || !(HEADER..=SECTOR).contains(&length) || place != sector {
        return None;
    }
    let mut checked = header[..length].to_vec();
    checked[CHECKSUM].fill(0);
    if Some(u64::from(crc32(&checked))) != number::<4>(header, CHECKSUM.start) {
        return None;
    }
    let first = usize::try_from(number::<8>(header, 72)?).ok()?;
    let (count, size) = (small(80)?, small(84)?);
    let begin = first.checked_mul(SECTOR)?;
    let end = begin.checked_add(count.checked_mul(size)?)?;
    let entries = disk.get(begin..end)?;
    if Some(u64::from(crc32(entries))) != number::<4>(header, 88) || size < 128 {
        return None;
    }
    let used = entries.chunks(size).filter(|entry| entry[..16] != [0; 16]);
    used.map(|entry| partition(entry, disk.len())).collect()
}

fn partition(entry: &[u8], length: usize) -> Option<Partition> {
    let sector = |at| {
        usize::try_from(number::<8>(entry, at)?)
            .ok()?
            .checked_mul(SECTOR)
    };
    // The last sector is told, not the one behind it.
    let place = sector(32)?..sector(40)?.checked_add(SECTOR)?;
    let letters = entry[56..128].chunks(2);
    let letters = letters.map(|letter| u16::from_le_bytes([letter[0], letter[1]]));
    let name: Vec<_> = letters.take_while(|letter| *letter != 0).collect();
    let is_there = place.start < place.end && place.end <= length;
    is_there.then(|| Partition {
        name: String::from_utf16_lossy(&name),
        kind: entry[..16].try_into().expect("sixteen bytes"),
        place,
    })
}

/// The checksum of a table: CRC-32 as Ethernet has it.
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

    /// A disk with partitions of a type each, at these sectors: a table at its beginning and one at its end.
    pub fn disk(sectors: usize, partitions: &[(&str, [u8; 16], Range<u64>)]) -> Vec<u8> {
        let mut disk = vec![0; sectors * SECTOR];
        let mut entries = vec![0; 128 * 4];
        for (entry, (name, kind, place)) in entries.chunks_mut(128).zip(partitions) {
            entry[..16].copy_from_slice(kind);
            entry[32..40].copy_from_slice(&place.start.to_le_bytes());
            entry[40..48].copy_from_slice(&(place.end - 1).to_le_bytes());
            for (to, letter) in entry[56..].chunks_mut(2).zip(name.encode_utf16()) {
                to.copy_from_slice(&letter.to_le_bytes());
            }
        }
        for (sector, first) in [(1, 2), (sectors - 1, sectors - 2)] {
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(MAGIC);
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
            header[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
            disk[sector * SECTOR..][..HEADER].copy_from_slice(&header);
            disk[first * SECTOR..][..entries.len()].copy_from_slice(&entries);
        }
        disk
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn the_table_at_the_end_stands_in_for_a_broken_one_at_the_beginning() {
        let kinds = ([1; 16], [2; 16]);
        let mut disk = disk(64, &[("esp", kinds.0, 8..16), ("root-a", kinds.1, 16..20)]);
        let found = partitions(&disk).expect("a table");
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].kind), ("esp", kinds.0));
        assert_eq!(found[0].place, 8 * SECTOR..16 * SECTOR);
        assert_eq!((found[1].name.as_str(), found[1].kind), ("root-a", kinds.1));

        disk[2 * SECTOR + 40] ^= 1;
        assert_eq!(partitions(&disk).expect("the other table"), found);
        disk[63 * SECTOR + 30] ^= 1;
        assert!(partitions(&disk).is_err());
        assert!(partitions(&[]).is_err());
    }

    #[test]
    fn a_partition_that_is_not_on_the_disk_breaks_its_table() {
        let disk = disk(64, &[("esp", [1; 16], 8..65)]);
        assert!(partitions(&disk).is_err());
    }
}
