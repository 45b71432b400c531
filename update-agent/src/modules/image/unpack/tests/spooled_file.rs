//! Spooled files that are missing or were changed after they were verified.

use super::*;

#[test]
fn a_missing_or_resized_spooled_file_is_a_storage_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (spooled, slot) = (folder.path().join("image"), folder.path().join("slot"));
    fs::write(&slot, [0xee; 4096]).unwrap();
    let from = SpooledImage {
        path: spooled.clone(),
        bytes: 10,
        format: ImageFormat::Raw,
        sha256: Sha256::hash(b"ten bytes."),
    };
    let run = || {
        let device = SlotDevice::open(&slot).expect("a slot");
        unpack(&from, device, &CancellationToken::new())
    };
    assert_eq!(run().unwrap_err().kind, FailureKind::Storage);
    fs::write(&spooled, b"too short").unwrap();
    let failure = run().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(failure.reason.contains("has 9 bytes"), "{failure}");
    let unreadable = io::Error::other(SourceError::Unreadable(io::Error::other("EIO")));
    assert_eq!(read_failure(ImageFormat::Xz, unreadable).kind, FailureKind::Storage);
}

#[test]
fn a_changed_spooled_file_is_a_storage_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (spooled, slot) = (folder.path().join("image"), folder.path().join("slot"));
    fs::write(&slot, vec![0xee; 64 << 10]).unwrap();
    for image_format in [ImageFormat::Raw, ImageFormat::Gzip, ImageFormat::Xz, ImageFormat::Zstd] {
        let image = packed_text(image_format);
        let from = SpooledImage {
            path: spooled.clone(),
            bytes: image.len() as u64,
            format: image_format,
            sha256: Sha256::hash(&image),
        };
        let run = |written: &[u8]| {
            fs::write(&spooled, written).expect("a file");
            let device = SlotDevice::open(&slot).expect("a slot");
            unpack(&from, device, &CancellationToken::new())
        };
        run(&image).unwrap();
        // Even if the decoder fails long before the end, the image is not at fault.
        for at in [0, 20, image.len() / 2, image.len() - 1] {
            let mut flipped = image.clone();
            flipped[at] ^= 1;
            let failure = run(&flipped).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Storage, "{image_format}, {at}: {failure}");
            let digest = Sha256::hash(&flipped).to_string();
            assert!(failure.reason.contains(&digest), "{failure}");
        }
    }
}
