use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;
use crate::modules::image::device::read_back;

/// [`text`], as `xz -6` packs it: a dictionary of 8 MiB, and CRC-64.
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

/// Four bytes, as `xz -9` packs them: a dictionary of 64 MiB.
const XZ_WIDE: [u8; 56] = [
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00, 0x21, 0x01,
    0x1c, 0x00, 0x00, 0x00, 0x10, 0xcf, 0x58, 0xcc, 0x01, 0x00, 0x03, 0x77, 0x69, 0x64, 0x65, 0x00,
    0xe2, 0x8c, 0xe3, 0xac, 0x00, 0x01, 0x18, 0x04, 0x6b, 0xe9, 0xf0, 0xa5, 0x90, 0x42, 0x99, 0x0d,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a,
];

/// A frame that names a window of 64 MiB and holds nothing: descriptor, window (RFC 8878), and an empty last block.
const ZSTD_WIDE: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x80, 0x01, 0x00, 0x00];

/// A frame to be skipped, of three bytes.
const ZSTD_SKIPPED: [u8; 11] = [0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];

const PACKED: [Form; 3] = [Form::Gzip, Form::Xz, Form::Zstd];

/// What [`XZ`] holds.
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

/// [`text`] in a form.
fn packed(form: Form) -> Vec<u8> {
    match form {
        Form::Raw => text(),
        Form::Gzip => gzip(&text()),
        Form::Xz => XZ.to_vec(),
        Form::Zstd => zstandard(&text()),
    }
}

/// Unpacks an image into a slot of so many bytes that are 0xee; the slot is the file `slot` of the folder.
fn unpack_in(folder: &Path, form: Form, image: &[u8], room: usize) -> Result<Raw, Failure> {
    let (spooled, slot) = (folder.join("image"), folder.join("slot"));
    fs::write(&spooled, image).expect("a file");
    fs::write(&slot, vec![0xee; room]).expect("a file");
    let from = Spooled {
        path: spooled,
        bytes: image.len() as u64,
        form,
        sha256: Sha256::of(image),
    };
    let device = Device::open(&slot).expect("a slot");
    let unpacked = unpack(&from, device, &CancellationToken::new());
    let length = fs::metadata(&slot).expect("a slot").len();
    assert_eq!(length, room as u64, "a slot does not grow");
    unpacked
}

/// What is unpacked of an image, as told and as the slot then begins; else why it is not.
fn unpacked(form: Form, image: &[u8]) -> Result<(Raw, Vec<u8>), Failure> {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = unpack_in(folder.path(), form, image, 64 << 10)?;
    let mut content = fs::read(folder.path().join("slot")).expect("a slot");
    content.truncate(usize::try_from(raw.bytes).expect("few"));
    Ok((raw, content))
}

/// Why an image cannot be unpacked, which is its own fault.
fn fault(form: Form, image: &[u8]) -> String {
    let failure = unpacked(form, image).expect_err("a fault");
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    failure.reason
}

fn raw(content: &[u8]) -> Raw {
    Raw {
        sha256: Sha256::of(content),
        bytes: content.len() as u64,
    }
}

#[test]
fn the_form_is_told_by_the_first_bytes() {
    for of in [Form::Raw, Form::Gzip, Form::Xz, Form::Zstd] {
        assert_eq!(form(&packed(of)), of);
    }
    assert_eq!(form(&ZSTD_SKIPPED), Form::Zstd);
    assert_eq!(form(b""), Form::Raw);
    assert_eq!(form(&[0x28, 0xb5]), Form::Raw);
}

#[test]
fn each_form_is_unpacked_and_hashed_as_it_is_written() {
    for of in [Form::Raw, Form::Gzip, Form::Xz, Form::Zstd] {
        let (told, written) = unpacked(of, &packed(of)).unwrap();
        assert_eq!(told, raw(&text()), "{of}");
        assert_eq!(written, text(), "{of}");
    }
}

#[test]
fn an_image_of_several_chunks_is_written_whole_and_can_be_read_back() {
    let mut content: Vec<u8> = (0..CHUNK)
        .flat_map(|at| [at.to_le_bytes()[0], 1, 3])
        .collect();
    content.truncate(2 * CHUNK + 700);
    let folder = tempfile::tempdir().unwrap();
    let images = [
        (Form::Raw, content.clone()),
        (Form::Gzip, gzip(&content)),
        (Form::Zstd, zstandard(&content)),
    ];
    for (of, image) in images {
        let told = unpack_in(folder.path(), of, &image, 3 * CHUNK).unwrap();
        assert_eq!(told, raw(&content), "{of}");
        let slot = folder.path().join("slot");
        read_back(&slot, &told, &CancellationToken::new()).unwrap();
        let written = fs::read(&slot).unwrap();
        let padded = content.len().next_multiple_of(512);
        assert_eq!(written[..content.len()], content, "{of}");
        let padding = &written[content.len()..padded];
        assert!(padding.iter().all(|byte| *byte == 0));
        assert!(written[padded..].iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn an_image_may_fill_its_slot_to_the_last_byte() {
    let content = vec![5; 2 * CHUNK];
    let folder = tempfile::tempdir().unwrap();
    let told = unpack_in(folder.path(), Form::Zstd, &zstandard(&content), 2 * CHUNK).unwrap();
    assert_eq!(told, raw(&content));
    assert_eq!(fs::read(folder.path().join("slot")).unwrap(), content);
}

#[test]
fn what_is_larger_than_its_slot_is_refused() {
    let content = vec![0; 2 * CHUNK + 1];
    let folder = tempfile::tempdir().unwrap();
    let images = [
        (Form::Raw, content.clone()),
        (Form::Gzip, gzip(&content)),
        (Form::Zstd, zstandard(&content)),
    ];
    for (of, image) in images {
        let failure = unpack_in(folder.path(), of, &image, 2 * CHUNK).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        let why = failure.reason;
        assert!(why.starts_with("the image does not fit"), "{of}: {why}");
    }
    // Of an image that is not packed this is known before the slot is lost.
    unpack_in(folder.path(), Form::Raw, &content, 2 * CHUNK).unwrap_err();
    let slot = fs::read(folder.path().join("slot")).unwrap();
    assert!(slot.iter().all(|byte| *byte == 0xee));

    let failure = unpack_in(folder.path(), Form::Xz, &XZ, 1024).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
}

#[test]
fn an_image_that_is_cut_short_anywhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for of in PACKED {
        let image = packed(of);
        for length in 0..image.len() {
            let failure = unpack_in(folder.path(), of, &image[..length], 4096).unwrap_err();
            assert_eq!(
                failure.kind,
                FailureKind::Unsupported,
                "{of}, {length} bytes"
            );
        }
        unpack_in(folder.path(), of, &image, 4096).unwrap();
    }
}

#[test]
fn several_members_frames_or_streams_are_one_image() {
    let twice = [text(), text()].concat();
    for of in PACKED {
        let (told, written) = unpacked(of, &packed(of).repeat(2)).unwrap();
        assert_eq!(told, raw(&twice), "{of}");
        assert_eq!(written, twice, "{of}");
    }
    let skipped = [&ZSTD_SKIPPED[..], &packed(Form::Zstd), &ZSTD_SKIPPED].concat();
    assert_eq!(unpacked(Form::Zstd, &skipped).unwrap().0, raw(&text()));
    let padded = [&XZ[..], &[0; 4], &XZ, &[0; 8]].concat();
    assert_eq!(unpacked(Form::Xz, &padded).unwrap().0, raw(&twice));
}

#[test]
fn what_follows_an_image_is_refused() {
    for of in PACKED {
        for rest in [
            &b"x"[..],
            b"xxxx",
            &[0],
            b"rubbish that goes on for some bytes more",
        ] {
            let image = [&packed(of)[..], rest].concat();
            fault(of, &image);
        }
        let other = PACKED.into_iter().find(|other| *other != of).unwrap();
        fault(of, &[packed(of), packed(other)].concat());
    }
    fault(Form::Gzip, &[packed(Form::Gzip), vec![0; 512]].concat());
    fault(Form::Zstd, &[packed(Form::Zstd), vec![0; 512]].concat());
    fault(Form::Xz, &[packed(Form::Xz), vec![0; 3]].concat());
}

#[test]
fn a_flipped_bit_is_noticed_by_the_checks_of_the_form() {
    let mut gzip = packed(Form::Gzip);
    let length = gzip.len();
    gzip[length - 6] ^= 1;
    let why = fault(Form::Gzip, &gzip);
    assert!(why.contains("damaged"), "{why}");
    let mut xz = packed(Form::Xz);
    xz[60] ^= 1;
    fault(Form::Xz, &xz);
}

#[test]
fn a_window_of_more_than_8_mib_is_refused_before_the_slot_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let behind = [&ZSTD_SKIPPED[..], &ZSTD_WIDE].concat();
    let cases: [(Form, &[u8]); 3] = [
        (Form::Xz, &XZ_WIDE),
        (Form::Zstd, &ZSTD_WIDE),
        (Form::Zstd, &behind),
    ];
    for (of, image) in cases {
        let failure = unpack_in(folder.path(), of, image, 4096).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported);
        let expected = "a window of more than 8 MiB";
        assert!(failure.reason.contains(expected), "{failure}");
        let slot = fs::read(folder.path().join("slot")).unwrap();
        assert!(slot.iter().all(|byte| *byte == 0xee));
        assert_eq!(look(of, image), Err(failure));
    }
}

#[test]
fn a_wide_window_further_on_is_refused_as_well() {
    let why = fault(Form::Xz, &[&XZ[..], &XZ_WIDE].concat());
    assert!(why.contains("a window of more than 8 MiB"), "{why}");
    let why = fault(Form::Zstd, &[&packed(Form::Zstd)[..], &ZSTD_WIDE].concat());
    assert!(why.contains("too much memory"), "{why}");
}

#[test]
fn the_window_of_a_frame_is_read_from_its_header() {
    let window = |descriptor: u8, rest: &[u8]| {
        zstd_window(&[&[0x28, 0xb5, 0x2f, 0xfd, descriptor][..], rest].concat())
    };
    // With a byte for the window: an exponent and eighths.
    assert_eq!(window(0, &[0]), Some(1 << 10));
    assert_eq!(window(0, &[13 << 3]), Some(8 << 20));
    assert_eq!(window(0, &[(13 << 3) | 1]), Some(9 << 20));
    assert_eq!(window(0, &[0xff]), Some((1 << 41) + 7 * (1 << 38)));
    // In a single segment: the size of the content, behind the identifier of a dictionary.
    assert_eq!(window(0x20, &[200]), Some(200));
    assert_eq!(window(0x20 | (1 << 6), &[1, 0]), Some(257));
    assert_eq!(window(0x20 | (2 << 6), &[0, 0, 0x90, 0]), Some(9 << 20));
    assert_eq!(window(0x20 | (3 << 6), &[0xff; 8]), Some(u64::MAX));
    assert_eq!(window(0x20 | 2, &[9, 9, 7]), Some(7));
    // Cut off, and no zstd.
    assert_eq!(window(0, &[]), None);
    assert_eq!(window(0x20 | (3 << 6), &[0xff; 7]), None);
    assert_eq!(zstd_window(&ZSTD_SKIPPED), None);
    assert_eq!(zstd_window(&text()), None);
}

#[test]
fn the_beginning_of_an_image_that_is_fine_passes() {
    for of in [Form::Raw, Form::Gzip, Form::Xz, Form::Zstd] {
        let image = packed(of);
        for length in [0, 1, 10, 30, image.len()] {
            assert_eq!(look(of, &image[..length]), Ok(()), "{of}, {length} bytes");
        }
    }
}

#[test]
fn what_is_packed_in_another_way_is_named_and_no_image_at_all_is_none() {
    let tar = [vec![0; 257], b"ustar\0".to_vec(), vec![0; 300]].concat();
    let cases: [(&[u8], &str); 4] = [
        (b"BZh91AY&SY....", "bzip2"),
        (b"PK\x03\x04....", "zip"),
        (&[0x04, 0x22, 0x4d, 0x18, 0], "lz4"),
        (&tar, "tar"),
    ];
    for (image, name) in cases {
        let why = fault(Form::Raw, image);
        let expected = format!("the image is packed as {name}: ");
        assert!(why.starts_with(&expected), "{why}");
    }
    assert_eq!(fault(Form::Raw, b""), "the image is empty");
    assert_eq!(fault(Form::Gzip, &gzip(b"")), "the image is empty");
}

#[test]
fn unpacking_ends_when_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let (spooled, slot) = (folder.path().join("image"), folder.path().join("slot"));
    fs::write(&slot, [0xee; 4096]).unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    for of in [Form::Raw, Form::Gzip, Form::Xz, Form::Zstd] {
        let image = packed(of);
        fs::write(&spooled, &image).unwrap();
        let from = Spooled {
            path: spooled.clone(),
            bytes: image.len() as u64,
            form: of,
            sha256: Sha256::of(&image),
        };
        let failure = unpack(&from, Device::open(&slot).unwrap(), &stop).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Interrupted);
    }
    assert_eq!(fs::read(&slot).unwrap(), [0xee; 4096]);
}

#[test]
fn a_stop_reaches_a_decoder_that_has_nothing_to_write() {
    let stop = CancellationToken::new();
    stop.cancel();
    let file = tempfile::tempfile().unwrap();
    let source = BufReader::new(Source::new(file, &stop));
    let mut decoder = MultiGzDecoder::new(source);
    let error = decoder.read(&mut [0; 16]).unwrap_err();
    assert_eq!(broken(Form::Gzip, error).kind, FailureKind::Interrupted);
}

#[test]
fn a_spooled_file_that_is_gone_or_of_another_length_is_no_fault_of_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let (spooled, slot) = (folder.path().join("image"), folder.path().join("slot"));
    fs::write(&slot, [0xee; 4096]).unwrap();
    let from = Spooled {
        path: spooled.clone(),
        bytes: 10,
        form: Form::Raw,
        sha256: Sha256::of(b"ten bytes."),
    };
    let run = || {
        let device = Device::open(&slot).expect("a slot");
        unpack(&from, device, &CancellationToken::new())
    };
    assert_eq!(run().unwrap_err().kind, FailureKind::Storage);
    fs::write(&spooled, b"too short").unwrap();
    let failure = run().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(failure.reason.contains("has 9 bytes"), "{failure}");
    let unreadable = io::Error::other(Trouble::Unreadable(io::Error::other("EIO")));
    assert_eq!(broken(Form::Xz, unreadable).kind, FailureKind::Storage);
}

#[test]
fn a_file_that_is_not_what_was_checked_any_more_is_not_taken_for_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let (spooled, slot) = (folder.path().join("image"), folder.path().join("slot"));
    fs::write(&slot, vec![0xee; 64 << 10]).unwrap();
    for of in [Form::Raw, Form::Gzip, Form::Xz, Form::Zstd] {
        let image = packed(of);
        let from = Spooled {
            path: spooled.clone(),
            bytes: image.len() as u64,
            form: of,
            sha256: Sha256::of(&image),
        };
        let run = |written: &[u8]| {
            fs::write(&spooled, written).expect("a file");
            let device = Device::open(&slot).expect("a slot");
            unpack(&from, device, &CancellationToken::new())
        };
        run(&image).unwrap();
        // Also where the decoder stumbles long before the end: that is no fault of the image.
        for at in [0, 20, image.len() / 2, image.len() - 1] {
            let mut flipped = image.clone();
            flipped[at] ^= 1;
            let failure = run(&flipped).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Storage, "{of}, {at}: {failure}");
            let found = Sha256::of(&flipped).to_string();
            assert!(failure.reason.contains(&found), "{failure}");
        }
    }
}

#[test]
fn the_dictionary_of_a_block_is_read_from_its_header() {
    let dictionary = |block: &[u8]| xz_dictionary(&[&XZ[..12], block].concat());
    assert_eq!(xz_dictionary(&XZ), Some(8 << 20));
    assert_eq!(xz_dictionary(&XZ_WIDE), Some(64 << 20));
    // The sizes of the block stand before the filters, in one byte and in several.
    let sizes = [2, 0xc0, 5, 0x80, 0x80, 1, 0x21, 1, 23];
    assert_eq!(dictionary(&sizes), Some(12 << 20));
    // Delta and a filter for x86 before LZMA2.
    let chain = [3, 2, 0x03, 1, 0, 0x04, 0, 0x21, 1, 0x16];
    assert_eq!(dictionary(&chain), Some(8 << 20));
    let with = |bits: u8| dictionary(&[2, 0, 0x21, 1, bits]);
    assert_eq!(with(0), Some(4 << 10));
    assert_eq!(with(1), Some(6 << 10));
    assert_eq!(with(39), Some(3 << 30));
    assert_eq!(with(40), Some((4 << 30) - 1));
    assert_eq!(with(41), None, "there is no such size");
    // Only an index, another filter, an integer that is too long, and cut off.
    assert_eq!(dictionary(&[0, 0, 0, 0]), None);
    assert_eq!(dictionary(&[2, 0, 0x03, 1, 0x16]), None);
    let long = [&[2, 0x40][..], &[0xff; 9], &[1, 0x21, 1, 0x16]].concat();
    assert_eq!(dictionary(&long), None);
    for length in 0..=16 {
        assert_eq!(xz_dictionary(&XZ[..length]), None, "{length} bytes");
    }
}

fn a_form() -> impl Strategy<Value = Form> {
    prop::sample::select(vec![Form::Gzip, Form::Xz, Form::Zstd, Form::Raw])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// It does not panic, and the slot keeps its length.
    #[test]
    fn any_bytes_are_survived(
        form in a_form(),
        image in prop::collection::vec(any::<u8>(), 0..1024),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let _ = unpack_in(folder.path(), form, &image, 2048);
        let _ = look(form, &image);
    }

    /// The same of an image with some bytes changed, which gets further.
    #[test]
    fn a_damaged_image_is_survived(
        form in a_form(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut image = packed(form);
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        let _ = unpack_in(folder.path(), form, &image, 2048);
    }
}
