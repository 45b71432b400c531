//! Required content of a bundle.

use std::fs::{self, File};
use std::path::Path;

use bytes::Bytes;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    Blob, Digest, Layer, Limits, Manifest, Registry, Repository, pack, unpack,
};

/// Pushes an artifact with one layer.
async fn push_artifact(layout: &Layout, name: &str, content: &Bytes) -> Manifest {
    let repository: Repository = name.parse().expect("a name");
    for content in [&Bytes::from_static(b"{}"), content] {
        let blob = Blob::new(content);
        let pushed = layout.push_blob(&repository, &blob, content).await;
        pushed.expect("the blob is accepted");
    }
    let layer = Layer::file(Blob::new(content), "text/plain", "file");
    let manifest = Manifest::artifact("kind", vec![layer]);
    let tag = "0.3.1".parse().expect("a tag");
    let pushed = layout.push_manifest(&repository, Some(&tag), &manifest);
    pushed.await.expect("the manifest is accepted");
    manifest
}

/// A copy of a bundle without one of its entries.
fn without(bundle: &Path, name: &str) -> Vec<u8> {
    let mut archive = tar::Archive::new(File::open(bundle).expect("a bundle"));
    let mut rest = tar::Builder::new(Vec::new());
    for entry in archive.entries().expect("a bundle") {
        let mut entry = entry.expect("an entry");
        if *entry.path_bytes() != *name.as_bytes() {
            let header = entry.header().clone();
            rest.append(&header, &mut entry).expect("it is written");
        }
    }
    rest.into_inner().expect("it is written")
}

#[tokio::test]
async fn files_from_an_earlier_attempt_do_not_complete_a_bundle() {
    let root = tempfile::tempdir().unwrap();
    let (shelf, staging) = (root.path().join("shelf"), root.path().join("staging"));
    let (bundle, rest) = (root.path().join("bundle"), root.path().join("rest"));
    let layout = Layout::open(&shelf, &Limits::default()).unwrap();
    let manifest = push_artifact(&layout, "os/a", &Bytes::from_static(b"one")).await;
    pack(&shelf, &bundle).unwrap();
    unpack(&bundle, &staging, &Limits::default()).unwrap();
    for digest in [Digest::compute(b"one"), manifest.digest] {
        fs::remove_file(staging.join("index.json")).unwrap();
        let missing = format!("blobs/sha256/{}", digest.hex());
        assert!(staging.join(&missing).is_file());
        fs::write(&rest, without(&bundle, &missing)).unwrap();
        let error = unpack(&rest, &staging, &Limits::default()).unwrap_err();
        assert!(error.to_string().contains("is missing"), "{error}");
        assert!(!staging.join("index.json").exists());
        unpack(&bundle, &staging, &Limits::default()).unwrap();
    }
}

#[tokio::test]
async fn a_manifest_that_is_also_a_layer_reaches_its_own_contents() {
    let root = tempfile::tempdir().unwrap();
    let shelf = root.path().join("shelf");
    let layout = Layout::open(&shelf, &Limits::default()).unwrap();
    let inner = push_artifact(&layout, "os/b", &Bytes::from_static(b"inside")).await;
    // Its index entry comes before that of the outer artifact.
    push_artifact(&layout, "os/a", &inner.bytes).await;
    let bundle = root.path().join("bundle");
    pack(&shelf, &bundle).unwrap();
    let content = format!("blobs/sha256/{}", Digest::compute(b"inside").hex());
    let rest = root.path().join("rest");
    fs::write(&rest, without(&bundle, &content)).unwrap();
    let staging = root.path().join("staging");
    let error = unpack(&rest, &staging, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
    fs::remove_file(shelf.join(&content)).unwrap();
    let error = pack(&shelf, &bundle).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
}
