//! Publishing, copying, and a catalogue in one file.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use evenkeel_domain::os::revision::Wanted;
use evenkeel_registry::copy::everything;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    At, Blob, Copied, Digest, FindingKind, KeySet, Limits, Manifest, MoveError, Registry, Release,
    Repository, Selection, SigningKey, Tag, Upstream, Verdict, copy, pack, profile, unpack,
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

/// A folder with one profile, its image and the list of its packages.
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
    let (release, tags) = (Release::of_folder(folder, revision), [tag("main")]);
    let published = release.expect("a release");
    let published = published.publish(to, PREFIX, &tags, key, &mut ()).await;
    published.expect("it is published");
}

async fn found(layout: &Layout, end: &str, name: &str) -> Option<Manifest> {
    let (repository, at) = (repository(end), At::Tag(tag(name)));
    layout.manifest(&repository, &at).await.expect("it is read")
}

fn selection(wanted: &str, images: bool, work: &Path) -> Selection {
    Selection {
        profiles: vec!["microvisor-nonrt".to_owned()],
        wanted: Wanted::parse(wanted).expect("done"),
        images,
        work: work.to_owned(),
        key: None,
    }
}

async fn copied(from: &Layout, to: &Layout, what: &Selection) -> Result<Copied, MoveError> {
    let upstream = Upstream {
        registry: from,
        web: None,
        prefix: PREFIX,
        files_url: None,
    };
    copy(&upstream, to, what, &mut ()).await
}

/// Every file below a folder with its content, but for what is being written.
fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
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
async fn a_release_is_published_with_its_files_and_signed() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (to, key) = (layout(shelf.path()), SigningKey::make());
    publish(source.path(), &to, "0.3.1", Some(&key)).await;
    let manifest = found(&to, "microvisor-nonrt", "0.3.1").await.unwrap();
    let kind = manifest.artifact_type.as_deref();
    assert_eq!(kind, Some("application/vnd.intel.orch.en"));
    let branch = found(&to, "microvisor-nonrt", "main").await;
    assert_eq!(branch.as_ref(), Some(&manifest));
    let layer = &manifest.layers[0];
    let text = to
        .small(&repository("microvisor-nonrt"), &layer.blob, 10_000)
        .await
        .expect("done");
    let read = profile(layer.title.as_deref().unwrap(), &text).unwrap();
    assert_eq!(read.release, "0.3.1");
    let image = Digest::of(b"the image");
    assert_eq!(read.spec.sha256.as_str(), image.hex());
    let files = found(&to, "microvisor-nonrt/files", "0.3.1").await.unwrap();
    let titles: Vec<&str> = files
        .layers
        .iter()
        .filter_map(|layer| layer.title.as_deref())
        .collect();
    let packages = format!("{IMAGE_PATH}/packages.json");
    assert_eq!(titles, [format!("{IMAGE_PATH}/{IMAGE}"), packages]);
    assert_eq!(files.layers[0].blob.digest, image);
    let keys = KeySet::read(&[key.public_pem()]).unwrap();
    for (end, manifest) in [
        ("microvisor-nonrt", manifest),
        ("microvisor-nonrt/files", files),
    ] {
        let repository = repository(end);
        let verdict = keys
            .judge(&to, &repository, &manifest.digest, "0.3.1")
            .await
            .expect("done");
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
    let before = content(shelf.path());
    let release = Release::of_folder(two.path(), "0.3.1").unwrap();
    let error = release.publish(&to, PREFIX, &[], None, &mut ()).await;
    assert!(matches!(error, Err(MoveError::Taken { .. })), "{error:?}");
    assert_eq!(content(shelf.path()), before);
    let moved = release.moving(true);
    moved
        .publish(&to, PREFIX, &[], None, &mut ())
        .await
        .expect("done");
    let files = found(&to, "microvisor-nonrt/files", "0.3.1").await.unwrap();
    assert_eq!(files.layers[0].blob, Blob::of(b"two"));
}

#[tokio::test]
async fn a_release_is_not_published_as_another_revision() {
    let (source, shelf) = (folder("one"), tempfile::tempdir().unwrap());
    let release = Release::of_folder(source.path(), "0.3.1").unwrap();
    let to = layout(shelf.path());
    let error = release
        .publish(&to, PREFIX, &[tag("0.3.2")], None, &mut ())
        .await
        .unwrap_err();
    assert!(matches!(error, MoveError::OtherRevision { .. }), "{error}");
    assert!(content(shelf.path()).is_empty());
}

#[test]
fn all_that_is_wrong_with_a_folder_is_said_at_once() {
    let source = folder("one");
    let path = source.path();
    let wrong = format!("  osImageSha256: {}\n", Digest::of(b"two").hex());
    fs::write(path.join("microvisor-nonrt.yaml"), yaml(&wrong)).unwrap();
    fs::write(path.join("packages.json"), "<html></html>").unwrap();
    fs::write(path.join("broken.yaml"), "a: [").unwrap();
    fs::write(path.join("flow.yaml"), "metadata: {release: 1}\nspec: {}\n").unwrap();
    let findings = Release::of_folder(path, "0.3.1").unwrap_err();
    let has = |kind: FindingKind, text: &str| {
        let fits = |f: &&evenkeel_registry::Finding| f.kind == kind && f.message.contains(text);
        assert!(findings.iter().any(|f| fits(&f)), "{kind}: {findings:?}");
    };
    has(FindingKind::WrongDigest, "the image here has");
    has(FindingKind::Packages, "packages.json");
    has(FindingKind::RevisionMismatch, "flow.yaml");
    assert!(findings.iter().any(|f| f.message.contains("broken.yaml")));
    fs::remove_file(path.join(IMAGE)).unwrap();
    let findings = Release::of_folder(path, "0.3.1").unwrap_err();
    assert!(findings.iter().any(|f| f.kind == FindingKind::NotThere));
    for revision in ["main", "0.3", "", "0.3.1.2", "../0.3.1"] {
        assert!(Release::of_folder(path, revision).is_err(), "{revision}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(Release::of_folder(empty.path(), "0.3.1").is_err());
}

#[tokio::test]
async fn a_copy_has_what_was_selected_and_its_signatures() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to, key) = (
        layout(shelf.path()),
        layout(there.path()),
        SigningKey::make(),
    );
    for revision in ["0.3.1", "0.3.2", "0.4.0"] {
        publish(source.path(), &from, revision, Some(&key)).await;
    }
    let what = selection("~0.3.1", true, work.path());
    let done = copied(&from, &to, &what).await.unwrap();
    assert_eq!((done.revisions, done.findings), (2, vec![]));
    let tags = to.tags(&repository("microvisor-nonrt")).await.unwrap();
    let tags: Vec<&str> = tags.iter().map(Tag::as_str).collect();
    let tags: Vec<&&str> = tags.iter().filter(|t| !t.starts_with("sha256-")).collect();
    assert_eq!(tags, [&"0.3.1", &"0.3.2"]);
    let keys = KeySet::read(&[key.public_pem()]).unwrap();
    for end in ["microvisor-nonrt", "microvisor-nonrt/files"] {
        let manifest = found(&to, end, "0.3.2").await.unwrap();
        assert_eq!(found(&from, end, "0.3.2").await.as_ref(), Some(&manifest));
        let repository = repository(end);
        // The files of all three revisions are the same artefact, so each of its signatures must have come along.
        let verdict = keys
            .judge(&to, &repository, &manifest.digest, "0.3.2")
            .await
            .expect("done");
        assert!(matches!(verdict, Verdict::Good(_)), "{end}: {verdict:?}");
    }
    let before = content(there.path());
    let again = copied(&from, &to, &what).await.unwrap();
    assert_eq!((again.revisions, again.blobs, again.bytes), (2, 0, 0));
    assert_eq!(content(there.path()), before);
}

#[tokio::test]
async fn a_copy_without_images_has_all_other_files() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (layout(shelf.path()), layout(there.path()));
    publish(source.path(), &from, "0.3.1", None).await;
    let key = SigningKey::make();
    let what = Selection {
        key: Some(key.clone()),
        ..selection("0.3.1", false, work.path())
    };
    copied(&from, &to, &what).await.unwrap();
    let files = found(&to, "microvisor-nonrt/files", "0.3.1").await.unwrap();
    let titles: Vec<&str> = files
        .layers
        .iter()
        .filter_map(|layer| layer.title.as_deref())
        .collect();
    assert_eq!(titles, [format!("{IMAGE_PATH}/packages.json")]);
    let repository = repository("microvisor-nonrt/files");
    let image = Digest::of(b"the image");
    assert!(!to.has(&repository, &image).await.unwrap());
    let keys = KeySet::read(&[key.public_pem()]).unwrap();
    let verdict = keys.judge(&to, &repository, &files.digest, "0.3.1").await;
    assert!(matches!(verdict, Ok(Verdict::Good(_))), "{verdict:?}");
}

#[tokio::test]
async fn an_image_of_another_digest_is_left_out_and_said() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (layout(shelf.path()), layout(there.path()));
    publish(source.path(), &from, "0.3.1", None).await;
    // Somebody replaces the files, but not the profile.
    let other = tempfile::tempdir().unwrap();
    let elsewhere = layout(other.path());
    publish(folder("another image").path(), &elsewhere, "0.3.1", None).await;
    let files = repository("microvisor-nonrt/files");
    let manifest = found(&elsewhere, "microvisor-nonrt/files", "0.3.1").await;
    let manifest = manifest.unwrap();
    for blob in manifest.blobs() {
        let content = elsewhere.small(&files, &blob, 1_000).await.unwrap();
        from.push_blob(&files, &blob, &content).await.unwrap();
    }
    from.push_manifest(&files, Some(&tag("0.3.1")), &manifest)
        .await
        .expect("done");
    let done = copied(&from, &to, &selection("0.3.1", true, work.path())).await;
    let findings = done.unwrap().findings;
    let title = format!("{IMAGE_PATH}/{IMAGE}");
    assert_eq!(findings[0].1.field, Some(title), "{findings:?}");
    let image = Digest::of(b"another image");
    assert!(!to.has(&files, &image).await.unwrap());
}

#[tokio::test]
async fn nothing_that_fits_is_an_error_and_changes_nothing() {
    let (source, shelf) = (folder("the image"), tempfile::tempdir().unwrap());
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (layout(shelf.path()), layout(there.path()));
    publish(source.path(), &from, "0.3.1", None).await;
    let error = copied(&from, &to, &selection("~0.4.0", true, work.path())).await;
    assert!(matches!(error, Err(MoveError::Nothing(_))), "{error:?}");
    assert!(content(there.path()).is_empty());
}

/// A bundle of one signed release, and the layout that it was made of.
async fn bundle(folder_of_it: &Path) -> Layout {
    let source = folder("the image");
    let shelf = layout(&folder_of_it.join("shelf"));
    let key = SigningKey::make();
    publish(source.path(), &shelf, "0.3.1", Some(&key)).await;
    pack(&folder_of_it.join("shelf"), &folder_of_it.join("bundle")).expect("done");
    shelf
}

#[tokio::test]
async fn a_bundle_brings_everything_along() {
    let place = tempfile::tempdir().unwrap();
    let shelf = bundle(place.path()).await;
    let again = place.path().join("again");
    pack(&place.path().join("shelf"), &again).unwrap();
    let file = place.path().join("bundle");
    assert_eq!(fs::read(&again).unwrap(), fs::read(&file).unwrap());
    let staging = place.path().join("staging");
    unpack(&file, &staging, &Limits::default()).unwrap();
    let target = layout(&place.path().join("target"));
    let done = everything(&layout(&staging), &target, &mut ()).await;
    assert_eq!(done.unwrap().revisions, 2);
    let tags = target.all_tags().await.unwrap();
    assert_eq!(tags, shelf.all_tags().await.unwrap());
    for (repository, tag) in tags {
        let at = At::Tag(tag);
        let one = shelf.manifest(&repository, &at).await.unwrap();
        assert_eq!(target.manifest(&repository, &at).await.unwrap(), one);
    }
    let error = unpack(&file, &staging, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("another one already"), "{error}");
}

#[tokio::test]
async fn a_bundle_that_was_cut_or_damaged_makes_no_layout() {
    let place = tempfile::tempdir().unwrap();
    bundle(place.path()).await;
    let whole = fs::read(place.path().join("bundle")).unwrap();
    let (file, staging) = (place.path().join("cut"), place.path().join("staging"));
    for part in 0..200 {
        let length = whole.len() * part / 200;
        fs::write(&file, &whole[..length]).unwrap();
        let unpacked = unpack(&file, &staging, &Limits::default());
        assert!(unpacked.is_err(), "{length} of {}", whole.len());
        assert!(!staging.join("index.json").exists());
    }
    // Nothing but the index can say that another thing is meant.
    let is_first = |bytes: &[u8]| bytes.starts_with(b"blobs/sha256/");
    let first = whole.chunks(512).position(is_first).unwrap();
    for block in (first..whole.len() / 512).filter(|block| whole[block * 512] != 0) {
        let mut damaged = whole.clone();
        damaged[block * 512] ^= 1;
        fs::write(&file, &damaged).unwrap();
        let unpacked = unpack(&file, &staging, &Limits::default());
        assert!(unpacked.is_err(), "block {block}");
        assert!(!staging.join("index.json").exists());
    }
    fs::write(&file, &whole).unwrap();
    unpack(&file, &staging, &Limits::default()).unwrap();
}

/// A tar with some entries, as a stranger may make it.
fn tar_of(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        // Set by hand: the library itself would refuse some of these names.
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
async fn a_bundle_holds_nothing_but_a_layout() {
    let place = tempfile::tempdir().unwrap();
    bundle(place.path()).await;
    let shelf = place.path().join("shelf");
    let index = fs::read(shelf.join("index.json")).unwrap();
    let mark: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
    let file = place.path().join("strange");
    let plain = tar::EntryType::Regular;
    let blob = format!("blobs/sha256/{}", Digest::of(b"one").hex());
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
        fs::write(&file, tar_of(&[*case])).unwrap();
        let staging = place.path().join(format!("strange-{number}"));
        let unpacked = unpack(&file, &staging, &Limits::default());
        assert!(unpacked.is_err(), "{case:?}");
        assert!(!staging.join("index.json").exists());
        assert!(!place.path().join("escaped").exists(), "{case:?}");
    }
    let twice = [("oci-layout", plain, mark), ("oci-layout", plain, mark)];
    let missing = [
        ("oci-layout", plain, mark),
        ("index.json", plain, &index[..]),
    ];
    let unmarked = [("index.json", plain, br#"{"schemaVersion":2}"#.as_slice())];
    for entries in [&twice[..], &missing[..], &unmarked[..]] {
        fs::write(&file, tar_of(entries)).unwrap();
        let staging = tempfile::tempdir().unwrap();
        let unpacked = unpack(&file, staging.path(), &Limits::default());
        assert!(
            matches!(unpacked, Err(MoveError::Bundle(_))),
            "{unpacked:?}"
        );
    }
}

#[tokio::test]
async fn a_bundle_is_not_larger_than_allowed() {
    let place = tempfile::tempdir().unwrap();
    bundle(place.path()).await;
    let file = place.path().join("bundle");
    let small = [
        Limits {
            files: 3,
            ..Limits::default()
        },
        Limits {
            bundle: 100,
            ..Limits::default()
        },
        Limits {
            blob: 10,
            ..Limits::default()
        },
        Limits {
            manifest: 10,
            ..Limits::default()
        },
    ];
    for (number, limits) in small.iter().enumerate() {
        let staging = place.path().join(format!("small-{number}"));
        let error = unpack(&file, &staging, limits).unwrap_err();
        assert!(matches!(error, MoveError::Bundle(_)), "{error}");
        assert!(!staging.join("index.json").exists());
    }
}

#[tokio::test]
async fn what_lies_in_the_new_place_stays_beside_what_comes() {
    let place = tempfile::tempdir().unwrap();
    bundle(place.path()).await;
    let target = layout(&place.path().join("target"));
    let source = folder("an older image");
    publish(source.path(), &target, "0.2.9", None).await;
    let staging = place.path().join("staging");
    unpack(&place.path().join("bundle"), &staging, &Limits::default()).unwrap();
    let done = everything(&layout(&staging), &target, &mut ()).await;
    done.unwrap();
    for revision in ["0.2.9", "0.3.1"] {
        assert!(found(&target, "microvisor-nonrt", revision).await.is_some());
    }
    let image = Bytes::from_static(b"an older image");
    let files = repository("microvisor-nonrt/files");
    let kept = target.small(&files, &Blob::of(&image), 100).await.unwrap();
    assert_eq!(kept, image);
}
