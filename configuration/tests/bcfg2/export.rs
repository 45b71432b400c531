//! Documents for the client of Bcfg2.

use evenkeel_configuration::Document;
use serde_json::{Value, json};

use crate::{read, write};

/// A document with one bundle.
fn document(entries: Value) -> Document {
    serde_json::from_value(json!({"bundles": [{"name": "b", "entries": entries}]})).unwrap()
}

/// A document with one entry.
fn entry(component: &str, name: &str, desired: Value) -> Document {
    document(json!([{"component": component, "name": name, "desired": desired}]))
}

/// Compares the elements of the bundle.
#[track_caller]
fn assert_elements(document: &Document, expected: &[&str]) {
    let text = write(document).unwrap();
    let (_, text) = text.split_once("  <Bundle name=\"b\">\n").unwrap();
    let (text, end) = text.split_once("  </Bundle>\n").unwrap();
    assert_eq!(end, "</Configuration>\n");
    assert_eq!(text.lines().map(str::trim_start).collect::<Vec<_>>(), expected);
    read(&write(document).unwrap()).unwrap();
}

#[test]
fn a_document_has_a_version_and_its_revision() {
    let empty = write(&Document::default()).unwrap();
    let lines: Vec<_> = empty.lines().collect();
    assert_eq!(lines[0], "<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    let start = "<Configuration version=\"2.0\" revision=\"";
    let revision = lines[1].strip_prefix(start).unwrap().strip_suffix("\">").unwrap();
    assert_eq!(revision, evenkeel_configuration::revision::revision(&Document::default()));
    assert_eq!(lines[2..], ["</Configuration>"]);

    let other = write(&entry("Package", "ntp", json!({"version": "any"}))).unwrap();
    assert!(!other.contains(revision));
}

#[test]
fn files_get_all_attributes_that_the_client_requires() {
    let cases = [
        (
            json!({"content": {"inline": "a < b & c > d\n"}, "owner": "www", "mode": "0644"}),
            "<Path name=\"/f\" type=\"file\" owner=\"www\" group=\"root\" mode=\"0644\">\
             a &lt; b &amp; c &gt; d",
        ),
        (
            json!({}),
            "<Path name=\"/f\" type=\"file\" owner=\"root\" group=\"root\" mode=\"0600\" \
             empty=\"true\"/>",
        ),
        (
            json!({"content": {"inline": ""}}),
            "<Path name=\"/f\" type=\"file\" owner=\"root\" group=\"root\" mode=\"0600\" \
             empty=\"true\"/>",
        ),
        (
            json!({"content": {"inline": "a\r\n"}}),
            "<Path name=\"/f\" type=\"file\" owner=\"root\" group=\"root\" mode=\"0600\" \
             encoding=\"base64\">YQ0K</Path>",
        ),
        (
            json!({"content": {"inline": "\u{0}"}}),
            "<Path name=\"/f\" type=\"file\" owner=\"root\" group=\"root\" mode=\"0600\" \
             encoding=\"base64\">AA==</Path>",
        ),
        (
            json!({"content": {"base64": "/w=="}}),
            "<Path name=\"/f\" type=\"file\" owner=\"root\" group=\"root\" mode=\"0600\" \
             encoding=\"base64\">/w==</Path>",
        ),
        (
            json!({"type": "directory", "prune": true}),
            "<Path name=\"/f\" type=\"directory\" owner=\"root\" group=\"root\" mode=\"0755\" \
             prune=\"true\"/>",
        ),
        (
            json!({"type": "symlink", "target": "a\"b"}),
            "<Path name=\"/f\" type=\"symlink\" to=\"a&#34;b\"/>",
        ),
        (
            json!({"type": "permissions", "mode": "2755", "owner": "root", "group": "5"}),
            "<Path name=\"/f\" type=\"permissions\" owner=\"root\" group=\"5\" mode=\"2755\"/>",
        ),
        (json!({"type": "absent"}), "<Path name=\"/f\" type=\"nonexistent\"/>"),
        (
            json!({"type": "absent", "prune": true}),
            "<Path name=\"/f\" type=\"nonexistent\" recursive=\"true\"/>",
        ),
    ];
    for (desired, line) in cases {
        let text = write(&entry("File", "/f", desired)).unwrap();
        assert!(text.lines().any(|found| found.trim_start() == line), "{line}\n{text}");
    }
}

#[test]
fn a_unit_becomes_its_files_and_a_service() {
    let unit = json!([
        {"component": "File", "name": "/etc/a.conf", "desired": {"type": "absent"}},
        {"component": "Unit", "name": "a.service", "desired": {
            "content": "[Service]\nExecStart=/bin/a\n",
            "dropIns": {"20-b.conf": "[Unit]\n", "10-a.conf": "[Service]\n"},
            "filePaths": ["/etc/a.conf"],
        }},
    ]);
    assert_elements(
        &document(unit),
        &[
            "<Path name=\"/etc/a.conf\" type=\"nonexistent\"/>",
            "<Path name=\"/etc/systemd/system/a.service\" type=\"file\" owner=\"root\" \
             group=\"root\" mode=\"0644\">[Service]",
            "ExecStart=/bin/a",
            "</Path>",
            "<Path name=\"/etc/systemd/system/a.service.d/10-a.conf\" type=\"file\" \
             owner=\"root\" group=\"root\" mode=\"0644\">[Service]",
            "</Path>",
            "<Path name=\"/etc/systemd/system/a.service.d/20-b.conf\" type=\"file\" \
             owner=\"root\" group=\"root\" mode=\"0644\">[Unit]",
            "</Path>",
            "<Service name=\"a\" type=\"systemd\" status=\"on\" bootstatus=\"on\" \
             restart=\"true\"/>",
            "<Action name=\"daemon-reload of b\" timing=\"post\" when=\"modified\" \
             status=\"check\" shell=\"true\" command=\"systemctl daemon-reload\"/>",
        ],
    );
}

#[test]
fn a_unit_without_files_does_not_restart_with_its_bundle() {
    let cases = [
        (json!({}), "status=\"on\" bootstatus=\"on\""),
        (json!({"command": "start"}), "status=\"on\" bootstatus=\"on\""),
        (json!({"command": "stop"}), "status=\"off\" bootstatus=\"on\""),
        (json!({"enable": false}), "status=\"off\" bootstatus=\"off\""),
        (json!({"enable": false, "command": "restart"}), "status=\"on\" bootstatus=\"off\""),
    ];
    for (desired, attributes) in cases {
        let line = format!("<Service name=\"a\" type=\"systemd\" {attributes} restart=\"false\"/>");
        assert_elements(&entry("Unit", "a.service", desired), &[&line]);
    }
    for (unit, name) in
        [("a.timer", "a.timer"), ("a.timer.service", "a.timer.service"), ("a@b.service", "a@b")]
    {
        let line = format!(
            "<Service name=\"{name}\" type=\"systemd\" status=\"off\" bootstatus=\"off\" \
             restart=\"false\"/>"
        );
        assert_elements(&entry("Unit", unit, json!({"enable": false})), &[&line]);
    }
}

#[test]
fn a_package_source_becomes_files_of_apt() {
    let source = json!({"source": "Types: deb\nURIs: https://x\nSuites: a\nComponents: b\n\n",
                        "key": "-----BEGIN"});
    assert_elements(
        &entry("PackageSource", "x", source),
        &[
            "<Path name=\"/etc/apt/keyrings/x.asc\" type=\"file\" owner=\"root\" group=\"root\" \
             mode=\"0644\">-----BEGIN</Path>",
            "<Path name=\"/etc/apt/sources.list.d/x.sources\" type=\"file\" owner=\"root\" \
             group=\"root\" mode=\"0644\">Types: deb",
            "URIs: https://x",
            "Suites: a",
            "Components: b",
            "Signed-By: /etc/apt/keyrings/x.asc",
            "</Path>",
            "<Action name=\"apt-get update of b\" timing=\"post\" when=\"modified\" \
             status=\"check\" shell=\"true\" command=\"apt-get update\"/>",
        ],
    );
}

#[test]
fn a_kernel_setting_becomes_a_file_and_an_action() {
    assert_elements(
        &entry("Sysctl", "net.ipv4.conf.eth0/1.rp_filter", json!({"value": "1"})),
        &[
            "<Path name=\"/etc/sysctl.d/99-net.ipv4.conf.eth0.1.rp_filter.conf\" type=\"file\" \
             owner=\"root\" group=\"root\" mode=\"0644\">net.ipv4.conf.eth0/1.rp_filter = 1",
            "</Path>",
            "<Action name=\"sysctl net.ipv4.conf.eth0/1.rp_filter\" timing=\"post\" \
             when=\"modified\" status=\"check\" shell=\"true\" \
             command=\"sysctl -p /etc/sysctl.d/99-net.ipv4.conf.eth0.1.rp_filter.conf\"/>",
        ],
    );
}

#[test]
fn packages_actions_users_and_groups_keep_their_fields() {
    let entries = json!([
        {"component": "Package", "name": "ntp", "desired": {"version": "1:4.2"}},
        {"component": "Action", "name": "a", "desired": {
            "command": "a &&\n\tb", "timing": "both", "when": "always", "status": "ignore"}},
        {"component": "UserGroup", "name": "g", "desired": {"gid": 7}},
        {"component": "UserGroup", "name": "h"},
        {"component": "User", "name": "u", "desired": {
            "uid": 8, "group": "g", "groups": ["x", "y"], "comment": "U", "home": "/u",
            "shell": "/bin/sh"}},
        {"component": "User", "name": "v"},
    ]);
    assert_elements(
        &document(entries),
        &[
            "<Package name=\"ntp\" type=\"deb\" version=\"1:4.2\"/>",
            "<Action name=\"a\" timing=\"both\" when=\"always\" status=\"ignore\" shell=\"true\" \
             command=\"a &amp;&amp;&#10;&#9;b\"/>",
            "<POSIXGroup name=\"g\" gid=\"7\"/>",
            "<POSIXGroup name=\"h\"/>",
            "<POSIXUser name=\"u\" uid=\"8\" group=\"g\" gecos=\"U\" home=\"/u\" \
             shell=\"/bin/sh\">",
            "<MemberOf group=\"x\"/>",
            "<MemberOf group=\"y\"/>",
            "</POSIXUser>",
            "<POSIXUser name=\"v\"/>",
        ],
    );
}

/// Compares the error of a document with one entry.
#[track_caller]
fn assert_error(document: &Document, message: &str) {
    let expected = format!("bundles[0].entries[0].{message}");
    assert_eq!(write(document).unwrap_err(), [expected]);
}

#[test]
fn fields_of_files_without_a_form_in_bcfg2_are_refused() {
    let secret = json!({"content": {"secretRef": {"name": "s", "key": "k"}}});
    let uri = json!({"content": {"uri": "https://x", "sha256": "00"}});
    let cases = [
        (
            entry("File", "/f", secret),
            "desired.content.secretRef: Bcfg2's document has no secrets; \
             write the content, or remove the entry",
        ),
        (
            entry("File", "/f", uri),
            "desired.content.uri: Bcfg2 does not download contents; write the content",
        ),
        (
            entry("File", "/f", json!({"content": {"base64": "!"}})),
            "desired.content.base64: the content is not base64: Invalid symbol 33, offset 0.",
        ),
        (
            entry("File", "/f", json!({"type": "permissions", "owner": "a", "group": "a"})),
            "desired.mode: Bcfg2 requires a mode for the type permissions; write it",
        ),
        (
            entry("File", "/f", json!({"type": "symlink", "target": "/x", "owner": "a"})),
            "desired.owner: Bcfg2 does not set the owner of links; accepted: root",
        ),
        (
            entry("File", "/f", json!({"type": "symlink"})),
            "desired.target: Bcfg2 requires a target; write it",
        ),
        (entry("File", "/f\u{1}", json!({})), "name: the character '\\u{1}' has no form in XML"),
    ];
    for (document, message) in cases {
        assert_error(&document, message);
    }
}

#[test]
fn other_fields_without_a_form_in_bcfg2_are_refused() {
    let cases = [
        (
            entry("Package", "p", json!({"version": "absent"})),
            "desired.version: Bcfg2 cannot require that a package is absent; remove the entry",
        ),
        (
            entry("Package", "p", json!({"version": "auto"})),
            "desired.version: \"auto\" means the newest version in Bcfg2; write any or a version",
        ),
        (
            entry("User", "u", json!({"absent": true})),
            "desired.absent: Bcfg2 cannot require that a user is absent; remove the entry",
        ),
        (
            entry("UserGroup", "u", json!({"absent": true})),
            "desired.absent: Bcfg2 cannot require that a group is absent; remove the entry",
        ),
        (
            entry("Action", "a", json!({"command": "true", "timeout": 5})),
            "desired.timeout: actions of Bcfg2 have no timeout; accepted: 300, the default",
        ),
        (
            entry("Unit", "a.service", json!({"filePaths": ["/x"]})),
            "desired.filePaths[0]: Bcfg2 restarts a service only for files of its bundle; \
             move the entries into one bundle",
        ),
        (
            entry("Unit", "a", json!({})),
            "name: the name has no suffix of a unit; write, for example, nginx.service",
        ),
        (
            entry("Unit", "a.service", json!({"dropIns": {"../x": ""}})),
            "desired.dropIns: ../x is no file name",
        ),
        (
            entry("Sysctl", "a.b", json!({"value": "1\nc = 2"})),
            "desired.value: the value has several lines; write one",
        ),
        (
            entry("Sysctl", "../a", json!({"value": "1"})),
            "name: the name is no key of the kernel; write, for example, vm.swappiness",
        ),
        (
            entry("PackageSource", "../a", json!({"source": "Types: deb"})),
            "name: the name has characters that names of files of apt do not have; \
             accepted: letters, digits, \"-\", \"_\" and \".\"",
        ),
        (
            entry("PackageSource", "a", json!({"source": "A: b\n\nC: d", "key": "k"})),
            "desired.source: the source has several paragraphs; write an entry for each",
        ),
    ];
    for (document, message) in cases {
        assert_error(&document, message);
    }
}

#[test]
fn modes_of_a_run_are_options_of_the_client() {
    let document: Document = serde_json::from_value(json!({
        "applyMode": "audit", "removeExtras": ["packages"], "onFailure": "revert",
        "purpose": "provision",
    }))
    .unwrap();
    assert_eq!(
        write(&document).unwrap_err(),
        [
            "applyMode: Bcfg2's document has no audit; use the option -n of its client",
            "removeExtras: Bcfg2's document does not remove extras; \
             use the option -r of its client",
            "onFailure: Bcfg2 does not revert changes; accepted: keep",
            "purpose: Bcfg2 configures running machines; accepted: reconcile",
        ]
    );
    let document = serde_json::from_value(json!({"applyMode": "continuous"})).unwrap();
    assert!(write(&document).is_ok());
}

#[test]
fn two_entries_for_one_element_are_refused() {
    let entries = json!([
        {"component": "File", "name": "/etc/systemd/system/a.service"},
        {"component": "Unit", "name": "a.service", "desired": {"content": "[Unit]\n"}},
    ]);
    assert_eq!(
        write(&document(entries)).unwrap_err(),
        ["bundles[0].entries[1].name: the document would have \
          Path /etc/systemd/system/a.service twice"]
    );
}

#[test]
fn a_template_has_files_and_no_service() {
    let unit = json!({"content": "[Service]\nExecStart=/bin/true\n"});
    let text = write(&entry("Unit", "a@.service", unit)).unwrap();
    assert!(text.contains("<Path name=\"/etc/systemd/system/a@.service\""), "{text}");
    assert!(!text.contains("<Service"), "{text}");
    let errors = write(&entry("Unit", "a@.service", json!({"enable": true}))).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("bundles[0].entries[0].desired.enable: "), "{errors:?}");
}
