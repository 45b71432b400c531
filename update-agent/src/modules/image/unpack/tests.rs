use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;
use crate::modules::image::device::read_back;

mod spooled_file;
mod windows;

/// [`text`], compressed by `xz -6`: a dictionary of 8 MiB, and CRC-64.
const XZ: [u8; 180] = [
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01,
    0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xe0, 0x04, 0xaf, 0x00, 0x72, 0x5d, 0x00, 0x18,
    0x68, 0x84, 0x0e, 0x86, 0x83, 0x33, 0xa2, 0x14, 0x53, 0x6d, 0xf5, 0x80, 0x90, 0x95, 0x25, 0xa4,
    0xbd, 0x59, 0xeb, 0xa5, 0x5b, 0xa3, 0x06, 0xe0, 0xff, 0xd8, 0x30, 0x5b, 0x6a, 0x5a, 0x2f, 0x32,
    0xe5, 0xa9, 0x3d, 0xbc, 0xa8, 0x48, 0x1a, 0x3b, 0x05, 0xe0, 0xb2, 0xa3, 0xb0, 0x19, 0x90, 0x3b,
    0xc3, 0x20, 0x55, 0xa7, 0x11, 0x4a, 0x11, 0x3d, 0xe2, 0x6b, 0x00, 0x17, 0xde, 0x73, 0xf3, 0xa2,
    0x28, 0x2d, 0xfd, 0x47, 0x93, 0x50, 0x4a, 0xcb, 0xbc, 0x3e, 0xe9, 0xb2, 0x66, 0xf5, 0x19, 0x30,
    0xa6, 0x4c, 0xd3, 0x48, 0x4a, 0x0b, 0x53, 0x21, 0xec, 0x49, 0x12, 0x4e, 0xb1, 0x1c, 0x6b, 0xc8,
    0xb4, 0x73, 0x28, 0x26, 0x3c, 0xf8, 0x0a, 0xec, 0x39, 0x7c, 0x56, 0xe1, 0xe0, 0x35, 0xe5, 0x83,
    0x00, 0x00, 0x00, 0x00, 0xaa, 0xc7, 0x8b, 0x50, 0x11, 0x2c, 0x6a, 0xe1, 0x00, 0x01, 0x8e, 0x01,
    0xb0, 0x09, 0x00, 0x00, 0xd0, 0xfd, 0x2c, 0xc8, 0xb1, 0xc4, 0x67, 0xfb, 0x02, 0x00, 0x00, 0x00,
    0x00, 0x04, 0x59, 0x5a,
];

/// A skippable frame of three bytes.
const ZSTD_SKIPPED: [u8; 11] = [0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];

const COMPRESSED_FORMATS: [ImageFormat; 3] =
    [ImageFormat::Gzip, ImageFormat::Xz, ImageFormat::Zstd];

/// The content of [`XZ`].
fn text() -> Vec<u8> {
    let lines = (0..40).map(|number| format!("{number:04} the slot that is written\n"));
    lines.collect::<String>().into_bytes()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

fn zstandard(content: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(content, 3).expect("memory")
}

/// [`text`] in a format.
fn packed_text(format: ImageFormat) -> Vec<u8> {
    match format {
        ImageFormat::Raw => text(),
        ImageFormat::Gzip => gzip(&text()),
        ImageFormat::Xz => XZ.to_vec(),
        ImageFormat::Zstd => zstandard(&text()),
    }
}

/// Unpacks an image into a slot of `room` bytes that are 0xee; the slot is the file `slot` of the
/// folder.
fn unpack_in(
    folder: &Path,
    format: ImageFormat,
    image: &[u8],
    room: usize,
) -> Result<RawImage, Failure> {
    let (spooled, slot) = (folder.join("image"), folder.join("slot"));
    fs::write(&spooled, image).expect("a file");
    fs::write(&slot, vec![0xee; room]).expect("a file");
    let from = SpooledImage {
        path: spooled,
        bytes: image.len() as u64,
        format,
        sha256: Sha256::hash(image),
    };
    let device = SlotDevice::open(&slot).expect("a slot");
    let unpacked = unpack(&from, device, &CancellationToken::new());
    let length = fs::metadata(&slot).expect("a slot").len();
    assert_eq!(length, room as u64, "a slot does not grow");
    unpacked
}

/// Unpacks an image and returns its result and the unpacked bytes of the slot.
fn unpack_bytes(format: ImageFormat, image: &[u8]) -> Result<(RawImage, Vec<u8>), Failure> {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = unpack_in(folder.path(), format, image, 64 << 10)?;
    let mut content = fs::read(folder.path().join("slot")).expect("a slot");
    content.truncate(usize::try_from(raw.bytes).expect("few"));
    Ok((raw, content))
}

/// Why an image cannot be unpacked because of its content.
fn unpack_error(format: ImageFormat, image: &[u8]) -> String {
    let failure = unpack_bytes(format, image).expect_err("a fault");
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    failure.reason
}

fn raw_image(content: &[u8]) -> RawImage {
    RawImage { sha256: Sha256::hash(content), bytes: content.len() as u64 }
}

#[test]
fn the_format_is_detected_from_the_first_bytes() {
    for image_format in [ImageFormat::Raw, ImageFormat::Gzip, ImageFormat::Xz, ImageFormat::Zstd] {
        assert_eq!(detect_format(&packed_text(image_format)), image_format);
    }
    assert_eq!(detect_format(&ZSTD_SKIPPED), ImageFormat::Zstd);
    assert_eq!(detect_format(b""), ImageFormat::Raw);
    assert_eq!(detect_format(&[0x28, 0xb5]), ImageFormat::Raw);
}

#[test]
fn each_format_is_unpacked_and_hashed() {
    for image_format in [ImageFormat::Raw, ImageFormat::Gzip, ImageFormat::Xz, ImageFormat::Zstd] {
        let (raw, written) = unpack_bytes(image_format, &packed_text(image_format)).unwrap();
        assert_eq!(raw, raw_image(&text()), "{image_format}");
        assert_eq!(written, text(), "{image_format}");
    }
}

#[test]
fn an_image_of_several_chunks_is_written_and_read_back() {
    let mut content: Vec<u8> =
        (0..CHUNK_BYTES).flat_map(|at| [at.to_le_bytes()[0], 1, 3]).collect();
    content.truncate(2 * CHUNK_BYTES + 700);
    let folder = tempfile::tempdir().unwrap();
    let images = [
        (ImageFormat::Raw, content.clone()),
        (ImageFormat::Gzip, gzip(&content)),
        (ImageFormat::Zstd, zstandard(&content)),
    ];
    for (image_format, image) in images {
        let raw = unpack_in(folder.path(), image_format, &image, 3 * CHUNK_BYTES).unwrap();
        assert_eq!(raw, raw_image(&content), "{image_format}");
        let slot = folder.path().join("slot");
        read_back(&slot, &raw, &CancellationToken::new()).unwrap();
        let written = fs::read(&slot).unwrap();
        let padded = content.len().next_multiple_of(512);
        assert_eq!(written[..content.len()], content, "{image_format}");
        let padding = &written[content.len()..padded];
        assert!(padding.iter().all(|byte| *byte == 0));
        assert!(written[padded..].iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn an_image_may_fill_its_slot_to_the_last_byte() {
    let content = vec![5; 2 * CHUNK_BYTES];
    let folder = tempfile::tempdir().unwrap();
    let raw =
        unpack_in(folder.path(), ImageFormat::Zstd, &zstandard(&content), 2 * CHUNK_BYTES).unwrap();
    assert_eq!(raw, raw_image(&content));
    assert_eq!(fs::read(folder.path().join("slot")).unwrap(), content);
}

#[test]
fn an_image_larger_than_its_slot_is_refused() {
    let content = vec![0; 2 * CHUNK_BYTES + 1];
    let folder = tempfile::tempdir().unwrap();
    let images = [
        (ImageFormat::Raw, content.clone()),
        (ImageFormat::Gzip, gzip(&content)),
        (ImageFormat::Zstd, zstandard(&content)),
    ];
    for (image_format, image) in images {
        let failure = unpack_in(folder.path(), image_format, &image, 2 * CHUNK_BYTES).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        let why = failure.reason;
        assert!(why.starts_with("the image does not fit"), "{image_format}: {why}");
    }
    // An uncompressed image is refused before the slot is overwritten.
    unpack_in(folder.path(), ImageFormat::Raw, &content, 2 * CHUNK_BYTES).unwrap_err();
    let slot = fs::read(folder.path().join("slot")).unwrap();
    assert!(slot.iter().all(|byte| *byte == 0xee));

    let failure = unpack_in(folder.path(), ImageFormat::Xz, &XZ, 1024).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
}

#[test]
fn a_truncated_image_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for image_format in COMPRESSED_FORMATS {
        let image = packed_text(image_format);
        for length in 0..image.len() {
            let failure =
                unpack_in(folder.path(), image_format, &image[..length], 4096).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unsupported, "{image_format}, {length} bytes");
        }
        unpack_in(folder.path(), image_format, &image, 4096).unwrap();
    }
}

#[test]
fn several_members_frames_or_streams_are_one_image() {
    let twice = [text(), text()].concat();
    for image_format in COMPRESSED_FORMATS {
        let (raw, written) =
            unpack_bytes(image_format, &packed_text(image_format).repeat(2)).unwrap();
        assert_eq!(raw, raw_image(&twice), "{image_format}");
        assert_eq!(written, twice, "{image_format}");
    }
    let skipped = [&ZSTD_SKIPPED[..], &packed_text(ImageFormat::Zstd), &ZSTD_SKIPPED].concat();
    assert_eq!(unpack_bytes(ImageFormat::Zstd, &skipped).unwrap().0, raw_image(&text()));
    let padded = [&XZ[..], &[0; 4], &XZ, &[0; 8]].concat();
    assert_eq!(unpack_bytes(ImageFormat::Xz, &padded).unwrap().0, raw_image(&twice));
}

#[test]
fn trailing_data_is_refused() {
    for image_format in COMPRESSED_FORMATS {
        for rest in [&b"x"[..], b"xxxx", &[0], b"rubbish that goes on for some bytes more"] {
            let image = [&packed_text(image_format)[..], rest].concat();
            unpack_error(image_format, &image);
        }
        let other = COMPRESSED_FORMATS.into_iter().find(|other| *other != image_format).unwrap();
        unpack_error(image_format, &[packed_text(image_format), packed_text(other)].concat());
    }
    unpack_error(ImageFormat::Gzip, &[packed_text(ImageFormat::Gzip), vec![0; 512]].concat());
    unpack_error(ImageFormat::Zstd, &[packed_text(ImageFormat::Zstd), vec![0; 512]].concat());
    unpack_error(ImageFormat::Xz, &[packed_text(ImageFormat::Xz), vec![0; 3]].concat());
}

#[test]
fn a_flipped_bit_is_detected_by_the_checks_of_the_format() {
    let mut gzip = packed_text(ImageFormat::Gzip);
    let length = gzip.len();
    gzip[length - 6] ^= 1;
    let why = unpack_error(ImageFormat::Gzip, &gzip);
    assert!(why.contains("damaged"), "{why}");
    let mut xz = packed_text(ImageFormat::Xz);
    xz[60] ^= 1;
    unpack_error(ImageFormat::Xz, &xz);
}

#[test]
fn the_head_of_a_valid_image_is_accepted() {
    for image_format in [ImageFormat::Raw, ImageFormat::Gzip, ImageFormat::Xz, ImageFormat::Zstd] {
        let image = packed_text(image_format);
        for length in [0, 1, 10, 30, image.len()] {
            assert_eq!(
                check_head(image_format, &image[..length]),
                Ok(()),
                "{image_format}, {length} bytes"
            );
        }
    }
}

#[test]
fn another_archive_format_is_named_and_an_empty_image_is_refused() {
    let tar = [vec![0; 257], b"ustar\0".to_vec(), vec![0; 300]].concat();
    let cases: [(&[u8], &str); 4] = [
        (b"BZh91AY&SY....", "bzip2"),
        (b"PK\x03\x04....", "zip"),
        (&[0x04, 0x22, 0x4d, 0x18, 0], "lz4"),
        (&tar, "tar"),
    ];
    for (image, name) in cases {
        let why = unpack_error(ImageFormat::Raw, image);
        let expected = format!("the image is packed as {name}: ");
        assert!(why.starts_with(&expected), "{why}");
    }
    assert_eq!(unpack_error(ImageFormat::Raw, b""), "the image is empty");
    assert_eq!(unpack_error(ImageFormat::Gzip, &gzip(b"")), "the image is empty");
}

#[test]
fn unpacking_stops_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let (spooled, slot) = (folder.path().join("image"), folder.path().join("slot"));
    fs::write(&slot, [0xee; 4096]).unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    for image_format in [ImageFormat::Raw, ImageFormat::Gzip, ImageFormat::Xz, ImageFormat::Zstd] {
        let image = packed_text(image_format);
        fs::write(&spooled, &image).unwrap();
        let from = SpooledImage {
            path: spooled.clone(),
            bytes: image.len() as u64,
            format: image_format,
            sha256: Sha256::hash(&image),
        };
        let failure = unpack(&from, SlotDevice::open(&slot).unwrap(), &stop).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Interrupted);
    }
    assert_eq!(fs::read(&slot).unwrap(), [0xee; 4096]);
}

#[test]
fn a_stop_reaches_a_decoder_without_output() {
    let stop = CancellationToken::new();
    stop.cancel();
    let file = tempfile::tempfile().unwrap();
    let source = BufReader::new(HashingSource::new(file, &stop));
    let mut decoder = MultiGzDecoder::new(source);
    let error = decoder.read(&mut [0; 16]).unwrap_err();
    assert_eq!(read_failure(ImageFormat::Gzip, error).kind, FailureKind::Interrupted);
}

fn any_format() -> impl Strategy<Value = ImageFormat> {
    prop::sample::select(vec![
        ImageFormat::Gzip,
        ImageFormat::Xz,
        ImageFormat::Zstd,
        ImageFormat::Raw,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Unpacking does not panic, and the slot keeps its length.
    #[test]
    fn arbitrary_bytes_do_not_panic(
        format in any_format(),
        image in prop::collection::vec(any::<u8>(), 0..1024),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let _ = unpack_in(folder.path(), format, &image, 2048);
        let _ = check_head(format, &image);
    }

    /// The same for an image with some changed bytes, which gets further.
    #[test]
    fn a_damaged_image_does_not_panic(
        format in any_format(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut image = packed_text(format);
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        let _ = unpack_in(folder.path(), format, &image, 2048);
    }
}
