//! Which records concern an image, and documents of other tools.

use super::*;

/// OSV: a version is affected only if it lies in a range, in that ecosystem.
#[test]
fn only_records_that_affect_the_installed_versions_are_listed() {
    let record = |n: u8, ecosystem: &str, package: &str, fixed: &str| {
        format!(
            r#"{{"id":"DEBIAN-CVE-2024-{n}","affected":[{{"package":{{"ecosystem":"{ecosystem}","name":"{package}"}},
            "ranges":[{{"type":"ECOSYSTEM","events":[{{"introduced":"0"}},{{"fixed":"{fixed}"}}]}}]}}]}}"#
        )
    };
    let records = [
        record(1, "Debian:12", "curl", "7.88.1-10+deb12u4"),
        record(2, "Debian:12", "curl", "7.88.1-10+deb12u9"),
        record(3, "Debian:11", "curl", "9"),
        record(4, "npm", "curl", "9"),
        record(5, "Debian:12", "glibc", "2.36-9"),
        record(6, "Debian:12", "curl", "9")
            .replace("\"affected\"", "\"withdrawn\":\"2024-01-01T00:00:00Z\",\"affected\""),
    ];
    let records = format!("[{}]", records.join(","));
    let installed = package_list(&[
        ("curl", "7.88.1-10+deb12u8"),
        ("libcurl4", "7.88.1-10+deb12u8"),
        ("libc6", "2.36-9+deb12u9"),
    ]);
    let ids = |list: &str| -> Vec<String> {
        let entries: Vec<serde_json::Value> = serde_json::from_str(list).expect("a list");
        let ids = entries.iter().map(|entry| entry["cve_id"].as_str().expect("an id").to_owned());
        ids.collect()
    };
    // Which packages are built from glibc is not in the list.
    assert_eq!(ids(&json(&records, Some(&installed))), ["CVE-2024-2", "CVE-2024-5"]);
    assert_eq!(ids(&json(&records, None)).len(), 5, "without a package list");
    assert_eq!(ids(&json(&records, Some(&package_set(&["curl"])))).len(), 5, "another system");
}

#[test]
fn installed_packages_of_a_record_are_judged_by_their_versions() {
    let record = r#"{"id":"UBUNTU-CVE-2024-1","affected":[
        {"package":{"ecosystem":"Ubuntu:22.04:LTS","name":"curl"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"7.81.0-1ubuntu1.16"}]}],
            "ecosystem_specific":{"binaries":[{"binary_name":"libcurl4"},{"binary_name":"curl"}]}},
        {"package":{"ecosystem":"Ubuntu:24.04:LTS","name":"curl"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"}]}]}]}"#;
    let on = |version: &str| {
        json(record, Some(&package_list(&[("base-files", "12ubuntu4.6"), ("libcurl4", version)])))
    };
    assert!(on("7.81.0-1ubuntu1.15").contains("libcurl4"));
    assert_eq!(on("7.81.0-1ubuntu1.16"), "[]");
}

#[test]
fn the_formats_of_other_tools_are_named() {
    for (body, format) in [
        (r#"{"bomFormat":"CycloneDX","vulnerabilities":[]}"#, "a CycloneDX document"),
        (r#"{"@context":"https://openvex.dev/ns/v0.2.0","statements":[]}"#, "an OpenVEX document"),
        (r#"{"spdxVersion":"SPDX-2.3"}"#, "an SPDX document"),
        ("SPDXVersion: SPDX-2.3", "an SPDX document"),
        (r#"{"SchemaVersion":2,"ArtifactName":"x"}"#, "a report of trivy"),
        (r#"{"matches":[],"descriptor":{}}"#, "a report of grype"),
        (r#"{"curl":{"CVE-2024-1":{}}}"#, "the data of Debian's security tracker"),
        ("<bom xmlns=\"http://cyclonedx.org/schema/bom/1.5\"/>", "a CycloneDX document"),
    ] {
        let finding = read_cves(body.as_bytes(), None).expect_err(body);
        let expected = format!(
            "the CVE document cannot be used: it is {format}; EIM's list, OSV and OVAL are understood"
        );
        assert_eq!(finding.message, expected, "{body}");
    }
}
