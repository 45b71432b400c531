//! Windows and dictionaries, which are read from headers and refused if they are too large.

use super::*;

/// Four bytes, compressed by `xz -9`: a dictionary of 64 MiB.
const XZ_WIDE: [u8; 56] = [
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00, 0x21, 0x01,
    0x1c, 0x00, 0x00, 0x00, 0x10, 0xcf, 0x58, 0xcc, 0x01, 0x00, 0x03, 0x77, 0x69, 0x64, 0x65, 0x00,
    0xe2, 0x8c, 0xe3, 0xac, 0x00, 0x01, 0x18, 0x04, 0x6b, 0xe9, 0xf0, 0xa5, 0x90, 0x42, 0x99, 0x0d,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a,
];

/// An empty frame with a window of 64 MiB: descriptor, window (RFC 8878), and an empty last block.
const ZSTD_WIDE: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x80, 0x01, 0x00, 0x00];

#[test]
fn a_window_of_more_than_8_mib_is_refused_before_the_slot_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let behind = [&ZSTD_SKIPPED[..], &ZSTD_WIDE].concat();
    let cases: [(ImageFormat, &[u8]); 3] = [
        (ImageFormat::Xz, &XZ_WIDE),
        (ImageFormat::Zstd, &ZSTD_WIDE),
        (ImageFormat::Zstd, &behind),
    ];
    for (image_format, image) in cases {
        let failure = unpack_in(folder.path(), image_format, image, 4096).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported);
        let expected = "a window of more than 8 MiB";
        assert!(failure.reason.contains(expected), "{failure}");
        let slot = fs::read(folder.path().join("slot")).unwrap();
        assert!(slot.iter().all(|byte| *byte == 0xee));
        assert_eq!(check_head(image_format, image), Err(failure));
    }
}

#[test]
fn a_wide_window_in_a_later_block_is_refused() {
    let why = unpack_error(ImageFormat::Xz, &[&XZ[..], &XZ_WIDE].concat());
    assert!(why.contains("a window of more than 8 MiB"), "{why}");
    let why = unpack_error(
        ImageFormat::Zstd,
        &[&packed_text(ImageFormat::Zstd)[..], &ZSTD_WIDE].concat(),
    );
    assert!(why.contains("too much memory"), "{why}");
}

#[test]
fn the_window_of_a_frame_is_read_from_its_header() {
    let window = |descriptor: u8, rest: &[u8]| {
        zstd_window_bytes(&[&[0x28, 0xb5, 0x2f, 0xfd, descriptor][..], rest].concat())
    };
    // With a window byte: an exponent and eighths.
    assert_eq!(window(0, &[0]), Some(1 << 10));
    assert_eq!(window(0, &[13 << 3]), Some(8 << 20));
    assert_eq!(window(0, &[(13 << 3) | 1]), Some(9 << 20));
    assert_eq!(window(0, &[0xff]), Some((1 << 41) + 7 * (1 << 38)));
    // In a single segment: the size of the content, after the dictionary identifier.
    assert_eq!(window(0x20, &[200]), Some(200));
    assert_eq!(window(0x20 | (1 << 6), &[1, 0]), Some(257));
    assert_eq!(window(0x20 | (2 << 6), &[0, 0, 0x90, 0]), Some(9 << 20));
    assert_eq!(window(0x20 | (3 << 6), &[0xff; 8]), Some(u64::MAX));
    assert_eq!(window(0x20 | 2, &[9, 9, 7]), Some(7));
    // Truncated, and not zstd.
    assert_eq!(window(0, &[]), None);
    assert_eq!(window(0x20 | (3 << 6), &[0xff; 7]), None);
    assert_eq!(zstd_window_bytes(&ZSTD_SKIPPED), None);
    assert_eq!(zstd_window_bytes(&text()), None);
}

#[test]
fn the_dictionary_of_a_block_is_read_from_its_header() {
    let dictionary = |block: &[u8]| xz_dictionary_bytes(&[&XZ[..12], block].concat());
    assert_eq!(xz_dictionary_bytes(&XZ), Some(8 << 20));
    assert_eq!(xz_dictionary_bytes(&XZ_WIDE), Some(64 << 20));
    // The sizes of the block precede the filters, in one byte and in several.
    let sizes = [2, 0xc0, 5, 0x80, 0x80, 1, 0x21, 1, 23];
    assert_eq!(dictionary(&sizes), Some(12 << 20));
    // Delta and a filter for x86 precede LZMA2.
    let chain = [3, 2, 0x03, 1, 0, 0x04, 0, 0x21, 1, 0x16];
    assert_eq!(dictionary(&chain), Some(8 << 20));
    let with = |bits: u8| dictionary(&[2, 0, 0x21, 1, bits]);
    assert_eq!(with(0), Some(4 << 10));
    assert_eq!(with(1), Some(6 << 10));
    assert_eq!(with(39), Some(3 << 30));
    assert_eq!(with(40), Some((4 << 30) - 1));
    assert_eq!(with(41), None, "there is no such size");
    // Only an index, another filter, an integer that is too long, and truncated headers.
    assert_eq!(dictionary(&[0, 0, 0, 0]), None);
    assert_eq!(dictionary(&[2, 0, 0x03, 1, 0x16]), None);
    let long = [&[2, 0x40][..], &[0xff; 9], &[1, 0x21, 1, 0x16]].concat();
    assert_eq!(dictionary(&long), None);
    for length in 0..=16 {
        assert_eq!(xz_dictionary_bytes(&XZ[..length]), None, "{length} bytes");
    }
}
