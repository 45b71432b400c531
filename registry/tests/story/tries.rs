//! Retries and timeouts.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_fetch::MIN_PROGRESS_BYTES;
use evenkeel_registry::testing::{AccessRule, Fault, FaultKind, RegistryOptions, TestRegistry};
use evenkeel_registry::{
    Blob, BlobStream, Credentials, Origin, RegistryError, RegistryResult, Repository, WebClient,
    open,
};
use futures_util::{StreamExt as _, stream};

fn profile() -> Repository {
    "os/a".parse().expect("a name")
}

/// Content that fails after its first chunk, or when it is opened. Counts how often it is opened.
struct BrokenOrigin {
    first: Option<&'static [u8]>,
    opened: AtomicUsize,
}

#[async_trait]
impl Origin for BrokenOrigin {
    async fn open(&self, _: u64) -> RegistryResult<BlobStream> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let first = self.first.ok_or(RegistryError::Stalled)?;
        let chunks = [Ok(Bytes::from_static(first)), Err(RegistryError::Stalled)];
        Ok(Box::pin(stream::iter(chunks)))
    }
}

#[tokio::test]
async fn a_failing_token_server_is_tried_as_often_as_the_registry() {
    let server = TestRegistry::with_options(RegistryOptions {
        access: AccessRule::tokens("fleet", "open sesame"),
        ..RegistryOptions::default()
    });
    server.add_fault(Fault::always("/token", FaultKind::Status(500)));
    let access = server.access_with(Credentials::basic("fleet", "open sesame"));
    let tags = open(&access).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::Status(500))), "{tags:?}");
    assert_eq!(server.count_requests("GET /token"), 4);
    assert_eq!(server.count_requests("GET /v2/"), 4);
}

#[tokio::test]
async fn a_transient_failure_of_the_token_server_is_retried() {
    let server = TestRegistry::with_options(RegistryOptions {
        access: AccessRule::tokens("fleet", "open sesame"),
        ..RegistryOptions::default()
    });
    server.put_profile("os/a", "0.3.1", "a.yaml", "name: a");
    server.add_fault(Fault::times("/token", 2, FaultKind::Status(502)));
    let access = server.access_with(Credentials::basic("fleet", "open sesame"));
    let tags = open(&access).unwrap().tags(&profile()).await;
    assert_eq!(tags.unwrap().len(), 1);
}

#[tokio::test]
async fn a_failing_origin_is_not_retried() {
    for (first, uploads) in [(None, 0), (Some(&b"name"[..]), 1)] {
        let server = TestRegistry::start();
        let registry = open(&server.access()).unwrap();
        let origin = BrokenOrigin { first, opened: AtomicUsize::new(0) };
        let blob = Blob::new(b"name: a");
        let put = registry.push_blob(&profile(), &blob, &origin).await;
        assert!(matches!(put, Err(RegistryError::Stalled)), "{put:?}");
        assert_eq!(origin.opened.load(Ordering::SeqCst), 1, "{first:?}");
        assert_eq!(server.count_requests("POST"), uploads, "{first:?}");
    }
}

#[tokio::test]
async fn a_file_that_changes_during_its_transfer_is_not_continued() {
    let new_files = [(2_u8, 100_000), (1, 200_000), (1, 1)];
    for (supports_ranges, (byte, length)) in
        [true, false].into_iter().flat_map(|ranges| new_files.map(|file| (ranges, file)))
    {
        let options = RegistryOptions { supports_ranges, ..RegistryOptions::default() };
        let server = TestRegistry::with_options(options);
        server.put_file("/image.raw", vec![1_u8; 100_000]);
        server.add_fault(Fault::times("/image.raw", 1, FaultKind::Cut));
        let web = WebClient::new(&server.access(), &[]).unwrap();
        let url = server.file_url("/image.raw").parse().unwrap();
        let mut chunks = web.open(&url, 0, None).await.unwrap();
        server.put_file("/image.raw", vec![byte; length]);
        let mut last = None;
        while let Some(chunk) = chunks.next().await {
            last = Some(chunk);
        }
        let is_changed = matches!(last, Some(Err(RegistryError::Changed(_))));
        assert!(is_changed, "{supports_ranges} {byte} {length}: {last:?}");
        assert_eq!(server.count_requests("GET /image.raw"), 2);
    }
}

#[tokio::test]
async fn only_interruptions_without_progress_end_a_transfer() {
    let min_progress = usize::try_from(MIN_PROGRESS_BYTES).unwrap();
    let content: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let server = TestRegistry::start();
    server.put_file("/image.raw", content.clone());
    let blob = server.put_blob("os/a", content.clone());
    let registry = open(&server.access()).unwrap();
    let web = WebClient::new(&server.access(), &[]).unwrap();
    let url = server.file_url("/image.raw").parse().unwrap();
    for (bytes, requests) in [(min_progress, 7), (1_000, 4)] {
        for path in ["/image.raw", "/v2/os/a/blobs/"] {
            server.clear_faults();
            server.forget_requests();
            server.add_fault(Fault::times(path, 6, FaultKind::EndAfter(bytes)));
            let mut chunks = if path == "/image.raw" {
                web.open(&url, 0, Some(blob.size)).await.unwrap()
            } else {
                registry.open_blob(&profile(), &blob, 0).await.unwrap()
            };
            let (mut received, mut error) = (Vec::new(), None);
            while let Some(chunk) = chunks.next().await {
                match chunk {
                    Ok(chunk) => received.extend_from_slice(&chunk),
                    Err(failure) => error = Some(failure),
                }
            }
            assert_eq!(server.count_requests(&format!("GET {path}")), requests, "{error:?}");
            if requests == 7 {
                assert!(error.is_none() && received == content, "{error:?}");
            } else {
                assert!(matches!(error, Some(RegistryError::Io(_))), "{error:?}");
                assert!(received == content[..4_000]);
            }
        }
    }
}

#[tokio::test]
async fn later_pages_are_requested_without_a_page_size_too() {
    let server = TestRegistry::with_options(RegistryOptions {
        page_size: 3,
        sends_links: false,
        ..RegistryOptions::default()
    });
    for number in 0..7 {
        server.put_profile("os/a", &format!("0.3.{number}"), "a.yaml", "name: a");
    }
    server.add_fault(Fault::always("n=3", FaultKind::Status(400)));
    let mut access = server.access();
    access.limits.tags_per_page = 3;
    let tags = open(&access).unwrap().tags(&profile()).await;
    assert_eq!(tags.unwrap().len(), 7);
    // With a page size, without one, and after the last tags of two full pages.
    assert_eq!(server.count_requests("GET /v2/os/a/tags/list"), 4);
}

#[tokio::test]
async fn slow_responses_are_aborted() {
    let server = TestRegistry::start();
    server.put_profile("os/a", "0.3.1", "a.yaml", "name: a");
    let blob = server.put_blob("os/a", vec![7_u8; 100]);
    server.put_file("/cves.json", vec![7_u8; 100]);
    server.add_fault(Fault::always("GET", FaultKind::Drip));
    let registry = open(&server.access()).unwrap();
    let web = WebClient::new(&server.access(), &[]).unwrap();
    let (profile, url) = (profile(), server.file_url("/cves.json").parse().unwrap());
    let (tags, small_one, file) = tokio::join!(
        registry.tags(&profile),
        registry.blob(&profile, &blob, 1_000),
        web.fetch(&url, None, 1_000),
    );
    assert!(matches!(tags, Err(RegistryError::Stalled)), "{tags:?}");
    assert!(matches!(small_one, Err(RegistryError::Stalled)));
    assert!(matches!(file, Err(RegistryError::Stalled)), "{file:?}");
}
