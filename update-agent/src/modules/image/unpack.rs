//! Unpacking a spooled image into the device of a slot.
//!
//! Bytes are hashed as they are written, so that the device can be compared with them, and as they are read: what is
//! written is what was checked, whatever became of the file in between. Memory stays the same however large the image
//! is: a window or dictionary of more than [`MOST_WINDOW`] is refused, that at the beginning before anything is
//! written. Like the tools, this takes several gzip members, zstd frames or xz streams in a row as one. Unlike gzip(1)
//! it takes nothing behind them, not even zeros; between and behind xz streams the padding of that format is allowed.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use tokio_util::sync::CancellationToken;
use zstd::stream::read::Decoder;

use super::device::{CHUNK, Chunk, Device, stopped, storage};
use super::slots::Raw;
use super::spool::Spooled;
use crate::model::{Failure, FailureKind, Sha256};

/// The widest window or dictionary, in bytes. It is held in memory.
pub const MOST_WINDOW: u64 = 1 << MOST_WINDOW_LOG;

/// So much of the beginning of an image is enough for [`look`].
pub const HEAD: usize = 64 << 10;

const MOST_WINDOW_LOG: u32 = 23;

/// What an xz decoder may take in KiB: the dictionary and its own 104 KiB. The next dictionary has 12 MiB.
const MOST_XZ_KIB: u32 = 9 << 10;

/// Compressed bytes that are read at once.
const INPUT: usize = 128 << 10;

/// How an image is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Not at all.
    Raw,
    /// RFC 1952.
    Gzip,
    /// The .xz file format.
    Xz,
    /// RFC 8878.
    Zstd,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        })
    }
}

/// The form of an image, by its first bytes; its name does not matter.
pub fn form(head: &[u8]) -> Form {
    match head {
        [0x1f, 0x8b, ..] => Form::Gzip,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Form::Xz,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Form::Zstd,
        // A frame to be skipped, with which some compressors begin.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Form::Zstd,
        _ => Form::Raw,
    }
}

/// Whether an image can be unpacked, as far as its first [`HEAD`] bytes tell. Fails with [`FailureKind::Unsupported`]
/// if it needs too much memory or is packed in a way that is not known. An image that is damaged passes.
///
/// Nobody vouches for these bytes yet: they are looked at here, and no decoder sees them.
pub fn look(form: Form, head: &[u8]) -> Result<(), Failure> {
    let is_wide = match form {
        Form::Raw => return known(head),
        // Its window has always 32 KiB.
        Form::Gzip => false,
        Form::Xz => xz_dictionary(head).is_some_and(|bytes| bytes > MOST_WINDOW),
        Form::Zstd => zstd_window(head).is_some_and(|bytes| bytes > MOST_WINDOW),
    };
    if is_wide {
        return Err(too_wide(form));
    }
    Ok(())
}

/// Unpacks an image into a device and flushes it. Blocks; looks at the stop token at least each MiB. Whatever the end,
/// what the device held before is lost.
///
/// Fails with [`FailureKind::Unsupported`] if the image cannot be unpacked (another download of the same file would end
/// alike), with [`FailureKind::Storage`] if it does not fit, the disk does not work or the file is no longer what was
/// checked, and with [`FailureKind::Interrupted`] if it was stopped.
pub fn unpack(from: &Spooled, to: Device, stop: &CancellationToken) -> Result<Raw, Failure> {
    let unreadable = |error: io::Error| {
        storage(format!(
            "cannot read the downloaded image {}: {error}",
            from.path.display()
        ))
    };
    let mut file = File::open(&from.path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    if bytes != from.bytes {
        return Err(storage(format!(
            "the downloaded image {} has {bytes} bytes, and not the {} that were checked",
            from.path.display(),
            from.bytes
        )));
    }
    let mut head = Vec::new();
    let at_most = HEAD as u64;
    let taken = (&file).take(at_most).read_to_end(&mut head);
    taken.and_then(|_| file.rewind()).map_err(unreadable)?;
    // All that can be known before the first byte is written, so that a slot is not torn for nothing.
    look(from.form, &head)?;
    if from.form == Form::Raw {
        to.must_hold(bytes)?;
    }
    let mut source = Source::new(file, stop);
    let raw = match decode(from.form, &mut source, &to, stop) {
        // What a decoder says counts only if it was given what was checked.
        Err(failure) if failure.kind != FailureKind::Unsupported => return Err(failure),
        decoded => {
            let found = source.whole().map_err(|error| broken(from.form, error))?;
            if found != from.sha256 {
                return Err(changed(from, &found));
            }
            decoded?
        }
    };
    // Before anybody may be told that the slot is written (W3 of the order of writes).
    to.flush()?;
    Ok(raw)
}

/// Writes what a source has, unpacked. If it succeeds, the source was read to its end.
fn decode(
    form: Form,
    source: &mut Source<'_>,
    to: &Device,
    stop: &CancellationToken,
) -> Result<Raw, Failure> {
    let source = BufReader::with_capacity(INPUT, source);
    match form {
        Form::Raw => pour(source, form, to, stop),
        Form::Gzip => pour(MultiGzDecoder::new(source), form, to, stop),
        Form::Xz => pour(xz_reader(source), form, to, stop),
        Form::Zstd => {
            let decoder = zstd_reader(source).map_err(|error| broken(form, error))?;
            pour(decoder, form, to, stop)
        }
    }
}

fn changed(from: &Spooled, found: &Sha256) -> Failure {
    storage(format!(
        "the downloaded image {} has the SHA-256 {found} and had {} when it was checked: something else writes there, \
         or the disk is failing",
        from.path.display(),
        from.sha256
    ))
}

/// Writes all that a reader has.
fn pour(
    mut from: impl Read,
    form: Form,
    to: &Device,
    stop: &CancellationToken,
) -> Result<Raw, Failure> {
    let mut chunk = Chunk::new();
    let mut hash = sha2::Sha256::new();
    let mut bytes = 0;
    loop {
        if stop.is_cancelled() {
            return Err(unpacking_stopped());
        }
        let filled = fill(&mut from, chunk.bytes()).map_err(|error| broken(form, error))?;
        if filled > 0 {
            hash.update(&chunk.bytes()[..filled]);
            to.write(bytes, &mut chunk, filled)?;
            bytes += filled as u64;
        }
        if filled < CHUNK {
            break;
        }
    }
    if bytes == 0 {
        return Err(unsupported("the image is empty".to_owned()));
    }
    let sha256: [u8; 32] = hash.finalize().into();
    Ok(Raw {
        sha256: Sha256::from(sha256),
        bytes,
    })
}

/// Reads until the buffer is full or there is no more.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..])? {
            0 => break,
            bytes => filled += bytes,
        }
    }
    Ok(filled)
}

/// The spooled file, hashed as it is read. Its errors are told from those of a decoder, and a stop reaches also a
/// decoder that reads on and on without anything to write.
struct Source<'a> {
    file: File,
    stop: &'a CancellationToken,
    hash: sha2::Sha256,
}

impl<'a> Source<'a> {
    fn new(file: File, stop: &'a CancellationToken) -> Self {
        Self {
            file,
            stop,
            hash: sha2::Sha256::new(),
        }
    }

    /// The digest of all that was read and of what nobody has read yet.
    fn whole(mut self) -> io::Result<Sha256> {
        io::copy(&mut self, &mut io::sink())?;
        let found: [u8; 32] = self.hash.finalize().into();
        Ok(Sha256::from(found))
    }
}

impl Read for Source<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::Error::other(Trouble::Stopped));
        }
        loop {
            match self.file.read(into) {
                Ok(bytes) => {
                    self.hash.update(&into[..bytes]);
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io::Error::other(Trouble::Unreadable(error))),
            }
        }
    }
}

/// What is no fault of the image.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("stopped")]
    Stopped,
    #[error("cannot read the downloaded image: {0}")]
    Unreadable(io::Error),
}

fn xz_reader<R: Read>(from: R) -> XzReader<R> {
    XzReader::new_mem_limit(from, true, MOST_XZ_KIB)
}

fn zstd_reader<R: io::BufRead>(from: R) -> io::Result<Decoder<'static, R>> {
    let mut decoder = Decoder::with_buffer(from)?;
    decoder.window_log_max(MOST_WINDOW_LOG)?;
    Ok(decoder)
}

/// The dictionary of the first block in bytes (The .xz File Format, 3.1 and 5.3.1); none if the head ends before it, or
/// is damaged, or there is no block.
fn xz_dictionary(head: &[u8]) -> Option<u64> {
    const STREAM_HEADER: usize = 12;
    const COMPRESSED_SIZE: u8 = 0x40;
    const UNCOMPRESSED_SIZE: u8 = 0x80;
    const LZMA2: u64 = 0x21;
    let (size, rest) = head.get(STREAM_HEADER..)?.split_first()?;
    if *size == 0 {
        // No block but the index: there is nothing in this stream.
        return None;
    }
    let (flags, mut rest) = rest.split_first()?;
    for size in [COMPRESSED_SIZE, UNCOMPRESSED_SIZE] {
        if flags & size != 0 {
            (_, rest) = xz_number(rest)?;
        }
    }
    for _ in 0..=(flags & 3) {
        let (filter, behind) = xz_number(rest)?;
        let (length, behind) = xz_number(behind)?;
        let (properties, behind) = behind.split_at_checked(usize::try_from(length).ok()?)?;
        if filter == LZMA2 {
            return match properties.first()? & 0x3f {
                40 => Some(u64::from(u32::MAX)),
                bits @ 0..40 => Some(u64::from(2 | (bits & 1)) << (bits / 2 + 11)),
                _ => None,
            };
        }
        rest = behind;
    }
    None
}

/// An integer of 7 bits a byte, the lowest first, and what follows it (The .xz File Format, 1.2).
fn xz_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(9).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

/// The window of the first frame in bytes (RFC 8878, 3.1.1.1); none if the head ends before it or is no zstd.
fn zstd_window(mut head: &[u8]) -> Option<u64> {
    const MAGIC: u32 = 0xfd2f_b528;
    const SKIPPED: u32 = 0x184d_2a50;
    let (descriptor, rest) = loop {
        let (magic, rest) = head.split_first_chunk::<4>()?;
        let magic = u32::from_le_bytes(*magic);
        if magic == MAGIC {
            break rest.split_first()?;
        }
        if magic & !0xf != SKIPPED {
            return None;
        }
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        head = rest.get(length..)?;
    };
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let window = rest.first()?;
        let base = 1_u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // The content is its own window. Its size stands behind the identifier of a dictionary.
    let size = rest.get([0, 1, 2, 4][usize::from(descriptor & 3)]..)?;
    Some(match descriptor >> 6 {
        0 => u64::from(*size.first()?),
        1 => u64::from(u16::from_le_bytes(*size.first_chunk::<2>()?)) + 256,
        2 => u64::from(u32::from_le_bytes(*size.first_chunk::<4>()?)),
        _ => u64::from_le_bytes(*size.first_chunk::<8>()?),
    })
}

/// Refuses what is surely no file system. Written as it is, it would only be found out after the slot is lost.
fn known(head: &[u8]) -> Result<(), Failure> {
    let other = match head {
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..] => "bzip2",
        [0x04, 0x22, 0x4d, 0x18, ..] => "lz4",
        [b'P', b'K', 3, 4, ..] => "zip",
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => "7z",
        _ if head.get(257..262) == Some(b"ustar") => "tar",
        _ => return Ok(()),
    };
    Err(unsupported(format!(
        "the image is packed as {other}: publish the file system as it is, or packed with gzip, xz or zstd"
    )))
}

/// Why an image could not be read to its end.
fn broken(form: Form, error: io::Error) -> Failure {
    let error = match error.downcast::<Trouble>() {
        Ok(Trouble::Stopped) => return unpacking_stopped(),
        Ok(trouble) => return storage(trouble.to_string()),
        Err(error) => error,
    };
    match error.kind() {
        // So says only the xz decoder, of a later block.
        io::ErrorKind::OutOfMemory => too_wide(form),
        io::ErrorKind::UnexpectedEof => unsupported(format!(
            "the image cannot be unpacked: it was published incomplete, or something follows its {form} data"
        )),
        _ => unsupported(format!(
            "the image cannot be unpacked: its {form} data are damaged, or something else follows them ({error})"
        )),
    }
}

fn too_wide(form: Form) -> Failure {
    let how = match form {
        Form::Xz => "xz -6 (not -7 to -9)",
        _ => "zstd -19 (neither --ultra nor --long)",
    };
    unsupported(format!(
        "the image cannot be unpacked: its {form} data need a window of more than {} MiB; publish it packed with {how}",
        MOST_WINDOW >> 20
    ))
}

fn unsupported(reason: String) -> Failure {
    Failure::new(FailureKind::Unsupported, reason)
}

fn unpacking_stopped() -> Failure {
    stopped("an image was unpacked")
}

#[cfg(test)]
mod tests;
