//! The agent is killed after every write of its journal, with real apt on a real root.
//!
//! The agent of these tests halts at a given point (`--halt-after`), so that the kill hits exactly
//! there. Afterwards the agent is started again, as after a power cut.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use evenkeel_tests::lab::{Agent, Binaries, Fleet, Member, Repository, Running, events, until};
use serde_json::Value;

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

/// Points at which the agent of this workspace writes its journal during a package update, in order.
fn journal_points(member: &Member<'_>) -> Vec<String> {
    let output = member.agent(&["steps"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    // No package of these tests needs a reboot.
    let visited = text.lines().filter(|point| *point != "reboot-begun");
    let points: Vec<String> = visited.map(str::to_owned).collect();
    assert!(points.len() >= 5, "{points:?}");
    points
}

/// Number of visits of each point.
#[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
fn round_count() -> usize {
    let value = std::env::var("EVENKEEL_KILL_ROUNDS");
    value.map_or(1, |text| text.parse().expect("a number of rounds"))
}

#[test]
fn an_agent_killed_after_any_write_of_its_journal_reports_the_right_end() {
    let Some(fleet) = Fleet::new() else { return };
    fleet.repository.publish("linux-image-6.0.");
    let points = journal_points(&join(&fleet, "first"));
    let visits: Vec<_> = (0..round_count())
        .flat_map(|round| points.iter().map(move |point| (round, point)))
        .collect();
    let next = Mutex::new(visits.iter());
    // A visit consists mostly of waiting, so some run at the same time.
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some((round, point)) = {
                    let mut visits = next.lock().expect("no visit failed");
                    visits.next()
                } {
                    kill_at(&join(&fleet, &format!("{point}-{round}")), point);
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

fn kill_at(member: &Member<'_>, point: &str) {
    let context = format!("after a kill at {point}");
    member.assign_packages("demo-app=1.1\ndemo-conf=1.1");
    let opens = member.create_window(2, 3600);
    member.install(&["demo-app", "demo-lib", "demo-conf"]);
    // Every step gets work: a package that others need, a half-installed package, and an old kernel.
    member.node.sh(&format!(
        "cd {}/pool; dpkg --install linux-image-6.0.[123]-demo_*_all.deb; \
         apt-mark auto demo-lib linux-image-6.0.1-demo; dpkg --unpack demo-held_1.0_all.deb",
        Repository::INSIDE
    ));
    member.wait_for_time(opens);
    let mut agent = member.start_agent(&["run", "--halt-after", point]);
    until(&format!("the agent halts at {point}"), WAIT_TIMEOUT, || {
        let log = agent.log();
        assert!(agent.exit_status().is_none(), "the agent ended before {point}:\n{log}");
        log.contains("halted").then_some(())
    });
    agent.kill();

    until(&format!("the run has ended {context}"), WAIT_TIMEOUT, || {
        let output = member.agent_once();
        assert!(output.status.success(), "{context}: {output:?}");
        let runs = member.runs();
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        runs.iter().any(is_over).then_some(())
    });
    assert_eq!(member.node.audit(), "", "{context}");
    let run = member.only_run();
    assert_eq!(run["state"], "succeeded", "{context}: {run:#}");
    for name in ["demo-app", "demo-lib", "demo-conf"] {
        assert_eq!(member.node.package(name), "1.1 installed", "{context}");
    }
    assert_eq!(member.node.package("demo-held"), "1.0 installed", "{context}");
    assert_eq!(member.node.package("linux-image-6.0.1-demo"), "", "{context}");
    assert_eq!(member.node.sh("apt-mark showauto demo-lib"), "demo-lib\n", "{context}");
    // Each event occurs once and in order, even if the agent repeated steps.
    let all_events = ["downloading", "downloaded", "began", "verify_begun", "finished"];
    assert_eq!(events(&run), all_events, "{context}: {run:#}");
}

/// Starts an update in which the postinst script of `demo-slow` waits until `/opt/demo/slow` is
/// deleted. Returns while the script waits.
fn block_in_dpkg(member: &Member<'_>, start: &[&str]) -> Running {
    member.assign_packages("demo-slow=1.1");
    let opens = member.create_window(2, 3600);
    member.install(&["demo-slow"]);
    member.node.sh("touch /opt/demo/slow");
    member.wait_for_time(opens);
    let boot = member.node.start(start);
    until("dpkg runs the postinst script", WAIT_TIMEOUT, || {
        let look = "ls /opt/demo/in-postinst 2> /dev/null || true";
        let output = member.node.succeed_inside(&["sh", "-c", look]);
        (!output.is_empty()).then_some(())
    });
    boot
}

#[track_caller]
fn assert_succeeded(member: &Member<'_>) {
    assert_eq!(member.node.audit(), "");
    assert_eq!(member.node.package("demo-slow"), "1.1 installed");
    let run = member.only_run();
    assert_eq!(run["state"], "succeeded", "{run:#}");
}

#[test]
fn a_power_cut_in_the_middle_of_dpkg_is_repaired_at_the_next_start() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    let mut boot = block_in_dpkg(&member, &["/srv/evenkeel-agent", "run"]);
    boot.kill();
    assert_ne!(member.node.audit(), "");
    member.node.sh("rm /opt/demo/slow");
    let output = member.agent_once();
    assert!(output.status.success(), "{output:?}");
    assert_succeeded(&member);
}

#[test]
fn an_agent_killed_while_dpkg_runs_waits_for_it_and_repairs_nothing_meanwhile() {
    let Some(fleet) = Fleet::new() else { return };
    let member = fleet.join("node");
    let script = "/srv/evenkeel-agent run & echo $! > /run/agent; wait; exec sleep 1000";
    let boot = block_in_dpkg(&member, &["sh", "-c", script]);
    member.node.succeed_inside(&["sh", "-c", "kill -KILL $(cat /run/agent)"]);
    let again = "(/srv/evenkeel-agent run --once > /run/again 2>&1; echo $? > /run/ended) > /run/shell 2>&1 &";
    member.node.succeed_inside(&["sh", "-c", again]);
    // dpkg still waits, and so does the agent.
    assert!(member.node.succeed_inside(&["dpkg", "--audit"]).contains("demo-slow"));
    member.node.succeed_inside(&["rm", "/opt/demo/slow"]);
    until("the agent has ended", WAIT_TIMEOUT, || {
        let look = "cat /run/ended 2> /dev/null || true";
        let status = member.node.succeed_inside(&["sh", "-c", look]);
        (status == "0\n").then_some(())
    });
    drop(boot);
    assert_succeeded(&member);
}
