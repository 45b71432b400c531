//! A real update of a real package, from the REST call to what dpkg says on the node.

use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_tests::lab::{Agent, Binaries, Fleet, SlowLine, events, until};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_mins(1);

/// The package of a run with this name.
#[track_caller]
fn package<'a>(run: &'a Value, name: &str) -> &'a Value {
    let packages = run["packages"].as_array().expect("packages");
    let found = packages.iter().find(|package| package["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {run:#}"))
}

fn time(value: &Value) -> DateTime<Utc> {
    value.as_str().expect("a time").parse().expect("a time")
}

#[test]
fn a_policy_written_over_rest_changes_a_real_package_inside_its_window() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.has(&["demo-app", "demo-lib", "demo-hello"]);
    let policy = member.want("demo-app=1.1");
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
        let package = package(&run, name);
        assert_eq!(package["before"], "1.0");
        assert_eq!(package["after"], "1.1");
        assert_eq!(package["state"], "installed");
    }
    let (start, end) = (&run["startTime"], &run["endTime"]);
    assert!(
        start.as_u64() > Some(0) && end.as_u64() >= start.as_u64(),
        "{run:#}"
    );
    assert_eq!(
        events(&run),
        [
            "downloading",
            "downloaded",
            "began",
            "verify_begun",
            "finished"
        ]
    );
    let times = run["events"].as_array().expect("events").iter();
    assert!(times.map(|event| time(&event["time"])).is_sorted());
    assert_eq!(member.decision()["reason"]["code"], "up_to_date");
}

#[test]
fn a_node_without_a_policy_stays_as_it_is() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.has(&["demo-hello"]);
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
    member.has(&["demo-hello"]);
    member.want("demo-hello=1.1");
    let opens = member.window(90, 3600);
    // First it prepares, then it waits; it changes nothing at either poll.
    for _poll in 0..2 {
        let output = member.agent_once();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(member.node.package("demo-hello"), "1.0 installed");
        let decision = member.decision();
        assert_eq!(decision["act"], "continue", "{decision:#}");
        assert_eq!(decision["reason"]["code"], "window_closed");
        assert_eq!(time(&decision["reason"]["data"]["opens"]), opens);
        assert_eq!(time(&decision["next"]), opens);
    }
    for run in member.runs() {
        assert!(!events(&run).contains(&"began"), "{run:#}");
    }
}

#[test]
fn a_window_that_closed_before_the_agent_came_leaves_no_run() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.has(&["demo-hello"]);
    member.want("demo-hello=1.1");
    let start = member.window(2, 3);
    member.until_it_is(start + chrono::TimeDelta::seconds(2));
    assert!(member.agent_once().status.success());
    assert_eq!(member.node.package("demo-hello"), "1.0 installed");
    assert!(member.runs().is_empty());
}

#[test]
fn a_window_that_closed_after_the_download_leaves_one_cancelled_run() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.has(&["demo-hello"]);
    member.want("demo-hello=1.1");
    let start = member.window(20, 21);
    assert!(member.agent_once().status.success());
    assert_eq!(member.only_run()["state"], "staged");
    member.until_it_is(start + chrono::TimeDelta::seconds(2));
    assert!(member.agent_once().status.success());
    assert_eq!(member.node.package("demo-hello"), "1.0 installed");
    let run = member.only_run();
    assert_eq!(run["state"], "cancelled", "{run:#}");
    assert!(run["endTime"].as_u64() > Some(0));
}

#[test]
fn a_package_whose_script_fails_ends_the_run_in_error_with_the_words_of_dpkg() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    member.has(&["demo-bad"]);
    member.want("demo-bad=1.1");
    member.open_window();
    assert!(!member.agent_once().status.success());
    let run = member.only_run();
    assert_eq!(run["state"], "failed", "{run:#}");
    assert!(
        run.to_string().contains("postinst fails on purpose"),
        "{run:#}"
    );
    assert_eq!(package(&run, "demo-bad")["state"], "half-configured");
    assert_eq!(member.node.package("demo-bad"), "1.1 half-configured");

    // The next poll tells the node as it is and does not hang.
    let mut again = member.start_agent(&["run", "--once"]);
    again.wait(SOON);
    drop(again);
    assert_eq!(member.runs().len(), 1, "{:#?}", member.runs());
}

/// A run without what its instance says of itself meanwhile.
fn record(mut run: Value) -> Value {
    run["instance"] = run["instance"]["resourceId"].take();
    run
}

#[test]
fn a_server_killed_between_a_report_and_its_answer_loses_nothing_and_doubles_nothing() {
    let Some(fleet) = Fleet::new() else { return };
    let line = SlowLine::to(
        &fleet.server.address("southbound"),
        Duration::from_millis(400),
    );
    let agent = Agent {
        program: &Binaries::get().agent,
        server: &line.address().to_string(),
    };
    let member = fleet.join_with("node", agent);
    member.has(&["demo-hello"]);
    member.want("demo-hello=1.1");
    member.open_window();

    let mut agent = member.start_agent(&["run"]);
    until("the outcome is stored", SOON, || {
        let runs = member.runs();
        runs.first()
            .is_some_and(|run| run["state"] == "succeeded")
            .then_some(())
    });
    line.cut();
    fleet.server.kill();
    until("an answer is lost", SOON, || {
        line.lost_an_answer().then_some(())
    });
    let told = agent.log();
    assert!(agent.ended().is_none(), "the agent ended:\n{told}");

    fleet.server.restart();
    let before = record(member.only_run());
    line.mend();
    until("the agent has nothing left to tell", SOON, || {
        let journal = "/var/lib/evenkeel-agent/journal.json";
        let left = member
            .node
            .inside(&["sh", "-c", &format!("ls {journal} 2> /dev/null || true")]);
        left.is_empty().then_some(())
    });
    agent.kill();
    assert_eq!(record(member.only_run()), before);
    assert_eq!(member.node.package("demo-hello"), "1.1 installed");
}
