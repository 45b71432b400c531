use std::collections::BTreeSet;

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::FileRole;

use super::*;

const LIST: &str =
    r#"{"repo":[{"name":"bash","version":"5.2"},{"name":"zlib1g","version":"1.3"}]}"#;

fn file(role: FileRole, place: &str) -> File {
    File {
        role,
        path: place.to_owned(),
        place: place.to_owned(),
        sha256: None,
        size: None,
    }
}

fn side(key: SideKey, digest: Option<u8>, etag: Option<&str>) -> Side {
    Side {
        key,
        digest: digest.map(|byte| [byte; 32]),
        etag: etag.map(str::to_owned),
        findings: Vec::new(),
        fetched_at: Time::UNIX_EPOCH,
    }
}

fn key(place: &str, filtered_by: Option<u8>) -> SideKey {
    SideKey {
        place: place.to_owned(),
        kind: SideKind::Cves,
        filtered_by: filtered_by.map(|byte| [byte; 32]),
    }
}

fn known(sides: impl IntoIterator<Item = Side>) -> HashMap<SideKey, Side> {
    let sides = sides.into_iter();
    sides.map(|side| (side.key.clone(), side)).collect()
}

/// Two profiles that name the same vulnerabilities, and lists of packages of their own.
fn two_profiles() -> Vec<Vec<File>> {
    ["web:https://a.example/one", "web:https://a.example/two"]
        .map(|list| {
            vec![
                file(FileRole::Image, "web:https://a.example/image"),
                file(FileRole::Packages, list),
                file(FileRole::ExistingCves, "web:https://a.example/cves"),
                file(FileRole::FixedCves, "web:https://a.example/cves"),
            ]
        })
        .to_vec()
}

#[test]
fn each_document_is_wanted_once_in_all_forms_in_which_it_is_shown() {
    let files = two_profiles();
    let lists = packages_of(&files, &HashMap::new());
    assert_eq!(lists.len(), 2);
    assert!(lists.iter().all(|list| list.forms.len() == 1));

    let shown = |one: u8, two: u8| {
        let lists = lists.iter().map(|list| list.place.clone());
        lists.zip([[one; 32], [two; 32]]).collect()
    };
    let forms = |shown: &HashMap<String, contents::Digest>| {
        let mut wanted = cves_of(&files, shown, &HashMap::new());
        assert_eq!(wanted.len(), 1);
        let forms = wanted.remove(0).forms.into_iter();
        forms
            .map(|form| form.key.filtered_by)
            .collect::<BTreeSet<_>>()
    };
    let two = BTreeSet::from([Some([1; 32]), Some([2; 32])]);
    assert_eq!(forms(&shown(1, 2)), two);
    assert_eq!(forms(&shown(1, 1)), BTreeSet::from([Some([1; 32])]));
    assert_eq!(forms(&HashMap::new()), BTreeSet::from([None]));
}

#[test]
fn a_version_counts_as_known_only_if_all_forms_are_of_it() {
    let files = two_profiles();
    let shown: HashMap<String, contents::Digest> = HashMap::from([
        ("web:https://a.example/one".to_owned(), [1; 32]),
        ("web:https://a.example/two".to_owned(), [2; 32]),
    ]);
    let place = "web:https://a.example/cves";
    let etag = |one: Side, two: Side| {
        let wanted = cves_of(&files, &shown, &known([one, two]));
        wanted[0].etag().map(str::to_owned)
    };
    let form = |list, digest, etag| side(key(place, Some(list)), digest, etag);
    let same = etag(form(1, Some(7), Some("a")), form(2, Some(8), Some("a")));
    assert_eq!(same.as_deref(), Some("a"));
    let other = etag(form(1, Some(7), Some("a")), form(2, Some(8), Some("b")));
    assert_eq!(other, None);
    let nothing_shown = etag(form(1, None, Some("a")), form(2, Some(8), Some("a")));
    assert_eq!(nothing_shown, None);
}

#[test]
fn who_waited_longest_comes_first() {
    let files = vec![vec![
        file(FileRole::ExistingCves, "web:https://a.example/old"),
        file(FileRole::FixedCves, "web:https://a.example/stalled"),
    ]];
    let mut stalled = side(key("web:https://a.example/stalled", None), None, None);
    let mut old = side(key("web:https://a.example/old", None), Some(1), None);
    let first = |old: &Side, stalled: &Side| {
        let known = known([old.clone(), stalled.clone()]);
        cves_of(&files, &HashMap::new(), &known)[0].place.clone()
    };
    old.fetched_at += chrono::TimeDelta::hours(1);
    assert_eq!(first(&old, &stalled), stalled.key.place);
    stalled.fetched_at += chrono::TimeDelta::hours(2);
    assert_eq!(first(&old, &stalled), old.key.place);
}

#[test]
fn what_is_odd_about_a_content_stays_and_what_went_wrong_does_not() {
    let cut = Finding::new(FindingKind::CvesCut, "there are more");
    let away = Finding::new(FindingKind::Unreachable, "nobody answers");
    let mut before = side(key("web:https://a.example/cves", None), Some(1), Some("a"));
    before.findings = vec![kept(&cut), kept(&away)];
    let form = Form {
        key: before.key.clone(),
        packages: None,
        before: Some(before),
    };
    let now = Time::UNIX_EPOCH + chrono::TimeDelta::hours(1);
    let again = form.again(now);
    assert_eq!(again.findings, [kept(&cut)]);
    assert_eq!((again.etag.as_deref(), again.fetched_at), (Some("a"), now));
    let without = form.without(&away, now);
    assert_eq!(without.findings, [kept(&cut), kept(&away)]);
    assert_eq!(without.digest, Some([1; 32]));
}

#[test]
fn vulnerabilities_are_cut_down_to_the_packages_of_the_image() {
    let record = |id: &str, binary: &str| {
        format!(
            r#"{{"id":"{id}","affected":[{{"package":{{"name":"source"}},"ecosystem_specific":{{"binaries":[{{"{binary}":"1"}}]}}}}]}}"#
        )
    };
    let records = [record("CVE-2026-1", "bash"), record("CVE-2026-2", "vim")];
    let osv = format!("[{}]", records.join(","));
    let osv = osv.as_bytes();
    let (whole, _) = read(SideKind::Cves, osv, None).expect("vulnerabilities");
    assert!(whole.contains("CVE-2026-2"), "{whole}");
    let (cut, _) = read(SideKind::Cves, osv, Some(LIST)).expect("vulnerabilities");
    assert!(cut.contains("CVE-2026-1"), "{cut}");
    assert!(!cut.contains("CVE-2026-2"), "{cut}");
}

#[test]
fn what_is_no_document_is_found_to_be_none() {
    let (list, remarks) = read(SideKind::Packages, LIST.as_bytes(), None).expect("a list");
    assert_eq!((list.as_str(), remarks.len()), (LIST, 0));
    for (kind, found) in [
        (SideKind::Packages, FindingKind::Packages),
        (SideKind::Cves, FindingKind::Cves),
    ] {
        let finding = read(kind, b"<html>", None).expect_err("a web page");
        assert_eq!(finding.kind, found);
        let error = RegistryError::Malformed {
            what: "file",
            why: "it is empty".to_owned(),
        };
        assert_eq!(finding_about(kind, &error).kind, found);
    }
}
