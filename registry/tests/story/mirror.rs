//! Mirrors: files outside of the registry, existing content in the target, and memory use.

mod files;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_domain::os::revision::RevisionSelector;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::testing::{Fault, FaultKind, TestRegistry};
use evenkeel_registry::{
    Blob, BlobStream, CopyError, CopyOptions, CopySummary, Digest, FindingKind, Limits, Manifest,
    ManifestRef, Origin, Registry, RegistryError, RegistryResult, Release, Repository, Tag,
    Upstream, WebClient, copy, open,
};
use url::Url;

/// A profile with an image at this URL.
fn yaml(name: &str, image_url: &str, image: &[u8]) -> String {
    format!(
        "spec:
  name: {name}
  type: OS_TYPE_IMMUTABLE
  provider: OS_PROVIDER_KIND_INFRA
  architecture: x86_64
  profileName: {name}
  osImageUrl: {image_url}
  osImageSha256: \"{}\"
  osImageVersion: 3.0.20260602.2200
  securityFeature: SECURITY_FEATURE_NONE
",
        Digest::compute(image).hex()
    )
}

/// Publishes a profile without files, as EIM does.
fn put_profile(server: &TestRegistry, name: &str, yaml: &str) {
    let (repository, file) = (format!("os/{name}"), format!("{name}.yaml"));
    server.put_profile(&repository, "0.3.1", &file, yaml);
}

fn layout(folder: &Path) -> Layout {
    Layout::open(folder, &Limits::default()).expect("a folder")
}

fn tag(text: &str) -> Tag {
    text.parse().expect("a tag")
}

fn files_repository(name: &str) -> Repository {
    format!("os/{name}/files").parse().expect("a name")
}

fn options(profiles: &[&str], filter: &str, work: &Path) -> CopyOptions {
    CopyOptions {
        profiles: profiles.iter().map(|&name| name.to_owned()).collect(),
        revision_filter: RevisionSelector::parse(filter).expect("a range"),
        with_images: true,
        work_dir: work.to_owned(),
        key: None,
    }
}

/// Mirrors a registry whose files are below `/files`.
async fn mirror(
    server: &TestRegistry,
    to: &dyn Registry,
    what: &CopyOptions,
    allow: &[String],
) -> Result<CopySummary, CopyError> {
    let access = server.access();
    let registry = open(&access).expect("an address");
    let web = WebClient::new(&access, allow).expect("an address");
    let files: Url = server.file_url("/files").parse().expect("an address");
    let from =
        Upstream { registry: &*registry, web: Some(&web), prefix: "os/", files_url: Some(&files) };
    copy(&from, to, what, &mut ()).await
}

/// Copies from one registry to another, without files outside of them.
async fn run_copy(
    from: &dyn Registry,
    to: &Layout,
    what: &CopyOptions,
) -> Result<CopySummary, CopyError> {
    let from = Upstream { registry: from, web: None, prefix: "os/", files_url: None };
    copy(&from, to, what, &mut ()).await
}

async fn read_files_manifest(layout: &Layout, name: &str) -> Option<Manifest> {
    let at = ManifestRef::Tag(tag("0.3.1"));
    let stored = layout.manifest(&files_repository(name), &at).await;
    stored.expect("it is read")
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("a folder").next().is_none()
}

#[tokio::test]
async fn a_missing_file_does_not_end_a_mirror() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let unreachable = listener.local_addr().unwrap();
    drop(listener);
    let server = TestRegistry::start();
    let dead = format!("https://{unreachable}/dead.raw");
    put_profile(&server, "closed", &yaml("closed", "closed.raw", b"one"));
    put_profile(&server, "dead", &yaml("dead", &dead, b"two"));
    put_profile(&server, "fine", &yaml("fine", "fine.raw", b"three"));
    server.put_file("/files/closed.raw", "one");
    server.put_file("/files/fine.raw", "three");
    server.add_fault(Fault::always("/files/closed.raw", FaultKind::Status(403)));
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["closed", "dead", "fine"], "0.3.1", work.path());
    let done = mirror(&server, &to, &what, &[unreachable.to_string()]).await;
    let done = done.unwrap();
    let findings = done.findings.iter();
    let findings: Vec<(&str, FindingKind)> = findings.map(|(n, f)| (n.as_str(), f.kind)).collect();
    assert_eq!(
        findings,
        [("os/closed:0.3.1", FindingKind::Denied), ("os/dead:0.3.1", FindingKind::Unreachable)]
    );
    assert_eq!(done.revisions, 3);
    let image = read_files_manifest(&to, "fine").await.unwrap().layers[0].blob;
    assert_eq!(image, Blob::new(b"three"));
    assert_eq!(read_files_manifest(&to, "dead").await, None);
    assert!(is_empty(work.path()));
}

#[tokio::test]
async fn a_refusal_of_the_target_ends_a_mirror() {
    let server = TestRegistry::start();
    put_profile(&server, "a", &yaml("a", "a.raw", b"one"));
    server.put_file("/files/a.raw", "one");
    let dest = TestRegistry::start();
    dest.add_fault(Fault::always("POST /v2/os/a/files/", FaultKind::Status(413)));
    let to = open(&dest.access()).unwrap();
    let work = tempfile::tempdir().unwrap();
    let what = options(&["a"], "0.3.1", work.path());
    let done = mirror(&server, &*to, &what, &[]).await;
    let Err(CopyError::Registry { error, .. }) = done else {
        panic!("{done:?}");
    };
    assert!(matches!(error, RegistryError::Status(413)), "{error}");
}

#[tokio::test]
async fn a_copied_image_is_not_fetched_again() {
    let server = TestRegistry::start();
    put_profile(&server, "a", &yaml("a", "a.raw", b"one"));
    server.put_file("/files/a.raw", "one");
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a"], "0.3.1", work.path());
    mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!(server.count_requests("GET /files/a.raw"), 1);
    let first = read_files_manifest(&to, "a").await.unwrap();
    let again = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!(server.count_requests("GET /files/a.raw"), 1);
    assert_eq!((again.revisions, again.blobs, again.findings), (1, 0, vec![]));
    assert_eq!(read_files_manifest(&to, "a").await.as_ref(), Some(&first));

    // An image is copied again if only its manifest exists.
    let image = dest.path().join("blobs/sha256");
    fs::remove_file(image.join(Digest::compute(b"one").hex())).unwrap();
    mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!(server.count_requests("GET /files/a.raw"), 2);
    let image = Digest::compute(b"one");
    assert!(to.has_blob(&files_repository("a"), &image).await.unwrap());
}

#[tokio::test]
async fn an_image_of_another_digest_replaces_the_old_one() {
    let server = TestRegistry::start();
    put_profile(&server, "a", &yaml("a", "a.raw", b"one"));
    server.put_file("/files/a.raw", "one");
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a"], "0.3.1", work.path());
    mirror(&server, &to, &what, &[]).await.unwrap();
    put_profile(&server, "a", &yaml("a", "a.raw", b"two"));
    server.put_file("/files/a.raw", "two");
    mirror(&server, &to, &what, &[]).await.unwrap();
    let image = read_files_manifest(&to, "a").await.unwrap().layers[0].blob;
    assert_eq!(image, Blob::new(b"two"));
}

#[tokio::test]
async fn a_copied_document_stays_when_it_is_no_longer_available() {
    let server = TestRegistry::start();
    let more = "  osPackageManifestURL: packages.json\n";
    let profile = yaml("a", "a.raw", b"one");
    put_profile(&server, "a", &format!("{profile}{more}"));
    server.put_file("/files/a.raw", "one");
    let packages = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;
    server.put_file("/files/packages.json", packages);
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a"], "0.3.1", work.path());
    mirror(&server, &to, &what, &[]).await.unwrap();
    let first = read_files_manifest(&to, "a").await.unwrap();
    assert_eq!(first.layers.len(), 2);
    server.add_fault(Fault::always("/files/packages.json", FaultKind::Status(403)));
    let again = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!(again.findings.len(), 1, "{:?}", again.findings);
    assert_eq!(read_files_manifest(&to, "a").await, Some(first));
}

/// A folder with one profile and its image.
fn folder(image: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("a.yaml");
    fs::write(profile, yaml("a", "a.raw", image)).expect("it is written");
    fs::write(folder.path().join("a.raw"), image).expect("it is written");
    folder
}

async fn publish(folder: &Path, to: &Layout, revision: &str) {
    let release = Release::from_folder(folder, revision).expect("a release");
    let published = release.publish(to, "os/", &[], None, &mut ()).await;
    published.expect("it is published");
}

/// Counts the manifests in memory, now and at most, and the reads of large blobs.
#[derive(Debug, Default)]
struct ManifestCounter {
    current: AtomicUsize,
    maximum: AtomicUsize,
    large_reads: AtomicUsize,
}

/// Bytes of a manifest that are counted while they are in memory.
struct CountedBytes {
    bytes: Bytes,
    count: Arc<ManifestCounter>,
}

impl CountedBytes {
    fn new(bytes: Bytes, count: Arc<ManifestCounter>) -> Self {
        let now = count.current.fetch_add(1, Ordering::SeqCst) + 1;
        count.maximum.fetch_max(now, Ordering::SeqCst);
        Self { bytes, count }
    }
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.count.current.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A registry that counts its manifests in memory and the reads of its images.
#[derive(Debug)]
struct CountingRegistry {
    layout: Layout,
    count: Arc<ManifestCounter>,
}

#[async_trait]
impl Registry for CountingRegistry {
    async fn tags(&self, repository: &Repository) -> RegistryResult<Vec<Tag>> {
        self.layout.tags(repository).await
    }

    async fn manifest(
        &self,
        repository: &Repository,
        at: &ManifestRef,
    ) -> RegistryResult<Option<Manifest>> {
        let stored = self.layout.manifest(repository, at).await?;
        Ok(stored.map(|manifest| Manifest {
            bytes: Bytes::from_owner(CountedBytes::new(
                manifest.bytes.clone(),
                Arc::clone(&self.count),
            )),
            ..manifest
        }))
    }

    async fn blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        limit: u64,
    ) -> RegistryResult<Bytes> {
        self.layout.blob(repository, blob, limit).await
    }

    async fn open_blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        from: u64,
    ) -> RegistryResult<BlobStream> {
        if blob.size > 8 * 1024 * 1024 {
            self.count.large_reads.fetch_add(1, Ordering::SeqCst);
        }
        Registry::open_blob(&self.layout, repository, blob, from).await
    }

    async fn has_blob(&self, repository: &Repository, digest: &Digest) -> RegistryResult<bool> {
        self.layout.has_blob(repository, digest).await
    }

    async fn push_blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        from: &dyn Origin,
    ) -> RegistryResult<()> {
        self.layout.push_blob(repository, blob, from).await
    }

    async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> RegistryResult<()> {
        self.layout.push_manifest(repository, tag, manifest).await
    }
}

#[tokio::test]
async fn a_mirror_holds_few_manifests_in_memory() {
    let (source, shelf) = (folder(b"the image"), tempfile::tempdir().unwrap());
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = layout(shelf.path());
    for number in 0..12 {
        publish(source.path(), &from, &format!("0.3.{number}")).await;
    }
    let from = CountingRegistry { layout: from, count: Arc::default() };
    let to = layout(dest.path());
    let what = options(&["a"], "~0.3.0", work.path());
    let done = run_copy(&from, &to, &what).await.unwrap();
    assert_eq!((done.revisions, done.findings), (12, vec![]));
    let tags = to.tags(&"os/a".parse().unwrap()).await.unwrap();
    assert_eq!(tags.len(), 12);
    let maximum = from.count.maximum.load(Ordering::SeqCst);
    assert!((1..=4).contains(&maximum), "{maximum} at once");
    assert_eq!(from.count.current.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn two_mirrors_can_share_a_work_folder() {
    // Large enough to be staged in the work folder.
    let image = vec![7_u8; 9 * 1024 * 1024];
    let (source, shelf) = (folder(&image), tempfile::tempdir().unwrap());
    let from = layout(shelf.path());
    publish(source.path(), &from, "0.3.1").await;
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (layout(one.path()), layout(other.path()));
    let work = tempfile::tempdir().unwrap();
    let what = options(&["a"], "0.3.1", work.path());
    let (first, second) =
        tokio::join!(run_copy(&from, &one, &what), run_copy(&from, &other, &what));
    for done in [first, second] {
        let done = done.unwrap();
        assert_eq!((done.revisions, done.findings), (1, vec![]));
    }
    let image = Digest::compute(&image);
    for to in [&one, &other] {
        assert!(to.has_blob(&files_repository("a"), &image).await.unwrap());
    }
    assert!(is_empty(work.path()));
}

#[tokio::test]
async fn a_blob_copied_by_another_mirror_is_not_read_again() {
    let image = vec![7_u8; 9 * 1024 * 1024];
    let (source, shelf) = (folder(&image), tempfile::tempdir().unwrap());
    let from = layout(shelf.path());
    publish(source.path(), &from, "0.3.1").await;
    let from = CountingRegistry { layout: from, count: Arc::default() };
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a"], "0.3.1", work.path());
    let (first, second) = tokio::join!(run_copy(&from, &to, &what), run_copy(&from, &to, &what));
    for done in [first, second] {
        let done = done.unwrap();
        assert_eq!((done.revisions, done.findings), (1, vec![]));
    }
    assert_eq!(from.count.large_reads.load(Ordering::SeqCst), 1);
    assert!(is_empty(work.path()));
}
