//! Mirrors: what is beside a registry, what is there already, and what is in memory.

mod beside;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_domain::os::revision::Wanted;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::testing::{Fault, SmallRegistry, Way};
use evenkeel_registry::{
    At, Blob, Body, Copied, Digest, FindingKind, Got, Limits, Manifest, MoveError, Origin,
    Registry, RegistryError, Release, Repository, Selection, Tag, Upstream, Web, copy, open,
};
use url::Url;

/// A profile with an image at an address.
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
        Digest::of(image).hex()
    )
}

/// Publishes a profile without files, as the ancestor does.
fn put(small: &SmallRegistry, name: &str, yaml: &str) {
    let (repository, file) = (format!("os/{name}"), format!("{name}.yaml"));
    small.put_profile(&repository, "0.3.1", &file, yaml);
}

fn layout(folder: &Path) -> Layout {
    Layout::open(folder, &Limits::default()).expect("a folder")
}

fn tag(text: &str) -> Tag {
    text.parse().expect("a tag")
}

fn files_of(name: &str) -> Repository {
    format!("os/{name}/files").parse().expect("a name")
}

fn selection(profiles: &[&str], wanted: &str, work: &Path) -> Selection {
    Selection {
        profiles: profiles.iter().map(|&name| name.to_owned()).collect(),
        wanted: Wanted::parse(wanted).expect("a range"),
        images: true,
        work: work.to_owned(),
        key: None,
    }
}

/// Mirrors a registry whose files lie under `/files`.
async fn mirror(
    small: &SmallRegistry,
    to: &dyn Registry,
    what: &Selection,
    allow: &[String],
) -> Result<Copied, MoveError> {
    let access = small.access();
    let registry = open(&access).expect("an address");
    let web = Web::new(&access, allow).expect("an address");
    let files: Url = small.file_url("/files").parse().expect("an address");
    let from = Upstream {
        registry: &*registry,
        web: Some(&web),
        prefix: "os/",
        files_url: Some(&files),
    };
    copy(&from, to, what, &mut ()).await
}

/// Copies from one registry to another, without anything beside them.
async fn copied(from: &dyn Registry, to: &Layout, what: &Selection) -> Result<Copied, MoveError> {
    let from = Upstream {
        registry: from,
        web: None,
        prefix: "os/",
        files_url: None,
    };
    copy(&from, to, what, &mut ()).await
}

async fn files(layout: &Layout, name: &str) -> Option<Manifest> {
    let at = At::Tag(tag("0.3.1"));
    let found = layout.manifest(&files_of(name), &at).await;
    found.expect("it is read")
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("a folder").next().is_none()
}

#[tokio::test]
async fn a_file_that_cannot_be_had_ends_no_mirror() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let small = SmallRegistry::start();
    let dead = format!("https://{nobody}/dead.raw");
    put(&small, "closed", &yaml("closed", "closed.raw", b"one"));
    put(&small, "dead", &yaml("dead", &dead, b"two"));
    put(&small, "fine", &yaml("fine", "fine.raw", b"three"));
    small.put_file("/files/closed.raw", "one");
    small.put_file("/files/fine.raw", "three");
    small.fail(Fault::always("/files/closed.raw", Way::Status(403)));
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["closed", "dead", "fine"], "0.3.1", work.path());
    let done = mirror(&small, &to, &what, &[nobody.to_string()]).await;
    let done = done.unwrap();
    let findings = done.findings.iter();
    let findings: Vec<(&str, FindingKind)> = findings.map(|(n, f)| (n.as_str(), f.kind)).collect();
    assert_eq!(
        findings,
        [
            ("os/closed:0.3.1", FindingKind::Denied),
            ("os/dead:0.3.1", FindingKind::Unreachable)
        ]
    );
    assert_eq!(done.revisions, 3);
    let image = files(&to, "fine").await.unwrap().layers[0].blob;
    assert_eq!(image, Blob::of(b"three"));
    assert_eq!(files(&to, "dead").await, None);
    assert!(is_empty(work.path()));
}

#[tokio::test]
async fn what_the_new_place_does_not_take_ends_a_mirror() {
    let small = SmallRegistry::start();
    put(&small, "a", &yaml("a", "a.raw", b"one"));
    small.put_file("/files/a.raw", "one");
    let there = SmallRegistry::start();
    there.fail(Fault::always("POST /v2/os/a/files/", Way::Status(413)));
    let to = open(&there.access()).unwrap();
    let work = tempfile::tempdir().unwrap();
    let what = selection(&["a"], "0.3.1", work.path());
    let done = mirror(&small, &*to, &what, &[]).await;
    let Err(MoveError::Registry { error, .. }) = done else {
        panic!("{done:?}");
    };
    assert!(matches!(error, RegistryError::Status(413)), "{error}");
}

#[tokio::test]
async fn an_image_that_was_brought_already_is_not_fetched_again() {
    let small = SmallRegistry::start();
    put(&small, "a", &yaml("a", "a.raw", b"one"));
    small.put_file("/files/a.raw", "one");
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a"], "0.3.1", work.path());
    mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!(small.count("GET /files/a.raw"), 1);
    let first = files(&to, "a").await.unwrap();
    let again = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!(small.count("GET /files/a.raw"), 1);
    assert_eq!(
        (again.revisions, again.blobs, again.findings),
        (1, 0, vec![])
    );
    assert_eq!(files(&to, "a").await.as_ref(), Some(&first));

    // That an artefact names it is not enough.
    let image = there.path().join("blobs/sha256");
    fs::remove_file(image.join(Digest::of(b"one").hex())).unwrap();
    mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!(small.count("GET /files/a.raw"), 2);
    let image = Digest::of(b"one");
    assert!(to.has(&files_of("a"), &image).await.unwrap());
}

#[tokio::test]
async fn an_image_of_another_digest_is_fetched_in_its_place() {
    let small = SmallRegistry::start();
    put(&small, "a", &yaml("a", "a.raw", b"one"));
    small.put_file("/files/a.raw", "one");
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a"], "0.3.1", work.path());
    mirror(&small, &to, &what, &[]).await.unwrap();
    put(&small, "a", &yaml("a", "a.raw", b"two"));
    small.put_file("/files/a.raw", "two");
    mirror(&small, &to, &what, &[]).await.unwrap();
    let image = files(&to, "a").await.unwrap().layers[0].blob;
    assert_eq!(image, Blob::of(b"two"));
}

#[tokio::test]
async fn a_document_that_was_brought_stays_when_it_cannot_be_had_any_more() {
    let small = SmallRegistry::start();
    let more = "  osPackageManifestURL: packages.json\n";
    let profile = yaml("a", "a.raw", b"one");
    put(&small, "a", &format!("{profile}{more}"));
    small.put_file("/files/a.raw", "one");
    let packages = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;
    small.put_file("/files/packages.json", packages);
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a"], "0.3.1", work.path());
    mirror(&small, &to, &what, &[]).await.unwrap();
    let first = files(&to, "a").await.unwrap();
    assert_eq!(first.layers.len(), 2);
    small.fail(Fault::always("/files/packages.json", Way::Status(403)));
    let again = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!(again.findings.len(), 1, "{:?}", again.findings);
    assert_eq!(files(&to, "a").await, Some(first));
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
    let release = Release::of_folder(folder, revision).expect("a release");
    let published = release.publish(to, "os/", &[], None, &mut ()).await;
    published.expect("it is published");
}

/// How many manifests are in memory, and how many were at most; and how often something large was opened.
#[derive(Debug, Default)]
struct Count {
    now: AtomicUsize,
    most: AtomicUsize,
    opened: AtomicUsize,
}

/// A manifest in memory.
struct Held {
    bytes: Bytes,
    count: Arc<Count>,
}

impl Held {
    fn new(bytes: Bytes, count: Arc<Count>) -> Self {
        let now = count.now.fetch_add(1, Ordering::SeqCst) + 1;
        count.most.fetch_max(now, Ordering::SeqCst);
        Self { bytes, count }
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A registry that counts how many of its manifests are in memory, and how often its images are read.
#[derive(Debug)]
struct Counting {
    layout: Layout,
    count: Arc<Count>,
}

#[async_trait]
impl Registry for Counting {
    async fn tags(&self, repository: &Repository) -> Got<Vec<Tag>> {
        self.layout.tags(repository).await
    }

    async fn manifest(&self, repository: &Repository, at: &At) -> Got<Option<Manifest>> {
        let found = self.layout.manifest(repository, at).await?;
        Ok(found.map(|manifest| Manifest {
            bytes: Bytes::from_owner(Held::new(manifest.bytes.clone(), Arc::clone(&self.count))),
            ..manifest
        }))
    }

    async fn small(&self, repository: &Repository, blob: &Blob, limit: u64) -> Got<Bytes> {
        self.layout.small(repository, blob, limit).await
    }

    async fn open(&self, repository: &Repository, blob: &Blob, from: u64) -> Got<Body> {
        if blob.size > 8 * 1024 * 1024 {
            self.count.opened.fetch_add(1, Ordering::SeqCst);
        }
        Registry::open(&self.layout, repository, blob, from).await
    }

    async fn has(&self, repository: &Repository, digest: &Digest) -> Got<bool> {
        self.layout.has(repository, digest).await
    }

    async fn push_blob(&self, repository: &Repository, blob: &Blob, from: &dyn Origin) -> Got<()> {
        self.layout.push_blob(repository, blob, from).await
    }

    async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> Got<()> {
        self.layout.push_manifest(repository, tag, manifest).await
    }
}

#[tokio::test]
async fn the_manifests_of_a_mirror_are_not_in_memory_together() {
    let (source, shelf) = (folder(b"the image"), tempfile::tempdir().unwrap());
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = layout(shelf.path());
    for number in 0..12 {
        publish(source.path(), &from, &format!("0.3.{number}")).await;
    }
    let from = Counting {
        layout: from,
        count: Arc::default(),
    };
    let to = layout(there.path());
    let what = selection(&["a"], "~0.3.0", work.path());
    let done = copied(&from, &to, &what).await.unwrap();
    assert_eq!((done.revisions, done.findings), (12, vec![]));
    let tags = to.tags(&"os/a".parse().unwrap()).await.unwrap();
    assert_eq!(tags.len(), 12);
    let most = from.count.most.load(Ordering::SeqCst);
    assert!((1..=4).contains(&most), "{most} at once");
    assert_eq!(from.count.now.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn two_mirrors_may_have_one_work_folder() {
    // So large that it is kept there on its way.
    let image = vec![7_u8; 9 * 1024 * 1024];
    let (source, shelf) = (folder(&image), tempfile::tempdir().unwrap());
    let from = layout(shelf.path());
    publish(source.path(), &from, "0.3.1").await;
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (layout(one.path()), layout(other.path()));
    let work = tempfile::tempdir().unwrap();
    let what = selection(&["a"], "0.3.1", work.path());
    let (first, second) = tokio::join!(copied(&from, &one, &what), copied(&from, &other, &what));
    for done in [first, second] {
        let done = done.unwrap();
        assert_eq!((done.revisions, done.findings), (1, vec![]));
    }
    let image = Digest::of(&image);
    for to in [&one, &other] {
        assert!(to.has(&files_of("a"), &image).await.unwrap());
    }
    assert!(is_empty(work.path()));
}

#[tokio::test]
async fn what_another_mirror_carried_over_meanwhile_is_not_read_again() {
    let image = vec![7_u8; 9 * 1024 * 1024];
    let (source, shelf) = (folder(&image), tempfile::tempdir().unwrap());
    let from = layout(shelf.path());
    publish(source.path(), &from, "0.3.1").await;
    let from = Counting {
        layout: from,
        count: Arc::default(),
    };
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a"], "0.3.1", work.path());
    let (first, second) = tokio::join!(copied(&from, &to, &what), copied(&from, &to, &what));
    for done in [first, second] {
        let done = done.unwrap();
        assert_eq!((done.revisions, done.findings), (1, vec![]));
    }
    assert_eq!(from.count.opened.load(Ordering::SeqCst), 1);
    assert!(is_empty(work.path()));
}
