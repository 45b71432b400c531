//! Reader for the file system of a boot partition (FAT32). Never writes.

use std::ops::Range;

use super::read_number;

/// Lengths of a short file name: eight letters and three letters of extension.
const SHORT_NAME_LENGTHS: (usize, usize) = (8, 3);

/// Size of a directory entry in bytes.
const ENTRY_SIZE: usize = 32;

/// Byte ranges of an entry that hold the letters of a long name.
const LONG_NAME_RANGES: [Range<usize>; 3] = [1..11, 14..26, 28..32];

/// Attributes of an entry.
const FOLDER_ATTRIBUTE: u8 = 0x10;
const VOLUME_ATTRIBUTE: u8 = 0x08;
const LONG_NAME_ATTRIBUTES: u8 = 0x0f;

/// A cluster number from here on ends a chain.
const END_OF_CHAIN: u32 = 0x0fff_fff8;

/// A FAT32 file system.
#[derive(Clone, Copy, Debug)]
pub struct FatVolume<'a> {
    bytes: &'a [u8],
    /// Size of a cluster in bytes.
    cluster_size: usize,
    /// Offset of the allocation table in bytes.
    table_offset: usize,
    /// Offset of the first cluster in bytes.
    data_offset: usize,
    /// First number that is not a cluster any more.
    cluster_end: u32,
    /// First cluster of the root folder.
    root_cluster: u32,
}

/// A file or a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatFile {
    /// The long name if there is one, otherwise the short name.
    pub name: String,
    pub is_folder: bool,
    /// Size in bytes; 0 for a folder.
    pub size: usize,
    first_cluster: u32,
}

impl<'a> FatVolume<'a> {
    /// Parses the file system of a partition.
    pub fn open(bytes: &'a [u8]) -> Result<Self, String> {
        Self::parse(bytes).ok_or_else(|| "the boot partition is not FAT32".to_owned())
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let small = |value: Option<u64>| usize::try_from(value?).ok();
        let sector = small(read_number::<2>(bytes, 11))?;
        let cluster = small(read_number::<1>(bytes, 13))?.checked_mul(sector)?;
        let reserved = small(read_number::<2>(bytes, 14))?;
        let tables = small(read_number::<1>(bytes, 16))?;
        let sectors = small(read_number::<4>(bytes, 32))?;
        let length = small(read_number::<4>(bytes, 36))?;
        let old_length = read_number::<2>(bytes, 22)?;
        let is_known = bytes.get(510..512)? == [0x55, 0xaa]
            && sector.is_power_of_two()
            && cluster > 0
            && old_length == 0
            && sectors.checked_mul(sector)? <= bytes.len();
        if !is_known {
            return None;
        }
        let chains = reserved * sector;
        let data = chains.checked_add(tables.checked_mul(length)?.checked_mul(sector)?)?;
        let clusters = (sectors * sector).checked_sub(data)? / cluster + 2;
        Some(Self {
            bytes,
            cluster_size: cluster,
            table_offset: chains,
            data_offset: data,
            cluster_end: u32::try_from(clusters).ok()?,
            root_cluster: u32::try_from(read_number::<4>(bytes, 44)?).ok()?,
        })
    }

    /// Finds a file or folder by its path, with `/` as separator. Case does not matter.
    pub fn find(&self, path: &str) -> Option<FatFile> {
        let mut current = self.root_folder();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let inside = self.list(&current);
            current = inside.into_iter().find(|file| file.name.eq_ignore_ascii_case(part))?;
        }
        Some(current)
    }

    fn root_folder(&self) -> FatFile {
        FatFile { name: String::new(), is_folder: true, size: 0, first_cluster: self.root_cluster }
    }

    /// Lists a folder without `.` and `..`. The list ends at a broken link of the cluster chain. A file
    /// has an empty list.
    pub fn list(&self, folder: &FatFile) -> Vec<FatFile> {
        let chain = self.cluster_ranges(folder.first_cluster).map_while(Result::ok);
        let bytes: Vec<u8> = if folder.is_folder {
            chain.flat_map(|part| &self.bytes[part]).copied().collect()
        } else {
            Vec::new()
        };
        let mut files = Vec::new();
        let mut long = LongName::default();
        for entry in bytes.chunks_exact(ENTRY_SIZE).take_while(|entry| entry[0] != 0) {
            if entry[0] == 0xe5 {
                long = LongName::default();
            } else if entry[11] & 0x3f == LONG_NAME_ATTRIBUTES {
                long.add_entry(entry);
            } else {
                let name = std::mem::take(&mut long).into_name(&entry[..11]);
                files.extend(parse_file(entry, name));
            }
        }
        files
    }

    /// Byte ranges of a file in the partition, in order. Fails if the cluster chain is broken or too short.
    pub fn extents(&self, file: &FatFile) -> Result<Vec<Range<usize>>, String> {
        let mut extents: Vec<Range<usize>> = Vec::new();
        let mut left = file.size;
        let mut chain = self.cluster_ranges(file.first_cluster);
        while left > 0 {
            let part = chain.next().ok_or("the cluster chain is too short")??;
            let part = part.start..part.start + left.min(self.cluster_size);
            left -= part.len();
            match extents.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => extents.push(part),
            }
        }
        Ok(extents)
    }

    /// Content of a file.
    pub fn read(&self, file: &FatFile) -> Result<Vec<u8>, String> {
        let extents = self.extents(file)?;
        Ok(extents.into_iter().flat_map(|part| &self.bytes[part]).copied().collect())
    }

    /// Byte ranges of a chain's clusters. Stops at a broken link, and after as many clusters as exist, so a circle ends.
    fn cluster_ranges(&self, first: u32) -> impl Iterator<Item = Result<Range<usize>, String>> {
        let volume = *self;
        let mut next = Some(first);
        let clusters = std::iter::from_fn(move || {
            let cluster = next?;
            if cluster >= END_OF_CHAIN {
                return None;
            }
            if !(2..volume.cluster_end).contains(&cluster) {
                next = None;
                return Some(Err(format!("the cluster chain links to cluster {cluster}")));
            }
            let at = volume.data_offset + (cluster as usize - 2) * volume.cluster_size;
            let link = read_number::<4>(volume.bytes, volume.table_offset + cluster as usize * 4);
            next = link.map(|link| (link & 0x0fff_ffff) as u32);
            Some(Ok(at..at + volume.cluster_size))
        });
        clusters.take(self.cluster_end as usize)
    }
}

/// Parses the file of an entry. Returns nothing for the volume name and for `.` and `..`.
fn parse_file(entry: &[u8], long: Option<String>) -> Option<FatFile> {
    let attributes = entry[11];
    if attributes & VOLUME_ATTRIBUTE != 0 || entry[0] == b'.' {
        return None;
    }
    let first = read_number::<2>(entry, 20)? << 16 | read_number::<2>(entry, 26)?;
    Some(FatFile {
        name: long.unwrap_or_else(|| short_name(entry)),
        is_folder: attributes & FOLDER_ATTRIBUTE != 0,
        size: usize::try_from(read_number::<4>(entry, 28)?).ok()?,
        first_cluster: u32::try_from(first).ok()?,
    })
}

fn short_name(entry: &[u8]) -> String {
    let (stem, end) =
        entry[..SHORT_NAME_LENGTHS.0 + SHORT_NAME_LENGTHS.1].split_at(SHORT_NAME_LENGTHS.0);
    let text = |part: &[u8]| String::from_utf8_lossy(part).trim_end().to_owned();
    let (stem, end) = (text(stem), text(end));
    if end.is_empty() { stem } else { format!("{stem}.{end}") }
}

/// A long name, collected from the entries before its file's entry. The last part comes first.
#[derive(Debug, Default)]
struct LongName {
    /// Parts of the name, the last part first.
    parts: Vec<Vec<u16>>,
    checksum: u8,
    /// Number of missing parts.
    missing: u8,
}

impl LongName {
    fn add_entry(&mut self, entry: &[u8]) {
        let order = entry[0];
        let index = order & 0x3f;
        if order & 0x40 != 0 {
            *self = Self { parts: Vec::new(), checksum: entry[13], missing: index };
        }
        if index == 0 || index != self.missing || entry[13] != self.checksum {
            *self = Self::default();
            return;
        }
        let letters = LONG_NAME_RANGES.into_iter().flat_map(|range| entry[range].chunks(2));
        let letters = letters.map(|letter| u16::from_le_bytes([letter[0], letter[1]]));
        let letters = letters.take_while(|letter| *letter != 0 && *letter != 0xffff);
        self.parts.push(letters.collect());
        self.missing -= 1;
    }

    /// The name, if it is complete and its checksum matches the short name.
    fn into_name(self, short: &[u8]) -> Option<String> {
        let checksum = short.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        let is_whole = !self.parts.is_empty() && self.missing == 0 && self.checksum == checksum;
        let letters: Vec<_> = self.parts.into_iter().rev().flatten().collect();
        is_whole.then(|| String::from_utf16_lossy(&letters))
    }
}

#[cfg(test)]
pub(super) mod tests;
