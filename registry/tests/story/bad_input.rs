//! Invalid responses of a registry cause clear errors, soon and with little memory.

#![expect(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

use bytes::Bytes;
use evenkeel_registry::testing::{AccessRule, Fault, FaultKind, RegistryOptions, TestRegistry};
use evenkeel_registry::{
    Address, Blob, Credentials, Digest, ErrorClass, Manifest, ManifestRef, Proxy, RegistryError,
    RegistryResult, Repository, Tag, WebClient, open,
};
use futures_util::StreamExt as _;

const GIB: u64 = 1024 * 1024 * 1024;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn profile() -> Repository {
    "os/a".parse().unwrap()
}

fn tag_ref(tag: &str) -> ManifestRef {
    ManifestRef::Tag(tag.parse().unwrap())
}

/// A registry with one profile, and the manifest of the profile.
fn registry_with_profile() -> (TestRegistry, Manifest) {
    let server = TestRegistry::start();
    let manifest = server.put_profile("os/a", "0.3.1", "a.yaml", "name: a");
    (server, manifest)
}

async fn list_tags_with(fault: FaultKind) -> RegistryResult<Vec<Tag>> {
    let (server, _) = registry_with_profile();
    server.add_fault(Fault::always("/tags/", fault));
    open(&server.access()).unwrap().tags(&profile()).await
}

async fn read_manifest_with(fault: FaultKind) -> RegistryResult<Option<Manifest>> {
    let (server, _) = registry_with_profile();
    server.add_fault(Fault::always("/manifests/", fault));
    let registry = open(&server.access()).unwrap();
    registry.manifest(&profile(), &tag_ref("0.3.1")).await
}

async fn read_blob_with(fault: FaultKind) -> RegistryResult<Bytes> {
    let (server, manifest) = registry_with_profile();
    server.add_fault(Fault::always("/blobs/", fault));
    let registry = open(&server.access()).unwrap();
    let blob = manifest.layers[0].blob;
    registry.blob(&profile(), &blob, 1_000).await
}

#[tokio::test]
async fn an_html_page_is_not_a_valid_response() {
    let tags = list_tags_with(FaultKind::Html).await;
    assert!(matches!(tags, Err(RegistryError::Malformed { .. })));
    let manifest = read_manifest_with(FaultKind::Html).await;
    assert!(matches!(
        manifest,
        Err(RegistryError::WrongDigest { .. } | RegistryError::Malformed { .. })
    ));
    let blob = read_blob_with(FaultKind::Html).await;
    assert_eq!(blob.unwrap_err().class(), ErrorClass::Permanent);
}

#[tokio::test]
async fn corrupted_content_is_detected() {
    let manifest = read_manifest_with(FaultKind::Corrupt).await;
    assert!(matches!(manifest, Err(RegistryError::WrongDigest { .. })));
    let blob = read_blob_with(FaultKind::Corrupt).await;
    assert!(matches!(blob, Err(RegistryError::WrongDigest { .. })));
}

#[tokio::test]
async fn a_manifest_under_the_digest_of_another_is_refused() {
    let (server, manifest) = registry_with_profile();
    let other = Bytes::from_static(b"{\"schemaVersion\":2}");
    server.put_raw_manifest("os/a", "other", other, MANIFEST);
    let to = server.file_url("/v2/os/a/manifests/other");
    let fault = FaultKind::Redirect(to);
    server.add_fault(Fault::always("/manifests/sha256:", fault));
    let registry = open(&server.access()).unwrap();
    let expected = manifest.digest;
    let result = registry.manifest(&profile(), &ManifestRef::Digest(expected)).await;
    assert!(
        matches!(result, Err(RegistryError::WrongDigest { expected: one, .. }) if one == expected)
    );
}

#[tokio::test]
async fn oversized_responses_are_refused() {
    for fault in [FaultKind::WrongLength(5 * GIB), FaultKind::Huge(5 * GIB)] {
        let tags = list_tags_with(fault.clone()).await;
        assert!(matches!(tags, Err(RegistryError::TooLarge { .. })), "{fault:?}");
        let manifest = read_manifest_with(fault.clone()).await;
        assert!(matches!(manifest, Err(RegistryError::TooLarge { .. })), "{fault:?}");
        let blob = read_blob_with(fault.clone()).await;
        assert_eq!(blob.unwrap_err().class(), ErrorClass::Permanent, "{fault:?}");
    }
}

#[tokio::test]
async fn a_blob_that_is_too_large_is_not_requested() {
    let server = TestRegistry::start();
    let registry = open(&server.access()).unwrap();
    let blob = Blob { digest: Digest::compute(b"a"), size: 5 * GIB };
    let refused = registry.blob(&profile(), &blob, 1_000).await;
    assert!(matches!(refused, Err(RegistryError::TooLarge { limit: 1_000 })));
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_blob_of_another_size_than_in_its_manifest_is_refused() {
    let (server, manifest) = registry_with_profile();
    let registry = open(&server.access()).unwrap();
    for size in [1, 6, 8, 100] {
        let blob = Blob { size, ..manifest.layers[0].blob };
        let refused = registry.blob(&profile(), &blob, 1_000).await;
        assert_eq!(refused.unwrap_err().class(), ErrorClass::Permanent, "{size}");
    }
}

#[tokio::test]
async fn a_blob_whose_transfer_keeps_failing_is_given_up() {
    for fault in [FaultKind::Cut, FaultKind::Stall, FaultKind::Silent] {
        let (server, manifest) = registry_with_profile();
        server.add_fault(Fault::always("/blobs/", fault.clone()));
        let registry = open(&server.access()).unwrap();
        let blob = manifest.layers[0].blob;
        let given_up = registry.blob(&profile(), &blob, 1_000).await;
        assert_eq!(given_up.unwrap_err().class(), ErrorClass::Transient, "{fault:?}");
        assert!(server.count_requests("GET") <= 10, "{fault:?}");
    }
}

#[tokio::test]
async fn a_manifest_list_is_named_in_the_error() {
    let server = TestRegistry::start();
    let text = r#"{"schemaVersion":2,"manifests":[]}"#;
    server.put_raw_manifest("os/a", "1.0.0", text, "application/vnd.oci.image.index.v1+json");
    let registry = open(&server.access()).unwrap();
    let result = registry.manifest(&profile(), &tag_ref("1.0.0")).await;
    let error = result.unwrap_err().to_string();
    assert!(error.contains("list of other manifests"), "{error}");
}

#[tokio::test]
async fn a_tag_list_never_leads_to_another_host_or_in_a_circle() {
    let other = TestRegistry::start();
    let (server, _) = registry_with_profile();
    let page = |link: String| {
        let server = TestRegistry::with_options(RegistryOptions::default());
        server.put_profile("os/a", "0.3.1", "a.yaml", "name: a");
        server.set_link_header(&link);
        server
    };
    let away = page(format!("<{}>; rel=\"next\"", other.file_url("/v2/a/tags/list")));
    let tags = open(&away.access()).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::NotFound)), "{tags:?}");
    assert!(other.requests().is_empty());
    assert_eq!(away.count_requests("GET /v2/a/tags/list"), 1, "at the same registry");

    let round = page("</v2/os/a/tags/list?n=1000>; rel=\"next\"".to_owned());
    let tags = open(&round.access()).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::Malformed { .. })));

    let tags = open(&server.access()).unwrap().tags(&profile()).await;
    assert_eq!(tags.unwrap().len(), 1);
}

#[tokio::test]
async fn more_tags_than_allowed_are_refused() {
    let (server, _) = registry_with_profile();
    server.put_profile("os/a", "0.3.2", "a.yaml", "name: a");
    let mut access = server.access();
    access.limits.tags = 1;
    let tags = open(&access).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::TooLarge { limit: 1 })));
}

#[tokio::test]
async fn too_many_redirects_are_refused() {
    let (server, _) = registry_with_profile();
    let fault = FaultKind::Redirect("/v2/a/tags/list".to_owned());
    server.add_fault(Fault::always("/tags/", fault));
    let tags = open(&server.access()).unwrap().tags(&profile()).await;
    assert!(matches!(tags, Err(RegistryError::Malformed { .. })));
    assert_eq!(server.count_requests("GET"), 6);
}

#[tokio::test]
async fn credentials_are_not_sent_to_an_invalid_realm() {
    for realm in ["", "ftp://127.0.0.1/", "file:///etc/passwd", "http://["] {
        let server = TestRegistry::with_options(RegistryOptions {
            access: AccessRule::Tokens {
                user: None,
                expires_in: 60,
                realm: Some(realm.to_owned()),
            },
            ..RegistryOptions::default()
        });
        let access = server.access_with(Credentials::basic("fleet", "open sesame"));
        let tags = open(&access).unwrap().tags(&profile()).await;
        assert_eq!(tags.unwrap_err().class(), ErrorClass::Permanent, "{realm}");
    }
}

#[tokio::test]
async fn an_invalid_token_response_is_an_error() {
    for fault in [FaultKind::Html, FaultKind::Huge(GIB), FaultKind::WrongLength(GIB)] {
        let server = TestRegistry::with_options(RegistryOptions {
            access: AccessRule::tokens("fleet", "open sesame"),
            ..RegistryOptions::default()
        });
        server.add_fault(Fault::always("/token", fault.clone()));
        let access = server.access_with(Credentials::basic("fleet", "open sesame"));
        let tags = open(&access).unwrap().tags(&profile()).await;
        assert_eq!(tags.unwrap_err().class(), ErrorClass::Permanent, "{fault:?}");
    }
}

#[tokio::test]
async fn a_blob_of_wrong_size_or_content_is_not_stored() {
    let server = TestRegistry::start();
    let registry = open(&server.access()).unwrap();
    let blob = Blob::new(b"name: a");
    for lie in [&b"name: b"[..], b"name", b"name: a and more"] {
        let put = registry.push_blob(&profile(), &blob, &Bytes::from_static(lie)).await;
        assert_eq!(put.unwrap_err().class(), ErrorClass::Permanent);
    }
    assert!(!registry.has_blob(&profile(), &blob.digest).await.unwrap());
}

#[tokio::test]
async fn files_are_fetched_from_allowed_hosts_only() {
    let (server, other) = (TestRegistry::start(), TestRegistry::start());
    other.put_file("/cves.json", "[]");
    let web = WebClient::new(&server.access(), &[]).unwrap();
    let url = other.file_url("/cves.json").parse().unwrap();
    let refused = web.fetch(&url, None, 100).await;
    assert!(matches!(refused, Err(RegistryError::ForbiddenAddress(_))));

    server.put_file("/here", "");
    server.add_fault(Fault::always("/here", FaultKind::Redirect(url.to_string())));
    let here = server.file_url("/here").parse().unwrap();
    let refused = web.fetch(&here, None, 100).await;
    assert!(matches!(refused, Err(RegistryError::ForbiddenAddress(_))));
    assert!(web.open(&here, 0, None).await.is_err());
    assert!(other.requests().is_empty());

    let web = WebClient::new(&server.access(), &[other.host()]).unwrap();
    assert!(web.fetch(&url, None, 100).await.is_ok());
    let refused = web.fetch(&url, None, 1).await;
    assert!(matches!(refused, Err(RegistryError::TooLarge { limit: 1 })));
}

#[tokio::test]
async fn a_reader_is_notified_of_an_interrupted_file() {
    let server = TestRegistry::start();
    server.put_file("/image.raw", vec![7_u8; 100_000]);
    server.add_fault(Fault::always("/image.raw", FaultKind::Cut));
    let web = WebClient::new(&server.access(), &[]).unwrap();
    let url = server.file_url("/image.raw").parse().unwrap();
    let mut body = web.open(&url, 0, None).await.unwrap();
    let mut last = None;
    while let Some(chunk) = body.next().await {
        last = Some(chunk);
    }
    assert!(matches!(last, Some(Err(RegistryError::Io(_)))));
}

#[test]
fn plain_http_must_be_allowed() {
    let server = TestRegistry::start();
    let mut access = server.access();
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
async fn a_redirect_target_does_not_choose_where_the_password_goes() {
    let (user, password) = ("fleet".to_owned(), "open sesame".to_owned());
    let third = TestRegistry::start();
    let other = TestRegistry::with_options(RegistryOptions {
        access: AccessRule::Tokens {
            user: Some((user.clone(), password.clone())),
            expires_in: 60,
            realm: Some(third.file_url("/token")),
        },
        ..RegistryOptions::default()
    });
    let server = TestRegistry::with_options(RegistryOptions {
        access: AccessRule::Basic(user, password),
        ..RegistryOptions::default()
    });
    let blob = server.put_blob(profile().as_str(), "name: a");
    let credentials = Credentials::basic("fleet", "open sesame");
    let registry = open(&server.access_with(credentials)).unwrap();
    server.add_fault(Fault::always(
        "/blobs/",
        FaultKind::Redirect(other.file_url("/v2/a/tags/list")),
    ));
    let lost = registry.blob(&profile(), &blob, 100).await;
    assert!(matches!(lost, Err(RegistryError::Status(401))), "{lost:?}");
    assert!(third.requests().is_empty());
}
