//! Registries behave alike: the test registry, a folder, and Debian's registry if installed.

#![expect(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_registry::source::EMPTY_CONFIG;
use evenkeel_registry::testing::{AccessRule, Fault, FaultKind, RegistryOptions, TestRegistry};
use evenkeel_registry::{
    Access, Address, Blob, Credentials, Digest, FetchResult, Layer, Limits, Manifest, ManifestRef,
    Registry, RegistryError, RegistryResult, Repository, Tag, WebClient, open,
};
use futures_util::StreamExt as _;

const ARTIFACT_TYPE: &str = "application/vnd.intel.orch.en";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

fn repository(name: &str) -> Repository {
    name.parse().unwrap()
}

fn tag(name: &str) -> Tag {
    name.parse().unwrap()
}

fn names(tags: &[Tag]) -> Vec<&str> {
    let mut names: Vec<&str> = tags.iter().map(Tag::as_str).collect();
    names.sort_unstable();
    names
}

/// Pushes an artifact with one file.
async fn publish(
    registry: &dyn Registry,
    repository: &Repository,
    tag: Option<&Tag>,
    content: &'static [u8],
) -> RegistryResult<Manifest> {
    let blob = Blob::new(content);
    let config = Bytes::from_static(EMPTY_CONFIG);
    registry.push_blob(repository, &Blob::new(&config), &config).await?;
    registry.push_blob(repository, &blob, &Bytes::from_static(content)).await?;
    let manifest = Manifest::artifact(ARTIFACT_TYPE, vec![Layer::file(blob, LAYER_TYPE, "a.yaml")]);
    registry.push_manifest(repository, tag, &manifest).await?;
    Ok(manifest)
}

async fn read_from(
    registry: &dyn Registry,
    at: &Repository,
    blob: &Blob,
    from: u64,
) -> RegistryResult<Vec<u8>> {
    let mut body = registry.open_blob(at, blob, from).await?;
    let mut content = Vec::new();
    while let Some(chunk) = body.next().await {
        content.extend_from_slice(&chunk?);
    }
    Ok(content)
}

/// Checks the behaviour that all registries share.
async fn check_conformance(registry: &dyn Registry) {
    let profile = repository("os-profile/microvisor-nonrt");
    let (first, second) = (tag("0.3.1"), tag("0.3.2"));
    let one = publish(registry, &profile, Some(&first), b"name: one").await;
    let one = one.unwrap();
    let two = publish(registry, &profile, Some(&second), b"name: two").await;
    let two = two.unwrap();
    assert_eq!(names(&registry.tags(&profile).await.unwrap()), ["0.3.1", "0.3.2"]);
    let at = ManifestRef::Tag(first.clone());
    let stored = registry.manifest(&profile, &at).await.unwrap().unwrap();
    assert_eq!(stored, one);
    let at = ManifestRef::Digest(two.digest);
    let stored = registry.manifest(&profile, &at).await.unwrap().unwrap();
    assert_eq!(stored, two);
    let missing = ManifestRef::Tag(tag("9.9.9"));
    assert_eq!(registry.manifest(&profile, &missing).await.unwrap(), None);
    let missing = ManifestRef::Digest(Digest::compute(b"nothing"));
    assert_eq!(registry.manifest(&profile, &missing).await.unwrap(), None);
    let blob = one.layers[0].blob;
    assert!(registry.has_blob(&profile, &blob.digest).await.unwrap());
    let nothing = Digest::compute(b"nothing");
    assert!(!registry.has_blob(&profile, &nothing).await.unwrap());
    let content = registry.blob(&profile, &blob, 100).await.unwrap();
    assert_eq!(content, "name: one");
    let refused = registry.blob(&profile, &blob, 8).await;
    assert!(matches!(refused, Err(RegistryError::TooLarge { limit: 8 })));
    for from in 0..=9 {
        let rest = read_from(registry, &profile, &blob, from).await.unwrap();
        assert_eq!(rest, b"name: one"[usize::try_from(from).unwrap()..]);
    }

    // A tag can be moved to another manifest, and a manifest can exist without a tag.
    publish(registry, &profile, Some(&first), b"name: two").await.unwrap();
    let at = ManifestRef::Tag(first);
    let moved = registry.manifest(&profile, &at).await.unwrap().unwrap();
    assert_eq!(moved.digest, two.digest);
    let bare = publish(registry, &profile, None, b"name: bare").await.unwrap();
    let at = ManifestRef::Digest(bare.digest);
    assert!(registry.manifest(&profile, &at).await.unwrap().is_some());
    assert_eq!(registry.tags(&profile).await.unwrap().len(), 2);
    let files = repository("os-profile/microvisor-nonrt/files");
    publish(registry, &files, Some(&second), b"raw").await.unwrap();
    assert_eq!(names(&registry.tags(&files).await.unwrap()), ["0.3.2"]);
    assert_eq!(registry.tags(&profile).await.unwrap().len(), 2);
    // Content that does not match its digest is refused.
    let lie = Blob { digest: Digest::compute(b"valid"), size: 5 };
    let put = registry.push_blob(&profile, &lie, &Bytes::from_static(b"wrong")).await;
    assert!(put.is_err());
    assert!(!registry.has_blob(&profile, &lie.digest).await.unwrap());
}

#[tokio::test]
async fn the_test_registry_conforms() {
    let server = TestRegistry::start();
    check_conformance(&*open(&server.access()).unwrap()).await;
}

#[tokio::test]
async fn a_folder_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalogue");
    let access = Access::new(Address::Layout(path));
    check_conformance(&*open(&access).unwrap()).await;
}

/// A process of Debian's registry. It is ended on drop.
struct DebianRegistry {
    process: Child,
    registry: Arc<dyn Registry>,
}

impl Drop for DebianRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "the test starts the registry that it uses")]
fn start_debian_registry(folder: &Path) -> Option<DebianRegistry> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let settings = format!(
        "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {at}\n",
        folder.join("data").display()
    );
    let file = folder.join("config.yml");
    std::fs::write(&file, settings).unwrap();
    let started = Command::new("docker-registry")
        .arg("serve")
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(process) = started else {
        let why = "skipped: the program docker-registry is not installed";
        let _ = writeln!(std::io::stderr(), "{why}");
        return None;
    };
    let mut access = Access::new(format!("http://{at}").parse().unwrap());
    access.plain_http = true;
    // The client retries until the registry answers.
    access.limits = Limits {
        initial_backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(200),
        max_attempts: 100,
        ..Limits::default()
    };
    let registry = open(&access).unwrap();
    Some(DebianRegistry { process, registry })
}

#[tokio::test]
async fn the_registry_of_debian_conforms() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(debians) = start_debian_registry(folder.path()) {
        check_conformance(&*debians.registry).await;
    }
}

/// A test registry with this number of tags of one profile.
fn with_tags(options: RegistryOptions, count: usize) -> TestRegistry {
    let server = TestRegistry::with_options(options);
    for number in 0..count {
        server.put_profile("os/a", &format!("0.3.{number:04}"), "a.yaml", "name: a");
    }
    server
}

#[tokio::test]
async fn a_long_tag_list_is_read_page_by_page() {
    let options = RegistryOptions { page_size: 150, ..RegistryOptions::default() };
    let server = with_tags(options, 1_000);
    let registry = open(&server.access()).unwrap();
    let tags = registry.tags(&repository("os/a")).await.unwrap();
    assert_eq!(tags.len(), 1_000);
    assert_eq!(server.count_requests("GET /v2/os/a/tags/list"), 7);
}

/// Behind a proxy that ends TLS, a registry names itself by another scheme or host.
#[tokio::test]
async fn links_with_the_origin_inside_of_a_proxy_are_followed_at_the_registry() {
    for origin in ["https://127.0.0.1", "http://registry.internal:5000"] {
        let link_origin = origin.to_owned();
        let options = RegistryOptions { page_size: 10, link_origin, ..RegistryOptions::default() };
        let server = with_tags(options, 25);
        let registry = open(&server.access()).unwrap();
        let tags = registry.tags(&repository("os/a")).await.unwrap();
        assert_eq!(tags.len(), 25, "{origin}");
        assert_eq!(server.count_requests("GET /v2/os/a/tags/list"), 3, "{origin}");
    }
}

#[tokio::test]
async fn the_page_after_a_full_page_without_link_is_requested() {
    let access = |server: &TestRegistry| {
        let mut access = server.access();
        access.limits.tags_per_page = 10;
        access
    };
    let silent = RegistryOptions { sends_links: false, ..RegistryOptions::default() };
    let server = with_tags(silent, 30);
    let registry = open(&access(&server)).unwrap();
    let tags = registry.tags(&repository("os/a")).await.unwrap();
    assert_eq!(tags.len(), 30);

    // Debian's registry returns all tags at once and does not support paging.
    let plain = RegistryOptions {
        sends_links: false,
        supports_paging: false,
        ..RegistryOptions::default()
    };
    let server = with_tags(plain, 10);
    let registry = open(&access(&server)).unwrap();
    let tags = registry.tags(&repository("os/a")).await.unwrap();
    assert_eq!(tags.len(), 10);
    assert_eq!(server.count_requests("GET /v2/os/a/tags/list"), 2);
}

#[tokio::test]
async fn a_registry_that_refuses_page_sizes_is_queried_without_one() {
    let server = with_tags(RegistryOptions::default(), 3);
    server.add_fault(Fault::always("tags/list?n=", FaultKind::Status(400)));
    let registry = open(&server.access()).unwrap();
    let tags = registry.tags(&repository("os/a")).await.unwrap();
    assert_eq!(tags.len(), 3);
}

#[tokio::test]
async fn a_missing_repository_is_not_found() {
    let server = TestRegistry::start();
    let registry = open(&server.access()).unwrap();
    let tags = registry.tags(&repository("os/a")).await;
    assert!(matches!(tags, Err(RegistryError::NotFound)));
}

#[tokio::test]
async fn a_user_with_a_password_is_accepted() {
    let options = RegistryOptions {
        access: AccessRule::Basic("fleet".to_owned(), "open sesame".to_owned()),
        ..RegistryOptions::default()
    };
    let server = TestRegistry::with_options(options);
    let right = server.access_with(Credentials::basic("fleet", "open sesame"));
    check_conformance(&*open(&right).unwrap()).await;
    for credentials in
        [Credentials::None, Credentials::basic("fleet", "wrong"), Credentials::token("open sesame")]
    {
        let registry = open(&server.access_with(credentials)).unwrap();
        let tags = registry.tags(&repository("os-profile/microvisor-nonrt")).await;
        assert!(matches!(tags, Err(RegistryError::Denied)));
    }
}

#[tokio::test]
async fn a_token_is_fetched_once_and_again_after_its_expiry() {
    let options = RegistryOptions {
        access: AccessRule::tokens("fleet", "open sesame"),
        ..RegistryOptions::default()
    };
    let server = TestRegistry::with_options(options);
    let registry = open(&server.access_with(Credentials::basic("fleet", "open sesame"))).unwrap();
    check_conformance(&*registry).await;
    // One token for writing and one for reading, for each of the two repositories.
    assert_eq!(server.count_requests("GET /token"), 4);

    server.revoke_tokens();
    let profile = repository("os-profile/microvisor-nonrt");
    assert_eq!(registry.tags(&profile).await.unwrap().len(), 2);
    assert_eq!(server.count_requests("GET /token"), 5);

    let anonymous = open(&server.access()).unwrap();
    assert!(matches!(anonymous.tags(&profile).await, Err(RegistryError::Denied)));
}

#[tokio::test]
async fn a_short_lived_token_suffices() {
    let options = RegistryOptions {
        access: AccessRule::Tokens { user: None, expires_in: 1, realm: None },
        ..RegistryOptions::default()
    };
    let server = TestRegistry::with_options(options);
    check_conformance(&*open(&server.access()).unwrap()).await;
}

#[tokio::test]
async fn transient_failures_are_retried() {
    let busy = |status| FaultKind::Busy { status, retry_after: "0".to_owned(), date: None };
    for fault in [
        FaultKind::Status(500),
        FaultKind::Status(502),
        busy(429),
        busy(503),
        FaultKind::Cut,
        FaultKind::Stall,
    ] {
        let server = with_tags(RegistryOptions::default(), 1);
        let registry = open(&server.access()).unwrap();
        server.add_fault(Fault::times("/", 2, fault.clone()));
        let tags = registry.tags(&repository("os/a")).await;
        assert_eq!(tags.unwrap().len(), 1, "{fault:?}");
    }
}

#[tokio::test]
async fn persistent_failures_are_returned() {
    let server = with_tags(RegistryOptions::default(), 1);
    let registry = open(&server.access()).unwrap();
    server.add_fault(Fault::always("/", FaultKind::Status(500)));
    let tags = registry.tags(&repository("os/a")).await;
    assert!(matches!(tags, Err(RegistryError::Status(500))));
    assert_eq!(server.count_requests("GET"), 4);
}

#[tokio::test]
async fn a_long_retry_after_is_returned_at_once() {
    let server = with_tags(RegistryOptions::default(), 1);
    let registry = open(&server.access()).unwrap();
    server.add_fault(Fault::always(
        "/",
        FaultKind::Busy {
            status: 503,
            retry_after: "Fri, 31 Dec 1999 23:59:59 GMT".to_owned(),
            date: Some("Fri, 31 Dec 1999 23:58:00 GMT".to_owned()),
        },
    ));
    let Err(RegistryError::Busy { retry_after }) = registry.tags(&repository("os/a")).await else {
        panic!("expected a Busy error");
    };
    assert_eq!(retry_after, Some(Duration::from_secs(119)));
    assert_eq!(server.count_requests("GET"), 1);
}

#[tokio::test]
async fn a_registry_that_is_down_is_unreachable() {
    let server = TestRegistry::start();
    let access = server.access();
    drop(server);
    let tags = open(&access).unwrap().tags(&repository("os/a")).await;
    assert!(matches!(tags, Err(RegistryError::Unreachable(_))));
}

#[tokio::test]
async fn an_interrupted_blob_is_resumed() {
    let content: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    for (ranges, fault) in [
        (true, FaultKind::Cut),
        (false, FaultKind::Cut),
        (true, FaultKind::Stall),
        (true, FaultKind::Slow),
    ] {
        let options = RegistryOptions { supports_ranges: ranges, ..RegistryOptions::default() };
        let server = TestRegistry::with_options(options);
        let blob = server.put_blob("os/a", content.clone());
        let registry = open(&server.access()).unwrap();
        server.add_fault(Fault::times("/blobs/", 1, fault.clone()));
        let got = read_from(&*registry, &repository("os/a"), &blob, 1_000).await;
        assert!(got.unwrap() == content[1_000..], "{fault:?}");
    }
}

#[tokio::test]
async fn a_blob_can_be_redirected_without_credentials() {
    let store = TestRegistry::with_options(RegistryOptions {
        access: AccessRule::Closed,
        ..RegistryOptions::default()
    });
    store.put_file("/bucket/a", "name: a");
    let server = TestRegistry::with_options(RegistryOptions {
        access: AccessRule::Basic("fleet".to_owned(), "open sesame".to_owned()),
        ..RegistryOptions::default()
    });
    let blob = server.put_blob("os/a", "name: a");
    let credentials = Credentials::basic("fleet", "open sesame");
    let registry = open(&server.access_with(credentials)).unwrap();
    // From here on the client knows that credentials are required.
    registry.tags(&repository("os/a")).await.unwrap();
    server.add_fault(Fault::always("/blobs/", FaultKind::Redirect(store.file_url("/bucket/a"))));
    let content = registry.blob(&repository("os/a"), &blob, 100).await;
    assert_eq!(content.unwrap(), "name: a");
    // The password is for the registry, not for the target of a redirect.
    assert!(server.with_credentials() > 0);
    assert_eq!(store.with_credentials(), 0);
}

#[tokio::test]
async fn a_failed_upload_is_retried() {
    let server = TestRegistry::start();
    let registry = open(&server.access()).unwrap();
    server.add_fault(Fault::times("PUT", 2, FaultKind::Status(502)));
    let content = Bytes::from_static(b"name: a");
    let blob = Blob::new(&content);
    let profile = repository("os/a");
    registry.push_blob(&profile, &blob, &content).await.unwrap();
    assert!(registry.has_blob(&profile, &blob.digest).await.unwrap());
    assert_eq!(server.count_requests("POST"), 3);
}

#[tokio::test]
async fn an_unchanged_file_is_not_sent_again() {
    let server = TestRegistry::start();
    server.put_file("/cves.json", "[]");
    let web = WebClient::new(&server.access(), &[]).unwrap();
    let url = server.file_url("/cves.json").parse().unwrap();
    let FetchResult::New { bytes, etag } = web.fetch(&url, None, 100).await.unwrap() else {
        panic!("the first response must have content");
    };
    assert_eq!(bytes, "[]");
    let again = web.fetch(&url, etag.as_deref(), 100).await.unwrap();
    assert_eq!(again, FetchResult::Unchanged);
    server.put_file("/cves.json", "[1]");
    let other = web.fetch(&url, etag.as_deref(), 100).await.unwrap();
    assert!(matches!(other, FetchResult::New { bytes, .. } if bytes == "[1]"));
}

#[tokio::test]
async fn a_file_can_be_read_from_any_offset() {
    for ranges in [true, false] {
        let server = TestRegistry::with_options(RegistryOptions {
            supports_ranges: ranges,
            ..RegistryOptions::default()
        });
        server.put_file("/image.raw", "0123456789");
        let web = WebClient::new(&server.access(), &[]).unwrap();
        let url = server.file_url("/image.raw").parse().unwrap();
        for (from, size) in
            [0, 4, 9, 10, 100].into_iter().flat_map(|from| [(from, None), (from, Some(10))])
        {
            let mut body = web.open(&url, from, size).await.unwrap();
            let mut rest = Vec::new();
            while let Some(chunk) = body.next().await {
                rest.extend_from_slice(&chunk.unwrap());
            }
            let start = usize::try_from(from).unwrap().min(10);
            assert_eq!(rest, b"0123456789"[start..]);
        }
        for (from, size) in [(0, 9), (0, 11), (4, 9), (4, 11), (10, 11)] {
            let refused = web.open(&url, from, Some(size)).await.err();
            let is_malformed = matches!(refused, Some(RegistryError::Malformed { .. }));
            assert!(is_malformed || (from == 10 && ranges), "{ranges} {from} {size}: {refused:?}");
        }
    }
}
