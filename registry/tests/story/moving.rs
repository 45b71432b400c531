//! Publishing, copying and bundling.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use evenkeel_domain::os::revision::RevisionSelector;
use evenkeel_registry::copy::copy_layout;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    Blob, CopyError, CopyOptions, CopySummary, Digest, FindingKind, KeySet, Limits, Manifest,
    ManifestRef, Registry, Release, Repository, SigningKey, Tag, Upstream, Verdict, copy, pack,
    read_profile, unpack,
};

const PREFIX: &str = "edge-orch/en/files/os-profile/";
const IMAGE: &str = "edge-readonly-3.0.20260602.2200-prod-signed.raw.gz";
const IMAGE_PATH: &str = "files-edge-orch/repository/microvisor/non_rt";

fn yaml(extra: &str) -> String {
    format!(
        "appVersion: apps/v1
metadata:
  release: 0.0.0-dev # set when it is published
spec:
  name: Edge Microvisor Toolkit 3.0.20260602
  type: OS_TYPE_IMMUTABLE
  provider: OS_PROVIDER_KIND_INFRA
  architecture: x86_64
  profileName: microvisor-nonrt
  osImageUrl: {IMAGE_PATH}/{IMAGE}
  osImageVersion: 3.0.20260602.2200
  osPackageManifestURL: {IMAGE_PATH}/packages.json
  securityFeature: SECURITY_FEATURE_NONE
{extra}"
    )
}

fn folder(image: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("done");
    let path = folder.path();
    fs::write(path.join("microvisor-nonrt.yaml"), yaml("")).expect("done");
    fs::write(path.join(IMAGE), image).expect("done");
    let packages = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;
    fs::write(path.join("packages.json"), packages).expect("done");
    folder
}

fn layout(folder: &Path) -> Layout {
    Layout::open(folder, &Limits::default()).expect("done")
}

fn repository(end: &str) -> Repository {
    format!("{PREFIX}{end}").parse().expect("done")
}

fn tag(text: &str) -> Tag {
    text.parse().expect("done")
}

async fn publish(folder: &Path, to: &Layout, revision: &str, key: Option<&SigningKey>) {
    let (release, tags) = (Release::from_folder(folder, revision), [tag("main")]);
    let published = release.expect("a release");
    let published = published.publish(to, PREFIX, &tags, key, &mut ()).await;
    published.expect("it is published");
}

async fn find(layout: &Layout, end: &str, name: &str) -> Option<Manifest> {
    let (repository, at) = (repository(end), ManifestRef::Tag(tag(name)));
    layout.manifest(&repository, &at).await.expect("it is read")
}

fn options(filter: &str, images: bool, work: &Path) -> CopyOptions {
    CopyOptions {
        profiles: vec!["microvisor-nonrt".to_owned()],
        revision_filter: RevisionSelector::parse(filter).expect("done"),
        with_images: images,
        work_dir: work.to_owned(),
        key: None,
    }
}

async fn mirror(from: &Layout, to: &Layout, what: &CopyOptions) -> Result<CopySummary, CopyError> {
    let upstream = Upstream { registry: from, web: None, prefix: PREFIX, files_url: None };
    copy(&upstream, to, what, &mut ()).await
}

fn folder_content(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten() {
            let path = entry.expect("done").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                all.push((path.display().to_string(), fs::read(&path).expect("done")));
            }
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn a_release_is_published_with_files_and_signatures() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (to, key) = (layout(shelf.path()), SigningKey::generate());
    publish(source.path(), &to, "0.3.1", Some(&key)).await;
    let manifest = find(&to, "microvisor-nonrt", "0.3.1").await.unwrap();
    let kind = manifest.artifact_type.as_deref();
    assert_eq!(kind, Some("application/vnd.intel.orch.en"));
    let branch = find(&to, "microvisor-nonrt", "main").await;
    assert_eq!(branch.as_ref(), Some(&manifest));
    let layer = &manifest.layers[0];
    let text = to.blob(&repository("microvisor-nonrt"), &layer.blob, 10_000).await.expect("done");
    let read = read_profile(layer.title.as_deref().unwrap(), &text).unwrap();
    assert_eq!(read.release, "0.3.1");
    let image = Digest::compute(b"the image");
    assert_eq!(read.spec.sha256.as_str(), image.hex());
    let files = find(&to, "microvisor-nonrt/files", "0.3.1").await.unwrap();
    let titles: Vec<&str> =
        files.layers.iter().filter_map(|layer| layer.title.as_deref()).collect();
    let packages = format!("{IMAGE_PATH}/packages.json");
    assert_eq!(titles, [format!("{IMAGE_PATH}/{IMAGE}"), packages]);
    assert_eq!(files.layers[0].blob.digest, image);
    let keys = KeySet::read(&[key.public_pem()]).unwrap();
    for (end, manifest) in [("microvisor-nonrt", manifest), ("microvisor-nonrt/files", files)] {
        let repository = repository(end);
        let verdict = keys.verify(&to, &repository, &manifest.digest, "0.3.1").await.expect("done");
        assert!(matches!(verdict, Verdict::Good(_)), "{verdict:?}");
    }
}

#[tokio::test]
async fn a_revision_is_published_once() {
    let shelf = tempfile::tempdir().unwrap();
    let to = layout(shelf.path());
    let (one, two) = (folder("one"), folder("two"));
    publish(one.path(), &to, "0.3.1", None).await;
    publish(one.path(), &to, "0.3.1", None).await;
    let before = folder_content(shelf.path());
    let release = Release::from_folder(two.path(), "0.3.1").unwrap();
    let error = release.publish(&to, PREFIX, &[], None, &mut ()).await;
    assert!(matches!(error, Err(CopyError::Exists { .. })), "{error:?}");
    assert_eq!(folder_content(shelf.path()), before);
    let moved = release.with_allow_move(true);
    moved.publish(&to, PREFIX, &[], None, &mut ()).await.expect("done");
    let files = find(&to, "microvisor-nonrt/files", "0.3.1").await.unwrap();
    assert_eq!(files.layers[0].blob, Blob::new(b"two"));
}

#[tokio::test]
async fn a_release_is_not_published_as_another_revision() {
    let (source, shelf) = (folder("one"), tempfile::tempdir().unwrap());
    let release = Release::from_folder(source.path(), "0.3.1").unwrap();
    let to = layout(shelf.path());
    let error = release.publish(&to, PREFIX, &[tag("0.3.2")], None, &mut ()).await.unwrap_err();
    assert!(matches!(error, CopyError::OtherRevision { .. }), "{error}");
    assert!(folder_content(shelf.path()).is_empty());
}

#[test]
fn all_problems_of_a_folder_are_reported_together() {
    let source = folder("one");
    let path = source.path();
    let wrong = format!("  osImageSha256: {}\n", Digest::compute(b"two").hex());
    fs::write(path.join("microvisor-nonrt.yaml"), yaml(&wrong)).unwrap();
    fs::write(path.join("packages.json"), "<html></html>").unwrap();
    fs::write(path.join("broken.yaml"), "a: [").unwrap();
    fs::write(path.join("flow.yaml"), "metadata: {release: 1}\nspec: {}\n").unwrap();
    let findings = Release::from_folder(path, "0.3.1").unwrap_err();
    let has = |kind: FindingKind, text: &str| {
        let fits = |f: &&evenkeel_registry::Finding| f.kind == kind && f.message.contains(text);
        assert!(findings.iter().any(|f| fits(&f)), "{kind}: {findings:?}");
    };
    has(FindingKind::WrongDigest, "the image here has");
    has(FindingKind::Packages, "packages.json");
    has(FindingKind::RevisionMismatch, "flow.yaml");
    assert!(findings.iter().any(|f| f.message.contains("broken.yaml")));
    fs::remove_file(path.join(IMAGE)).unwrap();
    let findings = Release::from_folder(path, "0.3.1").unwrap_err();
    assert!(findings.iter().any(|f| f.kind == FindingKind::NotThere));
    for revision in ["main", "0.3", "", "0.3.1.2", "../0.3.1"] {
        assert!(Release::from_folder(path, revision).is_err(), "{revision}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(Release::from_folder(empty.path(), "0.3.1").is_err());
}

#[tokio::test]
async fn a_copy_has_the_selected_revisions_and_their_signatures() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to, key) = (layout(shelf.path()), layout(dest.path()), SigningKey::generate());
    for revision in ["0.3.1", "0.3.2", "0.4.0"] {
        publish(source.path(), &from, revision, Some(&key)).await;
    }
    let what = options("~0.3.1", true, work.path());
    let done = mirror(&from, &to, &what).await.unwrap();
    assert_eq!((done.revisions, done.findings), (2, vec![]));
    let tags = to.tags(&repository("microvisor-nonrt")).await.unwrap();
    let tags: Vec<&str> = tags.iter().map(Tag::as_str).collect();
    let tags: Vec<&&str> = tags.iter().filter(|t| !t.starts_with("sha256-")).collect();
    assert_eq!(tags, [&"0.3.1", &"0.3.2"]);
    let keys = KeySet::read(&[key.public_pem()]).unwrap();
    for end in ["microvisor-nonrt", "microvisor-nonrt/files"] {
        let manifest = find(&to, end, "0.3.2").await.unwrap();
        assert_eq!(find(&from, end, "0.3.2").await.as_ref(), Some(&manifest));
        let repository = repository(end);
        // The files of all three revisions are the same artifact, so all of its signatures must be
        // copied.
        let verdict = keys.verify(&to, &repository, &manifest.digest, "0.3.2").await.expect("done");
        assert!(matches!(verdict, Verdict::Good(_)), "{end}: {verdict:?}");
    }
    let before = folder_content(dest.path());
    let again = mirror(&from, &to, &what).await.unwrap();
    assert_eq!((again.revisions, again.blobs, again.bytes), (2, 0, 0));
    assert_eq!(folder_content(dest.path()), before);
}

#[tokio::test]
async fn a_copy_without_images_has_all_other_files() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (layout(shelf.path()), layout(dest.path()));
    publish(source.path(), &from, "0.3.1", None).await;
    let key = SigningKey::generate();
    let what = CopyOptions { key: Some(key.clone()), ..options("0.3.1", false, work.path()) };
    mirror(&from, &to, &what).await.unwrap();
    let files = find(&to, "microvisor-nonrt/files", "0.3.1").await.unwrap();
    let titles: Vec<&str> =
        files.layers.iter().filter_map(|layer| layer.title.as_deref()).collect();
    assert_eq!(titles, [format!("{IMAGE_PATH}/packages.json")]);
    let repository = repository("microvisor-nonrt/files");
    let image = Digest::compute(b"the image");
    assert!(!to.has_blob(&repository, &image).await.unwrap());
    let keys = KeySet::read(&[key.public_pem()]).unwrap();
    let verdict = keys.verify(&to, &repository, &files.digest, "0.3.1").await;
    assert!(matches!(verdict, Ok(Verdict::Good(_))), "{verdict:?}");
}

#[tokio::test]
async fn an_image_of_another_digest_is_left_out_with_a_finding() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (layout(shelf.path()), layout(dest.path()));
    publish(source.path(), &from, "0.3.1", None).await;
    // Someone replaces the files, but not the profile.
    let other = tempfile::tempdir().unwrap();
    let elsewhere = layout(other.path());
    publish(folder("another image").path(), &elsewhere, "0.3.1", None).await;
    let files = repository("microvisor-nonrt/files");
    let manifest = find(&elsewhere, "microvisor-nonrt/files", "0.3.1").await;
    let manifest = manifest.unwrap();
    for blob in manifest.blobs() {
        let content = elsewhere.blob(&files, &blob, 1_000).await.unwrap();
        from.push_blob(&files, &blob, &content).await.unwrap();
    }
    from.push_manifest(&files, Some(&tag("0.3.1")), &manifest).await.expect("done");
    let done = mirror(&from, &to, &options("0.3.1", true, work.path())).await;
    let findings = done.unwrap().findings;
    let title = format!("{IMAGE_PATH}/{IMAGE}");
    assert_eq!(findings[0].1.field, Some(title), "{findings:?}");
    let image = Digest::compute(b"another image");
    assert!(!to.has_blob(&files, &image).await.unwrap());
}

#[tokio::test]
async fn a_selection_without_match_is_an_error_and_changes_nothing() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (layout(shelf.path()), layout(dest.path()));
    publish(source.path(), &from, "0.3.1", None).await;
    let error = mirror(&from, &to, &options("~0.4.0", true, work.path())).await;
    assert!(matches!(error, Err(CopyError::NoRevisions(_))), "{error:?}");
    assert!(folder_content(dest.path()).is_empty());
}

/// Creates a bundle of one signed release. Returns the layout that it was made of.
async fn create_bundle(folder_of_it: &Path) -> Layout {
    let source = folder("the image");
    let shelf = layout(&folder_of_it.join("shelf"));
    let key = SigningKey::generate();
    publish(source.path(), &shelf, "0.3.1", Some(&key)).await;
    pack(&folder_of_it.join("shelf"), &folder_of_it.join("bundle")).expect("done");
    shelf
}

#[tokio::test]
async fn a_bundle_contains_everything() {
    let root = tempfile::tempdir().unwrap();
    let shelf = create_bundle(root.path()).await;
    let again = root.path().join("again");
    pack(&root.path().join("shelf"), &again).unwrap();
    let file = root.path().join("bundle");
    assert_eq!(fs::read(&again).unwrap(), fs::read(&file).unwrap());
    let staging = root.path().join("staging");
    unpack(&file, &staging, &Limits::default()).unwrap();
    let target = layout(&root.path().join("target"));
    let done = copy_layout(&layout(&staging), &target, &mut ()).await;
    assert_eq!(done.unwrap().revisions, 2);
    let tags = target.all_tags().await.unwrap();
    assert_eq!(tags, shelf.all_tags().await.unwrap());
    for (repository, tag) in tags {
        let at = ManifestRef::Tag(tag);
        let one = shelf.manifest(&repository, &at).await.unwrap();
        assert_eq!(target.manifest(&repository, &at).await.unwrap(), one);
    }
    let error = unpack(&file, &staging, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("already has"), "{error}");
}

#[tokio::test]
async fn a_truncated_or_damaged_bundle_creates_no_layout() {
    let root = tempfile::tempdir().unwrap();
    create_bundle(root.path()).await;
    let content = fs::read(root.path().join("bundle")).unwrap();
    let (file, staging) = (root.path().join("cut"), root.path().join("staging"));
    for part in 0..200 {
        let length = content.len() * part / 200;
        fs::write(&file, &content[..length]).unwrap();
        let unpacked = unpack(&file, &staging, &Limits::default());
        assert!(unpacked.is_err(), "{length} of {}", content.len());
        assert!(!staging.join("index.json").exists());
    }
    // A change of the first headers or the index could still be valid, so start at the first blob.
    let is_first = |bytes: &[u8]| bytes.starts_with(b"blobs/sha256/");
    let first = content.chunks(512).position(is_first).unwrap();
    for block in (first..content.len() / 512).filter(|block| content[block * 512] != 0) {
        let mut damaged = content.clone();
        damaged[block * 512] ^= 1;
        fs::write(&file, &damaged).unwrap();
        let unpacked = unpack(&file, &staging, &Limits::default());
        assert!(unpacked.is_err(), "block {block}");
        assert!(!staging.join("index.json").exists());
    }
    fs::write(&file, &content).unwrap();
    unpack(&file, &staging, &Limits::default()).unwrap();
}

fn tar_with(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        // Set the bytes directly: the library refuses some of these names.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o777);
        header.set_cksum();
        builder.append(&header, *content).expect("done");
    }
    builder.into_inner().expect("done")
}

#[tokio::test]
async fn a_bundle_contains_nothing_but_a_layout() {
    let root = tempfile::tempdir().unwrap();
    create_bundle(root.path()).await;
    let shelf = root.path().join("shelf");
    let index = fs::read(shelf.join("index.json")).unwrap();
    let mark: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
    let file = root.path().join("strange");
    let plain = tar::EntryType::Regular;
    let blob = format!("blobs/sha256/{}", Digest::compute(b"one").hex());
    let cases: Vec<(&str, tar::EntryType, &[u8])> = vec![
        ("../../escaped", plain, b"one"),
        ("/escaped", plain, b"one"),
        ("blobs/sha256/../../../escaped", plain, b"one"),
        ("blobs/sha256/short", plain, b"one"),
        ("escaped", plain, b"one"),
        ("elsewhere/", tar::EntryType::Directory, b""),
        (&blob, tar::EntryType::Symlink, b""),
        (&blob, tar::EntryType::Link, b""),
        (&blob, tar::EntryType::Fifo, b""),
        (&blob, tar::EntryType::Block, b""),
        (&blob, tar::EntryType::GNUSparse, b"one"),
        (&blob, tar::EntryType::GNULongName, b"../../escaped\0"),
        (&blob, plain, b"two"),
        ("index.json", plain, b"<html>"),
        ("oci-layout", plain, b"<html>"),
    ];
    for (number, case) in cases.iter().enumerate() {
        fs::write(&file, tar_with(&[*case])).unwrap();
        let staging = root.path().join(format!("strange-{number}"));
        let unpacked = unpack(&file, &staging, &Limits::default());
        assert!(unpacked.is_err(), "{case:?}");
        assert!(!staging.join("index.json").exists());
        assert!(!root.path().join("escaped").exists(), "{case:?}");
    }
    let twice = [("oci-layout", plain, mark), ("oci-layout", plain, mark)];
    let missing = [("oci-layout", plain, mark), ("index.json", plain, &index[..])];
    let unmarked = [("index.json", plain, br#"{"schemaVersion":2}"#.as_slice())];
    for entries in [&twice[..], &missing[..], &unmarked[..]] {
        fs::write(&file, tar_with(entries)).unwrap();
        let staging = tempfile::tempdir().unwrap();
        let unpacked = unpack(&file, staging.path(), &Limits::default());
        assert!(matches!(unpacked, Err(CopyError::Bundle(_))), "{unpacked:?}");
    }
}

#[tokio::test]
async fn the_size_of_a_bundle_is_limited() {
    let root = tempfile::tempdir().unwrap();
    create_bundle(root.path()).await;
    let file = root.path().join("bundle");
    let small_limits = [
        Limits { bundle_entries: 3, ..Limits::default() },
        Limits { bundle_bytes: 100, ..Limits::default() },
        Limits { blob_bytes: 10, ..Limits::default() },
        Limits { manifest_bytes: 10, ..Limits::default() },
    ];
    for (number, limits) in small_limits.iter().enumerate() {
        let staging = root.path().join(format!("small-{number}"));
        let error = unpack(&file, &staging, limits).unwrap_err();
        assert!(matches!(error, CopyError::Bundle(_)), "{error}");
        assert!(!staging.join("index.json").exists());
    }
}

#[tokio::test]
async fn a_copied_layout_preserves_the_content_of_its_target() {
    let root = tempfile::tempdir().unwrap();
    create_bundle(root.path()).await;
    let target = layout(&root.path().join("target"));
    let source = folder("an older image");
    publish(source.path(), &target, "0.2.9", None).await;
    let staging = root.path().join("staging");
    unpack(&root.path().join("bundle"), &staging, &Limits::default()).unwrap();
    let done = copy_layout(&layout(&staging), &target, &mut ()).await;
    done.unwrap();
    for revision in ["0.2.9", "0.3.1"] {
        assert!(find(&target, "microvisor-nonrt", revision).await.is_some());
    }
    let image = Bytes::from_static(b"an older image");
    let files = repository("microvisor-nonrt/files");
    let stored = target.blob(&files, &Blob::new(&image), 100).await.unwrap();
    assert_eq!(stored, image);
}
