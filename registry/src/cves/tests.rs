use std::io::Write as _;

use bzip2::Compression;
use bzip2::write::BzEncoder;

use super::*;

mod truncation;
mod versions;

/// Packages of an unknown distribution.
fn package_set(names: &[&str]) -> InstalledPackages {
    let entries: Vec<_> = names.iter().map(|name| (*name, "1")).collect();
    package_list(&entries)
}

fn package_list(packages: &[(&str, &str)]) -> InstalledPackages {
    let entry =
        |(name, version): &(&str, &str)| format!(r#"{{"name":"{name}","version":"{version}"}}"#);
    let entries: Vec<_> = packages.iter().map(entry).collect();
    let list = format!(r#"{{"repo":[{}]}}"#, entries.join(","));
    InstalledPackages::from_list(&list).expect("a list")
}

fn json(body: &str, installed: Option<&InstalledPackages>) -> String {
    let cves = read_cves(body.as_bytes(), installed).expect("vulnerabilities");
    assert!(!cves.is_truncated);
    serde_json::from_str::<serde_json::Value>(&cves.json).expect("JSON");
    cves.json
}

fn compress(text: &[u8]) -> Vec<u8> {
    let mut encoder = BzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// A document with these definitions and one test per package.
fn oval(definitions: &str, packages: &[&str]) -> String {
    let test = |name: &&str| {
        format!(r#"<dpkginfo_test id="t-{name}"><object object_ref="o-{name}"/></dpkginfo_test>"#)
    };
    let object = |name: &&str| {
        format!(r#"<dpkginfo_object id="o-{name}"><name>{name}</name></dpkginfo_object>"#)
    };
    let tests: String = packages.iter().map(test).collect();
    let objects: String = packages.iter().map(object).collect();
    format!(
        "<oval_definitions><definitions>{definitions}</definitions><tests>{tests}</tests>\
         <objects>{objects}</objects></oval_definitions>"
    )
}

fn definition(cve: &str, criteria: &str) -> String {
    format!(
        r#"<definition class="vulnerability"><metadata><reference source="CVE" ref_id="{cve}"/>
        </metadata>{criteria}</definition>"#
    )
}

/// A criterion that refers to the test of a package.
fn criterion(package: &str, more: &str) -> String {
    format!(r#"<criterion test_ref="t-{package}"{more}/>"#)
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
    let all = r#"[{"cve_id":"CVE-2020-1","priority":"unknown","affected_packages":["curl"]},{"cve_id":"CVE-2021-3449","priority":"high","affected_packages":["openssl"]},{"cve_id":"CVE-2022-24765","priority":"medium","affected_packages":["git","git-man"]},{"cve_id":"CVE-2022-29187","priority":"low","affected_packages":["git","git-man"]}]"#;
    assert_eq!(json(USN, None), all);
    let packed = compress(USN.as_bytes());
    assert_eq!(read_cves(&packed, None).unwrap().json, all);
    let again = self::compress(b"  \n");
    let twice = [packed.as_slice(), again.as_slice()].concat();
    assert_eq!(read_cves(&twice, None).unwrap().json, all);
}

#[test]
fn what_concerns_only_other_packages_is_left_out() {
    let had = package_set(&["git", "zlib1g"]);
    assert_eq!(
        json(USN, Some(&had)),
        r#"[{"cve_id":"CVE-2022-24765","priority":"medium","affected_packages":["git"]},{"cve_id":"CVE-2022-29187","priority":"low","affected_packages":["git"]}]"#
    );
    let unclear = r#"[{"id":"CVE-2024-1"},{"id":"CVE-2024-2",
        "affected":[{"package":{"name":"zlib1g"},"ecosystem_specific":{"binaries":[{"curl":"7"}]}}]}]"#;
    assert_eq!(
        json(unclear, Some(&had)),
        r#"[{"cve_id":"CVE-2024-1","priority":"unknown","affected_packages":[]}]"#
    );
}

#[test]
fn an_eim_list_is_not_changed() {
    for list in [
        "[]",
        "[ {\"cve_id\" : \"CVE-2024-1\",\n \"priority\":\"HIGH\", \"affected_packages\": [\"a b\"], \"more\": 1.0 } ]\n",
    ] {
        assert_eq!(json(list, Some(&package_set(&["zlib1g"]))), list);
    }
}

#[test]
fn a_list_that_is_too_long_keeps_its_first_entries() {
    let entry = |n: usize| format!(r#"{{"cve_id":"CVE-2024-{n}","note":"{}"}}"#, "x".repeat(1_000));
    let entries: Vec<_> = (0..9_000).map(entry).collect();
    let cves = read_cves(format!("[{}]", entries.join(" , ")).as_bytes(), None).unwrap();
    assert!(cves.is_truncated && cves.json.len() <= MAX_JSON_BYTES);
    assert!(cves.json.starts_with(&format!("[{},{}", entries[0], entries[1])));
    let values: Vec<serde_json::Value> = serde_json::from_str(&cves.json).unwrap();
    assert!(values.len() > 8_000, "{}", values.len());
}

#[test]
fn a_converted_list_that_is_too_long_is_truncated() {
    let package = "p".repeat(200);
    let record = |n: usize| {
        format!(r#"{{"id":"CVE-2024-{n}","affected":[{{"package":{{"name":"{package}"}}}}]}}"#)
    };
    let records: Vec<_> = (0..40_000).map(record).collect();
    let cves = read_cves(format!("[{}]", records.join(",")).as_bytes(), None).unwrap();
    assert!(cves.is_truncated && cves.json.len() <= MAX_JSON_BYTES);
    assert!(serde_json::from_str::<Vec<serde_json::Value>>(&cves.json).unwrap().len() > 20_000);
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
    assert_eq!(json(&format!(r#"{{"vulns":[{ubuntu}],"next_page_token":""}}"#), None), critical);
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
        ("\u{feff}", "empty"),
        ("CVE-2024-1", "neither JSON nor XML"),
        ("<!DOCTYPE html><html></html>", "document type"),
        ("<html><body></body></html>", "not OVAL"),
        ("<oval_definitions><definitions>", "truncated"),
        ("<oval_definitions></other>", "cannot be used"),
        ("<!-- nothing -->", "no OVAL"),
        ("<oval_definitions>&mine;</oval_definitions>", "cannot be used"),
        ("{}", "neither an id nor vulns"),
        ("[{}]", "neither cve_id nor id"),
        ("[1]", "invalid type"),
        ("[[\"CVE-2024-1\"]]", "invalid type"),
        ("[{\"cve_id\":\"\"}]", "control characters"),
        ("[{\"cve_id\":\"a\\u0000\"}]", "control characters"),
        ("[{\"cve_id\":\"CVE-2024-1\"},{\"id\":\"CVE-2024-2\"}]", "entry 2"),
        ("[{\"id\":\"CVE-2024-1\"},{\"cve_id\":\"CVE-2024-2\"}]", "record 2: missing field"),
        ("{\"id\":1}", "invalid type"),
        ("{\"vulns\":{}}", "invalid type"),
        ("[{\"cve_id\":\"CVE-2024-1\"}", "EOF"),
        ("BZh91AY&SY and nothing else", "cannot be used"),
    ] {
        let finding = read_cves(body.as_bytes(), None).expect_err(body);
        assert_eq!(finding.kind, FindingKind::Cves, "{body}: {finding}");
        assert!(finding.message.contains(why), "{body}: {finding}");
    }
    assert!(read_cves(b"[\xff]", None).unwrap_err().message.contains("UTF-8"));
    let large = vec![b' '; MAX_DOCUMENT_BYTES + 1];
    assert_eq!(read_cves(&large, None).unwrap_err().kind, FindingKind::TooLarge);
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_document() {
    let own = r#"[ {"cve_id":"CVE-2024-1"} ]"#;
    let records = r#"[{"id":"CVE-2024-1"}]"#;
    for document in [own, records, USN] {
        let marked = format!("\u{feff}{document}");
        assert_eq!(json(&marked, None), json(document, None));
    }
    let marked = compress(format!("\u{feff}{USN}").as_bytes());
    assert_eq!(read_cves(&marked, None).unwrap().json, json(USN, None));
}

#[test]
fn a_list_that_later_readers_refuse_is_refused() {
    let deep = format!("{}{}", "[".repeat(126), "]".repeat(126));
    for (value, why) in [
        (deep.as_str(), "recursion limit"),
        (r#""\ud800""#, "hex escape"),
        ("[1e999]", "out of range"),
        (r#"{"a":"\u0000"}"#, "zero byte"),
        (r#"{"\u0000":"a"}"#, "zero byte"),
    ] {
        let list = format!(r#"[{{"cve_id":"CVE-2024-1"}},{{"cve_id":"CVE-2024-2","a":{value}}}]"#);
        let finding = read_cves(list.as_bytes(), None).expect_err(&list);
        assert_eq!(finding.kind, FindingKind::Cves);
        assert!(finding.message.contains(why), "{list}: {finding}");
        // Of an OSV record only the converted entry is stored.
        let list = list.replace("cve_id", "id");
        assert_eq!(json(&list, None).matches("\"cve_id\":").count(), 2);
    }
}

#[test]
fn negated_criteria_name_no_package() {
    let read = |criteria: &str| {
        let definition = definition("CVE-2024-1", criteria);
        json(&oval(&definition, &["curl", "git", "vim"]), None)
    };
    let expected = |packages: &str| {
        format!(
            r#"[{{"cve_id":"CVE-2024-1","priority":"unknown","affected_packages":[{packages}]}}]"#
        )
    };
    let (curl, git) = (criterion("curl", ""), criterion("git", ""));
    let no_git = criterion("git", r#" negate="true""#);
    let no = |inside: &str| format!(r#"<criteria negate="1">{inside}</criteria>"#);
    let all = |inside: &str| format!(r#"<criteria negate="false">{inside}</criteria>"#);
    for (criteria, packages) in [
        (all(&(curl.clone() + &git)), r#""curl","git""#),
        (all(&(curl.clone() + &no_git)), r#""curl""#),
        (all(&(curl.clone() + &no(&git))), r#""curl""#),
        (all(&(curl.clone() + &no(&all(&git)))), r#""curl""#),
        // A double negation asserts.
        (no(&(curl.clone() + &no_git)), r#""git""#),
        (no(&(curl.clone() + &no(&git))), r#""git""#),
    ] {
        assert_eq!(read(&criteria), expected(packages), "{criteria}");
    }
    for criteria in [
        no_git.clone(),
        no(&git),
        no(&(curl + &git)),
        all(&(r#"<extend_definition definition_ref="d"/>"#.to_owned() + &no_git)),
        all(r#"<criterion negate="true" comment="vim package in jammy is fixed"/>"#),
        // The release of the system is asserted, but no package.
        all(&(r#"<criterion test_ref="unix" comment="Long Term Support"/>"#.to_owned() + &no_git)),
    ] {
        assert_eq!(read(&criteria), "[]", "{criteria}");
    }
    assert_eq!(read(""), expected(""), "nothing is negated");
}

#[test]
fn a_test_for_the_absence_of_a_package_names_no_package() {
    let read = |criteria: &str| {
        let definition = definition("CVE-2024-1", criteria);
        let absent = r#"id="t-git" check_existence="none_exist""#;
        let document = oval(&definition, &["curl", "git"]).replace(r#"id="t-git""#, absent);
        json(&document, None)
    };
    let curl = criterion("curl", "");
    let git = criterion("git", r#" comment="git DPKG is earlier than 2""#);
    let expected = r#"[{"cve_id":"CVE-2024-1","priority":"unknown","affected_packages":["curl"]}]"#;
    assert_eq!(read(&(curl.clone() + &git)), expected);
    assert_eq!(read(&curl), expected);
    assert_eq!(read(&git), "[]");
}

#[test]
fn a_vulnerability_has_its_own_priority_before_that_of_its_advisory() {
    let advisory = |severity: &str, cves: &str| {
        format!(
            r#"<definition class="patch"><metadata><reference source="CVE" ref_id="CVE-2024-1"/>
            <advisory><severity>{severity}</severity>{cves}</advisory></metadata></definition>"#
        )
    };
    let two = advisory(
        "High",
        r#"<cve priority="low">CVE-2024-2</cve><cve impact="Moderate" priority="">CVE-2024-3</cve>
        <cve>CVE-2024-4</cve><cve priority="negligible">CVE-2024-2</cve>
        <cve priority="not yet known">CVE-2024-5</cve><cve priority="???" impact="Low">CVE-2024-6</cve>"#,
    ) + &advisory("", r#"<cve priority="medium">CVE-2024-4</cve>"#)
        + &advisory("critical", "<cve>CVE-2024-2</cve>");
    let list = json(&oval(&two, &[]), None);
    let expected =
        [(1, "high"), (2, "low"), (3, "moderate"), (4, "medium"), (5, "high"), (6, "low")];
    for (id, priority) in expected {
        let one = format!(r#"{{"cve_id":"CVE-2024-{id}","priority":"{priority}","#);
        assert!(list.contains(&one), "{one} in {list}");
    }
}

#[test]
fn a_source_package_affects_every_image() {
    let had = package_set(&["libc6", "libssl3"]);
    let list = r#"[{"id":"DEBIAN-CVE-2024-1","affected":[{"package":{"ecosystem":"Debian:12","name":"glibc"}}]},
        {"id":"CVE-2024-2","affected":[{"package":{"name":"openssl"},
            "ecosystem_specific":{"binaries":[{"binary_name":"libssl3"},{"binary_name":"openssl"}]}}]},
        {"id":"CVE-2024-3","affected":[{"package":{"name":"curl"},
            "ecosystem_specific":{"binaries":[{"binary_name":"curl"}]}}]},
        {"id":"CVE-2024-4","affected":[{"package":{"name":"zlib"},"ecosystem_specific":{"binaries":[{}]}}]}]"#;
    let entry = |id: u8, package: &str| {
        format!(
            r#"{{"cve_id":"CVE-2024-{id}","priority":"unknown","affected_packages":["{package}"]}}"#
        )
    };
    let expected = [entry(1, "glibc"), entry(2, "libssl3"), entry(4, "zlib")];
    assert_eq!(json(list, Some(&had)), format!("[{}]", expected.join(",")));
}

#[test]
fn a_source_package_is_ignored_if_its_binaries_are_listed_elsewhere_in_the_record() {
    let list = r#"[{"id":"UBUNTU-CVE-2024-1","affected":[
        {"package":{"ecosystem":"Ubuntu:22.04:LTS","name":"curl"}},
        {"package":{"ecosystem":"Ubuntu:24.04:LTS","name":"curl"},
            "ecosystem_specific":{"binaries":[{"binary_name":"libcurl4"}]}},
        {"package":{"ecosystem":"Ubuntu:24.04:LTS","name":"zlib"}}]}]"#;
    let entry = |packages: &str| {
        format!(
            r#"[{{"cve_id":"CVE-2024-1","priority":"unknown","affected_packages":[{packages}]}}]"#
        )
    };
    let had = package_set(&["libcurl4"]);
    assert_eq!(json(list, Some(&had)), entry(r#""libcurl4","zlib""#));
    assert_eq!(json(list, Some(&package_set(&["git"]))), entry(r#""zlib""#));
    let list = list.replace("\"zlib\"", "\"curl\"");
    assert_eq!(json(&list, Some(&package_set(&["git"]))), "[]");
}

#[test]
fn an_invalid_label_does_not_hide_the_priority_of_a_record() {
    let record = r#"{"id":"CVE-2024-1","severity":[{"type":"Ubuntu","score":"not yet known"}],
        "database_specific":{"severity":"LOW","binaries":"none"},"affected":[{}]}"#;
    let low = r#"[{"cve_id":"CVE-2024-1","priority":"low","affected_packages":[]}]"#;
    assert_eq!(json(record, None), low);
}

#[test]
fn nesting_depth_is_limited() {
    let deep = format!("<oval_definitions>{}", "<a>".repeat(1_000));
    let finding = read_cves(deep.as_bytes(), None).unwrap_err();
    assert!(finding.message.contains("too deep"), "{finding}");
}

#[test]
fn unpacked_size_is_limited() {
    let zeros = compress(&vec![0; 4 * 1024 * 1024]);
    assert!(zeros.len() < 1_000);
    let finding = read_cves(&zeros, None).unwrap_err();
    assert!(finding.message.contains("too long"), "{finding}");
    let many = format!("<oval_definitions>{}</oval_definitions>", "<a></a> ".repeat(20_000));
    let packed = compress(many.as_bytes());
    assert_eq!(read_bounded(&packed, None, 1024 * 1024).unwrap().json, "[]");
    let finding = read_bounded(&packed, None, 100_000).unwrap_err();
    assert_eq!(finding.kind, FindingKind::TooLarge);
}

#[test]
fn streams_with_nothing_in_them_are_counted() {
    let (packed, nothing) = (self::compress(USN.as_bytes()), self::compress(b""));
    assert!(nothing.len() < 20, "{}", nothing.len());
    let few = [nothing.repeat(5), packed.clone(), nothing.repeat(5)].concat();
    assert_eq!(read_cves(&few, None).unwrap().json, json(USN, None));
    let many = [packed, nothing.repeat(5_000)].concat();
    let finding = read_cves(&many, None).unwrap_err();
    assert!(finding.message.contains("streams"), "{finding}");
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
        assert_eq!(find_cve_id(text), id, "{text}");
    }
}

#[test]
fn duplicate_keys_are_refused_and_irrelevant_definitions_take_no_room() {
    let twice = br#"[{"cve_id":"CVE-1","cve_id":"CVE-2"}]"#;
    assert!(read_cves(twice, None).is_err());
    let empty = "<definition class=\"patch\"/>".repeat(100_000);
    let empty = format!("<oval_definitions><definitions>{empty}</definitions></oval_definitions>");
    let nothing = read_cves(empty.as_bytes(), None).expect("a list");
    assert_eq!((nothing.json.as_str(), nothing.is_truncated), ("[]", false));
}
