//! The file system of a boot partition: FAT with 32 bits, read and never written.

use std::ops::Range;

use super::number;

/// What a file's name in the folder has: eight letters and three.
const SHORT: (usize, usize) = (8, 3);

/// How long an entry of a folder is.
const ENTRY: usize = 32;

/// Where the letters of a long name lie in an entry.
const LONG: [Range<usize>; 3] = [1..11, 14..26, 28..32];

/// The attributes of an entry.
const FOLDER: u8 = 0x10;
const VOLUME: u8 = 0x08;
const IS_LONG: u8 = 0x0f;

/// A cluster with this number or a higher one ends a chain.
const END: u32 = 0x0fff_fff8;

/// A file system.
#[derive(Clone, Copy, Debug)]
pub struct Volume<'a> {
    bytes: &'a [u8],
    /// How long a cluster is, in bytes.
    cluster: usize,
    /// Where the table of chains lies, in bytes.
    chains: usize,
    /// Where the first cluster lies, in bytes.
    data: usize,
    /// The first number that is no cluster any more.
    clusters: u32,
    /// Where the root folder begins.
    root: u32,
}

/// A file or a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name: the long one, if it has one.
    pub name: String,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// How long it is, in bytes; 0 for a folder.
    pub size: usize,
    first: u32,
}

impl<'a> Volume<'a> {
    /// Understands the file system of a partition.
    pub fn open(bytes: &'a [u8]) -> Result<Self, String> {
        Self::understood(bytes).ok_or_else(|| "the boot partition has no FAT of 32 bits".to_owned())
    }

    fn understood(bytes: &'a [u8]) -> Option<Self> {
        let small = |found: Option<u64>| usize::try_from(found?).ok();
        let sector = small(number::<2>(bytes, 11))?;
        let cluster = small(number::<1>(bytes, 13))?.checked_mul(sector)?;
        let reserved = small(number::<2>(bytes, 14))?;
        let tables = small(number::<1>(bytes, 16))?;
        let sectors = small(number::<4>(bytes, 32))?;
        let length = small(number::<4>(bytes, 36))?;
        let old_length = number::<2>(bytes, 22)?;
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
            cluster,
            chains,
            data,
            clusters: u32::try_from(clusters).ok()?,
            root: u32::try_from(number::<4>(bytes, 44)?).ok()?,
        })
    }

    /// What a path leads to, with `/` between its parts.
    pub fn find(&self, path: &str) -> Option<File> {
        let mut found = self.top();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let inside = self.list(&found);
            found = inside
                .into_iter()
                .find(|file| file.name.eq_ignore_ascii_case(part))?;
        }
        Some(found)
    }

    fn top(&self) -> File {
        File {
            name: String::new(),
            is_folder: true,
            size: 0,
            first: self.root,
        }
    }

    /// What is in a folder, without the folders `.` and `..`. What lies behind a broken link of its chain is not there;
    /// nothing is in what is no folder.
    pub fn list(&self, folder: &File) -> Vec<File> {
        let chain = self.chain(folder.first).map_while(Result::ok);
        let bytes: Vec<u8> = if folder.is_folder {
            chain.flat_map(|part| &self.bytes[part]).copied().collect()
        } else {
            Vec::new()
        };
        let mut files = Vec::new();
        let mut long = LongName::default();
        for entry in bytes.chunks_exact(ENTRY).take_while(|entry| entry[0] != 0) {
            if entry[0] == 0xe5 {
                long = LongName::default();
            } else if entry[11] & 0x3f == IS_LONG {
                long.take(entry);
            } else {
                let name = std::mem::take(&mut long).of(&entry[..11]);
                files.extend(file(entry, name));
            }
        }
        files
    }

    /// Where a file lies in the partition, in bytes and in its order. Fails if its chain does not lead to its end.
    pub fn extents(&self, file: &File) -> Result<Vec<Range<usize>>, String> {
        let mut extents: Vec<Range<usize>> = Vec::new();
        let mut left = file.size;
        let mut chain = self.chain(file.first);
        while left > 0 {
            let part = chain.next().ok_or("its chain is too short")??;
            let part = part.start..part.start + left.min(self.cluster);
            left -= part.len();
            match extents.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => extents.push(part),
            }
        }
        Ok(extents)
    }

    /// What is in a file.
    pub fn read(&self, file: &File) -> Result<Vec<u8>, String> {
        let extents = self.extents(file)?;
        Ok(extents
            .into_iter()
            .flat_map(|part| &self.bytes[part])
            .copied()
            .collect())
    }

    /// Where the clusters of a chain lie. It ends behind a link that leads nowhere, and after as many as there are.
    fn chain(&self, first: u32) -> impl Iterator<Item = Result<Range<usize>, String>> {
        let volume = *self;
        let mut next = Some(first);
        let clusters = std::iter::from_fn(move || {
            let cluster = next?;
            if cluster >= END {
                return None;
            }
            if !(2..volume.clusters).contains(&cluster) {
                next = None;
                return Some(Err(format!("its chain leads to cluster {cluster}")));
            }
            let at = volume.data + (cluster as usize - 2) * volume.cluster;
            let link = number::<4>(volume.bytes, volume.chains + cluster as usize * 4);
            next = link.map(|link| (link & 0x0fff_ffff) as u32);
            Some(Ok(at..at + volume.cluster))
        });
        clusters.take(self.clusters as usize)
    }
}

/// The file of an entry, unless it is the name of the volume or a link of folders.
fn file(entry: &[u8], long: Option<String>) -> Option<File> {
    let attributes = entry[11];
    if attributes & VOLUME != 0 || entry[0] == b'.' {
        return None;
    }
    let first = number::<2>(entry, 20)? << 16 | number::<2>(entry, 26)?;
    Some(File {
        name: long.unwrap_or_else(|| short(entry)),
        is_folder: attributes & FOLDER != 0,
        size: usize::try_from(number::<4>(entry, 28)?).ok()?,
        first: u32::try_from(first).ok()?,
    })
}

/// The short name of an entry.
fn short(entry: &[u8]) -> String {
    let (stem, end) = entry[..SHORT.0 + SHORT.1].split_at(SHORT.0);
    let text = |part: &[u8]| String::from_utf8_lossy(part).trim_end().to_owned();
    let (stem, end) = (text(stem), text(end));
    if end.is_empty() {
        stem
    } else {
        format!("{stem}.{end}")
    }
}

/// A long name, collected from the entries before the one that it belongs to: its last part comes first.
#[derive(Debug, Default)]
struct LongName {
    /// The parts, the last one first.
    parts: Vec<Vec<u16>>,
    checksum: u8,
    /// How many parts are missing.
    missing: u8,
}

impl LongName {
    fn take(&mut self, entry: &[u8]) {
        let order = entry[0];
        let place = order & 0x3f;
        if order & 0x40 != 0 {
            *self = Self {
                parts: Vec::new(),
                checksum: entry[13],
                missing: place,
            };
        }
        if place == 0 || place != self.missing || entry[13] != self.checksum {
            *self = Self::default();
            return;
        }
        let letters = LONG.into_iter().flat_map(|place| entry[place].chunks(2));
        let letters = letters.map(|letter| u16::from_le_bytes([letter[0], letter[1]]));
        let letters = letters.take_while(|letter| *letter != 0 && *letter != 0xffff);
        self.parts.push(letters.collect());
        self.missing -= 1;
    }

    /// The name, if it is whole and belongs to the file with this short one.
    fn of(self, short: &[u8]) -> Option<String> {
        let checksum = short
            .iter()
            .fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        let is_whole = !self.parts.is_empty() && self.missing == 0 && self.checksum == checksum;
        let letters: Vec<_> = self.parts.into_iter().rev().flatten().collect();
        is_whole.then(|| String::from_utf16_lossy(&letters))
    }
}

#[cfg(test)]
pub(super) mod tests;
