//! `evenkeel-agent configuration check`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use serde_json::{Value, json};

use crate::image_root::{ImageRoot, document, list_tree, program, run, text};

const CLEAN: &str = "{component: Package, name: zsh}, {component: UserGroup, name: web}";

#[test]
fn the_exit_status_of_a_check_is_that_of_the_result() {
    let image = ImageRoot::new();
    let file = |name: &str, entries: &str| {
        let path = image.write(name, &document(entries));
        path.to_str().unwrap().to_owned()
    };
    let clean = file("clean.yaml", CLEAN);
    let dirty = file("dirty.yaml", "{component: Package, name: nginx}");
    let invalid = file("invalid.yaml", "{component: Package}");
    let extension = file("extension.yaml", "{component: Extension, name: disk}");
    let missing = image.path().join("missing.yaml").to_str().unwrap().to_owned();
    let statuses: &[(&[&str], i32, &str)] = &[
        (&[&clean], 0, ""),
        (&[&clean, "--format", "native", "--only-bundle", "web", "-o", "json"], 0, ""),
        (&[&dirty], 1, ""),
        (&[&invalid], 2, "bundles[0].entries[0].name"),
        (&[&missing], 2, "No such file or directory"),
        (&[&clean, "--format", "bcfg2"], 2, "is invalid"),
        (&[&clean, "--only-bundle", "base"], 2, "it has web"),
        (&[&clean, "--format", "puppet"], 2, "possible values: native, bcfg2, gardener"),
        (&[], 2, "<FILE>"),
        (&[&extension], 3, "(entry \"disk\")"),
        (&[&clean, "--secrets", &missing], 2, "cannot read the secrets in"),
    ];
    for (arguments, status, message) in statuses {
        let line: Vec<&str> = ["check"].iter().chain(*arguments).copied().collect();
        let output = image.run(&line, b"");
        assert_eq!(output.status.code(), Some(*status), "{line:?}: {output:?}");
        assert!(text(&output.stderr).contains(message), "{line:?}: {output:?}");
        assert_eq!(output.stdout.is_empty(), !message.is_empty(), "{line:?}: {output:?}");
    }
}

#[test]
fn a_check_of_standard_input_has_a_limit() {
    let image = ImageRoot::new();
    let output = image.run(&["check", "-"], document(CLEAN).as_bytes());
    assert_eq!(text(&output.stdout), "clean: 2 entries, 2 good, 0 bad; 0 extra\n");
    let output = image.run(&["check", "-"], &vec![b' '; 20_000_000]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("it is larger than 16 MiB"), "{output:?}");
}

#[test]
fn the_report_has_the_entries_and_then_the_extras() {
    let image = ImageRoot::new();
    let entries = "{component: Package, name: nginx}, {component: UserGroup, name: web}, \
                   {component: User, name: root, desired: {shell: /bin/bash}}, \
                   {component: Action, name: reload, desired: {command: 'true', when: always}}";
    let output = image.run(&["check", "-", "-o", "json"], document(entries).as_bytes());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let entry = |(component, name): (&str, &str), verdict: &str, reason: &str, current: Value| {
        json!({
            "component": component, "name": name, "verdict": verdict, "modified": false,
            "reason": reason, "current": current,
        })
    };
    let bad = |key: (&str, &str), reason: &str, current| entry(key, "bad", reason, current);
    let extra = |key: (&str, &str), subject: &str| {
        let reason = format!("the {subject}, and the document does not have it");
        entry(key, "extra", &reason, json!({}))
    };
    let expected = json!({"state": "dirty", "entries": [
        bad(("Package", "nginx"), "the package is not installed", json!({"version": "absent"})),
        entry(("UserGroup", "web"), "good", "", json!({})),
        bad(("User", "root"), "the shell is /bin/sh", json!({"shell": "/bin/sh"})),
        extra(("Package", "zsh"), "package is installed"),
        extra(("User", "bob"), "user has a login shell"),
    ]});
    assert_eq!(report, expected, "{report:#}");
    // Programs may read the fields in this order.
    let fields = text(&output.stdout).lines().filter_map(|line| line.trim().split_once(':'));
    let fields: Vec<&str> = fields.map(|(field, _)| field).take(8).collect();
    let expected =
        ["state", "entries", "component", "name", "verdict", "modified", "reason", "current"];
    assert_eq!(fields, expected.map(|field| format!("\"{field}\"")));
}

#[test]
fn formats_of_other_systems_are_read() {
    let image = ImageRoot::new();
    let bcfg2 = "<Configuration><Bundle name='web'><Package type='deb' name='zsh' version='any'/>\
                 </Bundle></Configuration>";
    let gardener = "kind: OperatingSystemConfig\n\
                    apiVersion: extensions.gardener.cloud/v1alpha1\nmetadata: {name: worker}\n\
                    spec:\n  type: debian\n  files:\n  - path: /etc/passwd\n    permissions: 420\n    \
                    content: {inline: {data: x}}\n";
    for (document, status, warning, entry) in [
        (bcfg2, 0, None, ("Package", "zsh", "good")),
        (
            gardener,
            1,
            Some("warning: standard input: spec.purpose"),
            ("File", "/etc/passwd", "bad"),
        ),
    ] {
        let output = image.run(&["check", "-", "-o", "json"], document.as_bytes());
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        match warning {
            Some(warning) => assert!(text(&output.stderr).starts_with(warning), "{output:?}"),
            None => assert!(output.stderr.is_empty(), "{output:?}"),
        }
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let field = |name: &str| report["entries"][0][name].as_str().unwrap().to_owned();
        let found = ["component", "name", "verdict"].map(field);
        assert_eq!(found, [entry.0, entry.1, entry.2]);
    }
}

#[test]
fn a_check_changes_nothing_and_needs_no_root() {
    let image = ImageRoot::new();
    let secret = image.write("etc/secret", "value");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let entries = "{component: File, name: /etc/secret, desired: {content: {inline: other}}}, \
                   {component: Unit, name: a.service, desired: {content: '[Service]'}}, \
                   {component: Package, name: zsh}, \
                   {component: Sysctl, name: vm.swappiness, desired: {value: '1'}}";
    let mut before = Vec::new();
    list_tree(image.path(), &mut before);
    let tools = tempfile::tempdir().unwrap();
    fs::set_permissions(tools.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let agent = tools.path().join("evenkeel-agent");
    fs::copy(env!("CARGO_BIN_EXE_evenkeel-agent"), &agent).unwrap();
    let is_root = fs::metadata(&secret).unwrap().uid() == 0;
    let mut command = if is_root {
        let mut command = program("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&agent);
        command
    } else {
        program(&agent)
    };
    command.args(["configuration", "check", "-", "-o", "json", "--image-root"]).arg(image.path());
    let output = run(command, document(entries).as_bytes());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // Another user could not change it anyway.
    image.run(&["check", "-"], document(entries).as_bytes());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdicts = report["entries"].as_array().unwrap().iter().take(4);
    let verdicts: Vec<_> = verdicts.map(|entry| entry["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["bad", "bad", "good", "bad"], "{report:#}");
    if is_root {
        let reason = report["entries"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("permission denied"), "{reason}");
    }
    let mut after = Vec::new();
    list_tree(image.path(), &mut after);
    assert_eq!(before, after);
}
