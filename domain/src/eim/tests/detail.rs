//! Details in both JSON formats and as plain text.

use super::*;
use crate::run::FailureKind;

const SERVER_DETAIL: &str = r#"{"update_log":[
    {"update_type":"application","package_name":"curl","update_time":"2026-01-01T00:00:00Z",
     "action":"upgrade","status":"installed","version":"8.5"},
    {"package_name":"jq","action":"install","status":"failed","failure_reason":"download","failure_log":"404"}]}"#;

#[test]
fn both_dialects_are_read() {
    let detail = Detail::parse(SERVER_DETAIL);
    assert_eq!(detail.packages.len(), 2);
    assert_eq!(detail.changed_count, 1);
    assert_eq!(detail.failure().reason, "download: 404");
    assert_eq!(detail.text, SERVER_DETAIL);

    let agents =
        r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"insufficientstorage"}]}"#;
    let failure = Detail::parse(agents).failure();
    assert_eq!(
        (failure.kind, failure.reason.as_str()),
        (FailureKind::Storage, "insufficientstorage")
    );
    let well =
        Detail::parse(r#"{"UpdateLog":[{"StatusDetail.Status":"SUCCESS","Version":"24.04"}]}"#);
    assert_eq!((well.failure, well.changed_count), (None, 0));
    let mute = Detail::parse(r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL"}]}"#);
    assert_eq!(mute.failure().reason, "the node gave no reason");
}

#[test]
fn every_reason_has_its_kind() {
    use FailureKind as K;
    for (reason, kind) in [
        ("unspecified", K::Unspecified),
        ("nofailure", K::Unspecified),
        ("download", K::Download),
        ("rsauthentication", K::Download),
        ("insufficientstorage", K::Storage),
        ("signaturecheck", K::Signature),
        ("utwrite", K::Apply),
        ("utbootconfiguration", K::Apply),
        ("updatetool", K::Apply),
        ("inbm", K::Apply),
        ("bootloader", K::Reboot),
        ("criticalservices", K::Verify),
        ("oscommit", K::Verify),
        ("something new", K::Unspecified),
    ] {
        let agents = format!(r#"{{"UpdateLog":[{{"FailureReason":"{reason}"}}]}}"#);
        let servers =
            format!(r#"{{"update_log":[{{"status":"failed","failure_reason":"{reason}"}}]}}"#);
        for text in [agents, servers] {
            assert_eq!(Detail::parse(&text).failure().kind, kind, "{text}");
        }
    }
}

#[test]
fn a_rollback_is_a_failure() {
    let detail = Detail::parse(r#"{"update_log":[{"package_name":"jq","status":"rolledback"}]}"#);
    assert_eq!(detail.failure().reason, "it was rolled back");
    assert_eq!(detail.changed_count, 0);
}

#[test]
fn plain_text_is_stored_verbatim() {
    for text in [
        "cannot download: timeout",
        "skipping IMMUTABLE update request on Ubuntu node",
        "[]",
        "7",
        r#"{"update_log":7}"#,
        r#"{"update_log":[{"version":7}]}"#,
        r#"{"other":[]}"#,
    ] {
        let detail = Detail::parse(text);
        assert_eq!(detail.text, text);
        assert_eq!(detail.failure().reason, text);
        assert!(detail.packages.is_empty());
    }
    assert_eq!(Detail::parse("cannot download: x").failure().kind, FailureKind::Download);
    assert_eq!(Detail::parse("").failure().reason, "the node gave no reason");
}

#[test]
fn a_hostile_detail_stays_within_bounds() {
    let zero =
        r#"{"update_log":[{"package_name":"a\u0000b","status":"failed","failure_log":"x\u0000"}]}"#;
    let detail = Detail::parse(zero);
    assert!(!detail.packages[0].name.contains('\0'));
    assert!(!detail.failure().reason.contains('\0'));
    assert!(!Detail::parse("a\0b").text.contains('\0'));

    let entry = r#"{"package_name":"a","status":"installed"}"#;
    let many = format!(r#"{{"update_log":[{}]}}"#, vec![entry; 20_000].join(","));
    let detail = Detail::parse(&many);
    assert_eq!((detail.packages.len(), detail.changed_count), (10_000, 20_000));
    assert!(detail.is_cut);
    assert!(detail.text.len() <= 100_000 && detail.text.ends_with("… [cut]"));

    let name = "a".repeat(90_000);
    let long = format!(r#"{{"update_log":[{{"package_name":"{name}"}}]}}"#);
    assert_eq!(Detail::parse(&long).packages[0].name.len(), 256);
    let deep = format!(r#"{{"update_log":{}"#, "[".repeat(100_000));
    assert!(Detail::parse(&deep).packages.is_empty());
    assert_eq!(Detail::parse(&"x".repeat(10 << 20)).text.len(), 100_000);
}
