//! Profiles, lists of packages and documents about vulnerabilities.

use std::collections::HashSet;
use std::io::Write as _;

use bzip2::Compression;
use bzip2::write::BzEncoder;
use evenkeel_registry::{Cves, Finding, cves, packages, profile};
use rand::Rng;
use rand::rngs::StdRng;

use crate::driver::{fuzz, text};

const PROFILES: &[&str] = &[
    include_str!("../profiles/microvisor-nonrt.yaml"),
    include_str!("../profiles/microvisor-standalone.yaml"),
    include_str!("../profiles/ubuntu-22.04-lts-generic-ext.yaml"),
    include_str!("signed.yaml"),
    "metadata: {a: &a [*a, !!binary x], <<: *a}\nspec: {name: |\n  x\n}\n",
];

const LISTS: &[&str] = &[
    r#"{"repo":[{"name":"adduser","version":"3.118","arch":["all"]},{"name":"zlib1g","version":"1:1.2"}],"more":{"a":null}}"#,
    "adduser\t3.118ubuntu5\nlibc6:amd64\t2.35-0ubuntu3.9\r\nsnap:lxd\t5.0\t24322\nnode-agent 1.5\n",
    "<!DOCTYPE html><html></html>",
];

const DOCUMENTS: &[&str] = &[
    r#"[{"cve_id":"CVE-2024-1","priority":"high","affected_packages":["curl"]},{"cve_id":"CVE-2024-2"}]"#,
    r#"[{"cve_id":"CVE-2024-1","note":"\ud83d\ude00 \u0001","score":9e300,"more":[[{"\u0061":null}]]}]"#,
    "\u{feff}[ {\"cve_id\":\"CVE-2024-1\"} ]",
    r#"[{"id":"UBUNTU-CVE-2024-3094","upstream":["CVE-2024-3094"],"severity":[{"type":"Ubuntu","score":"low"}],
        "affected":[{"package":{"name":"xz"},"ecosystem_specific":{"binaries":[{"binary_name":"liblzma5"},{"xz":"5"}]}}]}]"#,
    r#"{"vulns":[{"id":"DSA-1","aliases":null,"related":["CVE-2024-1"],"database_specific":{"severity":[]}}],"a":1}"#,
    r#"{"id":"CVE-2024-1","withdrawn":null,"affected":[]}"#,
];

const OVAL: &[&str] = &[
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
fn no_profile_does_harm() {
    fuzz("profile", |rng| {
        let yaml = bytes(rng, PROFILES, ":-&*!|>'\"{}[]#<?,%~\n\t truefalsn0");
        let file = text(
            rng,
            &["microvisor-nonrt.yaml", "microvisor-standalone.yaml"],
            "./\\\0",
        );
        match profile(&file, &yaml) {
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
                profile.remarks.iter().for_each(is_told);
                let spec = profile.spec.clone();
                assert_eq!(spec.checked(), Ok(profile.spec));
            }
            Err(finding) => is_told(&finding),
        }
    });
}

#[test]
fn no_list_of_packages_does_harm() {
    fuzz("packages", |rng| {
        let body = bytes(rng, LISTS, "{}[]\",:\\u0\t\n <nameversio");
        match packages(&body) {
            Ok(list) => {
                let json: serde_json::Value = serde_json::from_str(&list).expect("JSON");
                let packages = json["repo"].as_array().expect("a list");
                assert!(!packages.is_empty());
                let is_given =
                    |value: &serde_json::Value| value.as_str().is_some_and(|text| !text.is_empty());
                assert!(
                    packages
                        .iter()
                        .all(|one| is_given(&one["name"]) && is_given(&one["version"]))
                );
                let body = unmarked(&body);
                let is_json = body.trim_ascii_start().starts_with(b"{");
                assert!(!is_json || list.as_bytes() == body, "kept as it is");
            }
            Err(finding) => is_told(&finding),
        }
    });
}

#[test]
fn no_document_about_vulnerabilities_does_harm() {
    fuzz("vulnerabilities", |rng| {
        let body = bytes(rng, DOCUMENTS, "{}[]\",:\\u0 idcveGHSA-null");
        check(rng, &body);
    });
}

#[test]
fn no_oval_does_harm() {
    fuzz("OVAL", |rng| {
        let mut body = bytes(rng, OVAL, "<>/=\"'&;![]?-:# x");
        if rng.random_ratio(1, 4) {
            let mut encoder = BzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&body).expect("memory");
            body = encoder.finish().expect("memory");
            if rng.random() {
                change(rng, &mut body);
            }
        }
        check(rng, &body);
    });
}

fn check(rng: &mut StdRng, body: &[u8]) {
    let had: HashSet<String> = ["curl", "git"].map(str::to_owned).into();
    let of = rng.random::<bool>().then_some(&had);
    match cves(body, of) {
        Ok(Cves { json, cut }) => {
            assert!(!json.contains('\0'));
            if is_of_the_ancestor(body) {
                assert_eq!((json.as_bytes(), cut), (unmarked(body), false));
            }
            let list: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
            let has_id =
                |one: &serde_json::Value| one["cve_id"].as_str().is_some_and(|id| !id.is_empty());
            assert!(list.iter().all(has_id));
        }
        Err(finding) => is_told(&finding),
    }
}

/// Whether it is a list in the ancestor's form, by its first entry. It stays as it is, whatever packages there are.
fn is_of_the_ancestor(body: &[u8]) -> bool {
    let list = serde_json::from_slice::<Vec<serde_json::Value>>(unmarked(body));
    list.is_ok_and(|list| {
        let first = list.first();
        first.is_none_or(|one| one.get("cve_id").is_some())
    })
}

/// A text without a byte order mark.
fn unmarked(body: &[u8]) -> &[u8] {
    body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)
}

/// A finding is short, and a database can keep it.
fn is_told(finding: &Finding) {
    assert!(!finding.message.is_empty() && finding.message.len() <= 1_000);
    assert!(!finding.to_string().contains(char::is_control), "{finding}");
}

/// A text that is nearly right; now and then no text at all.
fn bytes(rng: &mut StdRng, samples: &[&str], letters: &str) -> Vec<u8> {
    let mut bytes = text(rng, samples, letters).into_bytes();
    if rng.random_ratio(1, 8) {
        change(rng, &mut bytes);
    }
    bytes
}

fn change(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..10) {
        let at = rng.random_range(0..=bytes.len());
        if at < bytes.len() && rng.random() {
            bytes[at] = rng.random();
        } else {
            bytes.insert(at, rng.random());
        }
    }
}
