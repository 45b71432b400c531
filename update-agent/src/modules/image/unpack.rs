//! Unpacks a spooled image into the device of a slot.
//!
//! The bytes are hashed twice: as they are written, to compare the device with them, and as they
//! are read, so that the written bytes are the verified ones even if the file changed in between.
//! Memory use does not depend on the size of the image: a window or dictionary of more than
//! [`MAX_WINDOW_BYTES`] is refused, one at the beginning of the image before anything is written.
//! Several gzip members, zstd frames or xz streams in a row are one image, as for the tools. Unlike
//! gzip(1) this accepts no trailing bytes, not even zeros; xz allows padding between and after its
//! streams.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use tokio_util::sync::CancellationToken;
use zstd::stream::read::Decoder;

use super::device::{AlignedChunk, CHUNK_BYTES, SlotDevice, stop_failure, storage_failure};
use super::slots::RawImage;
use super::spool::SpooledImage;
use crate::model::{Failure, FailureKind, Sha256};

/// The widest window or dictionary, in bytes. It is held in memory.
pub const MAX_WINDOW_BYTES: u64 = 1 << MAX_WINDOW_LOG;

/// Number of leading bytes of an image that [`check_head`] needs.
pub const HEAD_BYTES: usize = 64 << 10;

const MAX_WINDOW_LOG: u32 = 23;

/// Memory limit of the xz decoder in KiB: a dictionary of 8 MiB and its own 104 KiB. The next
/// dictionary has 12 MiB.
const MAX_XZ_MEMORY_KIB: u32 = 9 << 10;

/// Compressed bytes that are read at once.
const INPUT_BUFFER_BYTES: usize = 128 << 10;

/// Compression of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// Not compressed.
    Raw,
    /// RFC 1952.
    Gzip,
    /// The .xz file format.
    Xz,
    /// RFC 8878.
    Zstd,
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        })
    }
}

/// Detects the format from the first bytes, whatever the file name.
pub fn detect_format(head: &[u8]) -> ImageFormat {
    match head {
        [0x1f, 0x8b, ..] => ImageFormat::Gzip,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => ImageFormat::Xz,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ImageFormat::Zstd,
        // A skippable frame, with which some compressors begin.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => ImageFormat::Zstd,
        _ => ImageFormat::Raw,
    }
}

/// Checks whether an image can be unpacked, as far as its first [`HEAD_BYTES`] bytes show. Fails
/// with [`FailureKind::Unsupported`] if it needs too much memory or has an unknown format. A
/// damaged image passes.
///
/// These bytes are not verified yet: they are only parsed here, without a decoder.
pub fn check_head(format: ImageFormat, head: &[u8]) -> Result<(), Failure> {
    let is_wide = match format {
        ImageFormat::Raw => return refuse_other_archives(head),
        // The window always has 32 KiB.
        ImageFormat::Gzip => false,
        ImageFormat::Xz => xz_dictionary_bytes(head).is_some_and(|bytes| bytes > MAX_WINDOW_BYTES),
        ImageFormat::Zstd => zstd_window_bytes(head).is_some_and(|bytes| bytes > MAX_WINDOW_BYTES),
    };
    if is_wide {
        return Err(wide_window_failure(format));
    }
    Ok(())
}

/// Unpacks an image into a device and flushes it. Blocks; checks the stop token at least once per
/// MiB. The previous content of the device is lost, whatever the result.
///
/// Fails with [`FailureKind::Unsupported`] if the image cannot be unpacked (another download of the
/// same file would fail as well), with [`FailureKind::Storage`] if it does not fit, the disk fails
/// or the file is no longer the verified one, and with [`FailureKind::Interrupted`] if it was
/// stopped.
pub fn unpack(
    from: &SpooledImage,
    to: SlotDevice,
    stop: &CancellationToken,
) -> Result<RawImage, Failure> {
    let unreadable = |error: io::Error| {
        storage_failure(format!(
            "cannot read the downloaded image {}: {error}",
            from.path.display()
        ))
    };
    let mut file = File::open(&from.path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    if bytes != from.bytes {
        return Err(storage_failure(format!(
            "the downloaded image {} has {bytes} bytes, but {} were verified",
            from.path.display(),
            from.bytes
        )));
    }
    let mut head = Vec::new();
    let at_most = HEAD_BYTES as u64;
    let read_result = (&file).take(at_most).read_to_end(&mut head);
    read_result.and_then(|_| file.rewind()).map_err(unreadable)?;
    // Check everything that can be known before the first write, so that the slot is not
    // overwritten in vain.
    check_head(from.format, &head)?;
    if from.format == ImageFormat::Raw {
        to.check_capacity(bytes)?;
    }
    let mut source = HashingSource::new(file, stop);
    let raw = match decode(from.format, &mut source, &to, stop) {
        // An error of the decoder is the fault of the image only if the file is still the verified
        // one.
        Err(failure) if failure.kind != FailureKind::Unsupported => return Err(failure),
        decoded => {
            let digest =
                source.finish_digest().map_err(|error| read_failure(from.format, error))?;
            if digest != from.sha256 {
                return Err(changed_file_failure(from, &digest));
            }
            decoded?
        }
    };
    // The bytes must be on the device before the record says that the slot is written.
    to.flush()?;
    Ok(raw)
}

/// Unpacks a source to a device. On success the source was read to its end.
fn decode(
    format: ImageFormat,
    source: &mut HashingSource<'_>,
    to: &SlotDevice,
    stop: &CancellationToken,
) -> Result<RawImage, Failure> {
    let source = BufReader::with_capacity(INPUT_BUFFER_BYTES, source);
    match format {
        ImageFormat::Raw => copy_to_device(source, format, to, stop),
        ImageFormat::Gzip => copy_to_device(MultiGzDecoder::new(source), format, to, stop),
        ImageFormat::Xz => copy_to_device(xz_reader(source), format, to, stop),
        ImageFormat::Zstd => {
            let decoder = zstd_reader(source).map_err(|error| read_failure(format, error))?;
            copy_to_device(decoder, format, to, stop)
        }
    }
}

fn changed_file_failure(from: &SpooledImage, digest: &Sha256) -> Failure {
    storage_failure(format!(
        "the downloaded image {} has the SHA-256 {digest}, but had {} when it was verified: another \
         program writes there, or the disk is failing",
        from.path.display(),
        from.sha256
    ))
}

/// Writes everything that a reader has.
fn copy_to_device(
    mut from: impl Read,
    format: ImageFormat,
    to: &SlotDevice,
    stop: &CancellationToken,
) -> Result<RawImage, Failure> {
    let mut chunk = AlignedChunk::new();
    let mut hash = sha2::Sha256::new();
    let mut bytes = 0;
    loop {
        if stop.is_cancelled() {
            return Err(unpacking_stopped());
        }
        let filled =
            fill_buffer(&mut from, chunk.bytes()).map_err(|error| read_failure(format, error))?;
        if filled > 0 {
            hash.update(&chunk.bytes()[..filled]);
            to.write(bytes, &mut chunk, filled)?;
            bytes += filled as u64;
        }
        if filled < CHUNK_BYTES {
            break;
        }
    }
    if bytes == 0 {
        return Err(unsupported_failure("the image is empty".to_owned()));
    }
    let sha256: [u8; 32] = hash.finalize().into();
    Ok(RawImage { sha256: Sha256::from(sha256), bytes })
}

/// Reads until the buffer is full or the reader ends.
fn fill_buffer(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..])? {
            0 => break,
            bytes => filled += bytes,
        }
    }
    Ok(filled)
}

/// The spooled file, hashed as it is read. Its errors are distinguished from those of a decoder.
/// The stop token also stops a decoder that reads without writing anything.
struct HashingSource<'a> {
    file: File,
    stop: &'a CancellationToken,
    hash: sha2::Sha256,
}

impl<'a> HashingSource<'a> {
    fn new(file: File, stop: &'a CancellationToken) -> Self {
        Self { file, stop, hash: sha2::Sha256::new() }
    }

    /// Digest of the whole file: reads the rest first.
    fn finish_digest(mut self) -> io::Result<Sha256> {
        io::copy(&mut self, &mut io::sink())?;
        let digest: [u8; 32] = self.hash.finalize().into();
        Ok(Sha256::from(digest))
    }
}

impl Read for HashingSource<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::Error::other(SourceError::Stopped));
        }
        loop {
            match self.file.read(into) {
                Ok(bytes) => {
                    self.hash.update(&into[..bytes]);
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io::Error::other(SourceError::Unreadable(error))),
            }
        }
    }
}

/// An error that is not the fault of the image.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("stopped")]
    Stopped,
    #[error("cannot read the downloaded image: {0}")]
    Unreadable(io::Error),
}

fn xz_reader<R: Read>(from: R) -> XzReader<R> {
    XzReader::new_mem_limit(from, true, MAX_XZ_MEMORY_KIB)
}

fn zstd_reader<R: io::BufRead>(from: R) -> io::Result<Decoder<'static, R>> {
    let mut decoder = Decoder::with_buffer(from)?;
    decoder.window_log_max(MAX_WINDOW_LOG)?;
    Ok(decoder)
}

/// Dictionary size in bytes of the first block (The .xz File Format, 3.1 and 5.3.1); `None` if the
/// head is too short or damaged, or there is no block.
fn xz_dictionary_bytes(head: &[u8]) -> Option<u64> {
    const STREAM_HEADER_BYTES: usize = 12;
    const COMPRESSED_SIZE_FLAG: u8 = 0x40;
    const UNCOMPRESSED_SIZE_FLAG: u8 = 0x80;
    const LZMA2_FILTER_ID: u64 = 0x21;
    let (size, rest) = head.get(STREAM_HEADER_BYTES..)?.split_first()?;
    if *size == 0 {
        // An index instead of a block: the stream is empty.
        return None;
    }
    let (flags, mut rest) = rest.split_first()?;
    for size in [COMPRESSED_SIZE_FLAG, UNCOMPRESSED_SIZE_FLAG] {
        if flags & size != 0 {
            (_, rest) = parse_xz_integer(rest)?;
        }
    }
    for _ in 0..=(flags & 3) {
        let (filter, behind) = parse_xz_integer(rest)?;
        let (length, behind) = parse_xz_integer(behind)?;
        let (properties, behind) = behind.split_at_checked(usize::try_from(length).ok()?)?;
        if filter == LZMA2_FILTER_ID {
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

/// Parses an integer of 7 bits per byte, lowest first; returns it and the rest (The .xz File
/// Format, 1.2).
fn parse_xz_integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(9).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

/// Window size in bytes of the first frame (RFC 8878, 3.1.1.1); `None` if the head is too short or
/// not zstd.
fn zstd_window_bytes(mut head: &[u8]) -> Option<u64> {
    const MAGIC: u32 = 0xfd2f_b528;
    const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
    let (descriptor, rest) = loop {
        let (magic, rest) = head.split_first_chunk::<4>()?;
        let magic = u32::from_le_bytes(*magic);
        if magic == MAGIC {
            break rest.split_first()?;
        }
        if magic & !0xf != SKIPPABLE_MAGIC {
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
    // The content is its own window. Its size follows the dictionary identifier.
    let size = rest.get([0, 1, 2, 4][usize::from(descriptor & 3)]..)?;
    Some(match descriptor >> 6 {
        0 => u64::from(*size.first()?),
        1 => u64::from(u16::from_le_bytes(*size.first_chunk::<2>()?)) + 256,
        2 => u64::from(u32::from_le_bytes(*size.first_chunk::<4>()?)),
        _ => u64::from_le_bytes(*size.first_chunk::<8>()?),
    })
}

/// Refuses known archive formats. They are not file systems, and writing them would destroy the
/// slot before that shows.
fn refuse_other_archives(head: &[u8]) -> Result<(), Failure> {
    let other = match head {
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..] => "bzip2",
        [0x04, 0x22, 0x4d, 0x18, ..] => "lz4",
        [b'P', b'K', 3, 4, ..] => "zip",
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => "7z",
        _ if head.get(257..262) == Some(b"ustar") => "tar",
        _ => return Ok(()),
    };
    Err(unsupported_failure(format!(
        "the image is packed as {other}: publish the file system as it is, or packed with gzip, xz or zstd"
    )))
}

/// Converts an error that occurred while an image was read.
fn read_failure(format: ImageFormat, error: io::Error) -> Failure {
    let error = match error.downcast::<SourceError>() {
        Ok(SourceError::Stopped) => return unpacking_stopped(),
        Ok(source_error) => return storage_failure(source_error.to_string()),
        Err(error) => error,
    };
    match error.kind() {
        // Only the xz decoder returns this, for a later block.
        io::ErrorKind::OutOfMemory => wide_window_failure(format),
        io::ErrorKind::UnexpectedEof => unsupported_failure(format!(
            "the image cannot be unpacked: it was published incomplete, or something follows its {format} data"
        )),
        _ => unsupported_failure(format!(
            "the image cannot be unpacked: its {format} data are damaged, or something else follows them ({error})"
        )),
    }
}

fn wide_window_failure(format: ImageFormat) -> Failure {
    let how = match format {
        ImageFormat::Xz => "xz -6 (not -7 to -9)",
        _ => "zstd -19 (neither --ultra nor --long)",
    };
    unsupported_failure(format!(
        "the image cannot be unpacked: its {format} data need a window of more than {} MiB; publish it packed with {how}",
        MAX_WINDOW_BYTES >> 20
    ))
}

fn unsupported_failure(reason: String) -> Failure {
    Failure::new(FailureKind::Unsupported, reason)
}

fn unpacking_stopped() -> Failure {
    stop_failure("an image was unpacked")
}

#[cfg(test)]
mod tests;
