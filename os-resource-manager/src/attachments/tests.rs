use std::collections::BTreeSet;

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::FileRole;

use super::*;

const PACKAGE_LIST: &str =
    r#"{"repo":[{"name":"bash","version":"5.2"},{"name":"zlib1g","version":"1.3"}]}"#;

fn file(role: FileRole, location: &str) -> CatalogFile {
    CatalogFile {
        role,
        path: location.to_owned(),
        source: location.to_owned(),
        sha256: None,
        size: None,
    }
}

fn attachment(key: AttachmentKey, digest: Option<u8>, etag: Option<&str>) -> Attachment {
    Attachment {
        key,
        digest: digest.map(|byte| [byte; 32]),
        etag: etag.map(str::to_owned),
        findings: Vec::new(),
        fetched_at: Time::UNIX_EPOCH,
    }
}

fn key(location: &str, filtered_by: Option<u8>) -> AttachmentKey {
    AttachmentKey {
        location: location.to_owned(),
        kind: AttachmentKind::Cves,
        filtered_by: filtered_by.map(|byte| [byte; 32]),
    }
}

fn by_key(attachments: impl IntoIterator<Item = Attachment>) -> HashMap<AttachmentKey, Attachment> {
    let attachments = attachments.into_iter();
    attachments.map(|entry| (entry.key.clone(), entry)).collect()
}

/// Two profiles with the same CVE list and different package lists.
fn two_profiles() -> Vec<Vec<CatalogFile>> {
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
fn each_document_is_requested_once_with_all_its_variants() {
    let files = two_profiles();
    let lists = package_list_requests(&files, &HashMap::new());
    assert_eq!(lists.len(), 2);
    assert!(lists.iter().all(|list| list.variants.len() == 1));

    let list_digests = |one: u8, two: u8| {
        let lists = lists.iter().map(|list| list.location.clone());
        lists.zip([[one; 32], [two; 32]]).collect()
    };
    let variants = |list_digests: &HashMap<String, contents::ContentDigest>| {
        let mut requests = cve_list_requests(&files, list_digests, &HashMap::new());
        assert_eq!(requests.len(), 1);
        let variants = requests.remove(0).variants.into_iter();
        variants.map(|variant| variant.key.filtered_by).collect::<BTreeSet<_>>()
    };
    let two = BTreeSet::from([Some([1; 32]), Some([2; 32])]);
    assert_eq!(variants(&list_digests(1, 2)), two);
    assert_eq!(variants(&list_digests(1, 1)), BTreeSet::from([Some([1; 32])]));
    assert_eq!(variants(&HashMap::new()), BTreeSet::from([None]));
}

#[test]
fn an_etag_is_sent_only_if_all_variants_have_it() {
    let files = two_profiles();
    let list_digests: HashMap<String, contents::ContentDigest> = HashMap::from([
        ("web:https://a.example/one".to_owned(), [1; 32]),
        ("web:https://a.example/two".to_owned(), [2; 32]),
    ]);
    let location = "web:https://a.example/cves";
    let etag = |one: Attachment, two: Attachment| {
        let requests = cve_list_requests(&files, &list_digests, &by_key([one, two]));
        requests[0].etag().map(str::to_owned)
    };
    let variant = |list, digest, etag| attachment(key(location, Some(list)), digest, etag);
    let same = etag(variant(1, Some(7), Some("a")), variant(2, Some(8), Some("a")));
    assert_eq!(same.as_deref(), Some("a"));
    let other = etag(variant(1, Some(7), Some("a")), variant(2, Some(8), Some("b")));
    assert_eq!(other, None);
    let nothing_shown = etag(variant(1, None, Some("a")), variant(2, Some(8), Some("a")));
    assert_eq!(nothing_shown, None);
}

#[test]
fn the_longest_unfetched_document_comes_first() {
    let files = vec![vec![
        file(FileRole::ExistingCves, "web:https://a.example/old"),
        file(FileRole::FixedCves, "web:https://a.example/stalled"),
    ]];
    let mut stalled = attachment(key("web:https://a.example/stalled", None), None, None);
    let mut old = attachment(key("web:https://a.example/old", None), Some(1), None);
    let first = |old: &Attachment, stalled: &Attachment| {
        let stored = by_key([old.clone(), stalled.clone()]);
        cve_list_requests(&files, &HashMap::new(), &stored)[0].location.clone()
    };
    old.fetched_at += chrono::TimeDelta::hours(1);
    assert_eq!(first(&old, &stalled), stalled.key.location);
    stalled.fetched_at += chrono::TimeDelta::hours(2);
    assert_eq!(first(&old, &stalled), old.key.location);
}

#[test]
fn remarks_about_the_content_stay_and_failures_do_not() {
    let truncated = Finding::new(FindingKind::CvesCut, "there are more");
    let away = Finding::new(FindingKind::Unreachable, "no answer");
    let mut before = attachment(key("web:https://a.example/cves", None), Some(1), Some("a"));
    before.findings = vec![finding_json(&truncated), finding_json(&away)];
    let variant =
        AttachmentVariant { key: before.key.clone(), packages: None, before: Some(before) };
    let now = Time::UNIX_EPOCH + chrono::TimeDelta::hours(1);
    let again = variant.refreshed(now);
    assert_eq!(again.findings, [finding_json(&truncated)]);
    assert_eq!((again.etag.as_deref(), again.fetched_at), (Some("a"), now));
    let without = variant.with_failure(&away, now);
    assert_eq!(without.findings, [finding_json(&truncated), finding_json(&away)]);
    assert_eq!(without.digest, Some([1; 32]));
}

#[test]
fn cve_lists_are_filtered_by_the_packages_of_the_image() {
    let record = |id: &str, binary: &str| {
        format!(
            r#"{{"id":"{id}","affected":[{{"package":{{"name":"source"}},"ecosystem_specific":{{"binaries":[{{"{binary}":"1"}}]}}}}]}}"#
        )
    };
    let records = [record("CVE-2026-1", "bash"), record("CVE-2026-2", "vim")];
    let osv = format!("[{}]", records.join(","));
    let osv = osv.as_bytes();
    let (unfiltered, _) =
        render_document(AttachmentKind::Cves, osv, None).expect("vulnerabilities");
    assert!(unfiltered.contains("CVE-2026-2"), "{unfiltered}");
    let (filtered, _) =
        render_document(AttachmentKind::Cves, osv, Some(PACKAGE_LIST)).expect("vulnerabilities");
    assert!(filtered.contains("CVE-2026-1"), "{filtered}");
    assert!(!filtered.contains("CVE-2026-2"), "{filtered}");
}

#[test]
fn unusable_documents_are_findings() {
    let (list, remarks) =
        render_document(AttachmentKind::Packages, PACKAGE_LIST.as_bytes(), None).expect("a list");
    assert_eq!((list.as_str(), remarks.len()), (PACKAGE_LIST, 0));
    for (kind, expected) in [
        (AttachmentKind::Packages, FindingKind::Packages),
        (AttachmentKind::Cves, FindingKind::Cves),
    ] {
        let finding = render_document(kind, b"<html>", None).expect_err("a web page");
        assert_eq!(finding.kind, expected);
        let error = RegistryError::Malformed { what: "file", why: "it is empty".to_owned() };
        assert_eq!(document_finding(kind, &error).kind, expected);
    }
}
