//! The command line in a unified kernel image: the section `.cmdline` of a PE file.
//!
//! Formats: "PE Format" (Microsoft) for the headers, and "UKI" (UAPI.5) for what the section holds. Of the file only
//! the headers and that section are read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Padded with zeros to 8 bytes; this name has 8.
const SECTION: [u8; 8] = *b".cmdline";

/// Where the place of the PE header stands, in 4 bytes.
const PLACE: usize = 0x3c;

/// The signature and the COFF header.
const HEADER: usize = 4 + 20;

/// An entry of the table of sections.
const ENTRY: usize = 40;

/// The format allows for no more sections in an image.
const MOST_SECTIONS: u16 = 96;

/// Kernels take 4 KiB at most.
const MOST_BYTES: u32 = 64 << 10;

/// The command line of a unified kernel image, without the zeros and white space around it. Else why it has none.
pub fn cmdline(uki: &Path) -> Result<String, String> {
    let said = |why: String| format!("{}: {why}", uki.display());
    let file = open(uki).map_err(said)?;
    let section = find(&file).map_err(said)?;
    text(section).map_err(said)
}

/// A symbolic link is not followed: that of a slot would lead into the system that runs.
fn open(path: &Path) -> Result<File, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return Err("it is a symbolic link".to_owned()),
        Err(error) => return Err(io::Error::from(error).to_string()),
    };
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is no file".to_owned());
    }
    Ok(file)
}

/// The content of the section.
fn find(file: &File) -> Result<Vec<u8>, String> {
    let no_pe = || "it is no PE file, so no unified kernel image".to_owned();
    let dos: [u8; PLACE + 4] = read(file, 0)?;
    if !dos.starts_with(b"MZ") {
        return Err(no_pe());
    }
    let place = u64::from(u32_at(&dos, PLACE));
    let header: [u8; HEADER] = read(file, place)?;
    if !header.starts_with(b"PE\0\0") {
        return Err(no_pe());
    }
    let sections = u16_at(&header, 4 + 2);
    if sections > MOST_SECTIONS {
        return Err(format!("it has more than {MOST_SECTIONS} sections"));
    }
    let optional = u64::from(u16_at(&header, 4 + 16));
    let table = place + HEADER as u64 + optional;
    let mut found = None;
    for number in 0..sections {
        let entry: [u8; ENTRY] = read(file, table + u64::from(number) * ENTRY as u64)?;
        if !entry.starts_with(&SECTION) {
            continue;
        }
        if found.is_some() {
            // One of several profiles: which one would boot is not ours to guess.
            return Err("it has several sections .cmdline".to_owned());
        }
        found = Some(entry);
    }
    let Some(entry) = found else {
        return Err("it has no section .cmdline".to_owned());
    };
    // What memory has beyond the file is zeros, what the file has beyond memory is padding.
    let bytes = u32_at(&entry, 8).min(u32_at(&entry, 16));
    if bytes > MOST_BYTES {
        return Err(format!(
            "its section .cmdline has more than {MOST_BYTES} bytes"
        ));
    }
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let place = u64::from(u32_at(&entry, 20));
    file.read_exact_at(&mut content, place).map_err(short)?;
    Ok(content)
}

fn text(section: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(section)
        .map_err(|_| "its section .cmdline is no text in UTF-8".to_owned())?;
    let text = text.trim_end_matches('\0').trim();
    if text.contains(|letter: char| letter.is_control() && !letter.is_whitespace()) {
        return Err("its section .cmdline has control characters".to_owned());
    }
    Ok(text.to_owned())
}

fn read<const N: usize>(file: &File, at: u64) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).map_err(short)?;
    Ok(bytes)
}

fn short(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends too early for a PE file".to_owned(),
        _ => error.to_string(),
    }
}

/// The place is a constant within the bytes.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The place is a constant within the bytes.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests;
