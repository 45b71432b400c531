//! The agent, and sometimes everything else with it, killed at random instants of real updates.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_KILLS` | how many updates are killed |
//! | `EVENKEEL_KILLS_SEED` | what is killed, and when |

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_simulator::chance::Chance;
use evenkeel_tests::aftermath::{Aftermath, End, Ends};
use evenkeel_tests::history::{number, say};
use evenkeel_tests::lab::{Binaries, Fleet, Lab, Member, Node, discard, events, told};
use evenkeel_tests::outside::{move_to, open_site};
use serde_json::{Value, json};
use uuid::Uuid;

/// What each update changes.
const PACKAGES: [&str; 5] = [
    "demo-app",
    "demo-conf",
    "demo-hello",
    "demo-lib",
    "demo-unit",
];

/// Runs inside of a node, so that nothing but its own clock is between the draw and the kill.
const KILL_AGENT: &str = include_str!("../lab/kill-agent");

/// So many updates go on at once: much of one is waiting.
const WORKERS: usize = 3;

/// How often in a thousand times everything is killed, and not the agent alone.
const EVERYTHING: u16 = 333;

/// How long a killed update may take to its end, with all that runs beside it.
const PATIENCE: Duration = Duration::from_mins(3);

/// A fleet whose window is open, and what its nodes are made from.
struct Course {
    fleet: Fleet,
    lab: Lab,
    /// A node that has the older version of every package. New ones begin with what was changed there.
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
        template.sh(&format!(
            "apt-get -q -y install {exact}; echo 'value=mine' > /etc/demo/conf"
        ));
        let wanted = PACKAGES.map(|name| format!("{name}=1.1")).join("\n");
        let policy = fleet.rest.post(
            "/os-update-policies",
            &json!({
                "name": "wanted",
                "updatePolicy": "UPDATE_POLICY_TARGET",
                "updatePackages": wanted,
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
        let node = Node::new(&self.lab, name).above(&self.template.layer());
        let node = self.fleet.equip(node, &Binaries::get().agent);
        let server = self.fleet.server.address("southbound");
        let uuid = Uuid::new_v4().to_string();
        let member = self.fleet.admit(node, &server, &["--uuid", &uuid]);
        move_to(&member, &self.site);
        member.assign(&self.policy);
        member
    }

    /// Two whole updates: how long the second was open, and the two ends of it.
    fn measure(&self) -> (Duration, Ends) {
        let mut measured = None;
        for name in ["whole-1", "whole-2"] {
            let member = self.join(name);
            let old = Aftermath::of(&member.node, &PACKAGES);
            let said = run_and_kill(&member, "nobody", Duration::ZERO);
            let millis = word(&said, "span").and_then(|word| word.parse().ok());
            let millis = millis.unwrap_or_else(|| panic!("no update: {said}"));
            let new = Aftermath::of(&member.node, &PACKAGES);
            assert_eq!(new.journal, None);
            measured = Some((Duration::from_millis(millis), Ends::new(old, new)));
        }
        measured.expect("two updates")
    }

    fn forget(&self, name: &str) {
        let work = self.lab.path(name);
        discard(&[&work, &work.with_extension("log")]);
    }
}

/// Lets the agent of a node update it, and kills somebody after a time. Returns what came of it, in lines.
fn run_and_kill(member: &Member<'_>, who: &str, after: Duration) -> String {
    let seconds = format!("{:.3}", after.as_secs_f64());
    let agent = "/srv/evenkeel-agent";
    let words = ["sh", "-c", KILL_AGENT, "kill-agent", agent, who, &seconds];
    told(&member.node.run(&words))
}

/// The rest of the line that begins with a word.
fn word<'a>(said: &'a str, first: &str) -> Option<&'a str> {
    let mut lines = said.lines();
    lines.find_map(|line| line.strip_prefix(first)?.strip_prefix(' '))
}

/// When to kill, learnt from what was hit.
struct Aim {
    /// How long an attempt is open.
    span: Duration,
    kills: u32,
    hits: u32,
    /// In which phase the attempts were.
    phases: BTreeMap<String, u32>,
}

impl Aim {
    fn new(span: Duration) -> Self {
        Self {
            span,
            kills: 0,
            hits: 0,
            phases: BTreeMap::new(),
        }
    }

    /// A share of the span, in millionths.
    fn instant(&self, share: u32) -> Duration {
        self.span.mul_f64(f64::from(share) / 1e6)
    }

    /// A machine that becomes busier or idler changes the span: it settles where four of five kills hit.
    fn learn(&mut self, phase: &str) {
        let is_hit = !matches!(phase, "none" | "over");
        self.kills += 1;
        self.hits += u32::from(is_hit);
        self.span = self.span.mul_f64(if is_hit { 1.02 } else { 0.92 });
        *self.phases.entry(phase.to_owned()).or_default() += 1;
    }
}

/// What came of all kills.
#[derive(Default)]
struct Outcome {
    ends: BTreeMap<(String, Option<End>), u32>,
    faults: Vec<String>,
}

/// One update, killed once and seen through. What is wrong afterwards is told with the round.
fn round(course: &Course, ends: &Ends, aim: &Mutex<Aim>, outcome: &Mutex<Outcome>, draw: Draw) {
    let name = format!("round-{}", draw.round);
    let member = course.join(&name);
    let after = aim.lock().expect("no round failed").instant(draw.share);
    let said = run_and_kill(&member, draw.who, after);
    let mut faults = Vec::new();
    match word(&said, "phase") {
        Some(phase) => aim.lock().expect("no round failed").learn(phase),
        None => faults.push("no attempt was opened".to_owned()),
    }
    if draw.who == "agent" && word(&said, "again") != Some("0") {
        faults.push("the agent that was started at once did not end well".to_owned());
    }
    let end = see_through(&member, ends, &mut faults);
    let mut outcome = outcome.lock().expect("no round failed");
    *outcome.ends.entry(end).or_default() += 1;
    if faults.is_empty() {
        drop(outcome);
        course.forget(&name);
        return;
    }
    let told = format!(
        "round {}, {} killed after {after:?}: {faults:#?}\n{said}\n{:#?}",
        draw.round,
        draw.who,
        member.runs()
    );
    say(&told);
    outcome.faults.push(told);
}

/// What is killed in a round, and when.
#[derive(Clone, Copy)]
struct Draw {
    round: u64,
    who: &'static str,
    /// In millionths of the time that an attempt is open.
    share: u32,
}

impl Draw {
    fn of(seed: u64, round: u64) -> Self {
        let mut chance = Chance::new(seed, round);
        let is_everything = chance.hits(EVERYTHING);
        let share = u32::try_from(chance.between(0, 999_999));
        Self {
            round,
            who: if is_everything { "all" } else { "agent" },
            share: share.expect("less than a million"),
        }
    }
}

/// Starts the agent as after the next boot, until the server knows the end, and holds that against the node. Returns the
/// state of the run and the end that the node has come to.
fn see_through(
    member: &Member<'_>,
    ends: &Ends,
    faults: &mut Vec<String>,
) -> (String, Option<End>) {
    let begun = Instant::now();
    let runs = loop {
        let output = member.agent_once();
        if !output.status.success() {
            faults.push(format!("the agent did not end well: {}", told(&output)));
        }
        let runs = member.runs();
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        if begun.elapsed() > PATIENCE {
            faults.push("the run is not over".to_owned());
            break runs;
        }
        if !runs.is_empty() && runs.iter().all(is_over) {
            break runs;
        }
    };
    let node = Aftermath::of(&member.node, &PACKAGES);
    faults.extend(ends.faults(&node));
    faults.extend(node.kept.iter().map(|file| format!("kept {file}")));
    faults.extend(node.journal.iter().map(|_| "a journal is left".to_owned()));
    let end = ends.reached(&node);
    let [run] = runs.as_slice() else {
        faults.push(format!("{} runs", runs.len()));
        return (String::new(), end);
    };
    let state = run["state"].as_str().unwrap_or_default().to_owned();
    let is_true = match state.as_str() {
        "succeeded" => end == Some(End::New),
        "cancelled" | "failed" | "reverted" => end == Some(End::Old),
        _ => false,
    };
    if !is_true {
        faults.push(format!("the server says {state} of a node that is {end:?}"));
    }
    // Each event once and in order, whatever was repeated on the way.
    let whole = [
        "downloading",
        "downloaded",
        "began",
        "verify_begun",
        "finished",
    ];
    if state == "succeeded" && events(run) != whole {
        faults.push(format!("the server was told {:?}", events(run)));
    }
    (state, end)
}

#[test]
fn an_update_that_is_killed_at_any_instant_ends_wholly_old_or_wholly_new() {
    let Some(course) = Course::open() else { return };
    let kills = number("EVENKEEL_KILLS", 30);
    let seed = number("EVENKEEL_KILLS_SEED", u64::from(std::process::id()) * 7_919);
    say(&format!("EVENKEEL_KILLS_SEED={seed}"));
    let (span, ends) = course.measure();
    say(&format!("an attempt is open for {span:?}"));
    let begun = Instant::now();
    let (aim, outcome) = (Mutex::new(Aim::new(span)), Mutex::<Outcome>::default());
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let draw = Draw::of(seed, next.fetch_add(1, Ordering::SeqCst));
                    if draw.round >= kills {
                        break;
                    }
                    round(&course, &ends, &aim, &outcome, draw);
                    if draw.round % 50 == 49 {
                        say(&format!("round {}, {:?}", draw.round, begun.elapsed()));
                    }
                }
            });
        }
    });
    let (aim, outcome) = (aim.into_inner(), outcome.into_inner());
    let (aim, outcome) = (aim.expect("an aim"), outcome.expect("an outcome"));
    let (kills, hits, span) = (aim.kills, aim.hits, aim.span);
    say(&format!(
        "{kills} kills in {:?}, {hits} of them hit an open attempt (span {span:?}): {:?}; ends: {:?}; {} exceptions",
        begun.elapsed(),
        aim.phases,
        outcome.ends,
        outcome.faults.len()
    ));
    assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n\n"));
    assert!(
        hits * 2 >= kills,
        "only {hits} of {kills} kills hit an open attempt"
    );
}

#[test]
fn the_aim_settles_where_four_of_five_kills_hit() {
    let mut aim = Aim::new(Duration::from_secs(9));
    let mut chance = Chance::new(7, 0);
    // Attempts are open for two seconds only.
    for _ in 0..2_000 {
        let share = u32::try_from(chance.between(0, 999_999)).expect("less than a million");
        let is_hit = aim.instant(share) < Duration::from_secs(2);
        aim.learn(if is_hit { "applying" } else { "none" });
    }
    let share = f64::from(aim.hits) / f64::from(aim.kills);
    assert!((0.75..0.87).contains(&share), "{share}");
}
