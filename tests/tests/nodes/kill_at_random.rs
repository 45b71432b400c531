//! The agent, and sometimes the whole node, is killed at random instants of real updates.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_KILLS` | number of updates that are killed |
//! | `EVENKEEL_KILLS_SEED` | seed that decides what is killed, and when |

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::{number, print_progress};
use evenkeel_tests::lab::{
    Binaries, Fleet, Lab, Member, Node, describe_output, events, remove_as_root,
};
use evenkeel_tests::node_setup::{move_to_site, open_site};
use evenkeel_tests::node_state::{EndState, ExpectedStates, NodeState};
use serde_json::{Value, json};
use uuid::Uuid;

/// Packages that each update changes.
const PACKAGES: [&str; 5] = ["demo-app", "demo-conf", "demo-hello", "demo-lib", "demo-unit"];

/// Runs inside the node, so that only the node's clock is between the draw and the kill.
const KILL_AGENT: &str = include_str!("../../lab/kill-agent");

/// Number of updates that run at the same time; an update consists mostly of waiting.
const WORKER_COUNT: usize = 3;

/// Probability, in thousandths, that the whole node is killed and not only the agent.
const KILL_ALL_PER_MILLE: u16 = 333;

/// Maximum time until a killed update ends, while other updates run.
const END_TIMEOUT: Duration = Duration::from_mins(3);

/// A fleet whose window is open, and the template of its nodes.
struct Course {
    fleet: Fleet,
    lab: Lab,
    /// A node with the older version of every package. New nodes are layers on it.
    template: Node,
    site: String,
    policy: String,
}

impl Course {
    fn open() -> Option<Self> {
        let fleet = Fleet::new()?;
        let lab = Lab::open()?;
        let template = Node::new(&lab, "template").with_repository(&fleet.repository);
        let exact = PACKAGES.map(|name| format!("{name}=1.0")).join(" ");
        template.sh(&format!("apt-get -q -y install {exact}; echo 'value=mine' > /etc/demo/conf"));
        let packages = PACKAGES.map(|name| format!("{name}=1.1")).join("\n");
        let policy = fleet.rest.post(
            "os-update-policies",
            &json!({
                "name": "test",
                "updatePolicy": "UPDATE_POLICY_TARGET",
                "updatePackages": packages,
            }),
        );
        Some(Self {
            site: open_site(&fleet),
            policy: policy["resourceId"].as_str().expect("an id").to_owned(),
            template,
            lab,
            fleet,
        })
    }

    fn join(&self, name: &str) -> Member<'_> {
        let node = Node::new(&self.lab, name).on_layer(&self.template.layer());
        let node = self.fleet.equip(node, &Binaries::get().agent);
        let server = self.fleet.server.address("southbound");
        let uuid = Uuid::new_v4().to_string();
        let member = self.fleet.enroll_node(node, &server, &["--uuid", &uuid]);
        move_to_site(&member, &self.site);
        member.assign(&self.policy);
        member
    }

    /// Runs two undisturbed updates. Returns the duration of the second attempt and its two states.
    fn measure_update(&self) -> (Duration, ExpectedStates) {
        let mut measured = None;
        for name in ["whole-1", "whole-2"] {
            let member = self.join(name);
            let old = NodeState::inspect(&member.node, &PACKAGES);
            let output = run_and_kill(&member, "nobody", Duration::ZERO);
            let millis = line_value(&output, "span").and_then(|value| value.parse().ok());
            let millis = millis.unwrap_or_else(|| panic!("no update: {output}"));
            let new = NodeState::inspect(&member.node, &PACKAGES);
            assert_eq!(new.journal, None);
            measured = Some((Duration::from_millis(millis), ExpectedStates::new(old, new)));
        }
        measured.expect("two updates")
    }

    fn delete_node(&self, name: &str) {
        let work = self.lab.path(name);
        remove_as_root(&[&work, &work.with_extension("log")]);
    }
}

/// Lets the agent of a node update it, and kills the victim after a time. Returns the output of the
/// script.
fn run_and_kill(member: &Member<'_>, victim: &str, after: Duration) -> String {
    let seconds = format!("{:.3}", after.as_secs_f64());
    let agent = "/srv/evenkeel-agent";
    let arguments = ["sh", "-c", KILL_AGENT, "kill-agent", agent, victim, &seconds];
    describe_output(&member.node.run(&arguments))
}

/// Rest of the line that begins with `first`.
fn line_value<'a>(output: &'a str, first: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    lines.find_map(|line| line.strip_prefix(first)?.strip_prefix(' '))
}

/// Time of the kills, adjusted by the hits so far.
struct KillTiming {
    /// Duration of an attempt.
    span: Duration,
    kills: u32,
    hits: u32,
    /// Number of kills in each phase of the journal.
    phases: BTreeMap<String, u32>,
}

impl KillTiming {
    fn new(span: Duration) -> Self {
        Self { span, kills: 0, hits: 0, phases: BTreeMap::new() }
    }

    /// Converts millionths of the span to a time.
    fn kill_time(&self, share: u32) -> Duration {
        self.span.mul_f64(f64::from(share) / 1e6)
    }

    /// Adjusts the span to the speed of the machine. It converges to four hits in five kills.
    fn adjust(&mut self, phase: &str) {
        let is_hit = !matches!(phase, "none" | "ended");
        self.kills += 1;
        self.hits += u32::from(is_hit);
        self.span = self.span.mul_f64(if is_hit { 1.02 } else { 0.92 });
        *self.phases.entry(phase.to_owned()).or_default() += 1;
    }
}

#[derive(Default)]
struct KillResults {
    end_counts: BTreeMap<(String, Option<EndState>), u32>,
    faults: Vec<String>,
}

/// Kills one update, lets it finish, and records its faults together with the parameters of the round.
fn run_round(
    course: &Course,
    expected: &ExpectedStates,
    timing: &Mutex<KillTiming>,
    results: &Mutex<KillResults>,
    plan: RoundPlan,
) {
    let name = format!("round-{}", plan.round);
    let member = course.join(&name);
    let after = timing.lock().expect("no round failed").kill_time(plan.share);
    let output = run_and_kill(&member, plan.victim, after);
    let mut faults = Vec::new();
    match line_value(&output, "phase") {
        Some(phase) => timing.lock().expect("no round failed").adjust(phase),
        None => faults.push("no attempt was opened".to_owned()),
    }
    if plan.victim == "agent" && line_value(&output, "again") != Some("0") {
        faults.push("the agent that was restarted at once failed".to_owned());
    }
    let end = finish_update(&member, expected, &mut faults);
    let mut results = results.lock().expect("no round failed");
    *results.end_counts.entry(end).or_default() += 1;
    if faults.is_empty() {
        drop(results);
        course.delete_node(&name);
        return;
    }
    let message = format!(
        "round {}, {} killed after {after:?}: {faults:#?}\n{output}\n{:#?}",
        plan.round,
        plan.victim,
        member.runs()
    );
    print_progress(&message);
    results.faults.push(message);
}

/// Parameters of a round: victim and time of the kill.
#[derive(Clone, Copy)]
struct RoundPlan {
    round: u64,
    victim: &'static str,
    /// In millionths of the duration of an attempt.
    share: u32,
}

impl RoundPlan {
    fn draw(seed: u64, round: u64) -> Self {
        let mut rng = Rng::new(seed, round);
        let is_everything = rng.happens(KILL_ALL_PER_MILLE);
        let share = u32::try_from(rng.between(0, 999_999));
        Self {
            round,
            victim: if is_everything { "all" } else { "agent" },
            share: share.expect("less than a million"),
        }
    }
}

/// Runs the agent as after the next boot until the run has ended, and checks the node against the
/// run. Returns the state of the run and the state of the node.
fn finish_update(
    member: &Member<'_>,
    expected: &ExpectedStates,
    faults: &mut Vec<String>,
) -> (String, Option<EndState>) {
    let begun = Instant::now();
    let runs = loop {
        let output = member.agent_once();
        if !output.status.success() {
            faults.push(format!("the agent failed: {}", describe_output(&output)));
        }
        let runs = member.runs();
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        if begun.elapsed() > END_TIMEOUT {
            faults.push("the run has not ended".to_owned());
            break runs;
        }
        if !runs.is_empty() && runs.iter().all(is_over) {
            break runs;
        }
    };
    let node = NodeState::inspect(&member.node, &PACKAGES);
    faults.extend(expected.faults(&node));
    faults.extend(node.cached_debs.iter().map(|file| format!("cached file {file}")));
    faults.extend(node.journal.iter().map(|_| "a journal remains".to_owned()));
    let end = expected.reached(&node);
    let [run] = runs.as_slice() else {
        faults.push(format!("{} runs", runs.len()));
        return (String::new(), end);
    };
    let state = run["state"].as_str().unwrap_or_default().to_owned();
    let is_true = match state.as_str() {
        "succeeded" => end == Some(EndState::New),
        "cancelled" | "failed" | "reverted" => end == Some(EndState::Old),
        _ => false,
    };
    if !is_true {
        faults.push(format!("the run is {state}, but the node is {end:?}"));
    }
    // Each event occurs once and in order, even if the agent repeated steps.
    let all_events = ["downloading", "downloaded", "began", "verify_begun", "finished"];
    if state == "succeeded" && events(run) != all_events {
        faults.push(format!("the recorded events are {:?}", events(run)));
    }
    (state, end)
}

#[test]
fn an_update_killed_at_any_instant_ends_entirely_old_or_entirely_new() {
    let Some(course) = Course::open() else { return };
    let kills = number("EVENKEEL_KILLS", 30);
    let seed = number("EVENKEEL_KILLS_SEED", u64::from(std::process::id()) * 7_919);
    print_progress(&format!("EVENKEEL_KILLS_SEED={seed}"));
    let (span, expected) = course.measure_update();
    print_progress(&format!("an attempt is open for {span:?}"));
    let begun = Instant::now();
    let (timing, results) = (Mutex::new(KillTiming::new(span)), Mutex::<KillResults>::default());
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..WORKER_COUNT {
            scope.spawn(|| {
                loop {
                    let plan = RoundPlan::draw(seed, next.fetch_add(1, Ordering::SeqCst));
                    if plan.round >= kills {
                        break;
                    }
                    run_round(&course, &expected, &timing, &results, plan);
                    if plan.round % 50 == 49 {
                        print_progress(&format!("round {}, {:?}", plan.round, begun.elapsed()));
                    }
                }
            });
        }
    });
    let (timing, results) = (timing.into_inner(), results.into_inner());
    let (timing, results) = (timing.expect("a timing"), results.expect("results"));
    let (kills, hits, span) = (timing.kills, timing.hits, timing.span);
    print_progress(&format!(
        "{kills} kills in {:?}, {hits} of them hit an open attempt (span {span:?}): {:?}; ends: {:?}; {} exceptions",
        begun.elapsed(),
        timing.phases,
        results.end_counts,
        results.faults.len()
    ));
    assert!(results.faults.is_empty(), "{}", results.faults.join("\n\n"));
    assert!(hits * 2 >= kills, "only {hits} of {kills} kills hit an open attempt");
}

#[test]
fn kill_timing_converges_to_four_hits_in_five_kills() {
    let mut timing = KillTiming::new(Duration::from_secs(9));
    let mut rng = Rng::new(7, 0);
    // Attempts are open for two seconds only.
    for _ in 0..2_000 {
        let share = u32::try_from(rng.between(0, 999_999)).expect("less than a million");
        let is_hit = timing.kill_time(share) < Duration::from_secs(2);
        timing.adjust(if is_hit { "applying" } else { "none" });
    }
    let share = f64::from(timing.hits) / f64::from(timing.kills);
    assert!((0.75..0.87).contains(&share), "{share}");
}
