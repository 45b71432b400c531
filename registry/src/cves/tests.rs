use std::io::Write as _;

use bzip2::Compression;
use bzip2::write::BzEncoder;

use super::*;

fn of(names: &[&str]) -> HashSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn json(body: &str, of: Option<&HashSet<String>>) -> String {
    let cves = cves(body.as_bytes(), of).expect("vulnerabilities");
    assert!(!cves.cut);
    serde_json::from_str::<serde_json::Value>(&cves.json).expect("JSON");
    cves.json
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = BzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

const USN: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<oval_definitions xmlns="http://oval.mitre.org/XMLSchema/oval-definitions-5" xmlns:linux-def="http://oval.mitre.org/linux">
  <generator><product_name>Canonical</product_name></generator>
  <definitions>
    <definition id="oval:d:1" version="1" class="inventory"><metadata><title>CVE-2000-0001</title></metadata></definition>
    <definition id="oval:d:2" version="1" class="patch">
      <metadata>
        <title>USN-5376-1 -- Git &amp; others</title>
        <affected family="unix"><platform>Ubuntu 22.04 LTS</platform></affected>
        <reference source="USN" ref_id="USN-5376-1"/>
        <reference source="CVE" ref_id="CVE-2022-24765"/>
        <advisory from="security@ubuntu.com">
          <severity>Medium</severity>
          <cve href="https://ubuntu.com/security/CVE-2022-29187" priority="low">CVE-2022-29187</cve>
        </advisory>
      </metadata>
      <criteria><extend_definition definition_ref="oval:d:1"/>
        <criteria operator="OR"><criterion test_ref="oval:t:1" comment="Long Term Support"/></criteria></criteria>
    </definition>
    <definition class="vulnerability">
      <metadata><title>CVE-2021-3449 on Ubuntu 22.04 LTS (jammy) - high</title>
      <advisory><severity>High</severity></advisory></metadata>
      <criteria><criterion test_ref="oval:t:9" comment="openssl package in jammy was vulnerable but has been fixed"/></criteria>
    </definition>
    <definition class="vulnerability">
      <metadata><title>CVE-2020-1 curl</title><affected><product>curl</product></affected></metadata>
      <criteria><criterion comment="curl DPKG is earlier than 7.88"/></criteria>
    </definition>
  </definitions>
  <tests><linux-def:dpkginfo_test id="oval:t:1"><linux-def:object object_ref="oval:o:1"/><linux-def:state state_ref="s"/></linux-def:dpkginfo_test></tests>
  <objects><linux-def:dpkginfo_object id="oval:o:1"><linux-def:name var_ref="oval:v:1" var_check="at least one"/></linux-def:dpkginfo_object></objects>
  <variables><constant_variable id="oval:v:1" datatype="string"><value>git</value><value>git-man</value></constant_variable></variables>
</oval_definitions>"#;

#[test]
fn oval_becomes_a_list() {
    let all = r#"[{"cve_id":"CVE-2020-1","priority":"unknown","affected_packages":["curl"]},{"cve_id":"CVE-2021-3449","priority":"high","affected_packages":["openssl"]},{"cve_id":"CVE-2022-24765","priority":"medium","affected_packages":["git","git-man"]},{"cve_id":"CVE-2022-29187","priority":"medium","affected_packages":["git","git-man"]}]"#;
    assert_eq!(json(USN, None), all);
    let packed = packed(USN.as_bytes());
    assert_eq!(cves(&packed, None).unwrap().json, all);
    let again = self::packed(b"  \n");
    let twice = [packed.as_slice(), again.as_slice()].concat();
    assert_eq!(cves(&twice, None).unwrap().json, all);
}

#[test]
fn what_concerns_only_other_packages_is_left_out() {
    let had = of(&["git", "zlib1g"]);
    assert_eq!(
        json(USN, Some(&had)),
        r#"[{"cve_id":"CVE-2022-24765","priority":"medium","affected_packages":["git"]},{"cve_id":"CVE-2022-29187","priority":"medium","affected_packages":["git"]}]"#
    );
    let unclear =
        r#"[{"id":"CVE-2024-1"},{"id":"CVE-2024-2","affected":[{"package":{"name":"curl"}}]}]"#;
    assert_eq!(
        json(unclear, Some(&had)),
        r#"[{"cve_id":"CVE-2024-1","priority":"unknown","affected_packages":[]}]"#
    );
}

#[test]
fn the_ancestors_list_stays_as_it_is() {
    for list in [
        "[]",
        "[ {\"cve_id\" : \"CVE-2024-1\",\n \"priority\":\"HIGH\", \"affected_packages\": [\"a b\"], \"more\": 1.0 } ]\n",
    ] {
        assert_eq!(json(list, Some(&of(&["zlib1g"]))), list);
    }
}

#[test]
fn a_list_without_room_keeps_what_stands_first() {
    let entry = |n: usize| {
        format!(
            r#"{{"cve_id":"CVE-2024-{n}","note":"{}"}}"#,
            "x".repeat(1_000)
        )
    };
    let entries: Vec<_> = (0..9_000).map(entry).collect();
    let cves = cves(format!("[{}]", entries.join(" , ")).as_bytes(), None).unwrap();
    assert!(cves.cut && cves.json.len() <= MAX_JSON);
    assert!(
        cves.json
            .starts_with(&format!("[{},{}", entries[0], entries[1]))
    );
    let kept: Vec<serde_json::Value> = serde_json::from_str(&cves.json).unwrap();
    assert!(kept.len() > 8_000, "{}", kept.len());
}

#[test]
fn a_made_list_without_room_is_cut() {
    let package = "p".repeat(200);
    let record = |n: usize| {
        format!(r#"{{"id":"CVE-2024-{n}","affected":[{{"package":{{"name":"{package}"}}}}]}}"#)
    };
    let records: Vec<_> = (0..40_000).map(record).collect();
    let cves = cves(format!("[{}]", records.join(",")).as_bytes(), None).unwrap();
    assert!(cves.cut && cves.json.len() <= MAX_JSON);
    assert!(
        serde_json::from_str::<Vec<serde_json::Value>>(&cves.json)
            .unwrap()
            .len()
            > 20_000
    );
}

#[test]
fn records_of_osv_become_a_list() {
    let ubuntu = r#"{"id":"UBUNTU-CVE-2024-3094","upstream":["CVE-2024-3094"],
        "severity":[{"type":"CVSS_V3","score":"CVSS:3.1/AV:N"},{"type":"Ubuntu","score":"Critical"}],
        "affected":[{"package":{"ecosystem":"Ubuntu:24.04:LTS","name":"xz-utils"},
            "ecosystem_specific":{"binaries":[{"binary_name":"liblzma5","binary_version":"5.6"},{"xz-utils":"5.6"}]}}]}"#;
    let critical = r#"[{"cve_id":"CVE-2024-3094","priority":"critical","affected_packages":["liblzma5","xz-utils"]}]"#;
    assert_eq!(json(ubuntu, None), critical);
    assert_eq!(json(&format!("[{ubuntu},{ubuntu}]"), None), critical);
    assert_eq!(
        json(
            &format!(r#"{{"vulns":[{ubuntu}],"next_page_token":""}}"#),
            None
        ),
        critical
    );
    assert_eq!(json(r#"{"vulns":[]}"#, None), "[]");
    let notice = r#"[{"id":"DSA-1-1","aliases":null,"related":["CVE-2024-2","CVE-2024-1","GHSA-1"],
        "affected":[{"package":{"name":"curl"},"ecosystem_specific":{"urgency":"low"}}]},
        {"id":"GHSA-2","database_specific":{"severity":"MODERATE","other":[1]}},
        {"id":"CVE-2024-9","withdrawn":"2024-01-01T00:00:00Z"}]"#;
    assert_eq!(
        json(notice, None),
        r#"[{"cve_id":"CVE-2024-1","priority":"low","affected_packages":["curl"]},{"cve_id":"CVE-2024-2","priority":"low","affected_packages":["curl"]},{"cve_id":"GHSA-2","priority":"moderate","affected_packages":[]}]"#
    );
}

#[test]
fn what_is_no_document_is_refused_with_a_reason() {
    for (body, why) in [
        ("", "empty"),
        ("CVE-2024-1", "neither JSON nor XML"),
        ("<!DOCTYPE html><html></html>", "document type"),
        ("<html><body></body></html>", "no OVAL"),
        ("<oval_definitions><definitions>", "in the middle"),
        ("<oval_definitions></other>", "cannot be used"),
        ("<!-- nothing -->", "no OVAL"),
        (
            "<oval_definitions>&mine;</oval_definitions>",
            "cannot be used",
        ),
        ("{}", "neither an id nor vulns"),
        ("[{}]", "neither cve_id nor id"),
        ("[1]", "invalid type"),
        ("[[\"CVE-2024-1\"]]", "invalid type"),
        ("[{\"cve_id\":\"\"}]", "no text"),
        ("[{\"cve_id\":\"a\\u0000\"}]", "no text"),
        (
            "[{\"cve_id\":\"CVE-2024-1\"},{\"id\":\"CVE-2024-2\"}]",
            "entry 2",
        ),
        (
            "[{\"id\":\"CVE-2024-1\"},{\"cve_id\":\"CVE-2024-2\"}]",
            "missing field",
        ),
        ("{\"id\":1}", "invalid type"),
        ("{\"vulns\":{}}", "invalid type"),
        ("[{\"cve_id\":\"CVE-2024-1\"}", "EOF"),
        ("BZh91AY&SY and nothing else", "cannot be used"),
    ] {
        let finding = cves(body.as_bytes(), None).expect_err(body);
        assert_eq!(finding.kind, FindingKind::Cves, "{body}: {finding}");
        assert!(finding.message.contains(why), "{body}: {finding}");
    }
    assert!(cves(b"[\xff]", None).unwrap_err().message.contains("UTF-8"));
    let large = vec![b' '; MAX_BYTES + 1];
    assert_eq!(cves(&large, None).unwrap_err().kind, FindingKind::TooLarge);
}

#[test]
fn elements_do_not_lie_in_each_other_without_end() {
    let deep = format!("<oval_definitions>{}", "<a>".repeat(1_000));
    let finding = cves(deep.as_bytes(), None).unwrap_err();
    assert!(finding.message.contains("too deep"), "{finding}");
}

#[test]
fn what_unpacks_to_too_much_is_not_read_to_its_end() {
    let zeros = packed(&vec![0; 4 * 1024 * 1024]);
    assert!(zeros.len() < 1_000);
    let finding = cves(&zeros, None).unwrap_err();
    assert!(finding.message.contains("too long"), "{finding}");
    let many = format!(
        "<oval_definitions>{}</oval_definitions>",
        "<a></a> ".repeat(20_000)
    );
    let packed = packed(many.as_bytes());
    assert_eq!(read(&packed, None, 1024 * 1024).unwrap().json, "[]");
    let finding = read(&packed, None, 100_000).unwrap_err();
    assert_eq!(finding.kind, FindingKind::TooLarge);
}

#[test]
fn an_id_is_found_within_other_names() {
    for (text, id) in [
        ("CVE-2024-3094", Some("CVE-2024-3094")),
        ("UBUNTU-CVE-2024-3094", Some("CVE-2024-3094")),
        ("CVE-2024-3094 on Ubuntu", Some("CVE-2024-3094")),
        ("(CVE-2024-3094)", Some("CVE-2024-3094")),
        ("CVE-", None),
        ("CVE-2024", None),
        ("CVE-2024-é", None),
        ("CVE-2024-12x", None),
        ("GHSA-1", None),
    ] {
        assert_eq!(cve_in(text), id, "{text}");
    }
}

#[test]
fn what_is_said_twice_or_without_end_does_not_come_in() {
    let twice = br#"[{"cve_id":"CVE-1","cve_id":"CVE-2"}]"#;
    assert!(cves(twice, None).is_err());
    let empty = "<definition class=\"patch\"/>".repeat(100_000);
    let empty = format!("<oval_definitions><definitions>{empty}</definitions></oval_definitions>");
    let nothing = cves(empty.as_bytes(), None).expect("a list");
    assert_eq!((nothing.json.as_str(), nothing.cut), ("[]", false));
}
