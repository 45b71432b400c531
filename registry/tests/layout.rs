//! A folder as a registry.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    At, Blob, Body, Digest, Got, Layer, Limits, Manifest, Origin, Registry, RegistryError,
    Repository, Tag,
};
use futures_util::{StreamExt as _, stream};

fn layout(folder: &Path) -> Layout {
    Layout::open(folder, &Limits::default()).expect("done")
}

fn repository() -> Repository {
    "os/microvisor-nonrt".parse().expect("done")
}

fn tag(text: &str) -> Tag {
    text.parse().expect("done")
}

async fn push(layout: &Layout, content: &Bytes) -> Blob {
    let blob = Blob::of(content);
    layout
        .push_blob(&repository(), &blob, content)
        .await
        .expect("done");
    blob
}

async fn artefact(layout: &Layout, content: &'static str) -> Manifest {
    push(layout, &Bytes::from_static(b"{}")).await;
    let blob = push(layout, &Bytes::from_static(content.as_bytes())).await;
    Manifest::artifact("kind", vec![Layer::file(blob, "text/plain", "file")])
}

fn blob_file(folder: &Path, blob: &Blob) -> std::path::PathBuf {
    folder.join("blobs/sha256").join(blob.digest.hex())
}

/// Breaks off after some bytes, as often as it is opened.
struct Breaking {
    content: Bytes,
    after: usize,
    opened_at: AtomicU64,
}

#[async_trait]
impl Origin for Breaking {
    async fn open(&self, from: u64) -> Got<Body> {
        self.opened_at.store(from, Ordering::SeqCst);
        let from = usize::try_from(from).expect("done");
        let end = self.content.len().min(from + self.after);
        let piece = self.content.slice(from..end);
        let mut pieces = vec![Ok(piece)];
        if end < self.content.len() {
            pieces.push(Err(RegistryError::Stalled));
        }
        Ok(Box::pin(stream::iter(pieces)))
    }
}

#[tokio::test]
async fn what_is_put_in_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let manifest = artefact(&layout, "one").await;
    for name in ["0.3.1", "main"] {
        layout
            .push_manifest(&repository, Some(&tag(name)), &manifest)
            .await
            .expect("done");
    }
    let tags = layout.tags(&repository).await.unwrap();
    assert_eq!(tags, [tag("0.3.1"), tag("main")]);
    for at in [At::Tag(tag("main")), At::Digest(manifest.digest)] {
        let found = layout.manifest(&repository, &at).await.unwrap();
        assert_eq!(found.as_ref(), Some(&manifest));
    }
    let blob = manifest.layers[0].blob;
    let small = layout.small(&repository, &blob, 3).await.unwrap();
    assert_eq!(small, "one");
    let mut rest = Registry::open(&layout, &repository, &blob, 1)
        .await
        .expect("done");
    assert_eq!(rest.next().await.unwrap().unwrap(), "ne");
    assert!(rest.next().await.is_none());
}

#[tokio::test]
async fn other_repositories_have_other_tags() {
    let folder = tempfile::tempdir().unwrap();
    let layout = layout(folder.path());
    let manifest = artefact(&layout, "one").await;
    layout
        .push_manifest(&repository(), Some(&tag("0.3.1")), &manifest)
        .await
        .expect("done");
    let other: Repository = "os/microvisor-rt".parse().unwrap();
    assert!(layout.tags(&other).await.unwrap().is_empty());
    let found = layout.manifest(&other, &At::Tag(tag("0.3.1"))).await;
    assert_eq!(found.unwrap(), None);
}

#[tokio::test]
async fn a_tag_moves_and_the_old_manifest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let one = artefact(&layout, "one").await;
    let two = artefact(&layout, "two").await;
    for manifest in [&one, &two] {
        layout
            .push_manifest(&repository, Some(&tag("main")), manifest)
            .await
            .expect("done");
    }
    let found = layout.manifest(&repository, &At::Tag(tag("main"))).await;
    assert_eq!(found.unwrap(), Some(two));
    let found = layout.manifest(&repository, &At::Digest(one.digest)).await;
    assert_eq!(found.unwrap(), Some(one));
}

#[tokio::test]
async fn a_folder_that_is_no_layout_is_as_unreachable_as_a_registry_that_is_down() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let tags = layout(&missing).tags(&repository()).await;
    assert!(
        matches!(tags, Err(RegistryError::Unreachable(_))),
        "{tags:?}"
    );
    let found = layout(&missing)
        .manifest(&repository(), &At::Tag(tag("main")))
        .await;
    assert_eq!(found.unwrap(), None);
    assert!(!missing.exists());
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(Layout::open(&file, &Limits::default()).is_err());
}

#[tokio::test]
async fn a_manifest_goes_in_only_after_what_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let layout = layout(folder.path());
    let missing = Layer::file(Blob::of(b"missing"), "text/plain", "file");
    let manifest = Manifest::artifact("kind", vec![missing]);
    push(&layout, &Bytes::from_static(b"{}")).await;
    let error = layout
        .push_manifest(&repository(), Some(&tag("main")), &manifest)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("which is not there"), "{error}");
    let found = layout.manifest(&repository(), &At::Tag(tag("main"))).await;
    assert_eq!(found.unwrap(), None);
}

#[tokio::test]
async fn what_broke_off_is_carried_on_and_seen_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let origin = Breaking {
        content: Bytes::from_static(b"0123456789"),
        after: 4,
        opened_at: AtomicU64::new(0),
    };
    let blob = Blob::of(&origin.content);
    for from in [0, 4] {
        let error = layout.push_blob(&repository, &blob, &origin).await;
        assert!(matches!(error, Err(RegistryError::Stalled)), "{error:?}");
        assert_eq!(origin.opened_at.load(Ordering::SeqCst), from);
        assert!(!layout.has(&repository, &blob.digest).await.unwrap());
    }
    layout.push_blob(&repository, &blob, &origin).await.unwrap();
    assert_eq!(origin.opened_at.load(Ordering::SeqCst), 8);
    assert!(layout.has(&repository, &blob.digest).await.unwrap());
    let kept = std::fs::read(blob_file(folder.path(), &blob)).unwrap();
    assert_eq!(kept, b"0123456789");
}

#[tokio::test]
async fn a_part_of_something_else_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let layout = layout(folder.path());
    push(&layout, &Bytes::from_static(b"{}")).await;
    let content = Bytes::from_static(b"0123456789");
    let blob = Blob::of(&content);
    let part = blob_file(folder.path(), &blob).with_extension("part");
    for left in ["01x", "012345678x", "0123456789 and more", "0123456789"] {
        std::fs::write(&part, left).unwrap();
        push(&layout, &content).await;
        let place = blob_file(folder.path(), &blob);
        assert_eq!(std::fs::read(&place).unwrap(), content, "{left}");
        std::fs::remove_file(place).unwrap();
    }
}

#[tokio::test]
async fn what_is_not_what_it_should_be_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let content = Bytes::from_static(b"0123456789");
    let digest = Digest::of(b"something else");
    let cases = [
        Blob { digest, size: 10 },
        Blob { digest, size: 5 },
        Blob { digest, size: 20 },
        Blob {
            digest: Digest::of(&content),
            size: 20,
        },
        Blob {
            digest,
            size: u64::MAX,
        },
    ];
    for blob in cases {
        let pushed = layout.push_blob(&repository, &blob, &content).await;
        assert!(pushed.is_err(), "{blob:?}");
        assert!(!layout.has(&repository, &blob.digest).await.unwrap());
    }
}

#[tokio::test]
async fn what_was_damaged_on_the_disk_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let manifest = artefact(&layout, "one").await;
    layout
        .push_manifest(&repository, Some(&tag("main")), &manifest)
        .await
        .expect("done");
    let blob = manifest.layers[0].blob;
    for content in ["two", "on", "ones"] {
        std::fs::write(blob_file(folder.path(), &blob), content).unwrap();
        let small = layout.small(&repository, &blob, 10).await;
        assert!(small.is_err(), "{content}");
    }
    std::fs::write(blob_file(folder.path(), &Blob::of(&manifest.bytes)), "{}").unwrap();
    let found = layout.manifest(&repository, &At::Tag(tag("main"))).await;
    assert!(
        matches!(found, Err(RegistryError::WrongDigest { .. })),
        "{found:?}"
    );
    std::fs::write(folder.path().join("index.json"), "<html>").unwrap();
    assert!(layout.tags(&repository).await.is_err());
    let pushed = layout
        .push_manifest(&repository, Some(&tag("0.3.1")), &manifest)
        .await;
    assert!(pushed.is_err());
}

#[tokio::test]
async fn many_writers_lose_no_tag() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = artefact(&layout(folder.path()), "one").await;
    let writers = (0..20).map(|number| {
        let (layout, manifest) = (layout(folder.path()), manifest.clone());
        async move {
            let name = tag(&format!("0.3.{number}"));
            layout
                .push_manifest(&repository(), Some(&name), &manifest)
                .await
                .expect("done");
        }
    });
    let all: Vec<()> = stream::iter(writers).buffer_unordered(20).collect().await;
    assert_eq!(all.len(), 20);
    let tags = layout(folder.path()).tags(&repository()).await.unwrap();
    assert_eq!(tags.len(), 20);
}

/// A content that cannot be had.
struct Closed;

#[async_trait]
impl Origin for Closed {
    async fn open(&self, _: u64) -> Got<Body> {
        Err(RegistryError::NotThere)
    }
}

/// What was begun in a layout and is not complete.
fn parts(folder: &Path) -> Vec<std::path::PathBuf> {
    let shelf = std::fs::read_dir(folder.join("blobs/sha256")).expect("a layout");
    let paths = shelf.map(|entry| entry.expect("an entry").path());
    let is_part = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "part");
    paths.filter(is_part).collect()
}

#[tokio::test]
async fn nothing_stays_of_what_never_began() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let content = Bytes::from_static(b"0123456789");
    let blob = Blob::of(&content);
    let pushed = layout.push_blob(&repository, &blob, &Closed).await;
    assert!(matches!(pushed, Err(RegistryError::NotThere)), "{pushed:?}");
    assert!(parts(folder.path()).is_empty());
    let writers = (0..8).map(|_| push(&layout, &content));
    let all: Vec<Blob> = stream::iter(writers).buffer_unordered(8).collect().await;
    assert_eq!(all, [blob; 8]);
    push(&layout, &content).await;
    assert!(parts(folder.path()).is_empty());
}

#[tokio::test]
async fn what_was_begun_stays_when_the_rest_cannot_be_had() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    push(&layout, &Bytes::from_static(b"{}")).await;
    let blob = Blob::of(b"0123456789");
    let part = blob_file(folder.path(), &blob).with_extension("part");
    std::fs::write(&part, "0123").unwrap();
    let pushed = layout.push_blob(&repository, &blob, &Closed).await;
    assert!(matches!(pushed, Err(RegistryError::NotThere)), "{pushed:?}");
    assert_eq!(std::fs::read(&part).unwrap(), b"0123");
}
