//! Whatever a registry answers, it is a clear error, soon, and without taking much in.

#![expect(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

use bytes::Bytes;
use evenkeel_registry::testing::{Entry, Fault, Manners, SmallRegistry, Way};
use evenkeel_registry::{
    Address, At, Blob, Class, Credentials, Digest, Got, Manifest, Proxy, RegistryError, Repository,
    Tag, Web, open,
};
use futures_util::StreamExt as _;

const GIB: u64 = 1024 * 1024 * 1024;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn profile() -> Repository {
    "os/a".parse().unwrap()
}

fn at(tag: &str) -> At {
    At::Tag(tag.parse().unwrap())
}

/// A registry with one profile, and the profile.
fn one() -> (SmallRegistry, Manifest) {
    let small = SmallRegistry::start();
    let manifest = small.put_profile("os/a", "0.3.1", "a.yaml", "name: a");
    (small, manifest)
}

async fn tags_when(way: Way) -> Got<Vec<Tag>> {
    let (small, _) = one();
    small.fail(Fault::always("/tags/", way));
    open(&small.access()).unwrap().tags(&profile()).await
}

async fn manifest_when(way: Way) -> Got<Option<Manifest>> {
    let (small, _) = one();
    small.fail(Fault::always("/manifests/", way));
    let registry = open(&small.access()).unwrap();
    registry.manifest(&profile(), &at("0.3.1")).await
}

async fn blob_when(way: Way) -> Got<Bytes> {
    let (small, manifest) = one();
    small.fail(Fault::always("/blobs/", way));
    let registry = open(&small.access()).unwrap();
    let blob = manifest.layers[0].blob;
    registry.small(&profile(), &blob, 1_000).await
}

#[tokio::test]
async fn a_page_for_people_is_no_answer() {
    let tags = tags_when(Way::Html).await;
    assert!(matches!(tags, Err(RegistryError::Malformed { .. })));
    let manifest = manifest_when(Way::Html).await;
    assert!(matches!(
        manifest,
        Err(RegistryError::WrongDigest { .. } | RegistryError::Malformed { .. })
    ));
    let blob = blob_when(Way::Html).await;
    assert_eq!(blob.unwrap_err().class(), Class::Lasting);
}

#[tokio::test]
async fn what_was_altered_on_the_way_is_noticed() {
    let manifest = manifest_when(Way::Corrupt).await;
    assert!(matches!(manifest, Err(RegistryError::WrongDigest { .. })));
    let blob = blob_when(Way::Corrupt).await;
    assert!(matches!(blob, Err(RegistryError::WrongDigest { .. })));
}

#[tokio::test]
async fn a_manifest_under_the_digest_of_another_is_refused() {
    let (small, manifest) = one();
    let other = Bytes::from_static(b"{\"schemaVersion\":2}");
    small.put_text("os/a", "other", other, MANIFEST);
    let to = small.file_url("/v2/os/a/manifests/other");
    let way = Way::Redirect(to);
    small.fail(Fault::always("/manifests/sha256:", way));
    let registry = open(&small.access()).unwrap();
    let said = manifest.digest;
    let found = registry.manifest(&profile(), &At::Digest(said)).await;
    assert!(matches!(found, Err(RegistryError::WrongDigest { said: one, .. }) if one == said));
}

#[tokio::test]
async fn what_is_too_large_is_not_taken_in() {
    for way in [Way::SaysLength(5 * GIB), Way::Huge(5 * GIB)] {
        let tags = tags_when(way.clone()).await;
        assert!(
            matches!(tags, Err(RegistryError::TooLarge { .. })),
            "{way:?}"
        );
        let manifest = manifest_when(way.clone()).await;
        assert!(
            matches!(manifest, Err(RegistryError::TooLarge { .. })),
            "{way:?}"
        );
        let blob = blob_when(way.clone()).await;
        assert_eq!(blob.unwrap_err().class(), Class::Lasting, "{way:?}");
    }
}

#[tokio::test]
async fn a_blob_that_is_said_to_be_too_large_is_not_asked_for() {
    let small = SmallRegistry::start();
    let registry = open(&small.access()).unwrap();
    let blob = Blob {
        digest: Digest::of(b"a"),
        size: 5 * GIB,
    };
    let refused = registry.small(&profile(), &blob, 1_000).await;
    assert!(matches!(
        refused,
        Err(RegistryError::TooLarge { limit: 1_000 })
    ));
    assert!(small.requests().is_empty());
}

#[tokio::test]
async fn a_blob_with_another_size_than_its_manifest_says_is_refused() {
    let (small, manifest) = one();
    let registry = open(&small.access()).unwrap();
    for size in [1, 6, 8, 100] {
        let blob = Blob {
            size,
            ..manifest.layers[0].blob
        };
        let refused = registry.small(&profile(), &blob, 1_000).await;
        assert_eq!(refused.unwrap_err().class(), Class::Lasting, "{size}");
    }
}

#[tokio::test]
async fn a_blob_that_never_ends_well_is_given_up() {
    for way in [Way::Cut, Way::Stall, Way::Silent] {
        let (small, manifest) = one();
        small.fail(Fault::always("/blobs/", way.clone()));
        let registry = open(&small.access()).unwrap();
        let blob = manifest.layers[0].blob;
        let given_up = registry.small(&profile(), &blob, 1_000).await;
        assert_eq!(given_up.unwrap_err().class(), Class::Passing, "{way:?}");
        assert!(small.count("GET") <= 10, "{way:?}");
    }
}

#[tokio::test]
async fn a_list_of_manifests_is_said_to_be_one() {
    let small = SmallRegistry::start();
    let text = r#"{"schemaVersion":2,"manifests":[]}"#;
    small.put_text(
        "os/a",
        "1.0.0",
        text,
        "application/vnd.oci.image.index.v1+json",
    );
    let registry = open(&small.access()).unwrap();
    let found = registry.manifest(&profile(), &at("1.0.0")).await;
    let error = found.unwrap_err().to_string();
    assert!(error.contains("list of other manifests"), "{error}");
}

#[tokio::test]
async fn a_list_of_tags_that_leads_elsewhere_or_round_and_round_is_refused() {
    let other = SmallRegistry::start();
    let (small, _) = one();
    let page = |link: String| {
        let small = SmallRegistry::with(Manners::default());
        small.put_profile("os/a", "0.3.1", "a.yaml", "name: a");
        small.link_tags(&link);
        small
    };
    let away = page(format!(
        "<{}>; rel=\"next\"",
        other.file_url("/v2/a/tags/list")
    ));
    let tags = open(&away.access()).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::Elsewhere(_))));
    assert!(other.requests().is_empty());

    let round = page("</v2/os/a/tags/list?n=1000>; rel=\"next\"".to_owned());
    let tags = open(&round.access()).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::Malformed { .. })));

    let tags = open(&small.access()).unwrap().tags(&profile()).await;
    assert_eq!(tags.unwrap().len(), 1);
}

#[tokio::test]
async fn more_tags_than_allowed_are_refused() {
    let (small, _) = one();
    small.put_profile("os/a", "0.3.2", "a.yaml", "name: a");
    let mut access = small.access();
    access.limits.tags = 1;
    let tags = open(&access).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::TooLarge { limit: 1 })));
}

#[tokio::test]
async fn a_registry_that_leads_on_and_on_is_left() {
    let (small, _) = one();
    let way = Way::Redirect("/v2/a/tags/list".to_owned());
    small.fail(Fault::always("/tags/", way));
    let tags = open(&small.access()).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::Malformed { .. })));
    assert_eq!(small.count("GET"), 6);
}

#[tokio::test]
async fn credentials_do_not_go_to_a_realm_that_is_none() {
    for realm in ["", "ftp://127.0.0.1/", "file:///etc/passwd", "http://["] {
        let small = SmallRegistry::with(Manners {
            entry: Entry::Tokens {
                user: None,
                good_for: 60,
                realm: Some(realm.to_owned()),
            },
            ..Manners::default()
        });
        let access = small.access_as(Credentials::basic("fleet", "open sesame"));
        let tags = open(&access).unwrap().tags(&profile()).await;
        assert_eq!(tags.unwrap_err().class(), Class::Lasting, "{realm}");
    }
}

#[tokio::test]
async fn one_who_gives_something_else_than_tokens_is_told() {
    for way in [Way::Html, Way::Huge(GIB), Way::SaysLength(GIB)] {
        let small = SmallRegistry::with(Manners {
            entry: Entry::tokens("fleet", "open sesame"),
            ..Manners::default()
        });
        small.fail(Fault::always("/token", way.clone()));
        let access = small.access_as(Credentials::basic("fleet", "open sesame"));
        let tags = open(&access).unwrap().tags(&profile()).await;
        assert_eq!(tags.unwrap_err().class(), Class::Lasting, "{way:?}");
    }
}

#[tokio::test]
async fn a_wrong_size_or_content_does_not_come_in() {
    let small = SmallRegistry::start();
    let registry = open(&small.access()).unwrap();
    let blob = Blob::of(b"name: a");
    for lie in [&b"name: b"[..], b"name", b"name: a and more"] {
        let put = registry
            .push_blob(&profile(), &blob, &Bytes::from_static(lie))
            .await;
        assert_eq!(put.unwrap_err().class(), Class::Lasting);
    }
    assert!(!registry.has(&profile(), &blob.digest).await.unwrap());
}

#[tokio::test]
async fn a_file_is_fetched_from_hosts_on_the_list_only() {
    let (small, stranger) = (SmallRegistry::start(), SmallRegistry::start());
    stranger.put_file("/cves.json", "[]");
    let web = Web::new(&small.access(), &[]).unwrap();
    let url = stranger.file_url("/cves.json").parse().unwrap();
    let refused = web.fetch(&url, None, 100).await;
    assert!(matches!(refused, Err(RegistryError::Elsewhere(_))));

    small.put_file("/here", "");
    small.fail(Fault::always("/here", Way::Redirect(url.to_string())));
    let here = small.file_url("/here").parse().unwrap();
    let refused = web.fetch(&here, None, 100).await;
    assert!(matches!(refused, Err(RegistryError::Elsewhere(_))));
    assert!(web.open(&here, 0).await.is_err());
    assert!(stranger.requests().is_empty());

    let web = Web::new(&small.access(), &[stranger.host()]).unwrap();
    assert!(web.fetch(&url, None, 100).await.is_ok());
    let refused = web.fetch(&url, None, 1).await;
    assert!(matches!(refused, Err(RegistryError::TooLarge { limit: 1 })));
}

#[tokio::test]
async fn a_file_that_breaks_off_is_told_to_whoever_reads_it() {
    let small = SmallRegistry::start();
    small.put_file("/image.raw", vec![7_u8; 100_000]);
    small.fail(Fault::always("/image.raw", Way::Cut));
    let web = Web::new(&small.access(), &[]).unwrap();
    let url = small.file_url("/image.raw").parse().unwrap();
    let mut body = web.open(&url, 0).await.unwrap();
    let mut last = None;
    while let Some(piece) = body.next().await {
        last = Some(piece);
    }
    assert!(matches!(last, Some(Err(RegistryError::Io(_)))));
}

#[test]
fn plain_http_is_asked_for_only_where_it_is_allowed() {
    let small = SmallRegistry::start();
    let mut access = small.access();
    access.plain_http = false;
    assert!(open(&access).is_err());
    access.plain_http = true;
    assert!(open(&access).is_ok());
    access.ca_pem = Some(b"no certificate".to_vec());
    assert!(open(&access).is_err());
    access.ca_pem = None;
    access.proxy = Proxy::Through("http://127.0.0.1:9".parse().unwrap());
    assert!(open(&access).is_ok());
    access.address = Address::Http("http://a:b@127.0.0.1".parse().unwrap());
    assert!(open(&access).is_err());
}

#[tokio::test]
async fn whoever_a_registry_leads_to_does_not_say_where_the_password_goes() {
    let (user, password) = ("fleet".to_owned(), "open sesame".to_owned());
    let third = SmallRegistry::start();
    let stranger = SmallRegistry::with(Manners {
        entry: Entry::Tokens {
            user: Some((user.clone(), password.clone())),
            good_for: 60,
            realm: Some(third.file_url("/token")),
        },
        ..Manners::default()
    });
    let small = SmallRegistry::with(Manners {
        entry: Entry::Basic(user, password),
        ..Manners::default()
    });
    let blob = small.put_blob(profile().as_str(), "name: a");
    let credentials = Credentials::basic("fleet", "open sesame");
    let registry = open(&small.access_as(credentials)).unwrap();
    small.fail(Fault::always(
        "/blobs/",
        Way::Redirect(stranger.file_url("/v2/a/tags/list")),
    ));
    let lost = registry.small(&profile(), &blob, 100).await;
    assert!(matches!(lost, Err(RegistryError::Status(401))), "{lost:?}");
    assert!(third.requests().is_empty());
}
