use evenkeel_configuration::document::UNIT_FOLDER;

use super::*;
use crate::check::test_machine::{MachineFixture, document_of};
use crate::files::ContentDigest;
use crate::machine::{ProgramError, ProgramOutput};

const NAME: &str = "app.service";

/// A block of `systemctl show`: a loaded, enabled and active service, with other properties.
fn show(properties: &str) -> String {
    let mut lines = vec![
        ("Id", NAME),
        ("Names", NAME),
        ("LoadState", "loaded"),
        ("ActiveState", "active"),
        ("SubState", "running"),
        ("UnitFileState", "enabled"),
        ("NeedDaemonReload", "no"),
        ("Type", "simple"),
        ("TriggeredBy", ""),
        ("ConditionResult", "yes"),
        ("ConditionTimestampMonotonic", "1"),
    ];
    for (name, value) in properties.split_whitespace().filter_map(|text| text.split_once('=')) {
        lines.iter_mut().find(|(other, _)| *other == name).unwrap().1 = value;
    }
    let lines: Vec<_> =
        lines.into_iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    lines.concat()
}

fn describe(properties: &str, desired: &str) -> String {
    MachineFixture::running(&show(properties)).describe_entry(("Unit", NAME, desired))
}

#[test]
fn a_unit_is_enabled_as_the_entry_requires() {
    let cases = [
        ("enabled", "good", "the unit is enabled"),
        (
            "enabled-runtime",
            "the unit is enabled only until the next boot",
            "the unit is enabled until the next boot",
        ),
        ("disabled", "the unit is not enabled", "good"),
        ("linked", "the unit is not enabled", "good"),
        ("linked-runtime", "the unit is not enabled", "good"),
        ("masked", "the unit is masked", "good"),
        ("masked-runtime", "the unit is masked", "good"),
        ("static", "good", "good"),
        ("indirect", "good", "good"),
        ("generated", "good", "good"),
        ("alias", "good", "good"),
        ("", "good", "good"),
        ("transient", "the unit exists only until the next boot", "good"),
    ];
    let with_value = |reason: &str, value: bool| match reason {
        "good" => reason.to_owned(),
        _ => format!("{reason} {{\"enable\":{value}}}"),
    };
    for (state, if_true, if_false) in cases {
        let state = format!("UnitFileState={state}");
        assert_eq!(describe(&state, "{}"), with_value(if_true, false), "{state}");
        let state = format!("{state} ActiveState=inactive");
        assert_eq!(describe(&state, "{enable: false}"), with_value(if_false, true), "{state}");
    }
    for desired in ["{}", "{enable: false}"] {
        let reason = describe("UnitFileState=bad ActiveState=inactive Type=oneshot", desired);
        assert_eq!(reason, "systemd reports the state bad of the unit file {}");
    }
}

#[test]
fn a_unit_runs_as_the_entry_requires() {
    let not_running = "the unit is not running {}";
    let running = "the unit is running {}";
    let cases = [
        ("ActiveState=active", "good", running),
        ("ActiveState=reloading", "good", running),
        ("ActiveState=refreshing", "good", running),
        ("ActiveState=activating SubState=start", "good", running),
        (
            "ActiveState=activating SubState=auto-restart",
            "the unit fails and systemd restarts it {}",
            running,
        ),
        ("ActiveState=inactive", not_running, "good"),
        ("ActiveState=failed", "the unit has failed {}", "good"),
        ("ActiveState=failed Type=oneshot", "the unit has failed {}", "good"),
        ("ActiveState=deactivating", "the unit is not running: deactivating {}", "good"),
        ("ActiveState=inactive Type=oneshot", "good", "good"),
        ("ActiveState=inactive TriggeredBy=app.timer", "good", "good"),
        ("ActiveState=inactive ConditionResult=no", "good", "good"),
        (
            "ActiveState=inactive ConditionResult=no ConditionTimestampMonotonic=0",
            not_running,
            "good",
        ),
        ("LoadState=bad-setting", "systemd cannot load the unit: bad-setting {}", running),
    ];
    for (state, if_enabled, if_stopped) in cases {
        assert_eq!(describe(state, "{}"), if_enabled, "{state}");
        assert_eq!(describe(state, "{command: restart}"), if_enabled, "{state}");
        assert_eq!(describe(state, "{command: stop}"), if_stopped, "{state}");
        let disabled = format!("{state} UnitFileState=disabled");
        assert_eq!(describe(&disabled, "{enable: false}"), if_stopped, "{state}");
    }
}

#[test]
fn a_unit_that_does_not_exist_is_not_enabled() {
    let state = "LoadState=not-found UnitFileState= ActiveState=inactive Type=";
    let expected = "the unit does not exist; the unit is not running {\"enable\":false}";
    assert_eq!(describe(state, "{}"), expected);
    assert_eq!(describe(state, "{enable: false}"), "good");
}

#[test]
fn only_the_files_of_the_entry_are_compared() {
    let fixture = MachineFixture::running(&show(""));
    let desired = "{content: \"[Unit]\\n\", dropIns: {a.conf: \"A\\n\", b.conf: \"B\\n\"}}";
    let entry = ("Unit", NAME, desired);
    let missing = "the unit file is missing; the drop-in a.conf is missing; the drop-in b.conf is \
                   missing {\"content\":null,\"dropIns\":{\"a.conf\":null,\"b.conf\":null}}";
    assert_eq!(fixture.describe_entry(entry), missing);
    let folder = format!("{UNIT_FOLDER}/{NAME}");
    fixture.write(&folder, "[Unit]\n");
    fixture.write(&format!("{folder}.d/a.conf"), "A\n");
    fixture.write(&format!("{folder}.d/b.conf"), "B");
    fixture.write(&format!("{folder}.d/foreign.conf"), "C\n");
    let check = fixture.check_entry(entry);
    assert_eq!(check.report.reason, "the drop-in b.conf differs");
    let digest = ContentDigest::from_bytes(b"B");
    let expected = serde_json::json!({"b.conf": {"sha256": digest}});
    assert_eq!(check.report.current["dropIns"], expected);
    let is_missing = false;
    let differences = [Difference::DropIn { name: "b.conf".to_owned(), is_missing }];
    assert_eq!(fixture.check_entry(entry).differences, differences);
    fixture.write(&format!("{folder}.d/b.conf"), "B\n");
    assert_eq!(fixture.describe_entry(entry), "good");
    fixture.set_mode(&folder, 0o666);
    let check = fixture.check_entry(entry);
    let reason = "the unit file does not belong to root with the mode 0644";
    assert_eq!(
        (check.report.reason.as_str(), &*check.differences),
        (reason, &[Difference::Content][..])
    );
    fixture.write(&folder, [0xff_u8; 2000]);
    let check = fixture.check_entry(entry);
    assert_eq!(check.report.reason, "the unit file differs");
    assert_eq!(check.report.current["content"]["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn a_unit_file_that_is_a_link_is_replaced() {
    let fixture = MachineFixture::running(&show("UnitFileState=masked LoadState=masked"));
    fixture.link(&format!("{UNIT_FOLDER}/{NAME}"), "/dev/null");
    let entry = ("Unit", NAME, "{content: \"[Unit]\\n\"}");
    let expected = "the unit file is a symbolic link; the unit is masked \
                    {\"content\":null,\"enable\":false}";
    assert_eq!(fixture.describe_entry(entry), expected);
    let differences = [Difference::Content, Difference::Enablement];
    assert_eq!(fixture.check_entry(entry).differences, differences);
}

#[test]
fn systemd_must_have_read_the_files_of_an_entry() {
    let fixture = MachineFixture::running(&show("NeedDaemonReload=yes"));
    fixture.write(&format!("{UNIT_FOLDER}/{NAME}"), "[Unit]\n");
    let reason = "systemd has not read the changed files of the unit {}";
    assert_eq!(fixture.describe_entry(("Unit", NAME, "{content: \"[Unit]\\n\"}")), reason);
    assert_eq!(fixture.describe_entry(("Unit", NAME, "{}")), "good", "files of a package");
}

#[test]
fn one_call_shows_all_units_except_templates() {
    let output = [show(""), show("Id=b.service Names=b.service")].join("\n");
    let fixture = MachineFixture::running(&output);
    let document = document_of(&[
        ("Unit", "b.service", "{}"),
        ("Unit", "getty@.service", "{}"),
        ("Unit", NAME, "{}"),
        ("Unit", "c.service", "{}"),
    ]);
    let entries = fixture.check(&document).entries;
    let reasons: Vec<_> = entries.iter().map(|entry| entry.report.reason.as_str()).collect();
    assert_eq!(reasons, ["", "", "", "systemctl show does not report the unit"]);
    let calls = fixture.calls.lock().unwrap();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].name, "systemctl");
    let arguments = &calls[0].arguments;
    assert_eq!(arguments[..2], ["show", "--no-pager"]);
    assert_eq!(arguments[3..], ["--", "b.service", NAME, "c.service"]);
}

#[test]
fn an_alias_is_the_unit_that_it_points_to() {
    let output = show("Id=ssh.service").replace(NAME, "ssh.service sshd.service");
    let fixture = MachineFixture::running(&output);
    assert_eq!(fixture.describe_entry(("Unit", "sshd.service", "{}")), "good");
}

#[test]
fn a_failure_of_systemctl_makes_only_its_units_bad() {
    let stdout = show("").into_bytes();
    let stderr = b"warning\nFailed to get properties: Connection timed out\n".to_vec();
    let output = ProgramOutput { status: 1, stdout, stderr };
    let fixture = MachineFixture::with_result(Ok(output));
    fixture.start_systemd();
    let document = document_of(&[("Unit", NAME, "{}"), ("Unit", "b.service", "{}")]);
    let entries = fixture.check(&document).entries;
    assert_eq!(entries[0].report.reason, "");
    assert_eq!(
        entries[1].report.reason,
        "systemctl show failed with status 1: Failed to get properties: Connection timed out"
    );
    assert!(entries[1].differences.is_empty(), "nothing can be corrected");

    let (program, timeout) = ("systemctl".to_owned(), SHOW_TIMEOUT);
    let fixture = MachineFixture::with_result(Err(ProgramError::TimedOut { program, timeout }));
    fixture.start_systemd();
    let reason = fixture.describe_entry(("Unit", NAME, "{}"));
    assert_eq!(reason, "systemctl has not ended after 60 s and was killed {}");
}

#[test]
fn links_show_whether_a_unit_is_enabled_without_systemd() {
    let fixture = MachineFixture::offline();
    let installable = "[Install]\nWantedBy=multi-user.target\n";
    for name in ["on", "off", "alias", "masked", "app@"] {
        fixture.write(&format!("/usr/lib/systemd/system/{name}.service"), installable);
    }
    fixture.write("/usr/lib/systemd/system/static.service", "[Service]\n");
    let file = "/usr/lib/systemd/system";
    let links = [
        ("multi-user.target.wants/on.service", "on.service"),
        ("multi-user.target.wants/app@1.service", "app@.service"),
        ("other.service", "alias.service"),
    ];
    for (path, target) in links {
        fixture.link(&format!("{UNIT_FOLDER}/{path}"), &format!("{file}/{target}"));
    }
    fixture.link(&format!("{UNIT_FOLDER}/masked.service"), "/dev/null");
    let disabled = "the unit is not enabled {\"enable\":false}";
    let enabled = "the unit is enabled {\"enable\":true}";
    let cases = [
        ("on.service", "good", enabled),
        ("app@1.service", "good", enabled),
        ("app@2.service", disabled, "good"),
        ("alias.service", "good", enabled),
        ("off.service", disabled, "good"),
        ("static.service", "good", "good"),
        ("masked.service", "the unit is masked {\"enable\":false}", "good"),
        ("none.service", "the unit does not exist {\"enable\":false}", "good"),
    ];
    for (name, if_true, if_false) in cases {
        assert_eq!(fixture.describe_entry(("Unit", name, "{}")), if_true, "{name}");
        let entry = ("Unit", name, "{enable: false}");
        assert_eq!(fixture.describe_entry(entry), if_false, "{name}");
    }
    assert!(fixture.calls.lock().unwrap().is_empty());
}

#[test]
fn a_template_is_enabled_by_its_instances() {
    let fixture = MachineFixture::offline();
    let describe = |desired| fixture.describe_entry(("Unit", "app@.service", desired));
    assert_eq!(describe("{}"), "good");
    assert_eq!(describe("{enable: false}"), "good");
    let none = "no instance of the template is enabled {\"enable\":false}";
    assert_eq!(describe("{enable: true}"), none);
    let link = format!("{UNIT_FOLDER}/multi-user.target.wants/app@1.service");
    fixture.link(&link, "/usr/lib/systemd/system/app@.service");
    assert_eq!(describe("{enable: true}"), "good");
    let some = "an instance of the template is enabled {\"enable\":true}";
    assert_eq!(describe("{enable: false}"), some);
}
