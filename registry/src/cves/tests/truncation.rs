//! Every omission is reported as truncation.

use super::*;

/// Reads a document. Returns the list and whether it is truncated.
fn read_list(body: &str, installed: Option<&InstalledPackages>) -> (String, bool) {
    let cves = read_cves(body.as_bytes(), installed).expect("vulnerabilities");
    (cves.json, cves.is_truncated)
}

fn ids(list: &str) -> usize {
    list.matches("\"cve_id\":").count()
}

fn entry(id: &str, packages: &str) -> String {
    format!(r#"{{"cve_id":"{id}","priority":"unknown","affected_packages":[{packages}]}}"#)
}

/// This many different package names, each formatted by `text`.
fn names(count: usize, text: impl Fn(&str) -> String) -> Vec<String> {
    (0..count).map(|n| text(&format!("p{n}"))).collect()
}

/// A document with one definition whose test refers to these packages by a variable.
fn by_variable(packages: &[String]) -> String {
    let values = packages.concat();
    let definition = definition("CVE-2024-1", r#"<criterion test_ref="t"/>"#);
    format!(
        r#"<oval_definitions>{definition}<a_test id="t"><object object_ref="o"/></a_test>
        <an_object id="o"><name var_ref="none"/><name var_ref="v"/></an_object>
        <a_variable id="v">{values}</a_variable></oval_definitions>"#
    )
}

#[test]
fn an_installed_package_is_found_behind_many_that_are_not_installed() {
    let packages = names(25_001, |name| format!("<value>{name}</value>"));
    let document = by_variable(&packages);
    let had = package_set(&["p25000"]);
    let list = format!("[{}]", entry("CVE-2024-1", "\"p25000\""));
    assert_eq!(read_list(&document, Some(&had)), (list.clone(), false));

    let packages = names(28_000, |name| format!(r#"{{"binary_name":"{name}"}}"#));
    let affected: Vec<_> = packages
        .chunks(4_000)
        .map(|some| {
            let some = some.join(",");
            format!(r#"{{"ecosystem_specific":{{"binaries":[{some}]}}}}"#)
        })
        .collect();
    let affected = affected.join(",");
    let document = format!(r#"{{"id":"CVE-2024-1","affected":[{affected}]}}"#);
    assert_eq!(read_list(&document, Some(&had)), (list, false));
}

#[test]
fn too_many_packages_of_an_entry_are_reported_as_truncation() {
    for (count, is_cut) in [(20_000, false), (20_001, true)] {
        let packages = names(count, |name| format!("<value>{name}</value>"));
        let (list, is_truncated) = read_list(&by_variable(&packages), None);
        assert_eq!((list.matches("\"p").count() - 1, is_truncated), (20_000, is_cut));
    }
}

#[test]
fn too_many_entries_of_a_record_are_reported_as_truncation() {
    for (count, is_cut) in [(4_000, false), (4_001, true)] {
        let list = |text: &str| vec![text; count].join(",");
        let binaries = names(count, |name| format!(r#"{{"binary_name":"{name}"}}"#)).join(",");
        let versions = names(count, |name| format!(r#""{name}":"1""#)).join(",");
        for fields in [
            format!(r#""aliases":[{}]"#, list(r#""CVE-2024-1""#)),
            format!(r#""upstream":[{}]"#, list(r#""CVE-2024-1""#)),
            format!(r#""related":[{}]"#, list(r#""CVE-2024-1""#)),
            format!(r#""severity":[{}]"#, list("{}")),
            format!(r#""affected":[{}]"#, list(r#"{"package":{"name":"a"},"more":1}"#)),
            format!(r#""affected":[{{"ecosystem_specific":{{"binaries":[{binaries}]}}}}]"#),
            format!(r#""affected":[{{"ecosystem_specific":{{"binaries":[{{{versions}}}]}}}}]"#),
        ] {
            let record =
                format!(r#"{{"id":"GHSA-1",{fields},"database_specific":{{"severity":"low"}}}}"#);
            let (_, is_truncated) = read_list(&record, None);
            let begin: String = fields.chars().take(60).collect();
            assert_eq!(is_truncated, is_cut, "{count} in {begin}");
        }
    }
}

#[test]
fn a_truncated_record_does_not_affect_every_image() {
    let affected = vec!["{}"; 4_000].join(",");
    let complete = format!(r#"{{"id":"CVE-2024-1","affected":[{affected}]}}"#);
    let all = format!("[{}]", entry("CVE-2024-1", ""));
    assert_eq!(read_list(&complete, None), (all, false));
    let more = r#"{"package":{"name":"curl"}}"#;
    let longer = format!(r#"{{"id":"CVE-2024-1","affected":[{affected},{more}]}}"#);
    assert_eq!(read_list(&longer, None), ("[]".to_owned(), true));
}

#[test]
fn a_record_that_is_too_large_is_skipped() {
    let details = "x".repeat(4 * 1024 * 1024);
    let large = format!(r#"{{"id":"CVE-2024-1","details":"{details}"}}"#);
    let small = r#"{"id":"CVE-2024-2"}"#;
    let left = format!("[{}]", entry("CVE-2024-2", ""));
    let list = format!("[{small},{large}]");
    assert_eq!(read_list(&list, None), (left.clone(), true));
    let answer = format!(r#"{{"vulns":[{large},{small}]}}"#);
    assert_eq!(read_list(&answer, None), (left, true));
    let finding = read_cves(large.as_bytes(), None).unwrap_err();
    assert_eq!(finding.kind, FindingKind::TooLarge);
}

#[test]
fn an_entry_with_an_invalid_id_is_reported_as_truncation() {
    let long = "9".repeat(65);
    for (id, count) in [("CVE-2024-1 or another", 2), ("GHSA 1", 1), (long.as_str(), 1)] {
        let records = format!(r#"[{{"id":"CVE-2024-2"}},{{"id":"{id}"}}]"#);
        let (list, is_truncated) = read_list(&records, None);
        assert_eq!((ids(&list), is_truncated), (count, count < 2), "{id}");
    }
}

#[test]
fn a_long_text_is_truncated_without_splitting_an_id() {
    let long = "é".repeat(3_000);
    let before = " ".repeat(4_086);
    for (text, count, is_cut) in [
        (format!("CVE-2024-1 {long}"), 1, true),
        (format!("CVE-2024-1 &amp; {long} &amp; 2"), 1, true),
        // The limit cuts this text right after `CVE-2024-1`.
        (format!("{before}CVE-2024-12345"), 0, true),
        (format!("{before}CVE-2024-1"), 1, false),
    ] {
        for element in ["title", "cve"] {
            let document = format!(
                r#"<oval_definitions><definition class="patch"><{element}>{text}</{element}>
                </definition></oval_definitions>"#
            );
            let (list, is_truncated) = read_list(&document, None);
            assert_eq!((ids(&list), is_truncated), (count, is_cut), "{element}");
        }
    }
    // Texts that are not used may have any length.
    let other = format!("<product>{long}</product>");
    let other = definition("CVE-2024-1", &other);
    assert!(!read_list(&oval(&other, &[]), None).1);
}

#[test]
fn too_many_vulnerabilities_of_a_definition_do_not_affect_other_definitions() {
    for (count, is_cut) in [(4_000, false), (4_001, true)] {
        let one = |n: usize| format!(r#"<reference source="CVE" ref_id="CVE-2023-{n}"/>"#);
        let many: String = (0..count).map(one).collect();
        let many = format!(r#"<definition class="patch">{many}</definition>"#);
        let other = definition("CVE-2024-1", &criterion("curl", ""));
        let (list, is_truncated) = read_list(&oval(&(many + &other), &["curl"]), None);
        assert_eq!((ids(&list), is_truncated), (4_001, is_cut));
        assert!(list.ends_with(&(entry("CVE-2024-1", "\"curl\"") + "]")));
    }
}

#[test]
fn a_definition_with_unread_tests_does_not_affect_every_image() {
    let unread = definition("CVE-2024-1", &criterion("curl", ""));
    let by_comment = r#"<criterion test_ref="t-git" comment="git DPKG is earlier than 2"/>"#;
    let by_comment = definition("CVE-2024-2", by_comment);
    let document = oval(&(unread.clone() + &by_comment), &["curl", "git"]);
    let all = [entry("CVE-2024-1", "\"curl\""), entry("CVE-2024-2", "\"git\"")];
    assert_eq!(read_list(&document, None), (format!("[{}]", all.join(",")), false));

    // Each small element takes memory, so the limit is reached before the tests are read.
    let many = format!("<tests>{}", "<a_test/>".repeat(1_100_000));
    let document = document.replace("<tests>", &many);
    let left = format!("[{}]", entry("CVE-2024-2", "\"git\""));
    assert_eq!(read_list(&document, None), (left, true));

    let long = "t".repeat(300);
    let document = oval(&unread, &["curl"]).replace("t-curl", &long);
    assert_eq!(read_list(&document, None), ("[]".to_owned(), true));
}
