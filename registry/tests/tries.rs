//! How often something is asked for, and how long is waited for it.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_registry::testing::{Entry, Fault, Manners, SmallRegistry, Way};
use evenkeel_registry::{
    Blob, Body, Credentials, Got, Origin, RegistryError, Repository, Web, open,
};
use futures_util::stream;

fn profile() -> Repository {
    "os/a".parse().expect("a name")
}

/// A content that breaks off behind its first piece, or cannot even be opened. It counts how often it is.
struct Broken {
    first: Option<&'static [u8]>,
    opened: AtomicUsize,
}

#[async_trait]
impl Origin for Broken {
    async fn open(&self, _: u64) -> Got<Body> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let first = self.first.ok_or(RegistryError::Stalled)?;
        let pieces = [Ok(Bytes::from_static(first)), Err(RegistryError::Stalled)];
        Ok(Box::pin(stream::iter(pieces)))
    }
}

#[tokio::test]
async fn one_who_gives_no_tokens_is_asked_as_often_as_the_registry() {
    let small = SmallRegistry::with(Manners {
        entry: Entry::tokens("fleet", "open sesame"),
        ..Manners::default()
    });
    small.fail(Fault::always("/token", Way::Status(500)));
    let access = small.access_as(Credentials::basic("fleet", "open sesame"));
    let tags = open(&access).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::Status(500))), "{tags:?}");
    assert_eq!(small.count("GET /token"), 4);
    assert_eq!(small.count("GET /v2/"), 4);
}

#[tokio::test]
async fn one_who_gives_no_tokens_for_a_moment_is_asked_again() {
    let small = SmallRegistry::with(Manners {
        entry: Entry::tokens("fleet", "open sesame"),
        ..Manners::default()
    });
    small.put_profile("os/a", "0.3.1", "a.yaml", "name: a");
    small.fail(Fault::times("/token", 2, Way::Status(502)));
    let access = small.access_as(Credentials::basic("fleet", "open sesame"));
    let tags = open(&access).unwrap().tags(&profile()).await;
    assert_eq!(tags.unwrap().len(), 1);
}

#[tokio::test]
async fn a_content_that_does_not_come_is_not_asked_for_again_and_again() {
    for (first, uploads) in [(None, 0), (Some(&b"name"[..]), 1)] {
        let small = SmallRegistry::start();
        let registry = open(&small.access()).unwrap();
        let origin = Broken {
            first,
            opened: AtomicUsize::new(0),
        };
        let blob = Blob::of(b"name: a");
        let put = registry.push_blob(&profile(), &blob, &origin).await;
        assert!(matches!(put, Err(RegistryError::Stalled)), "{put:?}");
        assert_eq!(origin.opened.load(Ordering::SeqCst), 1, "{first:?}");
        assert_eq!(small.count("POST"), uploads, "{first:?}");
    }
}

#[tokio::test]
async fn pages_behind_the_first_are_asked_for_without_a_number_too() {
    let small = SmallRegistry::with(Manners {
        page: 3,
        links: false,
        ..Manners::default()
    });
    for number in 0..7 {
        small.put_profile("os/a", &format!("0.3.{number}"), "a.yaml", "name: a");
    }
    small.fail(Fault::always("n=3", Way::Status(400)));
    let mut access = small.access();
    access.limits.tags_at_once = 3;
    let tags = open(&access).unwrap().tags(&profile()).await;
    assert_eq!(tags.unwrap().len(), 7);
    // With a number, without, and behind the last tag of two full pages.
    assert_eq!(small.count("GET /v2/os/a/tags/list"), 4);
}

#[tokio::test]
async fn what_only_drips_is_given_up() {
    let small = SmallRegistry::start();
    small.put_profile("os/a", "0.3.1", "a.yaml", "name: a");
    let blob = small.put_blob("os/a", vec![7_u8; 100]);
    small.put_file("/cves.json", vec![7_u8; 100]);
    small.fail(Fault::always("GET", Way::Drip));
    let registry = open(&small.access()).unwrap();
    let web = Web::new(&small.access(), &[]).unwrap();
    let (profile, url) = (profile(), small.file_url("/cves.json").parse().unwrap());
    let (tags, small_one, file) = tokio::join!(
        registry.tags(&profile),
        registry.small(&profile, &blob, 1_000),
        web.fetch(&url, None, 1_000),
    );
    assert!(matches!(tags, Err(RegistryError::Stalled)), "{tags:?}");
    assert!(matches!(small_one, Err(RegistryError::Stalled)));
    assert!(matches!(file, Err(RegistryError::Stalled)), "{file:?}");
}
