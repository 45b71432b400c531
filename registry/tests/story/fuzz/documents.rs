//! Profiles, package lists and CVE documents.

use std::io::Write as _;

use bzip2::Compression;
use bzip2::write::BzEncoder;
use evenkeel_registry::{
    CveList, Finding, InstalledPackages, read_cves, read_packages, read_profile,
};
use rand::Rng;
use rand::rngs::StdRng;

use super::driver::{fuzz, text};

const PROFILE_SAMPLES: &[&str] = &[
    include_str!("../profiles/microvisor-nonrt.yaml"),
    include_str!("../profiles/microvisor-standalone.yaml"),
    include_str!("../profiles/ubuntu-22.04-lts-generic-ext.yaml"),
    include_str!("signed.yaml"),
    "metadata: {a: &a [*a, !!binary x], <<: *a}\nspec: {name: |\n  x\n}\n",
];

const PACKAGE_LIST_SAMPLES: &[&str] = &[
    r#"{"repo":[{"name":"adduser","version":"3.118","arch":["all"]},{"name":"zlib1g","version":"1:1.2"}],"more":{"a":null}}"#,
    "adduser\t3.118ubuntu5\nlibc6:amd64\t2.35-0ubuntu3.9\r\nsnap:lxd\t5.0\t24322\nnode-agent 1.5\n",
    "<!DOCTYPE html><html></html>",
];

const CVE_SAMPLES: &[&str] = &[
    r#"[{"cve_id":"CVE-2024-1","priority":"high","affected_packages":["curl"]},{"cve_id":"CVE-2024-2"}]"#,
    r#"[{"cve_id":"CVE-2024-1","note":"\ud83d\ude00 \u0001","score":9e300,"more":[[{"\u0061":null}]]}]"#,
    "\u{feff}[ {\"cve_id\":\"CVE-2024-1\"} ]",
    r#"[{"id":"UBUNTU-CVE-2024-3094","upstream":["CVE-2024-3094"],"severity":[{"type":"Ubuntu","score":"low"}],
        "affected":[{"package":{"name":"xz"},"ecosystem_specific":{"binaries":[{"binary_name":"liblzma5"},{"xz":"5"}]}}]}]"#,
    r#"{"vulns":[{"id":"DSA-1","aliases":null,"related":["CVE-2024-1"],"database_specific":{"severity":[]}}],"a":1}"#,
    r#"{"id":"CVE-2024-1","withdrawn":null,"affected":[]}"#,
];

const OVAL_SAMPLES: &[&str] = &[
    r#"<?xml version="1.0"?><oval_definitions xmlns:l="x"><definitions><definition class="patch"><metadata>
       <title>CVE-2020-1 &amp; &#65;</title><affected><product>curl</product></affected>
       <reference source="CVE" ref_id="CVE-2022-24765"/><advisory><severity>Medium</severity>
       <cve priority="low">CVE-2022-1<![CDATA[ x ]]></cve></advisory></metadata>
       <criteria><criterion test_ref="t" comment="curl DPKG is earlier than 7"/>
       <criteria negate="true"><criterion test_ref="t" negate="1"/></criteria></criteria></definition></definitions>
       <tests><l:dpkginfo_test id="t"><l:object object_ref="o"/></l:dpkginfo_test></tests>
       <objects><l:dpkginfo_object id="o"><l:name var_ref="v"/><l:name>git</l:name></l:dpkginfo_object></objects>
       <variables><constant_variable id="v"><value>git-man</value></constant_variable></variables></oval_definitions>"#,
    "<oval_definitions><definitions/></oval_definitions>",
];

#[test]
fn profiles_are_read_safely() {
    fuzz("profile", |rng| {
        let yaml = random_bytes(rng, PROFILE_SAMPLES, ":-&*!|>'\"{}[]#<?,%~\n\t truefalsn0");
        let file = text(rng, &["microvisor-nonrt.yaml", "microvisor-standalone.yaml"], "./\\\0");
        match read_profile(&file, &yaml) {
            Ok(profile) => {
                assert_eq!(format!("{}.yaml", profile.spec.profile_name), file);
                assert!(profile.spec.metadata.len() <= 500);
                let urls = [&profile.spec.image_url, &profile.manifest_url];
                let leads_out = |url: &&String| {
                    let path = url.split(['?', '#']).next().unwrap_or_default();
                    path.split('/').any(|part| part == "..")
                };
                assert!(!urls.iter().any(leads_out));
                assert!(profile.remarks.len() <= 21);
                assert!(profile.spec.image_signatures.len() <= 8);
                let is_signature =
                    |text: &String| text.len() <= 256 && text.get(64..65) == Some(":");
                assert!(profile.spec.image_signatures.iter().all(is_signature));
                profile.remarks.iter().for_each(check_finding);
                let spec = profile.spec.clone();
                assert_eq!(spec.validated(), Ok(profile.spec));
            }
            Err(finding) => check_finding(&finding),
        }
    });
}

#[test]
fn package_lists_are_read_safely() {
    fuzz("packages", |rng| {
        let body = random_bytes(rng, PACKAGE_LIST_SAMPLES, "{}[]\",:\\u0\t\n <nameversio");
        match read_packages(&body) {
            Ok(list) => {
                let json: serde_json::Value = serde_json::from_str(&list).expect("JSON");
                let packages = json["repo"].as_array().expect("a list");
                assert!(!packages.is_empty());
                let is_given =
                    |value: &serde_json::Value| value.as_str().is_some_and(|text| !text.is_empty());
                assert!(
                    packages.iter().all(|one| is_given(&one["name"]) && is_given(&one["version"]))
                );
                let body = without_bom(&body);
                let is_json = body.trim_ascii_start().starts_with(b"{");
                assert!(!is_json || list.as_bytes() == body, "stored unchanged");
            }
            Err(finding) => check_finding(&finding),
        }
    });
}

#[test]
fn cve_documents_are_read_safely() {
    fuzz("vulnerabilities", |rng| {
        let body = random_bytes(rng, CVE_SAMPLES, "{}[]\",:\\u0 idcveGHSA-null");
        check_cves(rng, &body);
    });
}

#[test]
fn oval_documents_are_read_safely() {
    fuzz("OVAL", |rng| {
        let mut body = random_bytes(rng, OVAL_SAMPLES, "<>/=\"'&;![]?-:# x");
        if rng.random_ratio(1, 4) {
            let mut encoder = BzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&body).expect("memory");
            body = encoder.finish().expect("memory");
            if rng.random() {
                mutate(rng, &mut body);
            }
        }
        check_cves(rng, &body);
    });
}

fn check_cves(rng: &mut StdRng, body: &[u8]) {
    let list =
        r#"{"repo": [{"name": "curl", "version": "8.5"}, {"name": "git", "version": "2.43"}]}"#;
    let installed = InstalledPackages::from_list(list).expect("a list");
    match read_cves(body, rng.random::<bool>().then_some(&installed)) {
        Ok(CveList { json, is_truncated }) => {
            assert!(!json.contains('\0'));
            if is_eim_list(body) {
                assert_eq!((json.as_bytes(), is_truncated), (without_bom(body), false));
            }
            let list: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
            let has_id =
                |one: &serde_json::Value| one["cve_id"].as_str().is_some_and(|id| !id.is_empty());
            assert!(list.iter().all(has_id));
        }
        Err(finding) => check_finding(&finding),
    }
}

/// Whether the first entry of a list has EIM's format. Such a list is not changed.
fn is_eim_list(body: &[u8]) -> bool {
    let list = serde_json::from_slice::<Vec<serde_json::Value>>(without_bom(body));
    list.is_ok_and(|list| {
        let first = list.first();
        first.is_none_or(|one| one.get("cve_id").is_some())
    })
}

/// A text without a byte order mark.
fn without_bom(body: &[u8]) -> &[u8] {
    body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)
}

/// Checks that a finding is short and can be stored in a database.
fn check_finding(finding: &Finding) {
    assert!(!finding.message.is_empty() && finding.message.len() <= 1_000);
    assert!(!finding.to_string().contains(char::is_control), "{finding}");
}

/// A text that is almost valid; sometimes bytes that are not text.
fn random_bytes(rng: &mut StdRng, samples: &[&str], letters: &str) -> Vec<u8> {
    let mut bytes = text(rng, samples, letters).into_bytes();
    if rng.random_ratio(1, 8) {
        mutate(rng, &mut bytes);
    }
    bytes
}

fn mutate(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..10) {
        let at = rng.random_range(0..=bytes.len());
        if at < bytes.len() && rng.random() {
            bytes[at] = rng.random();
        } else {
            bytes.insert(at, rng.random());
        }
    }
}
