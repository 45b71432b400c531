use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// Where the PE header of the images here stands, and the size of the header that follows it.
const PE: usize = 0x80;
const OPTIONAL: u16 = 0xf0;

/// A PE file with sections of these names. Of each the file holds the content padded to 512 bytes, and memory as many
/// bytes as the content has.
fn pe(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; PE];
    file[..2].copy_from_slice(b"MZ");
    file[PLACE..PLACE + 4].copy_from_slice(&0x80_u32.to_le_bytes());
    file.extend(b"PE\0\0");
    file.extend(0x8664_u16.to_le_bytes());
    let number = u16::try_from(sections.len()).expect("few");
    file.extend(number.to_le_bytes());
    file.extend([0; 12]);
    file.extend(OPTIONAL.to_le_bytes());
    file.extend([0; 2]);
    file.extend(vec![0; usize::from(OPTIONAL)]);
    let mut place = (file.len() + ENTRY * sections.len()).next_multiple_of(512);
    let mut contents = Vec::new();
    for (name, content) in sections {
        let on_disk = content.len().next_multiple_of(512);
        let mut entry = [0; ENTRY];
        entry[..name.len()].copy_from_slice(name.as_bytes());
        for (at, value) in [(8_usize, content.len()), (16, on_disk), (20, place)] {
            let value = u32::try_from(value).expect("small");
            entry[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        file.extend(entry);
        contents.push((place, *content));
        place += on_disk;
    }
    file.resize(place, 0);
    for (place, content) in contents {
        file[place..place + content.len()].copy_from_slice(content);
    }
    file
}

fn a_kernel() -> Vec<u8> {
    pe(&[
        (".text", b"code"),
        (".osrel", b"ID=demo\n"),
        (".cmdline", b"root=PARTLABEL=root-a ro panic=10\n\0"),
        (".linux", b"MZ not a section table"),
    ])
}

fn write(folder: &TempDir, content: &[u8]) -> PathBuf {
    let path = folder.path().join("slot-a.efi");
    fs::write(&path, content).expect("a file");
    path
}

fn of(content: &[u8]) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    cmdline(&write(&folder, content))
}

#[test]
fn the_command_line_of_a_kernel_is_read() {
    let line = of(&a_kernel()).unwrap();
    assert_eq!(line, "root=PARTLABEL=root-a ro panic=10");
    assert_eq!(of(&pe(&[(".cmdline", b"")])).unwrap(), "");
}

#[test]
fn padding_in_the_file_is_no_part_of_it_and_missing_zeros_are_none_either() {
    let mut larger = pe(&[(".cmdline", b"panic=1")]);
    let entry = PE + HEADER + usize::from(OPTIONAL);
    // More in memory than in the file.
    larger[entry + 8..entry + 12].copy_from_slice(&9000_u32.to_le_bytes());
    assert_eq!(of(&larger).unwrap(), "panic=1");
    // Less in memory than in the file.
    larger[entry + 8..entry + 12].copy_from_slice(&6_u32.to_le_bytes());
    assert_eq!(of(&larger).unwrap(), "panic=");
}

#[test]
fn a_file_that_is_no_kernel_or_has_no_single_command_line_is_refused() {
    let mut elsewhere = a_kernel();
    elsewhere[PLACE..PLACE + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut many = a_kernel();
    many[PE + 6..PE + 8].copy_from_slice(&97_u16.to_le_bytes());
    let twice = pe(&[(".cmdline", b"a"), (".profile", b""), (".cmdline", b"b")]);
    let long = vec![b'a'; (64 << 10) + 1];
    let cases: [(&[u8], &str); 10] = [
        (b"", "it ends too early for a PE file"),
        (&[0; 4096], "it is no PE file, so no unified kernel image"),
        (&elsewhere, "it ends too early for a PE file"),
        (&many, "it has more than 96 sections"),
        (&pe(&[(".text", b"")]), "it has no section .cmdline"),
        (&twice, "it has several sections .cmdline"),
        (
            &pe(&[(".cmdline", &long)]),
            "its section .cmdline has more than 65536 bytes",
        ),
        (
            &pe(&[(".cmdline", b"\xff")]),
            "its section .cmdline is no text in UTF-8",
        ),
        (
            &pe(&[(".cmdline", b"a\0b")]),
            "its section .cmdline has control characters",
        ),
        (
            &pe(&[(".cmdline", b"a\x1b[2J")]),
            "its section .cmdline has control characters",
        ),
    ];
    for (file, why) in cases {
        let error = of(file).unwrap_err();
        assert!(error.ends_with(why), "{error}, not {why}");
        assert!(error.contains("slot-a.efi"), "{error}");
    }
}

#[test]
fn a_kernel_that_is_cut_short_is_refused() {
    let whole = a_kernel();
    let section = whole.len() - 1024;
    let folder = tempfile::tempdir().unwrap();
    for length in 0..section {
        let path = write(&folder, &whole[..length]);
        assert!(cmdline(&path).is_err(), "{length} bytes");
    }
}

#[test]
fn links_and_folders_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = write(&folder, &a_kernel());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&kernel, &link).unwrap();
    let why = cmdline(&link).unwrap_err();
    assert!(why.ends_with("it is a symbolic link"), "{why}");
    let why = cmdline(folder.path()).unwrap_err();
    assert!(why.ends_with("it is no file"), "{why}");
    assert!(cmdline(&folder.path().join("nothing")).is_err());
}

/// A place in [`a_kernel`]: in its headers, in its table of sections, or where its command line is.
fn a_place() -> impl Strategy<Value = usize> {
    let table = PE + HEADER + usize::from(OPTIONAL);
    let section = a_kernel().len() - 1024;
    prop_oneof![0..table, table..table + 4 * ENTRY, section..section + 40,]
}

proptest! {
    /// Whatever line of text is put into a kernel is read from it.
    #[test]
    fn a_line_is_read_as_it_was_written(line in "[ -~é]{0,80}", padding in 0_usize..8) {
        let content = format!("{line}{}", "\0".repeat(padding));
        let kernel = pe(&[(".text", b"code"), (".cmdline", content.as_bytes())]);
        prop_assert_eq!(of(&kernel), Ok(line.trim().to_owned()));
    }

    /// What is read from a kernel with some bytes changed, if anything is, stands in it and is a line of text.
    #[test]
    fn a_damaged_kernel_is_survived(
        changes in prop::collection::vec((a_place(), any::<u8>()), 1..4),
    ) {
        let mut kernel = a_kernel();
        for (at, byte) in changes {
            kernel[at] = byte;
        }
        if let Ok(line) = of(&kernel) {
            let is_odd = |letter: char| letter.is_control() && !letter.is_whitespace();
            prop_assert!(!line.contains(is_odd), "{:?}", line);
            prop_assert_eq!(line.trim(), &line);
            let found = kernel.windows(line.len().max(1)).any(|part| part == line.as_bytes());
            prop_assert!(line.is_empty() || found, "{:?}", line);
        }
    }
}
