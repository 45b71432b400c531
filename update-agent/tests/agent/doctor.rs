//! `doctor`: the problems that it finds on a node, and its advice.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use evenkeel_kit::{Secret, TestClock};
use evenkeel_update_agent::commands::doctor::{CheckOutcome, DoctorFinding, run_checks};
use evenkeel_update_agent::config::Config;
use evenkeel_update_agent::identity::MachineMarks;
use evenkeel_update_agent::module_registry::ModuleRegistry;
use evenkeel_update_agent::node::{self, Node as Enrolled, NodeCertificates};
use uuid::Uuid;

use crate::support::node::TestNode;
use crate::support::server::TestServer;

fn server_time() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

/// A node that is enrolled with the server and whose agent has run once.
async fn enrolled_node(server: &TestServer) -> TestNode {
    let node = TestNode::new();
    node.clock.set(server_time());
    node.run_once().await.unwrap();
    enrol(&node, server, None);
    node
}

fn enrol(node: &TestNode, server: &TestServer, machine: Option<MachineMarks>) {
    let paths = node.paths();
    node::save_ca(&paths, Some(&server.ca_pem)).unwrap();
    node::save_credential(&paths, Some(&Secret::new("first-credential"))).unwrap();
    let enrolled = Enrolled {
        server: server.url(),
        uuid: Uuid::from_u128(1),
        host_id: "host-0a1b2c3d".into(),
        instance_id: "inst-0a1b2c3d".into(),
        project: "default".into(),
        credential_expires: None,
        machine,
    };
    enrolled.save(&paths).unwrap();
}

async fn run_checks_at(node: &TestNode, clock: TestClock) -> Vec<DoctorFinding> {
    let mut config = Config::default();
    // The machine that runs the tests may be nearly full.
    config.gate.min_free = 0;
    let paths = node.paths();
    let registry =
        ModuleRegistry::with_runner(&config, &paths, node.system.clone(), Arc::new(clock));
    run_checks(&registry).await
}

async fn findings(node: &TestNode) -> Vec<DoctorFinding> {
    run_checks_at(node, node.clock.clone()).await
}

/// The checks that did not pass.
fn problems(findings: &[DoctorFinding]) -> Vec<(&str, CheckOutcome)> {
    let wrong = findings.iter().filter(|finding| finding.outcome != CheckOutcome::Passed);
    wrong.map(|finding| (finding.check, finding.outcome)).collect()
}

#[track_caller]
fn finding<'a>(findings: &'a [DoctorFinding], check: &str) -> &'a DoctorFinding {
    let matching = findings.iter().find(|finding| finding.check == check);
    matching.unwrap_or_else(|| panic!("no {check}: {findings:?}"))
}

#[tokio::test]
async fn a_healthy_node_passes_all_checks() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    let results = findings(&node).await;
    assert!(problems(&results).is_empty(), "{results:?}");
    for check in ["server", "clock", "dpkg", "dpkg's lock", "lists", "limits", "other updaters"] {
        finding(&results, check);
    }
    assert_eq!(node.state_files(), ["ca.pem", "credential", "node.json"]);
}

#[tokio::test]
async fn a_machine_that_never_enrolled_gets_the_advice_to_enrol() {
    let node = TestNode::new();
    let results = findings(&node).await;
    let enrolment = finding(&results, "enrolment");
    assert_eq!(enrolment.outcome, CheckOutcome::Failed);
    assert!(enrolment.advice.contains("enroll"), "{enrolment:?}");
    assert!(results.iter().all(|finding| finding.check != "server"));
}

#[tokio::test]
async fn a_copied_disk_in_another_machine_fails() {
    let server = TestServer::start_on_loopback().await;
    let node = TestNode::new();
    std::fs::create_dir_all(node.paths().inside("/etc")).unwrap();
    let id = node.paths().inside("/etc/machine-id");
    std::fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
    enrol(&node, &server, Some(MachineMarks::detect(&node.paths())));
    assert_eq!(finding(&findings(&node).await, "identity").outcome, CheckOutcome::Passed);
    std::fs::write(&id, "1123456789abcdef0123456789abcdef\n").unwrap();
    let results = findings(&node).await;
    let identity = finding(&results, "identity");
    assert_eq!(identity.outcome, CheckOutcome::Failed);
    assert!(identity.result.contains("host-0a1b2c3d"), "{identity:?}");
}

#[tokio::test]
async fn a_damaged_or_missing_certificate_fails_with_advice() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    let paths = node.paths();
    node::save_credential(&paths, None).unwrap();
    let results = findings(&node).await;
    let enrolment = finding(&results, "enrolment");
    assert_eq!(enrolment.outcome, CheckOutcome::Failed);
    assert!(enrolment.result.contains("has no certificate"), "{enrolment:?}");
    assert_eq!(problems(&results), [("enrolment", CheckOutcome::Failed)], "reported once");

    NodeCertificates::none(&paths).requests().await.unwrap();
    std::fs::write(paths.certificate(), "half of it").unwrap();
    let results = findings(&node).await;
    let enrolment = finding(&results, "enrolment");
    let key = paths.key().display().to_string();
    assert!(enrolment.result.starts_with(&format!("{key} is missing")), "{enrolment:?}");
    assert!(enrolment.result.contains("host delete host-0a1b2c3d"), "{enrolment:?}");
    assert_eq!(enrolment.advice, "", "the server would refuse another key");

    std::fs::rename(paths.enrolment_key(), paths.key()).unwrap();
    let results = findings(&node).await;
    let enrolment = finding(&results, "enrolment");
    assert_eq!(enrolment.outcome, CheckOutcome::Failed);
    assert!(enrolment.result.contains("certificate.pem is invalid"), "{enrolment:?}");
    assert!(enrolment.advice.contains("enroll"), "{enrolment:?}");
    assert_eq!(problems(&results), [("enrolment", CheckOutcome::Failed)], "reported once");
}

fn write_owner_file(node: &TestNode, name: &str, content: &[u8], mode: u32) {
    let folder = node.paths().inside("/etc/evenkeel/keys.d");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    let file = node.paths().inside("/etc/evenkeel").join(name);
    std::fs::write(&file, content).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn unusable_limits_are_reported_once() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    write_owner_file(&node, "limits.toml", b"rot = 1", 0o644);
    let results = findings(&node).await;
    assert_eq!(problems(&results), [("limits", CheckOutcome::Failed)]);
    let limits = finding(&results, "limits");
    assert!(limits.result.contains("rot"), "{limits:?}");
}

#[tokio::test]
async fn key_files_that_cannot_be_trusted_are_named() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    // The smallest packet of a public key.
    let key = [0xc6, 9, 4, 0, 0, 0, 1, 22, 1, 2, 3];
    write_owner_file(&node, "keys.d/own.gpg", &key, 0o644);
    let results = findings(&node).await;
    assert!(problems(&results).is_empty(), "{results:?}");
    assert!(finding(&results, "source keys").result.starts_with("1 key "), "{results:?}");

    write_owner_file(&node, "keys.d/own.gpg", &key, 0o666);
    write_owner_file(&node, "keys.d/text.asc", b"nonsense", 0o644);
    let results = findings(&node).await;
    assert_eq!(problems(&results), [("source keys", CheckOutcome::Failed)]);
    let keys = finding(&results, "source keys");
    for (line, expected) in keys.result.lines().zip(["own.gpg", "text.asc"]) {
        assert!(line.contains(expected), "{keys:?}");
    }
    assert_eq!(keys.result.lines().count(), 2, "{keys:?}");
}

#[tokio::test]
async fn a_rejected_credential_and_a_rejected_certificate_are_distinguished() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    server.state.lock().unwrap().credential = "another".into();
    let results = findings(&node).await;
    let advice = &finding(&results, "server").advice;
    assert!(advice.contains("enrol again"), "{advice}");

    let other = TestServer::start_on_loopback().await;
    node::save_ca(&node.paths(), Some(&other.ca_pem)).unwrap();
    let results = findings(&node).await;
    let advice = &finding(&results, "server").advice;
    assert!(advice.contains("certificate is refused"), "{advice}");
    assert_eq!(finding(&results, "clock").outcome, CheckOutcome::Warning);
}

#[tokio::test]
async fn a_wrong_clock_fails() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    let clock = TestClock::new(server_time() + chrono::TimeDelta::hours(2));
    let results = run_checks_at(&node, clock).await;
    let clock = finding(&results, "clock");
    assert_eq!(clock.outcome, CheckOutcome::Failed);
    assert!(clock.result.contains("more than an hour ahead"), "{clock:?}");
}

#[tokio::test]
async fn problems_of_dpkg_and_apt_are_reported_with_their_output() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    let half = ("1".to_owned(), "half-configured".to_owned());
    node.packages().installed.insert("app".into(), half);
    node.packages().refresh_error = "E: the key is not known\n".into();
    node.clock.advance(chrono::TimeDelta::hours(5));
    node.run_once().await.unwrap();
    node.clock.advance(chrono::TimeDelta::hours(-5));

    let results = findings(&node).await;
    assert!(finding(&results, "dpkg").result.contains("app"), "{results:?}");
    assert_eq!(finding(&results, "lists").outcome, CheckOutcome::Failed);
    assert_eq!(
        problems(&results),
        [("dpkg", CheckOutcome::Failed), ("lists", CheckOutcome::Failed)]
    );
}

#[tokio::test]
async fn updates_that_apt_cannot_determine_fail_with_its_error() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    node.packages().simulation_error = "E: Unmet dependencies. Try fixing them.\n".into();
    let results = findings(&node).await;
    assert_eq!(problems(&results), [("updates", CheckOutcome::Failed)]);
    let updates = finding(&results, "updates");
    assert!(updates.result.contains("Unmet dependencies"), "{updates:?}");
}

#[tokio::test]
async fn a_required_reboot_is_a_warning_with_its_reasons() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    std::fs::create_dir_all(node.paths().inside("/run")).unwrap();
    std::fs::write(node.paths().inside("/run/reboot-required"), "").unwrap();
    std::fs::write(node.paths().inside("/run/reboot-required.pkgs"), "libc6\n").unwrap();
    let results = findings(&node).await;
    let reboot = finding(&results, "reboot");
    assert_eq!(reboot.outcome, CheckOutcome::Warning);
    assert_eq!(reboot.result, "is required: libc6 requires it");
}

#[tokio::test]
async fn other_update_programs_are_a_warning() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    let unit = "/usr/lib/systemd/system/snapd.service";
    let enabled = "/etc/systemd/system/multi-user.target.wants/snapd.service";
    for path in [unit, enabled] {
        let file = node.paths().inside(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "[Unit]\n").unwrap();
    }
    let results = findings(&node).await;
    assert_eq!(problems(&results), [("other updaters", CheckOutcome::Warning)]);
    let advice = &finding(&results, "other updaters").advice;
    assert!(advice.contains("snap refresh --hold"), "{advice}");
}

#[tokio::test]
async fn needrestart_is_a_note_about_restarts_of_services() {
    let server = TestServer::start_on_loopback().await;
    let node = enrolled_node(&server).await;
    let program = node.paths().inside("/usr/sbin/needrestart");
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    std::fs::write(program, "").unwrap();
    let results = findings(&node).await;
    assert_eq!(problems(&results), [("platform", CheckOutcome::Note)]);
    let text = &finding(&results, "platform").result;
    assert!(text.contains("needrestart restarts no services"), "{text}");
}

#[tokio::test]
async fn a_full_disk_fails_with_advice() {
    let node = TestNode::new();
    let mut config = Config::default();
    config.gate.min_free = u64::MAX;
    let paths = node.paths();
    let clock = Arc::new(node.clock.clone());
    let registry = ModuleRegistry::with_runner(&config, &paths, node.system.clone(), clock);
    let results = run_checks(&registry).await;
    let disk = finding(&results, "disk");
    assert_eq!(disk.outcome, CheckOutcome::Failed);
    assert!(disk.advice.contains("gate.min_free"), "{disk:?}");
}
