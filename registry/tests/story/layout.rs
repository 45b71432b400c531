//! A folder as a registry.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    Blob, BlobStream, Digest, Layer, Limits, Manifest, ManifestRef, Origin, Registry,
    RegistryError, RegistryResult, Repository, Tag,
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

async fn push_blob(layout: &Layout, content: &Bytes) -> Blob {
    let blob = Blob::new(content);
    layout.push_blob(&repository(), &blob, content).await.expect("done");
    blob
}

async fn artifact(layout: &Layout, content: &'static str) -> Manifest {
    push_blob(layout, &Bytes::from_static(b"{}")).await;
    let blob = push_blob(layout, &Bytes::from_static(content.as_bytes())).await;
    Manifest::artifact("kind", vec![Layer::file(blob, "text/plain", "file")])
}

fn blob_file(folder: &Path, blob: &Blob) -> std::path::PathBuf {
    folder.join("blobs/sha256").join(blob.digest.hex())
}

/// Content that is interrupted after some bytes each time it is opened.
struct InterruptedOrigin {
    content: Bytes,
    chunk_bytes: usize,
    opened_at: AtomicU64,
}

#[async_trait]
impl Origin for InterruptedOrigin {
    async fn open(&self, from: u64) -> RegistryResult<BlobStream> {
        self.opened_at.store(from, Ordering::SeqCst);
        let from = usize::try_from(from).expect("done");
        let end = self.content.len().min(from + self.chunk_bytes);
        let chunk = self.content.slice(from..end);
        let mut chunks = vec![Ok(chunk)];
        if end < self.content.len() {
            chunks.push(Err(RegistryError::Stalled));
        }
        Ok(Box::pin(stream::iter(chunks)))
    }
}

#[tokio::test]
async fn a_pushed_artifact_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let manifest = artifact(&layout, "one").await;
    for name in ["0.3.1", "main"] {
        layout.push_manifest(&repository, Some(&tag(name)), &manifest).await.expect("done");
    }
    let tags = layout.tags(&repository).await.unwrap();
    assert_eq!(tags, [tag("0.3.1"), tag("main")]);
    for at in [ManifestRef::Tag(tag("main")), ManifestRef::Digest(manifest.digest)] {
        let result = layout.manifest(&repository, &at).await.unwrap();
        assert_eq!(result.as_ref(), Some(&manifest));
    }
    let blob = manifest.layers[0].blob;
    let bytes = layout.blob(&repository, &blob, 3).await.unwrap();
    assert_eq!(bytes, "one");
    let mut rest = Registry::open_blob(&layout, &repository, &blob, 1).await.expect("done");
    assert_eq!(rest.next().await.unwrap().unwrap(), "ne");
    assert!(rest.next().await.is_none());
}

#[tokio::test]
async fn other_repositories_have_other_tags() {
    let folder = tempfile::tempdir().unwrap();
    let layout = layout(folder.path());
    let manifest = artifact(&layout, "one").await;
    layout.push_manifest(&repository(), Some(&tag("0.3.1")), &manifest).await.expect("done");
    let other: Repository = "os/microvisor-rt".parse().unwrap();
    assert!(layout.tags(&other).await.unwrap().is_empty());
    let result = layout.manifest(&other, &ManifestRef::Tag(tag("0.3.1"))).await;
    assert_eq!(result.unwrap(), None);
}

#[tokio::test]
async fn a_tag_moves_and_the_old_manifest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let one = artifact(&layout, "one").await;
    let two = artifact(&layout, "two").await;
    for manifest in [&one, &two] {
        layout.push_manifest(&repository, Some(&tag("main")), manifest).await.expect("done");
    }
    let result = layout.manifest(&repository, &ManifestRef::Tag(tag("main"))).await;
    assert_eq!(result.unwrap(), Some(two));
    let result = layout.manifest(&repository, &ManifestRef::Digest(one.digest)).await;
    assert_eq!(result.unwrap(), Some(one));
}

#[tokio::test]
async fn a_folder_without_layout_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let tags = layout(&missing).tags(&repository()).await;
    assert!(matches!(tags, Err(RegistryError::Unreachable(_))), "{tags:?}");
    let result = layout(&missing).manifest(&repository(), &ManifestRef::Tag(tag("main"))).await;
    assert_eq!(result.unwrap(), None);
    assert!(!missing.exists());
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(Layout::open(&file, &Limits::default()).is_err());
}

#[tokio::test]
async fn a_manifest_needs_its_blobs() {
    let folder = tempfile::tempdir().unwrap();
    let layout = layout(folder.path());
    let missing = Layer::file(Blob::new(b"missing"), "text/plain", "file");
    let manifest = Manifest::artifact("kind", vec![missing]);
    push_blob(&layout, &Bytes::from_static(b"{}")).await;
    let error = layout
        .push_manifest(&repository(), Some(&tag("main")), &manifest)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("which does not exist"), "{error}");
    let result = layout.manifest(&repository(), &ManifestRef::Tag(tag("main"))).await;
    assert_eq!(result.unwrap(), None);
}

#[tokio::test]
async fn an_interrupted_blob_is_resumed_and_stays_invisible() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let origin = InterruptedOrigin {
        content: Bytes::from_static(b"0123456789"),
        chunk_bytes: 4,
        opened_at: AtomicU64::new(0),
    };
    let blob = Blob::new(&origin.content);
    for from in [0, 4] {
        let error = layout.push_blob(&repository, &blob, &origin).await;
        assert!(matches!(error, Err(RegistryError::Stalled)), "{error:?}");
        assert_eq!(origin.opened_at.load(Ordering::SeqCst), from);
        assert!(!layout.has_blob(&repository, &blob.digest).await.unwrap());
    }
    layout.push_blob(&repository, &blob, &origin).await.unwrap();
    assert_eq!(origin.opened_at.load(Ordering::SeqCst), 8);
    assert!(layout.has_blob(&repository, &blob.digest).await.unwrap());
    let stored = std::fs::read(blob_file(folder.path(), &blob)).unwrap();
    assert_eq!(stored, b"0123456789");
}

#[tokio::test]
async fn invalid_content_is_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let content = Bytes::from_static(b"0123456789");
    let digest = Digest::compute(b"something else");
    let cases = [
        Blob { digest, size: 10 },
        Blob { digest, size: 5 },
        Blob { digest, size: 20 },
        Blob { digest: Digest::compute(&content), size: 20 },
        Blob { digest, size: u64::MAX },
    ];
    for blob in cases {
        let pushed = layout.push_blob(&repository, &blob, &content).await;
        assert!(pushed.is_err(), "{blob:?}");
        assert!(!layout.has_blob(&repository, &blob.digest).await.unwrap());
    }
}

#[tokio::test]
async fn damage_on_disk_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let manifest = artifact(&layout, "one").await;
    layout.push_manifest(&repository, Some(&tag("main")), &manifest).await.expect("done");
    let blob = manifest.layers[0].blob;
    for content in ["two", "on", "ones"] {
        std::fs::write(blob_file(folder.path(), &blob), content).unwrap();
        let read = layout.blob(&repository, &blob, 10).await;
        assert!(read.is_err(), "{content}");
    }
    std::fs::write(blob_file(folder.path(), &Blob::new(&manifest.bytes)), "{}").unwrap();
    let result = layout.manifest(&repository, &ManifestRef::Tag(tag("main"))).await;
    assert!(matches!(result, Err(RegistryError::WrongDigest { .. })), "{result:?}");
    std::fs::write(folder.path().join("index.json"), "<html>").unwrap();
    assert!(layout.tags(&repository).await.is_err());
    let pushed = layout.push_manifest(&repository, Some(&tag("0.3.1")), &manifest).await;
    assert!(pushed.is_err());
}

#[tokio::test]
async fn concurrent_writers_lose_no_tag() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = artifact(&layout(folder.path()), "one").await;
    let writers = (0..20).map(|number| {
        let (layout, manifest) = (layout(folder.path()), manifest.clone());
        async move {
            let name = tag(&format!("0.3.{number}"));
            layout.push_manifest(&repository(), Some(&name), &manifest).await.expect("done");
        }
    });
    let all: Vec<()> = stream::iter(writers).buffer_unordered(20).collect().await;
    assert_eq!(all.len(), 20);
    let tags = layout(folder.path()).tags(&repository()).await.unwrap();
    assert_eq!(tags.len(), 20);
}

/// Content that does not exist.
struct MissingOrigin;

#[async_trait]
impl Origin for MissingOrigin {
    async fn open(&self, _: u64) -> RegistryResult<BlobStream> {
        Err(RegistryError::NotFound)
    }
}

/// The partial files of a layout.
fn partial_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let shelf = std::fs::read_dir(folder.join("blobs/sha256")).expect("a layout");
    let paths = shelf.map(|entry| entry.expect("an entry").path());
    let is_part = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "part");
    paths.filter(is_part).collect()
}

#[tokio::test]
async fn a_failed_start_removes_its_partial_file() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, repository) = (layout(folder.path()), repository());
    let content = Bytes::from_static(b"0123456789");
    let blob = Blob::new(&content);
    let pushed = layout.push_blob(&repository, &blob, &MissingOrigin).await;
    assert!(matches!(pushed, Err(RegistryError::NotFound)), "{pushed:?}");
    assert!(partial_files(folder.path()).is_empty());
    let writers = (0..8).map(|_| push_blob(&layout, &content));
    let all: Vec<Blob> = stream::iter(writers).buffer_unordered(8).collect().await;
    assert_eq!(all, [blob; 8]);
    push_blob(&layout, &content).await;
    assert!(partial_files(folder.path()).is_empty());
}
