//! Files outside of a registry that fail or are delayed, and files with the same name.

use std::fs;
use std::path::Path;

use evenkeel_registry::layout::Layout;
use evenkeel_registry::testing::{Fault, FaultKind, RegistryOptions, TestRegistry};
use evenkeel_registry::{
    Blob, CopySummary, Digest, FindingKind, Manifest, ManifestRef, Registry as _, Release,
    Repository, open,
};

use super::{
    files_repository, folder, is_empty, layout, mirror, options, put_profile, read_files_manifest,
    tag, yaml,
};

fn busy() -> FaultKind {
    FaultKind::Busy { status: 503, retry_after: "0".to_owned(), date: None }
}

fn finding_kinds(copied: &CopySummary) -> Vec<(&str, FindingKind)> {
    let findings = copied.findings.iter();
    findings.map(|(name, f)| (name.as_str(), f.kind)).collect()
}

/// The manifest of a profile in a layout.
async fn read_profile_manifest(layout: &Layout, name: &str) -> Option<Manifest> {
    let repository: Repository = format!("os/{name}").parse().expect("a name");
    let stored = layout.manifest(&repository, &ManifestRef::Tag(tag("0.3.1"))).await;
    stored.expect("it is read")
}

#[tokio::test]
async fn an_unresponsive_server_is_not_queried_again() {
    let server = TestRegistry::start();
    for name in ["a", "b"] {
        let file = format!("{name}.raw");
        put_profile(&server, name, &yaml(name, &file, b"one"));
        server.put_file(&format!("/files/{file}"), "one");
    }
    server.add_fault(Fault::always("/files/a.raw", busy()));
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a", "b"], "0.3.1", work.path());
    let done = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!(
        finding_kinds(&done),
        [("os/a:0.3.1", FindingKind::Busy), ("os/b:0.3.1", FindingKind::Busy)]
    );
    assert_eq!(done.revisions, 2);
    assert_eq!(server.count_requests("GET /files/a.raw"), 4);
    assert_eq!(server.count_requests("GET /files/b.raw"), 0);

    // The next mirror run does not remember the failure.
    server.clear_faults();
    let again = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!((again.revisions, again.findings), (2, vec![]));
    assert_eq!(read_files_manifest(&to, "b").await.unwrap().layers.len(), 1);
}

#[tokio::test]
async fn an_interrupted_image_is_resumed() {
    let image = vec![7_u8; 100_000];
    for fault in [FaultKind::Cut, FaultKind::Stall] {
        let server = TestRegistry::start();
        put_profile(&server, "a", &yaml("a", "a.raw", &image));
        server.put_file("/files/a.raw", image.clone());
        server.add_fault(Fault::times("/files/a.raw", 2, fault.clone()));
        let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let to = layout(dest.path());
        let what = options(&["a"], "0.3.1", work.path());
        let done = mirror(&server, &to, &what, &[]).await.unwrap();
        assert_eq!((done.revisions, done.findings), (1, vec![]), "{fault:?}");
        let copied = read_files_manifest(&to, "a").await.unwrap().layers[0].blob;
        assert_eq!(copied, Blob::new(&image), "{fault:?}");
        assert_eq!(server.count_requests("GET /files/a.raw"), 3, "{fault:?}");
        assert!(is_empty(work.path()));
    }
}

/// A mirror run that pushed an image and failed to set its tag. Returns both registries.
async fn interrupted_mirror(work: &Path) -> (TestRegistry, TestRegistry) {
    let (server, dest) = (TestRegistry::start(), TestRegistry::start());
    put_profile(&server, "a", &yaml("a", "a.raw", b"one"));
    server.put_file("/files/a.raw", "one");
    dest.add_fault(Fault::always("PUT /v2/os/a/files/manifests/", FaultKind::Status(413)));
    let to = open(&dest.access()).expect("a registry");
    let what = options(&["a"], "0.3.1", work);
    let done = mirror(&server, &*to, &what, &[]).await;
    assert!(done.is_err(), "{done:?}");
    let image = Digest::compute(b"one");
    assert!(to.has_blob(&files_repository("a"), &image).await.expect("a result"));
    assert_eq!(server.count_requests("GET /files/a.raw"), 1);
    dest.clear_faults();
    (server, dest)
}

#[tokio::test]
async fn an_image_without_tag_is_not_fetched_again() {
    let work = tempfile::tempdir().unwrap();
    let (server, dest) = interrupted_mirror(work.path()).await;
    let to = open(&dest.access()).unwrap();
    let what = options(&["a"], "0.3.1", work.path());
    let done = mirror(&server, &*to, &what, &[]).await.unwrap();
    assert_eq!((done.revisions, done.findings), (1, vec![]));
    assert_eq!(server.count_requests("GET /files/a.raw"), 1);
    let at = ManifestRef::Tag(tag("0.3.1"));
    let files = to.manifest(&files_repository("a"), &at).await.unwrap();
    assert_eq!(files.unwrap().layers[0].blob, Blob::new(b"one"));
    assert!(is_empty(work.path()));
}

#[tokio::test]
async fn a_size_file_does_not_apply_to_another_target() {
    let (work, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server, _there) = interrupted_mirror(work.path()).await;
    let to = layout(elsewhere.path());
    let what = options(&["a"], "0.3.1", work.path());
    let done = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!((done.revisions, done.findings), (1, vec![]));
    assert_eq!(server.count_requests("GET /files/a.raw"), 2);
    let image = Digest::compute(b"one");
    assert!(to.has_blob(&files_repository("a"), &image).await.unwrap());
}

#[tokio::test]
async fn a_revision_is_not_published_without_its_image() {
    let server = TestRegistry::start();
    put_profile(&server, "a", &yaml("a", "a.raw", b"the image"));
    server.put_file("/files/a.raw", "the image");
    server.add_fault(Fault::always("/files/a.raw", FaultKind::Cut));
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a"], "0.3.1", work.path());
    let done = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!(finding_kinds(&done), [("os/a:0.3.1", FindingKind::Unreachable)]);
    assert_eq!(done.revisions, 0);
    assert_eq!(read_profile_manifest(&to, "a").await, None);
    assert_eq!(read_files_manifest(&to, "a").await, None);
    assert!(server.count_requests("GET /files/a.raw") <= 16);
}

#[tokio::test]
async fn a_transient_failure_does_not_replace_complete_revisions() {
    let server = TestRegistry::start();
    for name in ["a", "other"] {
        put_profile(&server, name, &yaml(name, "one.raw", b"one"));
    }
    server.put_file("/files/one.raw", "one");
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a", "other"], "0.3.1", work.path());
    mirror(&server, &to, &what, &[]).await.unwrap();
    let before = (read_profile_manifest(&to, "a").await, read_files_manifest(&to, "a").await);

    // The tag now refers to a profile with another image.
    put_profile(&server, "a", &yaml("a", "two.raw", b"two"));
    server.put_file("/files/two.raw", "two");
    for (fault, kind) in [
        (FaultKind::Cut, FindingKind::Unreachable),
        (FaultKind::Status(502), FindingKind::NotThere),
        (busy(), FindingKind::Busy),
    ] {
        server.clear_faults();
        server.add_fault(Fault::always("/files/two.raw", fault));
        let again = mirror(&server, &to, &what, &[]).await.unwrap();
        assert_eq!(finding_kinds(&again), [("os/a:0.3.1", kind)]);
        assert_eq!(again.revisions, 1);
        let after = (read_profile_manifest(&to, "a").await, read_files_manifest(&to, "a").await);
        assert_eq!(after, before);
    }
    server.clear_faults();
    let again = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!((again.revisions, again.findings), (2, vec![]));
    let image = read_files_manifest(&to, "a").await.unwrap().layers[0].blob;
    assert_eq!(image, Blob::new(b"two"));
}

#[tokio::test]
async fn an_image_that_changes_during_its_transfer_is_fetched_by_the_next_run() {
    for supports_ranges in [true, false] {
        let server = TestRegistry::with_options(RegistryOptions {
            supports_ranges,
            ..RegistryOptions::default()
        });
        put_profile(&server, "a", &yaml("a", "one.raw", b"one"));
        server.put_file("/files/one.raw", "one");
        let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let to = layout(dest.path());
        let what = options(&["a"], "0.3.1", work.path());
        mirror(&server, &to, &what, &[]).await.unwrap();
        let before = (read_profile_manifest(&to, "a").await, read_files_manifest(&to, "a").await);

        // The first response comes from the old file and breaks off, the others from the new file.
        let new = vec![2_u8; 100_000];
        put_profile(&server, "a", &yaml("a", "two.raw", &new));
        server.put_file("/files/two.raw", new.clone());
        server.put_file("/old.raw", vec![1_u8; 100_000]);
        let redirect = FaultKind::Redirect(server.file_url("/old.raw"));
        server.add_fault(Fault::times("/files/two.raw", 1, redirect));
        server.add_fault(Fault::times("/old.raw", 1, FaultKind::Cut));
        let again = mirror(&server, &to, &what, &[]).await.unwrap();
        assert_eq!(finding_kinds(&again), [("os/a:0.3.1", FindingKind::Unreachable)]);
        assert_eq!(again.revisions, 0);
        let after = (read_profile_manifest(&to, "a").await, read_files_manifest(&to, "a").await);
        assert_eq!(after, before);

        let third = mirror(&server, &to, &what, &[]).await.unwrap();
        assert_eq!((third.revisions, third.findings), (1, vec![]));
        let image = read_files_manifest(&to, "a").await.unwrap().layers[0].blob;
        assert_eq!(image, Blob::new(&new));
        assert!(is_empty(work.path()));
    }
}

#[tokio::test]
async fn a_registry_that_denies_the_files_is_named_in_a_finding() {
    let server = TestRegistry::start();
    put_profile(&server, "a", &yaml("a", "a.raw", b"one"));
    server.put_file("/files/a.raw", "one");
    server.add_fault(Fault::always("/v2/os/a/files/", FaultKind::Status(403)));
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a"], "0.3.1", work.path());
    let done = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!(finding_kinds(&done), [("os/a/files:0.3.1", FindingKind::Denied)]);
    assert_eq!(done.revisions, 1);
    let image = read_files_manifest(&to, "a").await.unwrap().layers[0].blob;
    assert_eq!(image, Blob::new(b"one"));
}

#[tokio::test]
async fn revisions_with_the_same_image_fetch_it_once() {
    let server = TestRegistry::start();
    let profile = yaml("a", "a.raw", b"one");
    for revision in ["0.3.1", "0.3.2"] {
        server.put_profile("os/a", revision, "a.yaml", &profile);
    }
    server.put_file("/files/a.raw", "one");
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a"], "~0.3.1", work.path());
    let done = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!((done.revisions, done.findings), (2, vec![]));
    assert_eq!(server.count_requests("GET /files/a.raw"), 1);
    let second = to.manifest(&files_repository("a"), &ManifestRef::Tag(tag("0.3.2"))).await;
    assert_eq!(second.unwrap(), read_files_manifest(&to, "a").await);
}

/// Two documents whose URLs differ only in the host.
const FILES_OF_ONE_NAME: &str = "  osExistingCvesURL: https://one.example/cves.json
  osFixedCvesURL: https://two.example/cves.json
";

#[tokio::test]
async fn of_two_files_of_one_name_the_second_is_left_out_with_a_finding() {
    let server = TestRegistry::start();
    let profile = yaml("a", "a.raw", b"one");
    put_profile(&server, "a", &format!("{profile}{FILES_OF_ONE_NAME}"));
    server.put_file("/files/a.raw", "one");
    let (dest, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(dest.path());
    let what = options(&["a"], "0.3.1", work.path());
    let done = mirror(&server, &to, &what, &[]).await.unwrap();
    assert_eq!(
        finding_kinds(&done),
        [("os/a:0.3.1", FindingKind::Ambiguous), ("os/a:0.3.1", FindingKind::AddressNotAllowed)]
    );
    let is_named = done.findings.iter().all(|(_, finding)| {
        let field = finding.field.as_deref();
        field == Some("cves.json")
    });
    assert!(is_named, "{:?}", done.findings);
}

#[test]
fn files_of_one_name_are_not_published_from_one_folder() {
    let source = folder(b"one");
    let profile = yaml("a", "a.raw", b"one");
    fs::write(source.path().join("a.yaml"), format!("{profile}{FILES_OF_ONE_NAME}")).unwrap();
    // A file that is not in the folder is not published.
    assert!(Release::from_folder(source.path(), "0.3.1").is_ok());
    fs::write(source.path().join("cves.json"), "[]").unwrap();
    let findings = Release::from_folder(source.path(), "0.3.1").unwrap_err();
    let kinds: Vec<FindingKind> = findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Ambiguous], "{findings:?}");
}
