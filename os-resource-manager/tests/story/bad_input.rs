//! Whatever is published, it is a clear entry in the report of the project, and nothing else is disturbed: beside each bad
//! thing lies a good one, which is taken.

use std::sync::Arc;

use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_kit::SystemClock;
use evenkeel_os_resource_manager::{OsResourceManager, Settings};
use evenkeel_registry::testing::{Fault, PROFILE_FORM, PROFILE_KIND, Way};
use evenkeel_registry::{Blob, Digest, Layer, Manifest};
use evenkeel_store::os_inside;
use evenkeel_store::os_reports::Report;

use crate::house::{House, PREFIX, yaml};

const TAG: &str = "0.3.1";

const GIB: u64 = 1024 * 1024 * 1024;

/// 44 MiB of OVAL, packed by bzip2: the beginning of a document, and then spaces.
const BOMB: &str = "425a6839314159265359cb3ca8e3057e2ddb808010500160078000a7279d40000820007511a44d3349906469fa8135550034\
    c868321cefd495012dd24a80967b12540000812726668b5e9885687af1d6bc8f18fb24aaa7338e7681b28412a025fcc50564\
    994d647d498f4400075a40230000000400208000c33026a9a6448daa123c5dc914e1424224acc858";

/// A house whose project takes a good profile and some bad ones.
async fn with(bad: &[&str]) -> House {
    let enabled: Vec<&str> = ["good"].iter().chain(bad).copied().collect();
    let house = House::new(TAG, &enabled).await;
    house.publish("good", TAG, "3.0.1");
    house
}

/// What the report says; the good one was taken, and none of the bad ones was.
async fn refused(house: &House, bad: usize) -> Report {
    let report = house.sync().await;
    assert_eq!(
        house.names().await,
        ["good 3.0.1"],
        "{}",
        house.told(&report)
    );
    assert_eq!((report.made, report.outcome), (1, CycleOutcome::Partly));
    assert_eq!(report.refused as usize, bad, "{}", house.told(&report));
    assert!(
        report
            .findings
            .iter()
            .all(|row| !row.repository.ends_with("good"))
    );
    // The next cycle finds the same, and the good one is still there.
    let again = house.sync().await;
    assert_eq!(
        (again.made, again.same, again.refused),
        (0, 1, report.refused)
    );
    assert_eq!(again.findings, report.findings);
    report
}

/// Puts an artefact in, made as the story says, whose first blob is a profile that could be taken.
fn artefact(house: &House, profile: &str, make: impl FnOnce(Layer) -> Manifest) {
    let repository = format!("{PREFIX}{profile}");
    let blob = house
        .small
        .put_blob(&repository, yaml(profile, "3.0.1", ""));
    let layer = Layer::file(blob, PROFILE_FORM, &format!("{profile}.yaml"));
    house.small.put_manifest(&repository, TAG, &make(layer));
}

#[tokio::test]
async fn a_profile_that_is_no_plain_yaml_is_refused() {
    let good = |name: &str| yaml(name, "3.0.1", "");
    let lines = (1..30).map(|n| format!("  a{n}: &a{n} [*a{0}, *a{0}, *a{0}]\n", n - 1));
    let bomb = lines.collect::<Vec<_>>().concat();
    let written = [
        (
            "anchor-bomb",
            format!("{}  a0: &a0 [x]\n{bomb}", good("anchor-bomb")),
        ),
        (
            "deep",
            format!(
                "{}  more: {}{}\n",
                good("deep"),
                "[".repeat(50),
                "]".repeat(50)
            ),
        ),
        ("documents", format!("{0}---\n{0}", good("documents"))),
        (
            "duplicate-key",
            format!("{}  name: another\n", good("duplicate-key")),
        ),
        ("empty", "  \n".to_owned()),
        ("html", "<!DOCTYPE html><html>Sign in</html>".to_owned()),
        ("list", "- spec\n".to_owned()),
        (
            "merge-key",
            good("merge-key").replace("spec:\n", "spec:\n  <<: {name: other}\n"),
        ),
        ("nul", good("nul").replace("x86_64", "\"x\\0\"")),
        ("sequence", good("sequence").replace("x86_64", "[true]")),
        (
            "tag",
            good("tag").replace("name: tag", "name: !!python/object:os.system tag"),
        ),
        (
            "wrong-type",
            good("wrong-type").replace("name: wrong-type 3.0.1", "name: {a: b}"),
        ),
    ];
    let names: Vec<&str> = written.iter().map(|(name, _)| *name).collect();
    let house = with(&names).await;
    for (name, text) in &written {
        house.publish_text(name, TAG, text);
    }
    let report = refused(&house, written.len()).await;
    insta::assert_snapshot!("no_plain_yaml", house.told(&report));
}

#[tokio::test]
async fn a_boolean_where_a_text_is_expected_is_the_text_that_was_written() {
    let house = House::new(TAG, &["edge"]).await;
    let text = yaml("edge", "3.0.1", "").replace(
        "spec:\n",
        "metadata:\n  standalone-node: true\n  quoted: \"yes\"\nspec:\n",
    );
    house.publish_text("edge", TAG, &text);
    let report = house.sync().await;
    assert_eq!(
        report.outcome,
        CycleOutcome::Good,
        "{}",
        house.told(&report)
    );
    let metadata = &house.systems().await[0].spec.metadata;
    assert_eq!(metadata, r#"{"quoted":"yes","standalone-node":"true"}"#);
}

#[tokio::test]
async fn a_profile_that_says_what_none_may_is_refused() {
    let bad = |name: &str, from: &str, to: &str| {
        let text = yaml(name, "3.0.1", "");
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    let digest = Digest::of(b"3.0.1").hex();
    let written = [
        ("climbs-out", bad("climbs-out", "images/", "../../etc/")),
        (
            "climbs-hidden",
            bad("climbs-hidden", "images/", "images/%2e%2e/"),
        ),
        ("no-digest", bad("no-digest", &digest, &"0".repeat(64))),
        ("other-manifest", yaml("good", "3.0.1", "")),
        (
            "plain-http",
            bad("plain-http", "images/", "http://files.example/"),
        ),
        (
            "unknown-kind",
            bad("unknown-kind", "OS_TYPE_IMMUTABLE", "OS_TYPE_ODD"),
        ),
        (
            "version",
            bad(
                "version",
                "osImageVersion: \"3.0.1\"",
                "osImageVersion: latest",
            ),
        ),
        (
            "wrong-release",
            bad(
                "wrong-release",
                "spec:\n",
                "metadata:\n  release: 0.2.9\nspec:\n",
            ),
        ),
    ];
    let names: Vec<&str> = written.iter().map(|(name, _)| *name).collect();
    let house = with(&names).await;
    for (name, text) in &written {
        house.publish_text(name, TAG, text);
    }
    let report = refused(&house, written.len()).await;
    insta::assert_snapshot!("what_none_may", house.told(&report));
}

#[tokio::test]
async fn an_artefact_that_is_made_in_another_way_is_refused() {
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
    let house = with(&bad).await;
    let titled = |title: &str| {
        let title = title.to_owned();
        move |layer: Layer| {
            let layer = Layer::file(layer.blob, PROFILE_FORM, &title);
            Manifest::artifact(PROFILE_KIND, vec![layer])
        }
    };
    artefact(
        &house,
        "climbing-title",
        titled("../../climbing-title.yaml"),
    );
    artefact(&house, "five-gib", |layer| {
        let blob = Blob {
            size: 5 * GIB,
            ..layer.blob
        };
        Manifest::artifact(PROFILE_KIND, vec![Layer { blob, ..layer }])
    });
    artefact(&house, "foreign-kind", |layer| {
        Manifest::artifact("application/vnd.example.chart", vec![layer])
    });
    let index = r#"{"schemaVersion":2,"manifests":[]}"#;
    let form = "application/vnd.oci.image.index.v1+json";
    house
        .small
        .put_text(&format!("{PREFIX}index"), TAG, index, form);
    artefact(&house, "no-layer", |_| {
        Manifest::artifact(PROFILE_KIND, Vec::new())
    });
    artefact(&house, "no-title", |layer| {
        let layer = Layer {
            title: None,
            annotations: std::collections::BTreeMap::new(),
            ..layer
        };
        Manifest::artifact(PROFILE_KIND, vec![layer])
    });
    artefact(&house, "other-title", titled("good.yaml"));
    house.publish("page", TAG, "3.0.1");
    let page = format!("{PREFIX}page/manifests/");
    house.small.fail(Fault::always(&page, Way::Html));
    let report = refused(&house, bad.len()).await;
    insta::assert_snapshot!("made_in_another_way", house.told(&report));
    let blobs = house
        .small
        .count(&format!("GET /v2/{PREFIX}five-gib/blobs/"));
    assert_eq!(blobs, 0, "what is said to be too large is not asked for");
}

#[tokio::test]
async fn of_several_layers_the_first_counts_and_that_is_told() {
    let house = House::new(TAG, &["edge"]).await;
    artefact(&house, "edge", |layer| {
        let second = house.small.put_blob(&format!("{PREFIX}edge"), "another");
        let second = Layer::file(second, PROFILE_FORM, "another.yaml");
        Manifest::artifact(PROFILE_KIND, vec![layer, second])
    });
    let report = house.sync().await;
    insta::assert_snapshot!("several_layers", house.told(&report));
    assert_eq!(house.names().await, ["edge 3.0.1"]);
}

#[tokio::test]
async fn a_profile_that_never_ends_or_a_page_in_its_place_is_refused() {
    let bad = ["endless", "five-gib", "page"];
    let house = with(&bad).await;
    for (name, way) in bad
        .iter()
        .zip([Way::Huge(5 * GIB), Way::SaysLength(5 * GIB), Way::Html])
    {
        house.publish(name, TAG, "3.0.1");
        let blobs = format!("{PREFIX}{name}/blobs/");
        house.small.fail(Fault::always(&blobs, way));
    }
    let report = refused(&house, bad.len()).await;
    insta::assert_snapshot!("never_ends", house.told(&report));
}

#[tokio::test]
async fn a_list_of_tags_that_is_none_is_told_of_its_repository() {
    let bad = ["endless", "nowhere", "page"];
    let house = with(&bad).await;
    for (name, way) in [("endless", Way::Huge(5 * GIB)), ("page", Way::Html)] {
        house.publish(name, TAG, "3.0.1");
        let tags = format!("{PREFIX}{name}/tags/");
        house.small.fail(Fault::always(&tags, way));
    }
    let report = house.sync().await;
    assert_eq!(house.names().await, ["good 3.0.1"]);
    assert_eq!(report.outcome, CycleOutcome::Partly);
    insta::assert_snapshot!("no_list_of_tags", house.told(&report));
}

#[tokio::test]
async fn a_bad_list_beside_a_profile_is_told_and_the_profile_is_taken() {
    let bad = [
        ("bomb", "osExistingCvesURL", "bomb.xml.bz2"),
        (
            "elsewhere",
            "osPackageManifestURL",
            "https://elsewhere.example/list.json",
        ),
        ("empty-list", "osPackageManifestURL", "empty.json"),
        ("entities", "osExistingCvesURL", "entities.xml"),
        ("nowhere", "osFixedCvesURL", "nowhere.json"),
        ("page", "osPackageManifestURL", "page.json"),
        ("wrong-form", "osExistingCvesURL", "form.json"),
    ];
    let names: Vec<&str> = bad.iter().map(|(name, ..)| *name).collect();
    let house = House::new(TAG, &names).await;
    for (name, key, url) in bad {
        let text = yaml(name, "3.0.1", &format!("  {key}: {url}\n"));
        house.publish_text(name, TAG, &text);
    }
    house.small.put_file("/bomb.xml.bz2", unpacked_hex(BOMB));
    house.small.put_file("/empty.json", r#"{"repo":[]}"#);
    let entities = "<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY b \"c\">]><oval_definitions>&b;</oval_definitions>";
    house.small.put_file("/entities.xml", entities);
    house.small.put_file("/page.json", "<html>Sign in</html>");
    house.small.put_file("/form.json", r#"{"cves": 1}"#);
    let report = house.sync().await;
    assert_eq!((report.made as usize, report.refused), (bad.len(), 0));
    assert_eq!(report.outcome, CycleOutcome::Partly);
    insta::assert_snapshot!("bad_lists", house.told(&report));
    let ids: Vec<_> = house.systems().await.iter().map(|os| os.id).collect();
    let tx = house
        .store
        .tenant(house.tenant)
        .await
        .expect("a transaction");
    let insides = os_inside::find_many(&tx, &ids).await.expect("insides");
    let lists = insides
        .values()
        .map(|one| (one.packages, one.existing_cves, one.fixed_cves));
    assert!(lists.clone().all(|one| one == (None, None, None)));
    assert_eq!(lists.count(), bad.len());
}

#[tokio::test]
async fn a_calendar_that_cannot_be_kept_is_found_before_anything_starts() {
    let store = evenkeel_store::testing::fresh_store().await;
    let settings = Settings {
        calendar: "every now and then".to_owned(),
        ..Settings::default()
    };
    let refused = OsResourceManager::new(store, Arc::new(SystemClock), settings);
    let refused = refused.expect_err("it is no calendar").to_string();
    assert!(refused.contains("calendar"), "{refused}");
}

/// The bytes that hexadecimal digits stand for.
fn unpacked_hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("a digit")
    };
    pairs.map(byte).collect()
}
