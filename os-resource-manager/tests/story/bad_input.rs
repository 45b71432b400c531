//! Bad input: each kind becomes a clear finding in the project's report, and a good profile that is published next to it
//! is taken all the same.

use std::sync::Arc;

use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_kit::SystemClock;
use evenkeel_os_resource_manager::{OsResourceManager, Settings};
use evenkeel_registry::testing::{Fault, FaultKind, PROFILE_ARTIFACT_TYPE, PROFILE_LAYER_TYPE};
use evenkeel_registry::{Blob, Digest, Layer, Manifest};
use evenkeel_store::os_details;
use evenkeel_store::os_reports::SyncReport;

use crate::test_server::{PROFILE_PREFIX, TestServer, profile_yaml};

const TAG: &str = "0.3.1";

const GIB: u64 = 1024 * 1024 * 1024;

/// 44 MiB of OVAL, packed by bzip2: the beginning of a document, followed by spaces.
const BOMB: &str = "425a6839314159265359cb3ca8e3057e2ddb808010500160078000a7279d40000820007511a44d3349906469fa8135550034\
    c868321cefd495012dd24a80967b12540000812726668b5e9885687af1d6bc8f18fb24aaa7338e7681b28412a025fcc50564\
    994d647d498f4400075a40230000000400208000c33026a9a6448daa123c5dc914e1424224acc858";

/// A server whose project selects a good profile and some bad ones.
async fn server_with(bad: &[&str]) -> TestServer {
    let enabled: Vec<&str> = ["good"].iter().chain(bad).copied().collect();
    let server = TestServer::new(TAG, &enabled).await;
    server.publish("good", TAG, "3.0.1");
    server
}

/// Syncs twice, and returns the first report. Only the good profile is taken.
async fn sync_with_refusals(server: &TestServer, bad: usize) -> SyncReport {
    let report = server.sync().await;
    assert_eq!(server.os_names().await, ["good 3.0.1"], "{}", server.report_text(&report));
    assert_eq!((report.created, report.outcome), (1, CycleOutcome::Partial));
    assert_eq!(report.refused as usize, bad, "{}", server.report_text(&report));
    assert!(report.findings.iter().all(|row| !row.repository.ends_with("good")));
    // The next cycle has the same result.
    let again = server.sync().await;
    assert_eq!((again.created, again.unchanged, again.refused), (0, 1, report.refused));
    assert_eq!(again.findings, report.findings);
    report
}

/// Publishes an artifact that `make` builds from the layer of a valid profile.
fn publish_artifact(server: &TestServer, profile: &str, make: impl FnOnce(Layer) -> Manifest) {
    let repository = format!("{PROFILE_PREFIX}{profile}");
    let blob = server.registry.put_blob(&repository, profile_yaml(profile, "3.0.1", ""));
    let layer = Layer::file(blob, PROFILE_LAYER_TYPE, &format!("{profile}.yaml"));
    server.registry.put_manifest(&repository, TAG, &make(layer));
}

#[tokio::test]
async fn a_profile_that_is_no_plain_yaml_is_refused() {
    let good = |name: &str| profile_yaml(name, "3.0.1", "");
    let lines = (1..30).map(|n| format!("  a{n}: &a{n} [*a{0}, *a{0}, *a{0}]\n", n - 1));
    let bomb = lines.collect::<Vec<_>>().concat();
    let written = [
        ("anchor-bomb", format!("{}  a0: &a0 [x]\n{bomb}", good("anchor-bomb"))),
        ("deep", format!("{}  more: {}{}\n", good("deep"), "[".repeat(50), "]".repeat(50))),
        ("documents", format!("{0}---\n{0}", good("documents"))),
        ("duplicate-key", format!("{}  name: another\n", good("duplicate-key"))),
        ("empty", "  \n".to_owned()),
        ("html", "<!DOCTYPE html><html>Sign in</html>".to_owned()),
        ("list", "- spec\n".to_owned()),
        ("merge-key", good("merge-key").replace("spec:\n", "spec:\n  <<: {name: other}\n")),
        ("nul", good("nul").replace("x86_64", "\"x\\0\"")),
        ("sequence", good("sequence").replace("x86_64", "[true]")),
        ("tag", good("tag").replace("name: tag", "name: !!python/object:os.system tag")),
        ("wrong-type", good("wrong-type").replace("name: wrong-type 3.0.1", "name: {a: b}")),
    ];
    let names: Vec<&str> = written.iter().map(|(name, _)| *name).collect();
    let server = server_with(&names).await;
    for (name, text) in &written {
        server.publish_text(name, TAG, text);
    }
    let report = sync_with_refusals(&server, written.len()).await;
    insta::assert_snapshot!("no_plain_yaml", server.report_text(&report));
}

#[tokio::test]
async fn a_boolean_is_read_as_the_text_that_was_written() {
    let server = TestServer::new(TAG, &["edge"]).await;
    let text = profile_yaml("edge", "3.0.1", "")
        .replace("spec:\n", "metadata:\n  standalone-node: true\n  quoted: \"yes\"\nspec:\n");
    server.publish_text("edge", TAG, &text);
    let report = server.sync().await;
    assert_eq!(report.outcome, CycleOutcome::Good, "{}", server.report_text(&report));
    let metadata = &server.list_systems().await[0].spec.metadata;
    assert_eq!(metadata, r#"{"quoted":"yes","standalone-node":"true"}"#);
}

#[tokio::test]
async fn a_profile_with_an_invalid_field_is_refused() {
    let bad = |name: &str, from: &str, to: &str| {
        let text = profile_yaml(name, "3.0.1", "");
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    let digest = Digest::compute(b"3.0.1").hex();
    let written = [
        ("climbs-out", bad("climbs-out", "images/", "../../etc/")),
        ("climbs-hidden", bad("climbs-hidden", "images/", "images/%2e%2e/")),
        ("no-digest", bad("no-digest", &digest, &"0".repeat(64))),
        ("other-manifest", profile_yaml("good", "3.0.1", "")),
        ("plain-http", bad("plain-http", "images/", "http://files.example/")),
        ("unknown-kind", bad("unknown-kind", "OS_TYPE_IMMUTABLE", "OS_TYPE_ODD")),
        ("version", bad("version", "osImageVersion: \"3.0.1\"", "osImageVersion: latest")),
        ("wrong-release", bad("wrong-release", "spec:\n", "metadata:\n  release: 0.2.9\nspec:\n")),
    ];
    let names: Vec<&str> = written.iter().map(|(name, _)| *name).collect();
    let server = server_with(&names).await;
    for (name, text) in &written {
        server.publish_text(name, TAG, text);
    }
    let report = sync_with_refusals(&server, written.len()).await;
    insta::assert_snapshot!("what_none_may", server.report_text(&report));
}

#[tokio::test]
async fn an_artifact_of_another_form_is_refused() {
    let bad = [
        "climbing-title",
        "five-gib",
        "foreign-kind",
        "index",
        "no-layer",
        "no-title",
        "other-title",
        "page",
    ];
    let server = server_with(&bad).await;
    let titled = |title: &str| {
        let title = title.to_owned();
        move |layer: Layer| {
            let layer = Layer::file(layer.blob, PROFILE_LAYER_TYPE, &title);
            Manifest::artifact(PROFILE_ARTIFACT_TYPE, vec![layer])
        }
    };
    publish_artifact(&server, "climbing-title", titled("../../climbing-title.yaml"));
    publish_artifact(&server, "five-gib", |layer| {
        let blob = Blob { size: 5 * GIB, ..layer.blob };
        Manifest::artifact(PROFILE_ARTIFACT_TYPE, vec![Layer { blob, ..layer }])
    });
    publish_artifact(&server, "foreign-kind", |layer| {
        Manifest::artifact("application/vnd.example.chart", vec![layer])
    });
    let index = r#"{"schemaVersion":2,"manifests":[]}"#;
    let form = "application/vnd.oci.image.index.v1+json";
    server.registry.put_raw_manifest(&format!("{PROFILE_PREFIX}index"), TAG, index, form);
    publish_artifact(&server, "no-layer", |_| {
        Manifest::artifact(PROFILE_ARTIFACT_TYPE, Vec::new())
    });
    publish_artifact(&server, "no-title", |layer| {
        let layer = Layer { title: None, annotations: std::collections::BTreeMap::new(), ..layer };
        Manifest::artifact(PROFILE_ARTIFACT_TYPE, vec![layer])
    });
    publish_artifact(&server, "other-title", titled("good.yaml"));
    server.publish("page", TAG, "3.0.1");
    let page = format!("{PROFILE_PREFIX}page/manifests/");
    server.registry.add_fault(Fault::always(&page, FaultKind::Html));
    let report = sync_with_refusals(&server, bad.len()).await;
    insta::assert_snapshot!("made_in_another_way", server.report_text(&report));
    let blobs = server.registry.count_requests(&format!("GET /v2/{PROFILE_PREFIX}five-gib/blobs/"));
    assert_eq!(blobs, 0, "a blob that is declared too large is not fetched");
}

#[tokio::test]
async fn only_the_first_layer_is_read_and_more_are_reported() {
    let server = TestServer::new(TAG, &["edge"]).await;
    publish_artifact(&server, "edge", |layer| {
        let second = server.registry.put_blob(&format!("{PROFILE_PREFIX}edge"), "another");
        let second = Layer::file(second, PROFILE_LAYER_TYPE, "another.yaml");
        Manifest::artifact(PROFILE_ARTIFACT_TYPE, vec![layer, second])
    });
    let report = server.sync().await;
    insta::assert_snapshot!("several_layers", server.report_text(&report));
    assert_eq!(server.os_names().await, ["edge 3.0.1"]);
}

#[tokio::test]
async fn an_endless_profile_or_a_web_page_is_refused() {
    let bad = ["endless", "five-gib", "page"];
    let server = server_with(&bad).await;
    for (name, fault) in
        bad.iter().zip([FaultKind::Huge(5 * GIB), FaultKind::WrongLength(5 * GIB), FaultKind::Html])
    {
        server.publish(name, TAG, "3.0.1");
        let blobs = format!("{PROFILE_PREFIX}{name}/blobs/");
        server.registry.add_fault(Fault::always(&blobs, fault));
    }
    let report = sync_with_refusals(&server, bad.len()).await;
    insta::assert_snapshot!("never_ends", server.report_text(&report));
}

#[tokio::test]
async fn a_bad_tag_list_is_reported_for_its_repository() {
    let bad = ["endless", "nowhere", "page"];
    let server = server_with(&bad).await;
    for (name, fault) in [("endless", FaultKind::Huge(5 * GIB)), ("page", FaultKind::Html)] {
        server.publish(name, TAG, "3.0.1");
        let tags = format!("{PROFILE_PREFIX}{name}/tags/");
        server.registry.add_fault(Fault::always(&tags, fault));
    }
    let report = server.sync().await;
    assert_eq!(server.os_names().await, ["good 3.0.1"]);
    assert_eq!(report.outcome, CycleOutcome::Partial);
    insta::assert_snapshot!("no_list_of_tags", server.report_text(&report));
}

#[tokio::test]
async fn a_bad_attachment_is_reported_and_the_profile_is_taken() {
    let bad = [
        ("bomb", "osExistingCvesURL", "bomb.xml.bz2"),
        ("elsewhere", "osPackageManifestURL", "https://elsewhere.example/list.json"),
        ("empty-list", "osPackageManifestURL", "empty.json"),
        ("entities", "osExistingCvesURL", "entities.xml"),
        ("nowhere", "osFixedCvesURL", "nowhere.json"),
        ("page", "osPackageManifestURL", "page.json"),
        ("wrong-form", "osExistingCvesURL", "form.json"),
    ];
    let names: Vec<&str> = bad.iter().map(|(name, ..)| *name).collect();
    let server = TestServer::new(TAG, &names).await;
    for (name, key, url) in bad {
        let text = profile_yaml(name, "3.0.1", &format!("  {key}: {url}\n"));
        server.publish_text(name, TAG, &text);
    }
    server.registry.put_file("/bomb.xml.bz2", decode_hex(BOMB));
    server.registry.put_file("/empty.json", r#"{"repo":[]}"#);
    let entities = "<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY b \"c\">]><oval_definitions>&b;</oval_definitions>";
    server.registry.put_file("/entities.xml", entities);
    server.registry.put_file("/page.json", "<html>Sign in</html>");
    server.registry.put_file("/form.json", r#"{"cves": 1}"#);
    let report = server.sync().await;
    assert_eq!((report.created as usize, report.refused), (bad.len(), 0));
    assert_eq!(report.outcome, CycleOutcome::Partial);
    insta::assert_snapshot!("bad_lists", server.report_text(&report));
    let ids: Vec<_> = server.list_systems().await.iter().map(|os| os.id).collect();
    let tx = server.store.tenant(server.tenant).await.expect("a transaction");
    let details_by_os = os_details::find_many(&tx, &ids).await.expect("details");
    let lists = details_by_os
        .values()
        .map(|details| (details.packages, details.existing_cves, details.fixed_cves));
    assert!(lists.clone().all(|details| details == (None, None, None)));
    assert_eq!(lists.count(), bad.len());
}

#[tokio::test]
async fn an_invalid_schedule_is_rejected_at_start() {
    let store = evenkeel_store::testing::fresh_store().await;
    let settings =
        Settings { sync_schedule: "every now and then".to_owned(), ..Settings::default() };
    let error = OsResourceManager::new(store, Arc::new(SystemClock), settings);
    let error = error.expect_err("an invalid schedule").to_string();
    assert!(error.contains("sync_schedule"), "{error}");
}

/// Decodes hexadecimal digits.
fn decode_hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("a digit")
    };
    pairs.map(byte).collect()
}
