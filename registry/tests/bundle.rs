//! What a bundle must hold.

use std::fs::{self, File};
use std::path::Path;

use bytes::Bytes;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    Blob, Digest, Layer, Limits, Manifest, Registry, Repository, pack, unpack,
};

/// Puts an artefact with one content in.
async fn put(layout: &Layout, name: &str, content: &Bytes) -> Manifest {
    let repository: Repository = name.parse().expect("a name");
    for content in [&Bytes::from_static(b"{}"), content] {
        let blob = Blob::of(content);
        let pushed = layout.push_blob(&repository, &blob, content).await;
        pushed.expect("it is taken");
    }
    let layer = Layer::file(Blob::of(content), "text/plain", "file");
    let manifest = Manifest::artifact("kind", vec![layer]);
    let tag = "0.3.1".parse().expect("a tag");
    let pushed = layout.push_manifest(&repository, Some(&tag), &manifest);
    pushed.await.expect("it is taken");
    manifest
}

/// The same bundle without one of its entries.
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
async fn what_lay_there_before_does_not_make_a_bundle_whole() {
    let place = tempfile::tempdir().unwrap();
    let (shelf, staging) = (place.path().join("shelf"), place.path().join("staging"));
    let (bundle, rest) = (place.path().join("bundle"), place.path().join("rest"));
    let layout = Layout::open(&shelf, &Limits::default()).unwrap();
    let manifest = put(&layout, "os/a", &Bytes::from_static(b"one")).await;
    pack(&shelf, &bundle).unwrap();
    unpack(&bundle, &staging, &Limits::default()).unwrap();
    for digest in [Digest::of(b"one"), manifest.digest] {
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
async fn a_manifest_that_is_a_layer_of_another_one_too_reaches_its_own_contents() {
    let place = tempfile::tempdir().unwrap();
    let shelf = place.path().join("shelf");
    let layout = Layout::open(&shelf, &Limits::default()).unwrap();
    let inner = put(&layout, "os/b", &Bytes::from_static(b"inside")).await;
    // It stands before the other one in the index.
    put(&layout, "os/a", &inner.bytes).await;
    let bundle = place.path().join("bundle");
    pack(&shelf, &bundle).unwrap();
    let content = format!("blobs/sha256/{}", Digest::of(b"inside").hex());
    let rest = place.path().join("rest");
    fs::write(&rest, without(&bundle, &content)).unwrap();
    let staging = place.path().join("staging");
    let error = unpack(&rest, &staging, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
    fs::remove_file(shelf.join(&content)).unwrap();
    let error = pack(&shelf, &bundle).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
}
