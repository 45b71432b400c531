//! The agent killed after every write of its journal, with real apt on a real root.
//!
//! The agent of these tests halts for ever at a point of its choice (`--halt-after`), so that the kill hits there and
//! nowhere else. Afterwards it is started again, as after a power cut.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use evenkeel_tests::lab::{Agent, Binaries, Fleet, Member, Repository, Running, events, until};
use serde_json::Value;

const SOON: Duration = Duration::from_mins(1);

/// The points at which the agent of this workspace writes its journal during an update of packages, in order.
fn points(member: &Member<'_>) -> Vec<String> {
    let output = member.agent(&["steps"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    // Nothing here asks for a reboot.
    let passed = text.lines().filter(|point| *point != "reboot-begun");
    let points: Vec<String> = passed.map(str::to_owned).collect();
    assert!(points.len() >= 5, "{points:?}");
    points
}

/// How often each point is visited.
#[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
fn rounds() -> usize {
    let given = std::env::var("EVENKEEL_KILL_ROUNDS");
    given.map_or(1, |text| text.parse().expect("a number of rounds"))
}

#[test]
fn an_agent_killed_after_any_write_of_its_journal_ends_the_run_truthfully() {
    let Some(fleet) = Fleet::new() else { return };
    let points = points(&join(&fleet, "first"));
    let visits: Vec<_> = (0..rounds())
        .flat_map(|round| points.iter().map(move |point| (round, point)))
        .collect();
    let next = Mutex::new(visits.iter());
    // Most of a visit is waiting, so some go on at once.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some((round, point)) = {
                    let mut visits = next.lock().expect("no visit failed");
                    visits.next()
                } {
                    killed_at(&join(&fleet, &format!("{point}-{round}")), point);
                }
            });
        }
    });
}

fn join<'a>(fleet: &'a Fleet, name: &str) -> Member<'a> {
    let agent = Agent {
        program: &Binaries::get().halting_agent,
        server: &fleet.server.address("southbound"),
    };
    fleet.join_with(name, agent)
}

fn killed_at(member: &Member<'_>, point: &str) {
    let told = format!("after a kill at {point}");
    member.want("demo-app=1.1\ndemo-conf=1.1");
    let opens = member.window(2, 3600);
    member.has(&["demo-app", "demo-lib", "demo-conf"]);
    // So that every step has something to do: a package that others need, and one that somebody left half done.
    member.node.sh(&format!(
        "apt-mark auto demo-lib; dpkg --unpack {}/pool/demo-held_1.0_all.deb",
        Repository::INSIDE
    ));
    member.until_it_is(opens);
    let mut agent = member.start_agent(&["run", "--halt-after", point]);
    until(&format!("the agent halts at {point}"), SOON, || {
        let log = agent.log();
        assert!(
            agent.ended().is_none(),
            "the agent ended before {point}:\n{log}"
        );
        log.contains("halted").then_some(())
    });
    agent.kill();

    until(&format!("the run is over {told}"), SOON, || {
        let output = member.agent_once();
        assert!(output.status.success(), "{told}: {output:?}");
        let runs = member.runs();
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        runs.iter().any(is_over).then_some(())
    });
    assert_eq!(member.node.audit(), "", "{told}");
    let run = member.only_run();
    assert_eq!(run["state"], "succeeded", "{told}: {run:#}");
    for name in ["demo-app", "demo-lib", "demo-conf"] {
        assert_eq!(member.node.package(name), "1.1 installed", "{told}");
    }
    assert_eq!(member.node.package("demo-held"), "1.0 installed", "{told}");
    assert_eq!(
        member.node.sh("apt-mark showauto demo-lib"),
        "demo-lib\n",
        "{told}"
    );
    // Each event once and in order, whatever was repeated on the way.
    let whole = [
        "downloading",
        "downloaded",
        "began",
        "verify_begun",
        "finished",
    ];
    assert_eq!(events(&run), whole, "{told}: {run:#}");
}

/// A node whose package `demo-slow` is being configured, in a script that waits for `/opt/demo/slow` to go.
fn in_the_middle_of_dpkg(member: &Member<'_>, start: &[&str]) -> Running {
    member.want("demo-slow=1.1");
    let opens = member.window(2, 3600);
    member.has(&["demo-slow"]);
    member.node.sh("touch /opt/demo/slow");
    member.until_it_is(opens);
    let boot = member.node.start(start);
    until("dpkg is in the middle of it", SOON, || {
        let look = "ls /opt/demo/in-postinst 2> /dev/null || true";
        let found = member.node.inside(&["sh", "-c", look]);
        (!found.is_empty()).then_some(())
    });
    boot
}

#[track_caller]
fn ended_well(member: &Member<'_>) {
    assert_eq!(member.node.audit(), "");
    assert_eq!(member.node.package("demo-slow"), "1.1 installed");
    let run = member.only_run();
    assert_eq!(run["state"], "succeeded", "{run:#}");
}

#[test]
fn a_power_cut_in_the_middle_of_dpkg_is_repaired_at_the_next_start() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    let mut boot = in_the_middle_of_dpkg(&member, &["/srv/evenkeel-agent", "run"]);
    boot.kill();
    assert_ne!(member.node.audit(), "");
    member.node.sh("rm /opt/demo/slow");
    let output = member.agent_once();
    assert!(output.status.success(), "{output:?}");
    ended_well(&member);
}

#[test]
fn an_agent_killed_beside_a_living_dpkg_waits_for_it_and_repairs_nothing_meanwhile() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    let script = "/srv/evenkeel-agent run & echo $! > /run/agent; wait; exec sleep 1000";
    let boot = in_the_middle_of_dpkg(&member, &["sh", "-c", script]);
    member
        .node
        .inside(&["sh", "-c", "kill -KILL $(cat /run/agent)"]);
    let again = "(/srv/evenkeel-agent run --once > /run/again 2>&1; echo $? > /run/ended) > /run/shell 2>&1 &";
    member.node.inside(&["sh", "-c", again]);
    // dpkg still waits, and so does the agent.
    assert!(
        member
            .node
            .inside(&["dpkg", "--audit"])
            .contains("demo-slow")
    );
    member.node.inside(&["rm", "/opt/demo/slow"]);
    until("the agent has ended", SOON, || {
        let look = "cat /run/ended 2> /dev/null || true";
        let status = member.node.inside(&["sh", "-c", look]);
        (status == "0\n").then_some(())
    });
    drop(boot);
    ended_well(&member);
}
