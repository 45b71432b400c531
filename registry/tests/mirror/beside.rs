//! What lies beside a registry and cannot be had, or not at once; and files that are called alike.

use std::fs;
use std::path::Path;

use evenkeel_registry::layout::Layout;
use evenkeel_registry::testing::{Fault, SmallRegistry, Way};
use evenkeel_registry::{
    At, Blob, Copied, Digest, FindingKind, Manifest, Registry as _, Release, Repository, open,
};

use super::{files, files_of, folder, is_empty, layout, mirror, put, selection, tag, yaml};

fn busy() -> Way {
    Way::Busy {
        status: 503,
        retry_after: "0".to_owned(),
        date: None,
    }
}

fn kinds(copied: &Copied) -> Vec<(&str, FindingKind)> {
    let findings = copied.findings.iter();
    findings.map(|(name, f)| (name.as_str(), f.kind)).collect()
}

/// Where the tag of a profile leads.
async fn profile_of(layout: &Layout, name: &str) -> Option<Manifest> {
    let repository: Repository = format!("os/{name}").parse().expect("a name");
    let found = layout.manifest(&repository, &At::Tag(tag("0.3.1"))).await;
    found.expect("it is read")
}

#[tokio::test]
async fn where_nobody_answers_nothing_more_is_asked_for() {
    let small = SmallRegistry::start();
    for name in ["a", "b"] {
        let file = format!("{name}.raw");
        put(&small, name, &yaml(name, &file, b"one"));
        small.put_file(&format!("/files/{file}"), "one");
    }
    small.fail(Fault::always("/files/a.raw", busy()));
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a", "b"], "0.3.1", work.path());
    let done = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!(
        kinds(&done),
        [
            ("os/a:0.3.1", FindingKind::Busy),
            ("os/b:0.3.1", FindingKind::Busy)
        ]
    );
    assert_eq!(done.revisions, 2);
    assert_eq!(small.count("GET /files/a.raw"), 4);
    assert_eq!(small.count("GET /files/b.raw"), 0);

    // The next mirror knows nothing of it.
    small.mend();
    let again = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!((again.revisions, again.findings), (2, vec![]));
    assert_eq!(files(&to, "b").await.unwrap().layers.len(), 1);
}

#[tokio::test]
async fn an_image_that_breaks_off_is_taken_up_where_it_broke() {
    let image = vec![7_u8; 100_000];
    for way in [Way::Cut, Way::Stall] {
        let small = SmallRegistry::start();
        put(&small, "a", &yaml("a", "a.raw", &image));
        small.put_file("/files/a.raw", image.clone());
        small.fail(Fault::times("/files/a.raw", 2, way.clone()));
        let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let to = layout(there.path());
        let what = selection(&["a"], "0.3.1", work.path());
        let done = mirror(&small, &to, &what, &[]).await.unwrap();
        assert_eq!((done.revisions, done.findings), (1, vec![]), "{way:?}");
        let there = files(&to, "a").await.unwrap().layers[0].blob;
        assert_eq!(there, Blob::of(&image), "{way:?}");
        assert_eq!(small.count("GET /files/a.raw"), 3, "{way:?}");
        assert!(is_empty(work.path()));
    }
}

/// A mirror that brought an image to a registry and gave it no tag. Answers both registries.
async fn cut_short(work: &Path) -> (SmallRegistry, SmallRegistry) {
    let (small, there) = (SmallRegistry::start(), SmallRegistry::start());
    put(&small, "a", &yaml("a", "a.raw", b"one"));
    small.put_file("/files/a.raw", "one");
    there.fail(Fault::always(
        "PUT /v2/os/a/files/manifests/",
        Way::Status(413),
    ));
    let to = open(&there.access()).expect("it answers");
    let what = selection(&["a"], "0.3.1", work);
    let done = mirror(&small, &*to, &what, &[]).await;
    assert!(done.is_err(), "{done:?}");
    let image = Digest::of(b"one");
    assert!(to.has(&files_of("a"), &image).await.expect("it answers"));
    assert_eq!(small.count("GET /files/a.raw"), 1);
    there.mend();
    (small, there)
}

#[tokio::test]
async fn an_image_that_came_is_not_fetched_again_when_only_its_tag_is_missing() {
    let work = tempfile::tempdir().unwrap();
    let (small, there) = cut_short(work.path()).await;
    let to = open(&there.access()).unwrap();
    let what = selection(&["a"], "0.3.1", work.path());
    let done = mirror(&small, &*to, &what, &[]).await.unwrap();
    assert_eq!((done.revisions, done.findings), (1, vec![]));
    assert_eq!(small.count("GET /files/a.raw"), 1);
    let at = At::Tag(tag("0.3.1"));
    let files = to.manifest(&files_of("a"), &at).await.unwrap();
    assert_eq!(files.unwrap().layers[0].blob, Blob::of(b"one"));
    assert!(is_empty(work.path()));
}

#[tokio::test]
async fn that_an_image_came_to_one_place_is_not_said_of_another() {
    let (work, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (small, _there) = cut_short(work.path()).await;
    let to = layout(elsewhere.path());
    let what = selection(&["a"], "0.3.1", work.path());
    let done = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!((done.revisions, done.findings), (1, vec![]));
    assert_eq!(small.count("GET /files/a.raw"), 2);
    let image = Digest::of(b"one");
    assert!(to.has(&files_of("a"), &image).await.unwrap());
}

#[tokio::test]
async fn a_revision_is_not_published_before_its_image_came_whole() {
    let small = SmallRegistry::start();
    put(&small, "a", &yaml("a", "a.raw", b"the image"));
    small.put_file("/files/a.raw", "the image");
    small.fail(Fault::always("/files/a.raw", Way::Cut));
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a"], "0.3.1", work.path());
    let done = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!(kinds(&done), [("os/a:0.3.1", FindingKind::Unreachable)]);
    assert_eq!(done.revisions, 0);
    assert_eq!(profile_of(&to, "a").await, None);
    assert_eq!(files(&to, "a").await, None);
    assert!(small.count("GET /files/a.raw") <= 16);
}

#[tokio::test]
async fn what_may_pass_replaces_nothing_that_is_complete() {
    let small = SmallRegistry::start();
    for name in ["a", "other"] {
        put(&small, name, &yaml(name, "one.raw", b"one"));
    }
    small.put_file("/files/one.raw", "one");
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a", "other"], "0.3.1", work.path());
    mirror(&small, &to, &what, &[]).await.unwrap();
    let before = (profile_of(&to, "a").await, files(&to, "a").await);

    // The tag is moved to what has another image.
    put(&small, "a", &yaml("a", "two.raw", b"two"));
    small.put_file("/files/two.raw", "two");
    for (way, kind) in [
        (Way::Cut, FindingKind::Unreachable),
        (Way::Status(502), FindingKind::NotThere),
        (busy(), FindingKind::Busy),
    ] {
        small.mend();
        small.fail(Fault::always("/files/two.raw", way));
        let again = mirror(&small, &to, &what, &[]).await.unwrap();
        assert_eq!(kinds(&again), [("os/a:0.3.1", kind)]);
        assert_eq!(again.revisions, 1);
        let after = (profile_of(&to, "a").await, files(&to, "a").await);
        assert_eq!(after, before);
    }
    small.mend();
    let again = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!((again.revisions, again.findings), (2, vec![]));
    let image = files(&to, "a").await.unwrap().layers[0].blob;
    assert_eq!(image, Blob::of(b"two"));
}

#[tokio::test]
async fn a_registry_that_lets_nobody_see_the_files_is_named() {
    let small = SmallRegistry::start();
    put(&small, "a", &yaml("a", "a.raw", b"one"));
    small.put_file("/files/a.raw", "one");
    small.fail(Fault::always("/v2/os/a/files/", Way::Status(403)));
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a"], "0.3.1", work.path());
    let done = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!(kinds(&done), [("os/a/files:0.3.1", FindingKind::Denied)]);
    assert_eq!(done.revisions, 1);
    let image = files(&to, "a").await.unwrap().layers[0].blob;
    assert_eq!(image, Blob::of(b"one"));
}

#[tokio::test]
async fn revisions_with_the_same_image_fetch_it_once() {
    let small = SmallRegistry::start();
    let profile = yaml("a", "a.raw", b"one");
    for revision in ["0.3.1", "0.3.2"] {
        small.put_profile("os/a", revision, "a.yaml", &profile);
    }
    small.put_file("/files/a.raw", "one");
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a"], "~0.3.1", work.path());
    let done = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!((done.revisions, done.findings), (2, vec![]));
    assert_eq!(small.count("GET /files/a.raw"), 1);
    let second = to.manifest(&files_of("a"), &At::Tag(tag("0.3.2"))).await;
    assert_eq!(second.unwrap(), files(&to, "a").await);
}

/// Two documents at addresses that differ by their hosts.
const ALIKE: &str = "  osExistingCvesURL: https://one.example/cves.json
  osFixedCvesURL: https://two.example/cves.json
";

#[tokio::test]
async fn of_two_files_that_are_called_alike_one_is_left_out_and_named() {
    let small = SmallRegistry::start();
    let profile = yaml("a", "a.raw", b"one");
    put(&small, "a", &format!("{profile}{ALIKE}"));
    small.put_file("/files/a.raw", "one");
    let (there, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = layout(there.path());
    let what = selection(&["a"], "0.3.1", work.path());
    let done = mirror(&small, &to, &what, &[]).await.unwrap();
    assert_eq!(
        kinds(&done),
        [
            ("os/a:0.3.1", FindingKind::Ambiguous),
            ("os/a:0.3.1", FindingKind::AddressNotAllowed)
        ]
    );
    let named = done.findings.iter().all(|(_, finding)| {
        let field = finding.field.as_deref();
        field == Some("cves.json")
    });
    assert!(named, "{:?}", done.findings);
}

#[test]
fn files_that_are_called_alike_are_not_published_from_one_folder() {
    let source = folder(b"one");
    let profile = yaml("a", "a.raw", b"one");
    fs::write(source.path().join("a.yaml"), format!("{profile}{ALIKE}")).unwrap();
    // What is not in the folder stays at its address.
    assert!(Release::of_folder(source.path(), "0.3.1").is_ok());
    fs::write(source.path().join("cves.json"), "[]").unwrap();
    let findings = Release::of_folder(source.path(), "0.3.1").unwrap_err();
    let kinds: Vec<FindingKind> = findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Ambiguous], "{findings:?}");
}
