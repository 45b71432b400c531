//! A real update of a real package, from the REST call to the state of dpkg on the node.

use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_tests::lab::{Agent, Binaries, Fleet, SlowConnection, events, until};
use serde_json::{Value, json};

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

#[track_caller]
fn run_package<'a>(run: &'a Value, name: &str) -> &'a Value {
    let packages = run["packages"].as_array().expect("packages");
    let entry = packages.iter().find(|package| package["name"] == name);
    entry.unwrap_or_else(|| panic!("no {name} in {run:#}"))
}

fn parse_time(value: &Value) -> DateTime<Utc> {
    value.as_str().expect("a time").parse().expect("a time")
}

#[test]
fn a_policy_written_over_rest_changes_a_real_package_inside_its_window() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.install(&["demo-app", "demo-lib", "demo-hello"]);
    let policy = member.assign_packages("demo-app=1.1");
    member.open_window();
    assert!(member.agent_once().status.success());

    assert_eq!(member.node.package("demo-app"), "1.1 installed");
    assert_eq!(member.node.package("demo-lib"), "1.1 installed");
    assert_eq!(member.node.package("demo-hello"), "1.0 installed");
    assert_eq!(member.node.audit(), "");

    let run = member.only_run();
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(run["policy"]["resourceId"], policy.as_str());
    assert_eq!(run["target"]["packages"], json!(["demo-app=1.1"]));
    for name in ["demo-app", "demo-lib"] {
        let package = run_package(&run, name);
        assert_eq!(package["before"], "1.0");
        assert_eq!(package["after"], "1.1");
        assert_eq!(package["state"], "installed");
    }
    let (start, end) = (&run["startTime"], &run["endTime"]);
    assert!(start.as_u64() > Some(0) && end.as_u64() >= start.as_u64(), "{run:#}");
    assert_eq!(events(&run), ["downloading", "downloaded", "began", "verify_begun", "finished"]);
    let times = run["events"].as_array().expect("events").iter();
    assert!(times.map(|event| parse_time(&event["time"])).is_sorted());
    assert_eq!(member.decision()["reason"]["code"], "up_to_date");
}

#[test]
fn a_node_without_a_policy_stays_as_it_is() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.install(&["demo-hello"]);
    member.open_window();
    assert!(member.agent_once().status.success());
    assert_eq!(member.node.package("demo-hello"), "1.0 installed");
    let decision = member.decision();
    assert_eq!(decision["act"], "idle");
    assert_eq!(decision["reason"]["code"], "no_policy");
    assert!(member.runs().is_empty());
}

#[test]
fn outside_the_window_nothing_changes_and_the_decision_names_the_instant() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.install(&["demo-hello"]);
    member.assign_packages("demo-hello=1.1");
    let opens = member.create_window(90, 3600);
    // The node prepares at the first poll and waits at the second; neither changes anything.
    for _poll in 0..2 {
        let output = member.agent_once();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(member.node.package("demo-hello"), "1.0 installed");
        let decision = member.decision();
        assert_eq!(decision["act"], "continue", "{decision:#}");
        assert_eq!(decision["reason"]["code"], "window_closed");
        assert_eq!(parse_time(&decision["reason"]["data"]["opens"]), opens);
        assert_eq!(parse_time(&decision["nextChange"]), opens);
    }
    for run in member.runs() {
        assert!(!events(&run).contains(&"began"), "{run:#}");
    }
}

#[test]
fn a_window_that_closed_before_the_first_poll_creates_no_run() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.install(&["demo-hello"]);
    member.assign_packages("demo-hello=1.1");
    let start = member.create_window(2, 3);
    member.wait_for_time(start + chrono::TimeDelta::seconds(2));
    assert!(member.agent_once().status.success());
    assert_eq!(member.node.package("demo-hello"), "1.0 installed");
    assert!(member.runs().is_empty());
}

#[test]
fn a_window_that_closed_after_the_download_ends_with_one_cancelled_run() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.install(&["demo-hello"]);
    member.assign_packages("demo-hello=1.1");
    let start = member.create_window(20, 21);
    assert!(member.agent_once().status.success());
    assert_eq!(member.only_run()["state"], "staged");
    member.wait_for_time(start + chrono::TimeDelta::seconds(2));
    assert!(member.agent_once().status.success());
    assert_eq!(member.node.package("demo-hello"), "1.0 installed");
    let run = member.only_run();
    assert_eq!(run["state"], "cancelled", "{run:#}");
    assert!(run["endTime"].as_u64() > Some(0));
}

#[test]
fn a_package_whose_script_fails_ends_the_run_in_error_with_the_output_of_dpkg() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.install(&["demo-bad"]);
    member.assign_packages("demo-bad=1.1");
    member.open_window();
    assert!(!member.agent_once().status.success());
    let run = member.only_run();
    assert_eq!(run["state"], "failed", "{run:#}");
    assert!(run.to_string().contains("postinst fails on purpose"), "{run:#}");
    assert_eq!(run_package(&run, "demo-bad")["state"], "half-configured");
    assert_eq!(member.node.package("demo-bad"), "1.1 half-configured");

    // The next poll reports the state of the node and does not hang.
    let mut again = member.start_agent(&["run", "--once"]);
    again.wait(WAIT_TIMEOUT);
    drop(again);
    assert_eq!(member.runs().len(), 1, "{:#?}", member.runs());
}

/// A run without the details of its instance, which change with each report of the node.
fn without_instance_details(mut run: Value) -> Value {
    run["instance"] = run["instance"]["resourceId"].take();
    run
}

#[test]
fn a_server_killed_between_a_report_and_its_answer_loses_nothing_and_doubles_nothing() {
    let Some(fleet) = Fleet::new() else { return };
    let line = SlowConnection::to(&fleet.server.address("southbound"), Duration::from_millis(400));
    let agent = Agent { program: &Binaries::get().agent, server: &line.address().to_string() };
    let member = fleet.join_with("node", agent);
    member.install(&["demo-hello"]);
    member.assign_packages("demo-hello=1.1");
    member.open_window();

    let mut agent = member.start_agent(&["run"]);
    until("the outcome is stored", WAIT_TIMEOUT, || {
        let runs = member.runs();
        runs.first().is_some_and(|run| run["state"] == "succeeded").then_some(())
    });
    line.cut();
    fleet.server.kill();
    until("an answer is lost", WAIT_TIMEOUT, || line.has_lost_answer().then_some(()));
    let log = agent.log();
    assert!(agent.exit_status().is_none(), "the agent ended:\n{log}");

    fleet.server.restart();
    let before = without_instance_details(member.only_run());
    line.repair();
    until("the agent has nothing left to report", WAIT_TIMEOUT, || {
        let journal = "/var/lib/evenkeel-agent/journal.json";
        let left = member.node.succeed_inside(&[
            "sh",
            "-c",
            &format!("ls {journal} 2> /dev/null || true"),
        ]);
        left.is_empty().then_some(())
    });
    agent.kill();
    assert_eq!(without_instance_details(member.only_run()), before);
    assert_eq!(member.node.package("demo-hello"), "1.1 installed");
}
