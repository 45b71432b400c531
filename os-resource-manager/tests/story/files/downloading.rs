//! Downloads: each once, complete, and resumed after an interruption.

use std::fs;

use evenkeel_fetch::MIN_PROGRESS_BYTES;
use evenkeel_registry::Limits;
use evenkeel_registry::testing::{Fault, FaultKind};
use evenkeel_store::{Store, StoreOptions};
use futures_util::future::join_all;

use super::*;

/// Path of the blobs at the registry.
const BLOBS_PATH: &str = "/v2/os-profile/edge/files/blobs/";

/// Waits until some bytes of a content are in the cache.
async fn wait_for_partial_file(fixture: &FileFixture, content: &[u8]) -> u64 {
    let part = part_path(fixture, content);
    let came = async {
        loop {
            match fs::metadata(&part) {
                Ok(file) if file.len() > 0 => return file.len(),
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let came = tokio::time::timeout(Duration::from_mins(1), came).await;
    came.expect("some bytes arrive")
}

#[tokio::test]
async fn concurrent_requests_download_a_file_once() {
    let fixture = FileFixture::new().await;
    let edge = content(21);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let path = digest_path(&edge);
    let responses = join_all((0..20).map(|_| fixture.get(&files, &path, &[]))).await;
    for response in responses {
        assert!(response.status == StatusCode::OK && response.body == edge, "{}", response.text());
    }
    assert_eq!(fixture.server.registry.count_requests("GET /v2/"), 1);
}

#[tokio::test]
async fn a_file_with_a_wrong_digest_is_never_served() {
    let fixture = FileFixture::new().await;
    let edge = content(22);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let path = digest_path(&edge);
    fixture.server.registry.add_fault(Fault::always(BLOBS_PATH, FaultKind::Corrupt));
    for _ in 0..3 {
        let response = fixture.get(&files, &path, &[]).await;
        assert_eq!(response.status, StatusCode::BAD_GATEWAY);
        assert!(response.text().contains("not what the profile says"), "{}", response.text());
    }
    assert_eq!(fixture.server.registry.count_requests("GET /v2/"), 1, "it is not downloaded again");
    assert!(
        fixture.cached_files("sha256").is_empty() && fixture.cached_files("partial").is_empty()
    );

    fixture.server.registry.clear_faults();
    fixture.server.clock.advance(TimeDelta::minutes(10));
    let response = fixture.get(&files, &path, &[]).await;
    assert!(response.status == StatusCode::OK && response.body == edge, "{}", response.text());
}

#[tokio::test]
async fn a_file_of_the_wrong_length_is_never_served() {
    let fixture = FileFixture::new().await;
    let edge = content(23);
    let blob = fixture.server.registry.put_blob(FILES_REPOSITORY, edge.clone());
    let (tenant, digest) = (fixture.server.tenant, Digest::compute(&edge));
    for (version, size) in [("1.0", CONTENT_BYTES as u64 - 1), ("2.0", CONTENT_BYTES as u64 + 1)] {
        fixture.offer_image(tenant, version, &digest, (&blob_location(&blob), Some(size))).await;
    }
    let files = fixture.open();
    let response = fixture.get(&files, &digest_path(&edge), &[]).await;
    assert_eq!(response.status, StatusCode::BAD_GATEWAY, "{}", response.text());
    assert!(fixture.cached_files("sha256").is_empty());
}

#[tokio::test]
async fn a_file_missing_at_one_source_comes_from_another() {
    let fixture = FileFixture::new().await;
    let edge = content(24);
    let digest = Digest::compute(&edge);
    let web = format!("web:{}", fixture.server.registry.file_url("/edge.raw"));
    fixture.server.registry.put_file("/edge.raw", edge.clone());
    let (tenant, length) = (fixture.server.tenant, Some(CONTENT_BYTES as u64));
    let nowhere = format!("blob:{FILES_REPOSITORY}@{}", Digest::compute(b"nowhere"));
    fixture.offer_image(tenant, "1.0", &digest, (&nowhere, length)).await;
    fixture.offer_image(tenant, "2.0", &digest, ("nonsense", length)).await;
    fixture.offer_image(tenant, "3.0", &digest, (&web, length)).await;
    let response = fixture.get(&fixture.open(), &digest_path(&edge), &[]).await;
    assert!(response.status == StatusCode::OK && response.body == edge, "{}", response.text());
}

#[tokio::test]
async fn an_interrupted_download_is_resumed() {
    let fixture = FileFixture::new().await;
    let edge = content(25);
    let location = format!("web:{}", fixture.server.registry.file_url("/edge.raw"));
    fixture.server.registry.put_file("/edge.raw", edge.clone());
    let (tenant, digest) = (fixture.server.tenant, Digest::compute(&edge));
    let length = Some(CONTENT_BYTES as u64);
    fixture.offer_image(tenant, "1.0", &digest, (&location, length)).await;
    let files = fixture.open();
    let path = digest_path(&edge);
    fixture.server.registry.add_fault(Fault::times("/edge.raw", 4, FaultKind::Stall));

    let response = fixture.get(&files, &path, &[]).await;
    assert!(response.is_retryable(), "{} {}", response.status, response.text());
    // Each of the four interruptions came after half of the missing bytes.
    let there = fixture.cached_files("partial");
    assert_eq!(there, [(digest.hex(), CONTENT_BYTES as u64 - CONTENT_BYTES as u64 / 16)]);
    assert!(fixture.cached_files("sha256").is_empty());

    let response = fixture.get(&files, &path, &[]).await;
    assert!(response.status == StatusCode::OK && response.body == edge, "{}", response.text());
    assert_eq!(fixture.server.registry.count_requests("GET /edge.raw"), 5);
}

#[tokio::test]
async fn a_download_with_progress_survives_many_interruptions() {
    let mut fixture = FileFixture::new().await;
    let edge = content(31).repeat(30);
    fixture.settings.max_bytes = 2 * edge.len() as u64;
    let location = format!("web:{}", fixture.server.registry.file_url("/edge.raw"));
    fixture.server.registry.put_file("/edge.raw", edge.clone());
    let (tenant, digest) = (fixture.server.tenant, Digest::compute(&edge));
    let size = Some(edge.len() as u64);
    fixture.offer_image(tenant, "1.0", &digest, (&location, size)).await;
    // The responses do not declare their length.
    let cut = FaultKind::EndAfter(usize::try_from(MIN_PROGRESS_BYTES).expect("a size"));
    fixture.server.registry.add_fault(Fault::times("/edge.raw", 6, cut));
    let response = fixture.get(&fixture.open(), &digest_path(&edge), &[]).await;
    assert_eq!(response.status, StatusCode::OK, "{}", response.text());
    assert!(response.body == edge);
    assert_eq!(fixture.server.registry.count_requests("GET /edge.raw"), 7);
}

#[tokio::test]
async fn a_wrong_response_does_not_remove_a_partial_file() {
    let fixture = FileFixture::new().await;
    let edge = content(30);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let (files, registry) = (fixture.open(), &fixture.server.registry);
    let path = digest_path(&edge);
    registry.add_fault(Fault::always(BLOBS_PATH, FaultKind::EndAfter(50_000)));
    let response = fixture.get(&files, &path, &[]).await;
    assert!(response.is_retryable(), "{} {}", response.status, response.text());
    let partial_files = fixture.cached_files("partial");
    assert_eq!(partial_files, [(Digest::compute(&edge).hex(), 200_000)]);

    // For example the page of a portal where users of the network sign in.
    registry.clear_faults();
    registry.add_fault(Fault::always(BLOBS_PATH, FaultKind::Html));
    let response = fixture.get(&files, &path, &[]).await;
    assert_eq!(response.status, StatusCode::BAD_GATEWAY, "{}", response.text());
    assert_eq!(fixture.cached_files("partial"), partial_files);

    registry.clear_faults();
    fixture.server.clock.advance(TimeDelta::minutes(10));
    let response = fixture.get(&files, &path, &[]).await;
    assert!(response.status == StatusCode::OK && response.body == edge, "{}", response.text());
}

#[tokio::test]
async fn an_unavailable_registry_is_reported_and_nothing_is_stored() {
    let fixture = FileFixture::new().await;
    let edge = content(26);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let path = digest_path(&edge);
    for fault in
        [FaultKind::Status(503), FaultKind::Status(404), FaultKind::Html, FaultKind::Silent]
    {
        fixture.server.registry.add_fault(Fault::always(BLOBS_PATH, fault.clone()));
        let response = fixture.get(&files, &path, &[]).await;
        let is_error = response.is_retryable() || response.status == StatusCode::BAD_GATEWAY;
        assert!(is_error, "{fault:?}: {}", response.status);
        assert!(fixture.cached_files("sha256").is_empty());
        fixture.server.registry.clear_faults();
        fixture.server.clock.advance(TimeDelta::minutes(10));
    }
    let response = fixture.get(&files, &path, &[]).await;
    assert!(response.status == StatusCode::OK && response.body == edge);
}

#[tokio::test]
async fn a_slow_download_is_answered_with_a_retry_and_continues() {
    let server = TestServer::with_registry(TestRegistry::start(), |registry| {
        registry.limits = Limits::default();
    });
    let mut fixture = FileFixture::with_server(server.await).await;
    fixture.settings.wait_timeout = Duration::from_millis(50);
    let edge = content(27);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let files = fixture.open();
    let path = digest_path(&edge);
    fixture.server.registry.add_fault(Fault::times(BLOBS_PATH, 1, FaultKind::Stall));
    let response = fixture.get(&files, &path, &[]).await;
    assert!(response.is_retryable(), "{} {}", response.status, response.text());
    assert!(response.text().contains("being fetched"), "{}", response.text());
    assert!(wait_for_partial_file(&fixture, &edge).await < CONTENT_BYTES as u64);
    assert_eq!(fixture.server.registry.count_requests("GET /v2/"), 1, "it is the same download");
}

/// Runs a process that downloads and is killed before the end, without any cleanup.
fn kill_during_download(fixture: &FileFixture, url: &str, path: &str, edge: &[u8]) -> u64 {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let came = runtime.block_on(async {
        let store = Store::connect(url, StoreOptions::default()).await;
        let sources = Sources::open(&fixture.server.settings.registries);
        let files = FileServer::open(
            store.expect("the database"),
            Arc::clone(&fixture.server.authority),
            fixture.server.shared_clock(),
            fixture.settings.clone(),
            Arc::new(sources),
        );
        let files = files.expect("a folder of files");
        tokio::select! {
            response = fixture.get(&files, path, &[]) => panic!("the download is complete: {}", response.status),
            came = wait_for_partial_file(fixture, edge) => came,
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    came
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_killed_process_can_be_resumed() {
    let server = TestServer::with_registry(TestRegistry::start(), |registry| {
        registry.limits = Limits::default();
    });
    let fixture = FileFixture::with_server(server.await).await;
    let edge = content(28);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let path = digest_path(&edge);
    fixture.server.registry.add_fault(Fault::always(BLOBS_PATH, FaultKind::Stall));
    let mut before = 0;
    for _ in 0..3 {
        let (url, fixture, path, edge) = (&fixture.server.url, &fixture, &path, &edge);
        let came = std::thread::scope(|scope| {
            let process = scope.spawn(|| kill_during_download(fixture, url, path, edge));
            process.join().expect("a process")
        });
        assert!(came >= before, "earlier bytes are not discarded");
        before = came;
        assert!(fixture.cached_files("sha256").is_empty());
    }
    fixture.server.registry.clear_faults();
    let response = fixture.get(&fixture.open(), &path, &[]).await;
    assert!(response.status == StatusCode::OK && response.body == edge, "{}", response.text());
    assert!(fixture.cached_files("partial").is_empty());
}

#[tokio::test]
async fn a_file_is_complete_whatever_a_killed_process_left() {
    let fixture = FileFixture::new().await;
    let edge = content(29);
    fixture.offer_blob(fixture.server.tenant, "1.0", &edge).await;
    let path = digest_path(&edge);
    let digest = Digest::compute(&edge).hex();
    let stored = fixture.settings.dir.join("sha256").join(&digest[..2]).join(&digest);
    let spoilt: Vec<u8> = edge.iter().map(|byte| byte ^ 1).collect();
    let mut left: Vec<Vec<u8>> = Vec::new();
    for length in [0, 1, CONTENT_BYTES / 2, CONTENT_BYTES - 1, CONTENT_BYTES] {
        left.extend([edge[..length].to_vec(), spoilt[..length].to_vec()]);
    }
    left.push([edge.as_slice(), b"more"].concat());
    for (nth, left) in left.iter().enumerate() {
        for is_part in [true, false] {
            fs::remove_dir_all(&fixture.settings.dir).ok();
            drop(fixture.open());
            let target = if is_part { part_path(&fixture, &edge) } else { stored.clone() };
            fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
            fs::write(target, left).expect("a file");
            let files = fixture.open();
            let response = fixture.get(&files, &path, &[]).await;
            let is_whole = response.status == StatusCode::OK && response.body == edge;
            assert!(is_whole, "{nth} {is_part}: {} {}", response.status, response.text().len());
            assert_eq!(fixture.cached_files("sha256"), [(digest.clone(), CONTENT_BYTES as u64)]);
            assert!(fixture.cached_files("partial").is_empty());
        }
    }
}
