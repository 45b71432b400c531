use super::*;

fn web(file_paths: &str) -> String {
    unit("web.service", &format!("filePaths: [{file_paths}]"))
}

#[test]
fn a_changed_mode_restarts_only_the_units_that_name_the_file() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.add_running_unit("other.service");
    let document = |mode: &str| {
        let file = format!("component: File, name: /etc/a, desired: {{mode: \"{mode}\"}}");
        entries(&[&file, &web("/etc/a"), &unit("other.service", "")])
    };
    assert_eq!(node.run_well(&document("0600")), ["systemctl restart web.service"]);
    node.check_unchanged(&document("0600"));
    assert_eq!(node.run_well(&document("0640")), ["systemctl restart web.service"]);
    node.check_unchanged(&document("0640"));
}

#[test]
fn two_changed_files_restart_a_unit_once() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let document = entries(&[&file("/etc/a", "a"), &file("/etc/b", "b"), &web("/etc/a, /etc/b")]);
    assert_eq!(node.run_well(&document), ["systemctl restart web.service"]);
}

#[test]
fn a_file_that_is_removed_with_its_mention_restarts_the_unit_once_and_goes_last() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let old = entries(&[&file("/etc/a", "a"), &file("/etc/b", "b"), &web("/etc/a, /etc/b")]);
    node.run_well(&old);
    let new = entries(&[&file("/etc/a", "a"), &web("/etc/a")]);
    let report = node.run(&new);
    assert_eq!(node.take_calls(), ["systemctl restart web.service"]);
    assert!(!node.files.path("/etc/b").exists());
    assert!(report.changed.contains(&EntryKey::file("/etc/b")));
    node.check_unchanged(&new);
}

#[test]
fn a_unit_that_loses_its_content_keeps_its_file() {
    let mut node = SimulatedNode::new();
    node.run_well(&entries(&[&unit("own.service", &format!("content: {SERVICE}"))]));
    let without = entries(&[&unit("own.service", "")]);
    assert_eq!(node.run_well(&without), [""; 0]);
    assert!(node.files.path("/etc/systemd/system/own.service").exists());
    assert_eq!(
        node.run_well(&entries(&[])),
        ["systemctl disable own.service", "systemctl stop own.service", "systemctl daemon-reload",]
    );
    assert!(!node.files.path("/etc/systemd/system/own.service").exists());
}

#[test]
fn a_unit_that_is_not_enabled_is_disabled_and_stopped() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let document = entries(&[&unit("web.service", "enable: false")]);
    assert_eq!(
        node.run_well(&document),
        ["systemctl disable web.service", "systemctl stop web.service"]
    );
    node.check_unchanged(&document);
}

#[test]
fn the_command_decides_what_happens_to_a_changed_unit() {
    let cases = [
        ("", &["systemctl daemon-reload", "systemctl restart web.service"][..]),
        ("command: restart,", &["systemctl daemon-reload", "systemctl restart web.service"]),
        ("command: start,", &["systemctl daemon-reload"]),
        ("command: stop,", &["systemctl daemon-reload", "systemctl stop web.service"]),
    ];
    for (command, expected) in cases {
        let mut node = SimulatedNode::new();
        node.add_running_unit("web.service");
        let drop_in = format!("{command} dropIns: {{a.conf: \"[Service]\\n\"}}");
        let document = entries(&[&unit("web.service", &drop_in)]);
        assert_eq!(node.run_well(&document), expected, "{command}");
        node.check_unchanged(&document);
    }
}

#[test]
fn a_unit_that_does_not_run_is_started_by_its_command() {
    for (command, verb) in [("", "restart"), ("command: start", "start")] {
        let mut node = SimulatedNode::new();
        node.add_running_unit("web.service");
        node.model().systemd.active.clear();
        let document = entries(&[&unit("web.service", command)]);
        assert_eq!(node.run_well(&document), [format!("systemctl {verb} web.service")]);
        node.check_unchanged(&document);
    }
}

#[test]
fn the_unit_of_the_agent_restarts_last_and_without_waiting() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("evenkeel-agent.service");
    node.add_running_unit("web.service");
    let drop_in = "dropIns: {a.conf: \"[Service]\\n\"}";
    let document =
        entries(&[&unit("evenkeel-agent.service", drop_in), &unit("web.service", drop_in)]);
    assert_eq!(
        node.run_well(&document),
        [
            "systemctl daemon-reload",
            "systemctl restart web.service",
            "systemctl --no-block restart evenkeel-agent.service",
        ]
    );
}

#[test]
fn a_changed_template_restarts_its_running_instances_once() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web@a.service");
    let document = entries(&[&unit("web@.service", "dropIns: {a.conf: x}")]);
    node.files.write("/usr/lib/systemd/system/web@.service", "[Service]\n");
    assert_eq!(
        node.run_well(&document),
        ["systemctl daemon-reload", "systemctl try-restart web@*.service"]
    );
    assert_eq!(node.state.pending_restarts, PendingRestarts::default());
    node.check_unchanged(&document);
}

#[test]
fn a_failed_restart_before_a_file_is_removed_is_repeated() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.run_well(&entries(&[&file("/etc/b", "b"), &web("/etc/b")]));
    let document = entries(&[&unit("web.service", "")]);
    node.model().failing_calls.push("systemctl restart".to_owned());
    assert_eq!(node.run(&document).outcome, RunOutcome::Failed);
    assert!(!node.files.path("/etc/b").exists());
    node.take_calls();
    assert_eq!(node.run_well(&document), ["systemctl restart web.service"]);
    node.check_unchanged(&document);
}
