//! Downloaded images are unpacked, or refused if they are too wide, too large or truncated.

use evenkeel_update_agent::model::{Failure, FailureKind};

use super::{DownloadNode, ETAG, LONG_SLICE};
use crate::support::file_server::{AfterBody, TestFileServer, TestReply};
use crate::support::image_files::{
    XZ_ZEROS, gzip, image_spec, noise, zstandard, zstd_with_wide_window,
};

/// Downloads `file` and unpacks it into a slot of `room` bytes; returns the content of the slot.
async fn download_and_unpack(file: &[u8], room: usize) -> Result<Vec<u8>, Failure> {
    let body = file.to_vec();
    let server = TestFileServer::start(move |_, request| TestReply::file(&body, ETAG, request));
    let node = DownloadNode::new();
    let spec = image_spec(server.url("/a"), file);
    let spooled = node.fetch_all(&node.open_spool(), &spec).await;
    node.unpack_to_slot(&spooled.expect("the download matches the digest"), room)
}

#[tokio::test]
async fn a_window_of_64_mib_is_refused_early_with_advice() {
    // A large file that arrives incomplete is fetched once more: the first response may not have been the image.
    for (size, requests) in [(1_000_000, 2), (1_000, 1)] {
        let packed = zstd_with_wide_window(&noise(size, 9));
        let body = packed.clone();
        let server = TestFileServer::start(move |_, request| {
            let reply = TestReply::file(&body, ETAG, request);
            reply.cut(300_000).followed_by(AfterBody::Stall)
        });
        let (node, spec) = (DownloadNode::new(), image_spec(server.url("/a"), &packed));
        let failure = node.open_spool().fetch(&spec, LONG_SLICE).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported);
        for part in ["a window of more than 8 MiB", "publish it packed with"] {
            assert!(failure.reason.contains(part), "{size}: {failure}");
        }
        assert_eq!(server.requests().len(), requests, "{size}");
        assert!(node.image_files().is_empty(), "{size}");
    }
}

#[tokio::test]
async fn a_decompression_bomb_stops_at_the_size_of_its_slot() {
    const SLOT_BYTES: usize = 4 << 20;
    let zeros = vec![0; 1 << 20];
    // The XZ data unpack to 64 MiB, the others to 1 GiB.
    let bombs =
        [gzip(&zeros), zstandard(&zeros), XZ_ZEROS.to_vec()].map(|packed| packed.repeat(1_024));
    for bomb in bombs {
        assert!(bomb.len() < SLOT_BYTES, "the packed size fits");
        let failure = download_and_unpack(&bomb, SLOT_BYTES).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        let room = format!("larger than the {SLOT_BYTES} bytes");
        for part in ["the image does not fit", room.as_str()] {
            assert!(failure.reason.contains(part), "{failure}");
        }
    }
}

#[tokio::test]
async fn a_truncated_image_is_distinguished_from_a_complete_one() {
    const SLOT_BYTES: usize = 1 << 20;
    let content = noise(100_000, 10);
    for (complete, expected) in [
        (gzip(&content), content.clone()),
        (zstandard(&content), content),
        (XZ_ZEROS.to_vec(), vec![0; 64 << 10]),
    ] {
        assert_eq!(download_and_unpack(&complete, SLOT_BYTES).await.unwrap(), expected);
        for length in [complete.len() / 2, complete.len() - 1] {
            let failure = download_and_unpack(&complete[..length], SLOT_BYTES).await.unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unsupported);
            let why = failure.reason;
            assert!(why.starts_with("the image cannot be unpacked"), "{why}");
        }
    }
}
