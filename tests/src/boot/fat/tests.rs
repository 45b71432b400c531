use super::*;

const SECTOR_SIZE: usize = 512;
/// Sectors before the allocation table, and sectors of the table.
const RESERVED_SECTORS: usize = 2;
const TABLE_SECTORS: usize = 1;

/// A FAT32 file system in memory. A cluster is one sector; the table has 128 entries.
#[derive(Debug)]
pub struct FatImage {
    pub bytes: Vec<u8>,
    next: u32,
}

impl FatImage {
    /// Creates a file system with an empty root folder.
    pub fn new() -> Self {
        let mut bytes = vec![0; (RESERVED_SECTORS + TABLE_SECTORS + 126) * SECTOR_SIZE];
        let sectors = u32::try_from(bytes.len() / SECTOR_SIZE).expect("a small number");
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(11, &512_u16.to_le_bytes());
        put(13, &[1, 2, 0, 1]);
        put(32, &sectors.to_le_bytes());
        put(36, &1_u32.to_le_bytes());
        put(44, &2_u32.to_le_bytes());
        put(510, &[0x55, 0xaa]);
        let mut image = Self { bytes, next: 3 };
        image.link(2, END_OF_CHAIN);
        image
    }

    pub fn link(&mut self, cluster: u32, to: u32) {
        let at = RESERVED_SECTORS * SECTOR_SIZE + cluster as usize * 4;
        self.bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }

    /// Writes content into clusters that are not adjacent, and returns the first cluster.
    fn write_content(&mut self, content: &[u8]) -> u32 {
        let first = self.next;
        let content = if content.is_empty() { &[0] } else { content };
        for part in content.chunks(SECTOR_SIZE) {
            let at = (RESERVED_SECTORS + TABLE_SECTORS + self.next as usize - 2) * SECTOR_SIZE;
            self.bytes[at..at + part.len()].copy_from_slice(part);
            self.link(self.next, self.next + 2);
            self.next += 2;
        }
        self.link(self.next - 2, END_OF_CHAIN);
        first
    }

    /// Writes a file, or a folder made of entries, and returns its directory entries.
    pub fn add_file(&mut self, name: &str, attributes: u8, content: &[u8]) -> Vec<u8> {
        let first = self.write_content(content);
        let number = u8::try_from(first).expect("few clusters");
        let mut short = *b"FILE~   EXT";
        short[5] = b'A' + number % 26;
        let checksum = short.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        let mut letters: Vec<_> = name.encode_utf16().collect();
        letters.push(0);
        letters.resize(letters.len().next_multiple_of(13), 0xffff);
        let parts: Vec<_> = letters.chunks(13).zip(1_u8..).collect();
        let mut entries = Vec::new();
        for (index, (part, number)) in parts.into_iter().rev().enumerate() {
            let mut entry = [0; ENTRY_SIZE];
            entry[0] = if index == 0 { number | 0x40 } else { number };
            entry[11] = LONG_NAME_ATTRIBUTES;
            entry[13] = checksum;
            let bytes: Vec<_> = part.iter().flat_map(|letter| letter.to_le_bytes()).collect();
            entry[LONG_NAME_RANGES[0].clone()].copy_from_slice(&bytes[..10]);
            entry[LONG_NAME_RANGES[1].clone()].copy_from_slice(&bytes[10..22]);
            entry[LONG_NAME_RANGES[2].clone()].copy_from_slice(&bytes[22..]);
            entries.extend(entry);
        }
        let mut entry = [0; ENTRY_SIZE];
        entry[..11].copy_from_slice(&short);
        entry[11] = attributes;
        entry[26..28].copy_from_slice(&u16::from(number).to_le_bytes());
        let size = if attributes & FOLDER_ATTRIBUTE == 0 { content.len() } else { 0 };
        let size = u32::try_from(size).expect("a small file");
        entry[28..].copy_from_slice(&size.to_le_bytes());
        entries.extend(entry);
        entries
    }

    /// Writes entries into the root folder.
    pub fn write_root_folder(&mut self, entries: &[u8]) {
        let at = (RESERVED_SECTORS + TABLE_SECTORS) * SECTOR_SIZE;
        self.bytes[at..at + entries.len()].copy_from_slice(entries);
    }

    pub fn volume(&self) -> FatVolume<'_> {
        FatVolume::open(&self.bytes).expect("a file system")
    }
}

/// A boot partition with loader entries, and with kernels in `EFI/evenkeel`.
pub fn boot_partition(entries: &[(&str, &str)], kernels: &[(&str, &[u8])]) -> FatImage {
    let mut image = FatImage::new();
    let files = entries.iter().flat_map(|(name, text)| image.add_file(name, 0, text.as_bytes()));
    let files: Vec<_> = files.collect();
    let inside = image.add_file("entries", FOLDER_ATTRIBUTE, &files);
    let loader = image.add_file("loader", FOLDER_ATTRIBUTE, &inside);
    let files = kernels.iter().flat_map(|(name, kernel)| image.add_file(name, 0, kernel));
    let files: Vec<_> = files.collect();
    let inside = image.add_file("evenkeel", FOLDER_ATTRIBUTE, &files);
    let efi = image.add_file("EFI", FOLDER_ATTRIBUTE, &inside);
    image.write_root_folder(&[loader, efi].concat());
    image
}

#[test]
fn a_file_is_found_by_its_long_name_and_read_along_its_chain() {
    let text: Vec<u8> = (0..1200_u32).map(|byte| (byte % 251) as u8).collect();
    let image = boot_partition(&[("evenkeel-000001+3.conf", "any")], &[("slot-a.efi", &text)]);
    let volume = image.volume();
    let file = volume.find("/efi/EVENKEEL/slot-a.efi").expect("a file");
    assert_eq!((file.name.as_str(), file.size), ("slot-a.efi", 1200));
    assert_eq!(volume.read(&file), Ok(text));
    let extents = volume.extents(&file).expect("a chain");
    assert_eq!(extents.iter().map(Range::len).collect::<Vec<_>>(), [512, 512, 176]);
    assert!(volume.find("loader/entries/evenkeel-000001+3.conf").is_some());
    assert_eq!(volume.find("loader/entries/evenkeel-000001.conf"), None);
    assert_eq!(volume.find("EFI/evenkeel/slot-a.efi/any"), None);
}

#[test]
fn a_chain_that_breaks_off_or_runs_in_a_circle_comes_to_an_end() {
    let mut image = boot_partition(&[], &[("slot-a.efi", &[7; 1500])]);
    let file = image.volume().find("EFI/evenkeel/slot-a.efi").expect("a file");
    let second = file.first_cluster + 2;
    image.link(second, 0);
    assert!(image.volume().read(&file).is_err());
    image.link(second, END_OF_CHAIN);
    assert!(image.volume().read(&file).is_err());
    image.link(second, file.first_cluster);
    assert_eq!(
        image.volume().read(&file),
        Ok(vec![7; 1500]),
        "a circular chain ends at the size of the file"
    );

    image.link(2, 2);
    assert!(image.volume().find("nothing").is_none());
    image.link(2, 1);
    assert!(image.volume().find("EFI").is_some(), "entries before the broken link are listed");
}

#[test]
fn an_incomplete_long_name_is_ignored() {
    let mut image = FatImage::new();
    let valid = image.add_file("a-rather-long-name.conf", 0, b"x");
    let mut torn = image.add_file("another-long-name.conf", 0, b"y");
    torn[13] ^= 1;
    let mut removed = image.add_file("gone.conf", 0, b"z");
    removed[0] = 0xe5;
    removed[32] = 0xe5;
    image.write_root_folder(&[valid, torn, removed].concat());
    let volume = image.volume();
    let names: Vec<_> =
        volume.list(&volume.root_folder()).into_iter().map(|file| file.name).collect();
    assert_eq!(names.len(), 2);
    assert_eq!(names[0], "a-rather-long-name.conf");
    assert!(names[1].starts_with("FILE~"), "{names:?}");
}

#[test]
fn bytes_without_a_file_system_are_rejected() {
    assert!(FatVolume::open(&[]).is_err());
    assert!(FatVolume::open(&[0; 4096]).is_err());
    let mut image = FatImage::new();
    image.bytes.truncate(4096);
    assert!(FatVolume::open(&image.bytes).is_err());
}
