//! Reads the command line of a unified kernel image: the section `.cmdline` of a PE file.
//!
//! Formats: "PE Format" (Microsoft) for the headers, and "UKI" (UAPI.5) for the content of the
//! section. Only the headers and that section are read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Section names are padded with zeros to 8 bytes; this name has 8.
const SECTION_NAME: [u8; 8] = *b".cmdline";

/// Position of the offset of the PE header, in 4 bytes.
const PE_OFFSET_FIELD: usize = 0x3c;

/// Size of the signature and the COFF header.
const PE_HEADER_BYTES: usize = 4 + 20;

/// Size of an entry of the section table.
const SECTION_ENTRY_BYTES: usize = 40;

/// Maximum number of sections that the format allows in an image.
const MAX_SECTIONS: u16 = 96;

/// Kernels accept 4 KiB at most.
const MAX_CMDLINE_BYTES: u32 = 64 << 10;

/// Reads the command line of a unified kernel image, without zeros and white space at its ends.
pub fn read_cmdline(uki: &Path) -> Result<String, String> {
    let with_path = |why: String| format!("{}: {why}", uki.display());
    let file = open_file(uki).map_err(with_path)?;
    let section = read_section(&file).map_err(with_path)?;
    decode_section(section).map_err(with_path)
}

/// Does not follow a symbolic link: one in a slot would lead into the running system.
fn open_file(path: &Path) -> Result<File, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return Err("it is a symbolic link".to_owned()),
        Err(error) => return Err(io::Error::from(error).to_string()),
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    Ok(file)
}

/// Reads the content of the section.
fn read_section(file: &File) -> Result<Vec<u8>, String> {
    let no_pe = || "it is not a PE file and thus not a unified kernel image".to_owned();
    let dos: [u8; PE_OFFSET_FIELD + 4] = read_array(file, 0)?;
    if !dos.starts_with(b"MZ") {
        return Err(no_pe());
    }
    let pe_offset = u64::from(u32_at(&dos, PE_OFFSET_FIELD));
    let header: [u8; PE_HEADER_BYTES] = read_array(file, pe_offset)?;
    if !header.starts_with(b"PE\0\0") {
        return Err(no_pe());
    }
    let sections = u16_at(&header, 4 + 2);
    if sections > MAX_SECTIONS {
        return Err(format!("it has more than {MAX_SECTIONS} sections"));
    }
    let optional = u64::from(u16_at(&header, 4 + 16));
    let table = pe_offset + PE_HEADER_BYTES as u64 + optional;
    let mut section = None;
    for number in 0..sections {
        let entry: [u8; SECTION_ENTRY_BYTES] =
            read_array(file, table + u64::from(number) * SECTION_ENTRY_BYTES as u64)?;
        if !entry.starts_with(&SECTION_NAME) {
            continue;
        }
        if section.is_some() {
            // The image has several profiles, and it is unknown which one would boot.
            return Err("it has several sections .cmdline".to_owned());
        }
        section = Some(entry);
    }
    let Some(entry) = section else {
        return Err("it has no section .cmdline".to_owned());
    };
    // Memory beyond the file size is zeros; file content beyond the memory size is padding.
    let bytes = u32_at(&entry, 8).min(u32_at(&entry, 16));
    if bytes > MAX_CMDLINE_BYTES {
        return Err(format!("its section .cmdline has more than {MAX_CMDLINE_BYTES} bytes"));
    }
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let data_offset = u64::from(u32_at(&entry, 20));
    file.read_exact_at(&mut content, data_offset).map_err(read_error)?;
    Ok(content)
}

fn decode_section(section: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(section)
        .map_err(|_| "its section .cmdline is not UTF-8 text".to_owned())?;
    let text = text.trim_end_matches('\0').trim();
    if text.contains(|letter: char| letter.is_control() && !letter.is_whitespace()) {
        return Err("its section .cmdline has control characters".to_owned());
    }
    Ok(text.to_owned())
}

fn read_array<const N: usize>(file: &File, at: u64) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).map_err(read_error)?;
    Ok(bytes)
}

fn read_error(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends too early for a PE file".to_owned(),
        _ => error.to_string(),
    }
}

/// `at` is a constant within the bytes.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// `at` is a constant within the bytes.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests;
