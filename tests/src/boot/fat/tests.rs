use super::*;

const SECTOR: usize = 512;
/// Sectors before the table of chains, and of that table.
const RESERVED: usize = 2;
const TABLE: usize = 1;

/// A file system that is put together by hand. Each cluster is a sector; the table of chains has room for 128.
#[derive(Debug)]
pub struct Made {
    pub bytes: Vec<u8>,
    next: u32,
}

impl Made {
    /// With an empty root folder.
    pub fn new() -> Self {
        let mut bytes = vec![0; (RESERVED + TABLE + 126) * SECTOR];
        let sectors = u32::try_from(bytes.len() / SECTOR).expect("a small number");
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(11, &512_u16.to_le_bytes());
        put(13, &[1, 2, 0, 1]);
        put(32, &sectors.to_le_bytes());
        put(36, &1_u32.to_le_bytes());
        put(44, &2_u32.to_le_bytes());
        put(510, &[0x55, 0xaa]);
        let mut made = Self { bytes, next: 3 };
        made.link(2, END);
        made
    }

    pub fn link(&mut self, cluster: u32, to: u32) {
        let at = RESERVED * SECTOR + cluster as usize * 4;
        self.bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }

    /// Writes something into clusters of its own, not side by side, and returns the first of them.
    fn keep(&mut self, content: &[u8]) -> u32 {
        let first = self.next;
        let content = if content.is_empty() { &[0] } else { content };
        for part in content.chunks(SECTOR) {
            let at = (RESERVED + TABLE + self.next as usize - 2) * SECTOR;
            self.bytes[at..at + part.len()].copy_from_slice(part);
            self.link(self.next, self.next + 2);
            self.next += 2;
        }
        self.link(self.next - 2, END);
        first
    }

    /// Puts a file, or a folder made of entries, somewhere: returns its entries.
    pub fn file(&mut self, name: &str, attributes: u8, content: &[u8]) -> Vec<u8> {
        let first = self.keep(content);
        let number = u8::try_from(first).expect("few clusters");
        let mut short = *b"FILE~   EXT";
        short[5] = b'A' + number % 26;
        let checksum = short
            .iter()
            .fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        let mut letters: Vec<_> = name.encode_utf16().collect();
        letters.push(0);
        letters.resize(letters.len().next_multiple_of(13), 0xffff);
        let parts: Vec<_> = letters.chunks(13).zip(1_u8..).collect();
        let mut entries = Vec::new();
        for (place, (part, number)) in parts.into_iter().rev().enumerate() {
            let mut entry = [0; ENTRY];
            entry[0] = if place == 0 { number | 0x40 } else { number };
            entry[11] = IS_LONG;
            entry[13] = checksum;
            let bytes: Vec<_> = part
                .iter()
                .flat_map(|letter| letter.to_le_bytes())
                .collect();
            entry[LONG[0].clone()].copy_from_slice(&bytes[..10]);
            entry[LONG[1].clone()].copy_from_slice(&bytes[10..22]);
            entry[LONG[2].clone()].copy_from_slice(&bytes[22..]);
            entries.extend(entry);
        }
        let mut entry = [0; ENTRY];
        entry[..11].copy_from_slice(&short);
        entry[11] = attributes;
        entry[26..28].copy_from_slice(&u16::from(number).to_le_bytes());
        let size = if attributes & FOLDER == 0 {
            content.len()
        } else {
            0
        };
        let size = u32::try_from(size).expect("a small file");
        entry[28..].copy_from_slice(&size.to_le_bytes());
        entries.extend(entry);
        entries
    }

    /// Puts entries into the root folder.
    pub fn top(&mut self, entries: &[u8]) {
        let at = (RESERVED + TABLE) * SECTOR;
        self.bytes[at..at + entries.len()].copy_from_slice(entries);
    }

    pub fn volume(&self) -> Volume<'_> {
        Volume::open(&self.bytes).expect("a file system")
    }
}

/// A boot partition with entries, and kernels in `EFI/evenkeel`.
pub fn boot_partition(entries: &[(&str, &str)], kernels: &[(&str, &[u8])]) -> Made {
    let mut made = Made::new();
    let files = entries
        .iter()
        .flat_map(|(name, text)| made.file(name, 0, text.as_bytes()));
    let files: Vec<_> = files.collect();
    let inside = made.file("entries", FOLDER, &files);
    let loader = made.file("loader", FOLDER, &inside);
    let files = kernels
        .iter()
        .flat_map(|(name, kernel)| made.file(name, 0, kernel));
    let files: Vec<_> = files.collect();
    let inside = made.file("evenkeel", FOLDER, &files);
    let efi = made.file("EFI", FOLDER, &inside);
    made.top(&[loader, efi].concat());
    made
}

#[test]
fn a_file_is_found_by_its_long_name_and_read_along_its_chain() {
    let text: Vec<u8> = (0..1200_u32).map(|byte| (byte % 251) as u8).collect();
    let made = boot_partition(
        &[("evenkeel-000001+3.conf", "any")],
        &[("slot-a.efi", &text)],
    );
    let volume = made.volume();
    let file = volume.find("/efi/EVENKEEL/slot-a.efi").expect("a file");
    assert_eq!((file.name.as_str(), file.size), ("slot-a.efi", 1200));
    assert_eq!(volume.read(&file), Ok(text));
    let extents = volume.extents(&file).expect("a chain");
    assert_eq!(
        extents.iter().map(Range::len).collect::<Vec<_>>(),
        [512, 512, 176]
    );
    assert!(
        volume
            .find("loader/entries/evenkeel-000001+3.conf")
            .is_some()
    );
    assert_eq!(volume.find("loader/entries/evenkeel-000001.conf"), None);
    assert_eq!(volume.find("EFI/evenkeel/slot-a.efi/any"), None);
}

#[test]
fn a_chain_that_breaks_off_or_runs_in_a_circle_comes_to_an_end() {
    let mut made = boot_partition(&[], &[("slot-a.efi", &[7; 1500])]);
    let file = made
        .volume()
        .find("EFI/evenkeel/slot-a.efi")
        .expect("a file");
    let second = file.first + 2;
    made.link(second, 0);
    assert!(made.volume().read(&file).is_err());
    made.link(second, END);
    assert!(made.volume().read(&file).is_err());
    made.link(second, file.first);
    assert_eq!(
        made.volume().read(&file),
        Ok(vec![7; 1500]),
        "round and round"
    );

    made.link(2, 2);
    assert!(made.volume().find("nothing").is_none());
    made.link(2, 1);
    assert!(
        made.volume().find("EFI").is_some(),
        "what lies before the broken link"
    );
}

#[test]
fn a_long_name_that_is_not_whole_does_not_count() {
    let mut made = Made::new();
    let whole = made.file("a-rather-long-name.conf", 0, b"x");
    let mut torn = made.file("another-long-name.conf", 0, b"y");
    torn[13] ^= 1;
    let mut removed = made.file("gone.conf", 0, b"z");
    removed[0] = 0xe5;
    removed[32] = 0xe5;
    made.top(&[whole, torn, removed].concat());
    let volume = made.volume();
    let names: Vec<_> = volume
        .list(&volume.top())
        .into_iter()
        .map(|file| file.name)
        .collect();
    assert_eq!(names.len(), 2);
    assert_eq!(names[0], "a-rather-long-name.conf");
    assert!(names[1].starts_with("FILE~"), "{names:?}");
}

#[test]
fn what_is_no_file_system_is_refused() {
    assert!(Volume::open(&[]).is_err());
    assert!(Volume::open(&[0; 4096]).is_err());
    let mut made = Made::new();
    made.bytes.truncate(4096);
    assert!(Volume::open(&made.bytes).is_err());
}
