use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// Offset of the PE header in the images here, and the size of the optional header.
const PE_OFFSET: usize = 0x80;
const OPTIONAL_HEADER_BYTES: u16 = 0xf0;

/// A PE file with these sections. In the file each content is padded to 512 bytes; in memory it has
/// its own length.
fn pe_file(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; PE_OFFSET];
    file[..2].copy_from_slice(b"MZ");
    file[PE_OFFSET_FIELD..PE_OFFSET_FIELD + 4].copy_from_slice(&0x80_u32.to_le_bytes());
    file.extend(b"PE\0\0");
    file.extend(0x8664_u16.to_le_bytes());
    let number = u16::try_from(sections.len()).expect("few");
    file.extend(number.to_le_bytes());
    file.extend([0; 12]);
    file.extend(OPTIONAL_HEADER_BYTES.to_le_bytes());
    file.extend([0; 2]);
    file.extend(vec![0; usize::from(OPTIONAL_HEADER_BYTES)]);
    let mut offset = (file.len() + SECTION_ENTRY_BYTES * sections.len()).next_multiple_of(512);
    let mut contents = Vec::new();
    for (name, content) in sections {
        let on_disk = content.len().next_multiple_of(512);
        let mut entry = [0; SECTION_ENTRY_BYTES];
        entry[..name.len()].copy_from_slice(name.as_bytes());
        for (at, value) in [(8_usize, content.len()), (16, on_disk), (20, offset)] {
            let value = u32::try_from(value).expect("small");
            entry[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        file.extend(entry);
        contents.push((offset, *content));
        offset += on_disk;
    }
    file.resize(offset, 0);
    for (offset, content) in contents {
        file[offset..offset + content.len()].copy_from_slice(content);
    }
    file
}

fn sample_kernel() -> Vec<u8> {
    pe_file(&[
        (".text", b"code"),
        (".osrel", b"ID=demo\n"),
        (".cmdline", b"root=PARTLABEL=root-a ro panic=10\n\0"),
        (".linux", b"MZ not a section table"),
    ])
}

fn write_kernel(folder: &TempDir, content: &[u8]) -> PathBuf {
    let path = folder.path().join("slot-a.efi");
    fs::write(&path, content).expect("a file");
    path
}

fn cmdline_of(content: &[u8]) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    read_cmdline(&write_kernel(&folder, content))
}

#[test]
fn the_command_line_of_a_kernel_is_read() {
    let line = cmdline_of(&sample_kernel()).unwrap();
    assert_eq!(line, "root=PARTLABEL=root-a ro panic=10");
    assert_eq!(cmdline_of(&pe_file(&[(".cmdline", b"")])).unwrap(), "");
}

#[test]
fn padding_and_missing_zeros_are_not_part_of_the_command_line() {
    let mut larger = pe_file(&[(".cmdline", b"panic=1")]);
    let entry = PE_OFFSET + PE_HEADER_BYTES + usize::from(OPTIONAL_HEADER_BYTES);
    // More in memory than in the file.
    larger[entry + 8..entry + 12].copy_from_slice(&9000_u32.to_le_bytes());
    assert_eq!(cmdline_of(&larger).unwrap(), "panic=1");
    // Less in memory than in the file.
    larger[entry + 8..entry + 12].copy_from_slice(&6_u32.to_le_bytes());
    assert_eq!(cmdline_of(&larger).unwrap(), "panic=");
}

#[test]
fn a_file_without_exactly_one_command_line_is_refused() {
    let mut elsewhere = sample_kernel();
    elsewhere[PE_OFFSET_FIELD..PE_OFFSET_FIELD + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut many = sample_kernel();
    many[PE_OFFSET + 6..PE_OFFSET + 8].copy_from_slice(&97_u16.to_le_bytes());
    let twice = pe_file(&[(".cmdline", b"a"), (".profile", b""), (".cmdline", b"b")]);
    let long = vec![b'a'; (64 << 10) + 1];
    let cases: [(&[u8], &str); 10] = [
        (b"", "it ends too early for a PE file"),
        (&[0; 4096], "it is not a PE file and thus not a unified kernel image"),
        (&elsewhere, "it ends too early for a PE file"),
        (&many, "it has more than 96 sections"),
        (&pe_file(&[(".text", b"")]), "it has no section .cmdline"),
        (&twice, "it has several sections .cmdline"),
        (&pe_file(&[(".cmdline", &long)]), "its section .cmdline has more than 65536 bytes"),
        (&pe_file(&[(".cmdline", b"\xff")]), "its section .cmdline is not UTF-8 text"),
        (&pe_file(&[(".cmdline", b"a\0b")]), "its section .cmdline has control characters"),
        (&pe_file(&[(".cmdline", b"a\x1b[2J")]), "its section .cmdline has control characters"),
    ];
    for (file, why) in cases {
        let error = cmdline_of(file).unwrap_err();
        assert!(error.ends_with(why), "{error}, not {why}");
        assert!(error.contains("slot-a.efi"), "{error}");
    }
}

#[test]
fn a_truncated_kernel_is_refused() {
    let kernel = sample_kernel();
    let section = kernel.len() - 1024;
    let folder = tempfile::tempdir().unwrap();
    for length in 0..section {
        let path = write_kernel(&folder, &kernel[..length]);
        assert!(read_cmdline(&path).is_err(), "{length} bytes");
    }
}

#[test]
fn symlinks_and_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = write_kernel(&folder, &sample_kernel());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&kernel, &link).unwrap();
    let why = read_cmdline(&link).unwrap_err();
    assert!(why.ends_with("it is a symbolic link"), "{why}");
    let why = read_cmdline(folder.path()).unwrap_err();
    assert!(why.ends_with("it is not a regular file"), "{why}");
    assert!(read_cmdline(&folder.path().join("nothing")).is_err());
}

/// An offset in [`sample_kernel`]: in its headers, in its section table, or in its command line.
fn any_offset() -> impl Strategy<Value = usize> {
    let table = PE_OFFSET + PE_HEADER_BYTES + usize::from(OPTIONAL_HEADER_BYTES);
    let section = sample_kernel().len() - 1024;
    prop_oneof![0..table, table..table + 4 * SECTION_ENTRY_BYTES, section..section + 40,]
}

proptest! {
    /// Any text that is written as the command line is read back.
    #[test]
    fn a_written_line_is_read_back(line in "[ -~é]{0,80}", padding in 0_usize..8) {
        let content = format!("{line}{}", "\0".repeat(padding));
        let kernel = pe_file(&[(".text", b"code"), (".cmdline", content.as_bytes())]);
        prop_assert_eq!(cmdline_of(&kernel), Ok(line.trim().to_owned()));
    }

    /// A result from a damaged kernel is contained in the file and has no control characters.
    #[test]
    fn a_damaged_kernel_does_not_panic(
        changes in prop::collection::vec((any_offset(), any::<u8>()), 1..4),
    ) {
        let mut kernel = sample_kernel();
        for (at, byte) in changes {
            kernel[at] = byte;
        }
        if let Ok(line) = cmdline_of(&kernel) {
            let is_odd = |letter: char| letter.is_control() && !letter.is_whitespace();
            prop_assert!(!line.contains(is_odd), "{:?}", line);
            prop_assert_eq!(line.trim(), &line);
            let is_contained = kernel.windows(line.len().max(1)).any(|part| part == line.as_bytes());
            prop_assert!(line.is_empty() || is_contained, "{:?}", line);
        }
    }
}
