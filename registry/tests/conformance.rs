//! Every registry behaves alike: the small one, a folder, and Debian's where it is installed.

#![expect(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_registry::source::EMPTY_CONFIG;
use evenkeel_registry::testing::{Entry, Fault, Manners, SmallRegistry, Way};
use evenkeel_registry::{
    Access, Address, At, Blob, Credentials, Digest, Fetched, Got, Layer, Limits, Manifest,
    Registry, RegistryError, Repository, Tag, Web, open,
};
use futures_util::StreamExt as _;

const KIND: &str = "application/vnd.intel.orch.en";
const FORM: &str = "application/vnd.oci.image.layer.v1.tar";

fn repository(name: &str) -> Repository {
    name.parse().unwrap()
}

fn tag(name: &str) -> Tag {
    name.parse().unwrap()
}

fn names(tags: &[Tag]) -> Vec<&str> {
    let mut names: Vec<&str> = tags.iter().map(Tag::as_str).collect();
    names.sort_unstable();
    names
}

/// Puts an artefact with one file in.
async fn publish(
    registry: &dyn Registry,
    repository: &Repository,
    tag: Option<&Tag>,
    content: &'static [u8],
) -> Got<Manifest> {
    let blob = Blob::of(content);
    let config = Bytes::from_static(EMPTY_CONFIG);
    registry
        .push_blob(repository, &Blob::of(&config), &config)
        .await?;
    registry
        .push_blob(repository, &blob, &Bytes::from_static(content))
        .await?;
    let manifest = Manifest::artifact(KIND, vec![Layer::file(blob, FORM, "a.yaml")]);
    registry.push_manifest(repository, tag, &manifest).await?;
    Ok(manifest)
}

async fn read(registry: &dyn Registry, at: &Repository, blob: &Blob, from: u64) -> Got<Vec<u8>> {
    let mut body = registry.open(at, blob, from).await?;
    let mut whole = Vec::new();
    while let Some(piece) = body.next().await {
        whole.extend_from_slice(&piece?);
    }
    Ok(whole)
}

/// What holds of every registry.
async fn keeps_what_is_put_in(registry: &dyn Registry) {
    let profile = repository("os-profile/microvisor-nonrt");
    let (first, second) = (tag("0.3.1"), tag("0.3.2"));
    let one = publish(registry, &profile, Some(&first), b"name: one").await;
    let one = one.unwrap();
    let two = publish(registry, &profile, Some(&second), b"name: two").await;
    let two = two.unwrap();

    assert_eq!(
        names(&registry.tags(&profile).await.unwrap()),
        ["0.3.1", "0.3.2"]
    );
    let at = At::Tag(first.clone());
    let found = registry.manifest(&profile, &at).await.unwrap().unwrap();
    assert_eq!(found, one);
    let at = At::Digest(two.digest);
    let found = registry.manifest(&profile, &at).await.unwrap().unwrap();
    assert_eq!(found, two);
    let nobody = At::Tag(tag("9.9.9"));
    assert_eq!(registry.manifest(&profile, &nobody).await.unwrap(), None);
    let nobody = At::Digest(Digest::of(b"nothing"));
    assert_eq!(registry.manifest(&profile, &nobody).await.unwrap(), None);

    let blob = one.layers[0].blob;
    assert!(registry.has(&profile, &blob.digest).await.unwrap());
    let nothing = Digest::of(b"nothing");
    assert!(!registry.has(&profile, &nothing).await.unwrap());
    let whole = registry.small(&profile, &blob, 100).await.unwrap();
    assert_eq!(whole, "name: one");
    let refused = registry.small(&profile, &blob, 8).await;
    assert!(matches!(refused, Err(RegistryError::TooLarge { limit: 8 })));
    for from in 0..=9 {
        let rest = read(registry, &profile, &blob, from).await.unwrap();
        assert_eq!(rest, b"name: one"[usize::try_from(from).unwrap()..]);
    }

    // A tag can be given to another manifest, and a manifest can be there without one.
    publish(registry, &profile, Some(&first), b"name: two")
        .await
        .unwrap();
    let at = At::Tag(first);
    let moved = registry.manifest(&profile, &at).await.unwrap().unwrap();
    assert_eq!(moved.digest, two.digest);
    let bare = publish(registry, &profile, None, b"name: bare")
        .await
        .unwrap();
    let at = At::Digest(bare.digest);
    assert!(registry.manifest(&profile, &at).await.unwrap().is_some());
    assert_eq!(registry.tags(&profile).await.unwrap().len(), 2);

    // Files lie in a repository below.
    let files = repository("os-profile/microvisor-nonrt/files");
    publish(registry, &files, Some(&second), b"raw")
        .await
        .unwrap();
    assert_eq!(names(&registry.tags(&files).await.unwrap()), ["0.3.2"]);
    assert_eq!(registry.tags(&profile).await.unwrap().len(), 2);

    // What is not what it is said to be does not come in.
    let lie = Blob {
        digest: Digest::of(b"truth"),
        size: 5,
    };
    let put = registry
        .push_blob(&profile, &lie, &Bytes::from_static(b"untru"))
        .await;
    assert!(put.is_err());
    assert!(!registry.has(&profile, &lie.digest).await.unwrap());
}

#[tokio::test]
async fn a_small_registry_keeps_what_is_put_in() {
    let small = SmallRegistry::start();
    keeps_what_is_put_in(&*open(&small.access()).unwrap()).await;
}

#[tokio::test]
async fn a_folder_keeps_what_is_put_in() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("catalogue");
    let access = Access::to(Address::Layout(place));
    keeps_what_is_put_in(&*open(&access).unwrap()).await;
}

/// Debian's registry as a process, ended when it is dropped.
struct Debians {
    process: Child,
    registry: Arc<dyn Registry>,
}

impl Drop for Debians {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test starts the registry that it asks"
)]
fn debians(folder: &Path) -> Option<Debians> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let settings = format!(
        "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {at}\n",
        folder.join("data").display()
    );
    let file = folder.join("config.yml");
    std::fs::write(&file, settings).unwrap();
    let started = Command::new("docker-registry")
        .arg("serve")
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(process) = started else {
        let why = "skipped: the program docker-registry is not installed";
        let _ = writeln!(std::io::stderr(), "{why}");
        return None;
    };
    let mut access = Access::to(format!("http://{at}").parse().unwrap());
    access.plain_http = true;
    // It is there when it answers: the client asks until then.
    access.limits = Limits {
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(200),
        tries: 100,
        ..Limits::default()
    };
    let registry = open(&access).unwrap();
    Some(Debians { process, registry })
}

#[tokio::test]
async fn debians_registry_keeps_what_is_put_in() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(debians) = debians(folder.path()) {
        keeps_what_is_put_in(&*debians.registry).await;
    }
}

/// A small registry with so many tags of one profile.
fn with_tags(manners: Manners, count: usize) -> SmallRegistry {
    let small = SmallRegistry::with(manners);
    for number in 0..count {
        small.put_profile("os/a", &format!("0.3.{number:04}"), "a.yaml", "name: a");
    }
    small
}

#[tokio::test]
async fn a_long_list_of_tags_is_read_page_by_page() {
    let manners = Manners {
        page: 150,
        ..Manners::default()
    };
    let small = with_tags(manners, 1_000);
    let registry = open(&small.access()).unwrap();
    let tags = registry.tags(&repository("os/a")).await.unwrap();
    assert_eq!(tags.len(), 1_000);
    assert_eq!(small.count("GET /v2/os/a/tags/list"), 7);
}

#[tokio::test]
async fn a_full_page_without_a_word_is_asked_on() {
    let access = |small: &SmallRegistry| {
        let mut access = small.access();
        access.limits.tags_at_once = 10;
        access
    };
    let silent = Manners {
        links: false,
        ..Manners::default()
    };
    let small = with_tags(silent, 30);
    let registry = open(&access(&small)).unwrap();
    let tags = registry.tags(&repository("os/a")).await.unwrap();
    assert_eq!(tags.len(), 30);

    // Debian's tells all at once and knows nothing of pages.
    let plain = Manners {
        links: false,
        knows_paging: false,
        ..Manners::default()
    };
    let small = with_tags(plain, 10);
    let registry = open(&access(&small)).unwrap();
    let tags = registry.tags(&repository("os/a")).await.unwrap();
    assert_eq!(tags.len(), 10);
    assert_eq!(small.count("GET /v2/os/a/tags/list"), 2);
}

#[tokio::test]
async fn a_registry_that_takes_no_number_of_tags_is_asked_without() {
    let small = with_tags(Manners::default(), 3);
    small.fail(Fault::always("tags/list?n=", Way::Status(400)));
    let registry = open(&small.access()).unwrap();
    let tags = registry.tags(&repository("os/a")).await.unwrap();
    assert_eq!(tags.len(), 3);
}

#[tokio::test]
async fn a_repository_that_is_not_there_has_no_tags() {
    let small = SmallRegistry::start();
    let registry = open(&small.access()).unwrap();
    let tags = registry.tags(&repository("os/a")).await;
    assert!(matches!(tags, Err(RegistryError::NotThere)));
}

#[tokio::test]
async fn a_user_with_a_password_comes_in() {
    let manners = Manners {
        entry: Entry::Basic("fleet".to_owned(), "open sesame".to_owned()),
        ..Manners::default()
    };
    let small = SmallRegistry::with(manners);
    let right = small.access_as(Credentials::basic("fleet", "open sesame"));
    keeps_what_is_put_in(&*open(&right).unwrap()).await;
    for credentials in [
        Credentials::None,
        Credentials::basic("fleet", "wrong"),
        Credentials::token("open sesame"),
    ] {
        let registry = open(&small.access_as(credentials)).unwrap();
        let tags = registry
            .tags(&repository("os-profile/microvisor-nonrt"))
            .await;
        assert!(matches!(tags, Err(RegistryError::Denied)));
    }
}

#[tokio::test]
async fn a_token_is_fetched_once_and_anew_when_it_is_over() {
    let manners = Manners {
        entry: Entry::tokens("fleet", "open sesame"),
        ..Manners::default()
    };
    let small = SmallRegistry::with(manners);
    let registry = open(&small.access_as(Credentials::basic("fleet", "open sesame"))).unwrap();
    keeps_what_is_put_in(&*registry).await;
    // For each of the two repositories one to write and one to read.
    assert_eq!(small.count("GET /token"), 4);

    small.revoke_tokens();
    let profile = repository("os-profile/microvisor-nonrt");
    assert_eq!(registry.tags(&profile).await.unwrap().len(), 2);
    assert_eq!(small.count("GET /token"), 5);

    let stranger = open(&small.access()).unwrap();
    assert!(matches!(
        stranger.tags(&profile).await,
        Err(RegistryError::Denied)
    ));
}

#[tokio::test]
async fn a_token_that_is_good_for_a_moment_only_is_good_enough() {
    let manners = Manners {
        entry: Entry::Tokens {
            user: None,
            good_for: 1,
            realm: None,
        },
        ..Manners::default()
    };
    let small = SmallRegistry::with(manners);
    keeps_what_is_put_in(&*open(&small.access()).unwrap()).await;
}

#[tokio::test]
async fn what_fails_for_a_moment_is_tried_again() {
    let busy = |status| Way::Busy {
        status,
        retry_after: "0".to_owned(),
        date: None,
    };
    for way in [
        Way::Status(500),
        Way::Status(502),
        busy(429),
        busy(503),
        Way::Cut,
        Way::Stall,
    ] {
        let small = with_tags(Manners::default(), 1);
        let registry = open(&small.access()).unwrap();
        small.fail(Fault::times("/", 2, way.clone()));
        let tags = registry.tags(&repository("os/a")).await;
        assert_eq!(tags.unwrap().len(), 1, "{way:?}");
    }
}

#[tokio::test]
async fn what_keeps_failing_is_told() {
    let small = with_tags(Manners::default(), 1);
    let registry = open(&small.access()).unwrap();
    small.fail(Fault::always("/", Way::Status(500)));
    let tags = registry.tags(&repository("os/a")).await;
    assert!(matches!(tags, Err(RegistryError::Status(500))));
    assert_eq!(small.count("GET"), 4);
}

#[tokio::test]
async fn a_long_wish_to_be_left_alone_is_told_at_once() {
    let small = with_tags(Manners::default(), 1);
    let registry = open(&small.access()).unwrap();
    small.fail(Fault::always(
        "/",
        Way::Busy {
            status: 503,
            retry_after: "Fri, 31 Dec 1999 23:59:59 GMT".to_owned(),
            date: Some("Fri, 31 Dec 1999 23:58:00 GMT".to_owned()),
        },
    ));
    let Err(RegistryError::Busy { again }) = registry.tags(&repository("os/a")).await else {
        panic!("it is busy");
    };
    assert_eq!(again, Some(Duration::from_secs(119)));
    assert_eq!(small.count("GET"), 1);
}

#[tokio::test]
async fn a_registry_that_is_down_is_unreachable() {
    let small = SmallRegistry::start();
    let access = small.access();
    drop(small);
    let tags = open(&access).unwrap().tags(&repository("os/a")).await;
    assert!(matches!(tags, Err(RegistryError::Unreachable(_))));
}

#[tokio::test]
async fn a_blob_whose_connection_breaks_is_taken_up_where_it_broke() {
    let content: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    for (ranges, way) in [
        (true, Way::Cut),
        (false, Way::Cut),
        (true, Way::Stall),
        (true, Way::Slow),
    ] {
        let manners = Manners {
            ranges,
            ..Manners::default()
        };
        let small = SmallRegistry::with(manners);
        let blob = small.put_blob("os/a", content.clone());
        let registry = open(&small.access()).unwrap();
        small.fail(Fault::times("/blobs/", 1, way.clone()));
        let got = read(&*registry, &repository("os/a"), &blob, 1_000).await;
        assert!(got.unwrap() == content[1_000..], "{way:?}");
    }
}

#[tokio::test]
async fn a_blob_may_lie_somewhere_else() {
    let store = SmallRegistry::with(Manners {
        entry: Entry::Closed,
        ..Manners::default()
    });
    store.put_file("/bucket/a", "name: a");
    let small = SmallRegistry::with(Manners {
        entry: Entry::Basic("fleet".to_owned(), "open sesame".to_owned()),
        ..Manners::default()
    });
    let blob = small.put_blob("os/a", "name: a");
    let credentials = Credentials::basic("fleet", "open sesame");
    let registry = open(&small.access_as(credentials)).unwrap();
    // From here on it knows that it has to say who it is.
    registry.tags(&repository("os/a")).await.unwrap();
    small.fail(Fault::always(
        "/blobs/",
        Way::Redirect(store.file_url("/bucket/a")),
    ));
    let whole = registry.small(&repository("os/a"), &blob, 100).await;
    assert_eq!(whole.unwrap(), "name: a");
    // The password is for the registry, and for nobody to whom it leads.
    assert!(small.with_credentials() > 0);
    assert_eq!(store.with_credentials(), 0);
}

#[tokio::test]
async fn a_blob_that_goes_in_is_tried_again() {
    let small = SmallRegistry::start();
    let registry = open(&small.access()).unwrap();
    small.fail(Fault::times("PUT", 2, Way::Status(502)));
    let content = Bytes::from_static(b"name: a");
    let blob = Blob::of(&content);
    let profile = repository("os/a");
    registry.push_blob(&profile, &blob, &content).await.unwrap();
    assert!(registry.has(&profile, &blob.digest).await.unwrap());
    assert_eq!(small.count("POST"), 3);
}

#[tokio::test]
async fn a_file_that_is_known_is_not_sent_again() {
    let small = SmallRegistry::start();
    small.put_file("/cves.json", "[]");
    let web = Web::new(&small.access(), &[]).unwrap();
    let url = small.file_url("/cves.json").parse().unwrap();
    let Fetched::New { bytes, etag } = web.fetch(&url, None, 100).await.unwrap() else {
        panic!("nothing was known");
    };
    assert_eq!(bytes, "[]");
    let again = web.fetch(&url, etag.as_deref(), 100).await.unwrap();
    assert_eq!(again, Fetched::Same);
    small.put_file("/cves.json", "[1]");
    let other = web.fetch(&url, etag.as_deref(), 100).await.unwrap();
    assert!(matches!(other, Fetched::New { bytes, .. } if bytes == "[1]"));
}

#[tokio::test]
async fn a_file_can_be_read_from_any_byte_on() {
    for ranges in [true, false] {
        let small = SmallRegistry::with(Manners {
            ranges,
            ..Manners::default()
        });
        small.put_file("/image.raw", "0123456789");
        let web = Web::new(&small.access(), &[]).unwrap();
        let url = small.file_url("/image.raw").parse().unwrap();
        for from in [0, 4, 9, 10, 100] {
            let mut body = web.open(&url, from).await.unwrap();
            let mut rest = Vec::new();
            while let Some(piece) = body.next().await {
                rest.extend_from_slice(&piece.unwrap());
            }
            let start = usize::try_from(from).unwrap().min(10);
            assert_eq!(rest, b"0123456789"[start..]);
        }
    }
}
