use std::fs;
use std::path::Path;

use evenkeel_configuration::document::Document;
use evenkeel_configuration::native;
use serde_json::json;

use super::test_machine::{MachineFixture, document_of};
use super::*;
use crate::files::EmptyContentSource;

fn report(fixture: &MachineFixture, document: &Document, only_bundle: Option<&str>) -> Report {
    let only_bundle = only_bundle.map(str::to_owned);
    let scope = EntryScope { only_bundle, ..EntryScope::default() };
    let options = CheckOptions { contents: &EmptyContentSource, scope: &scope };
    check_machine(document, &fixture.machine, &options).unwrap().into()
}

fn two_bundles() -> Document {
    native::read(
        "bundles:
         - name: web
           entries:
           - {component: Package, name: nginx}
           - {component: Action, name: warm up, desired: {command: 'true', when: always}}
           - {component: UserGroup, name: web}
         - name: base
           entries:
           - {component: File, name: /etc/motd}
           - {component: User, name: ann, desired: {group: users}}",
    )
    .unwrap()
}

fn machine() -> MachineFixture {
    let fixture = MachineFixture::offline();
    fixture.write(
        "/var/lib/dpkg/status",
        "Package: zsh\nStatus: install ok installed\nVersion: 5\nArchitecture: amd64\n",
    );
    fixture.write("/etc/passwd", "ann:x:1000:100::/:/bin/sh\nbob:x:1001:100::/:/bin/sh\n");
    fixture.write("/etc/group", "users:x:100:\nweb:x:900:\n");
    fixture
}

#[test]
fn a_report_has_the_entries_in_the_order_of_the_document_and_then_extras() {
    let report = report(&machine(), &two_bundles(), None);
    let expected = json!({
        "state": "dirty",
        "entries": [
            {
                "component": "Package", "name": "nginx", "verdict": "bad", "modified": false,
                "reason": "the package is not installed", "current": {"version": "absent"},
            },
            {
                "component": "UserGroup", "name": "web", "verdict": "good", "modified": false,
                "reason": "", "current": {},
            },
            {
                "component": "File", "name": "/etc/motd", "verdict": "bad", "modified": false,
                "reason": "the file does not exist", "current": {"type": "absent"},
            },
            {
                "component": "User", "name": "ann", "verdict": "good", "modified": false,
                "reason": "", "current": {},
            },
            {
                "component": "Package", "name": "zsh", "verdict": "extra", "modified": false,
                "reason": "the package is installed, and the document does not have it",
                "current": {},
            },
            {
                "component": "User", "name": "bob", "verdict": "extra", "modified": false,
                "reason": "the user has a login shell, and the document does not have it",
                "current": {},
            },
        ],
    });
    assert_eq!(serde_json::to_value(&report).unwrap(), expected);
    let text = serde_json::to_string(&report).unwrap();
    let start = r#"{"state":"dirty","entries":[{"component":"Package","name":"nginx","verdict":"#;
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn only_the_entries_of_a_bundle_are_checked() {
    let names = |bundle| -> Vec<String> {
        let report = report(&machine(), &two_bundles(), Some(bundle));
        report.entries.into_iter().map(|entry| entry.name).collect()
    };
    assert_eq!(names("web"), ["nginx", "web"]);
    assert_eq!(names("base"), ["/etc/motd", "ann"]);
    assert_eq!(names("none"), Vec::<String>::new());
}

#[test]
fn extras_do_not_make_a_machine_dirty() {
    let document = document_of(&[("User", "ann", "{group: users}")]);
    let report = report(&machine(), &document, None);
    assert_eq!(report.state, ComplianceState::Clean);
    let verdicts: Vec<_> = report.entries.iter().map(|entry| entry.verdict).collect();
    assert_eq!(verdicts, [Verdict::Good, Verdict::Extra]);
}

#[test]
fn extras_are_those_of_components_that_the_document_describes() {
    let machine = machine();
    machine.link("/etc/systemd/system/multi-user.target.wants/own.service", "/x/own.service");
    let extras = |text: &str| -> Vec<String> {
        let document = native::read(text).unwrap();
        let extras = machine.check(&document).extras;
        extras.into_iter().map(|extra| format!("{} {}", extra.component, extra.name)).collect()
    };
    assert_eq!(extras("bundles: []"), Vec::<String>::new());
    let all = extras("removeExtras: [users, packages, services]\nbundles: []");
    assert_eq!(all, ["Unit own.service", "Package zsh", "User ann", "User bob"]);
    let group = "bundles: [{name: a, entries: [{component: UserGroup, name: web}]}]";
    assert_eq!(extras(group), Vec::<String>::new());
}

#[test]
fn units_that_a_person_has_enabled_are_extras() {
    let machine = MachineFixture::running(
        "Id=ssh.service\nNames=ssh.service sshd.service\nLoadState=loaded\nActiveState=active\n\
         UnitFileState=enabled\n",
    );
    let folder = "/etc/systemd/system";
    for unit in [
        "own.service",
        "own.timer",
        "ssh.service",
        "packaged.service",
        "getty@tty1.service",
        "evenkeel-agent.service",
        "remote-fs.target",
    ] {
        machine.link(&format!("{folder}/multi-user.target.wants/{unit}"), &format!("/x/{unit}"));
    }
    machine.link(&format!("{folder}/app.service.requires/own.socket"), "/x/own.socket");
    machine.link(&format!("{folder}/alias.service"), "/x/other.service");
    let record = "/var/lib/systemd/deb-systemd-helper-enabled/multi-user.target.wants";
    machine.write(&format!("{record}/packaged.service"), "");
    let preset = "/usr/lib/systemd/system-preset/90-systemd.preset";
    machine.write(preset, "# x\nenable getty@.service\nenable remote-fs.target\n");
    let document = document_of(&[("Unit", "sshd.service", "{}")]);
    let check = machine.check(&document);
    assert_eq!(check.entries[0].report.reason, "");
    let extras: Vec<_> = check.extras.into_iter().map(|extra| extra.name).collect();
    assert_eq!(extras, ["own.service", "own.socket", "own.timer"]);
}

#[test]
fn a_report_has_a_limited_number_of_extras() {
    let machine = machine();
    let users = (0..1000).map(|n| format!("u{n:03}:x:{}:100::/:/bin/sh\n", 2000 + n));
    machine.write("/etc/passwd", users.collect::<Vec<_>>().concat());
    let document = document_of(&[("User", "u000", "{group: users}")]);
    let extras = machine.check(&document).extras;
    assert_eq!(extras.len(), 200);
    assert_eq!((&*extras[0].name, &*extras[199].name), ("u001", "u200"));
}

#[test]
fn entries_that_cannot_be_checked_are_bad_and_do_not_affect_others() {
    let machine = MachineFixture::offline();
    machine.start_systemd();
    machine.write("/etc/sysctl.d/zz-evenkeel.conf/folder", "");
    machine.write("/etc/group", "web:x:900:\n");
    machine.write("/etc/apt/sources.list.d", "a file");
    let source = r#"{source: "Types: deb\nURIs: https://a.example\nSuites: b\nComponents: c"}"#;
    let document = document_of(&[
        ("Unit", "app.service", "{}"),
        ("Package", "nginx", "{}"),
        ("PackageSource", "own", source),
        ("User", "ann", "{}"),
        ("Sysctl", "vm.swappiness", "{value: \"1\"}"),
        ("UserGroup", "web", "{}"),
    ]);
    let entries = machine.check(&document).entries;
    let reasons: Vec<_> = entries.iter().map(|entry| entry.report.reason.as_str()).collect();
    let starts = [
        "cannot run systemctl: ",
        "cannot read /var/lib/dpkg/status: ",
        "cannot read /etc/apt/sources.list.d/evenkeel-source-own.sources: ",
        "cannot read /etc/passwd: ",
        "cannot read /etc/sysctl.d/zz-evenkeel.conf: ",
    ];
    for (reason, start) in reasons.iter().zip(starts) {
        assert!(reason.starts_with(start), "{reason}");
    }
    assert_eq!(reasons[5], "");
    let verdicts = entries.iter().filter(|entry| entry.report.verdict == Verdict::Bad);
    assert_eq!(verdicts.count(), 5);
}

#[test]
fn a_check_changes_nothing_on_the_machine() {
    let machine = machine();
    machine.write("/proc/sys/vm/swappiness", "60\n");
    let before = list_tree(&machine.machine.root);
    let document = document_of(&[
        ("Unit", "app.service", "{content: \"[Unit]\\n\"}"),
        ("Package", "nginx", "{}"),
        ("User", "ann", "{absent: true}"),
        ("Sysctl", "vm.swappiness", "{value: \"1\"}"),
    ]);
    machine.check(&document);
    assert_eq!(list_tree(&machine.machine.root), before);
}

/// Paths and contents.
fn list_tree(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(list_tree(&path));
        }
        files.push((path.display().to_string(), fs::read(&path).unwrap_or_default()));
    }
    files.sort();
    files
}
