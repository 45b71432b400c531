//! Many nodes of both protocols, two servers on one Postgres that are killed every few seconds, and lines on which
//! everything goes wrong: what is recorded at the end is what the nodes did.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_HISTORY_POLLS` | how many polls are answered before the nodes finish |
//! | `EVENKEEL_HISTORY_CROWD` | how many times the usual number of nodes there are |
//! | `EVENKEEL_HISTORY_SEED` | what everything is drawn from; printed by each run |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to be tested |
//!
//! The seed gives every node, the operator and the killer the same dice again. How their throws interleave is up to the
//! machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::line::Faults;
use evenkeel_simulator::truth::{Delivered, End, Leave, Opening};
use evenkeel_tests::history::{
    Book, Crowd, Crowded, Desk, Member, OLDEST, Operator, Replicas, Run, Truth, check, number,
    read_runs, say, story,
};
use tokio_util::sync::CancellationToken;

/// How long a run may stand still: shorter than usual, so that it is given up now and then.
const PATIENCE: TimeDelta = TimeDelta::seconds(50);

/// `rest` is as short as a node lets itself be held at least: each poll that was held to its end is counted as that.
const SETTINGS: &str = "
[maintenance_manager]
track_every = \"2s\"
contacts_every = \"2s\"
[maintenance_manager.patience]
applying = \"50s\"
rebooting = \"50s\"
verifying = \"50s\"
reverting = \"50s\"
[maintenance_manager.holds]
rest = \"200ms\"
[maintenance_manager.view]
";

/// One of the servers looks with every answer that it remembers whether that is still right, and the other never: what is
/// remembered is what is held against what the nodes did.
const AUDITS: [&str; 2] = ["audit_every = 1\n", "audit_every = 0\n"];

/// What a server logs and counts that remembered a wrong answer.
const MISMATCH: &str = "is not what the database says";
const MISMATCHES: &str = "evenkeel_view_mismatches_total";

/// Counts polls by how they were answered.
const POLLS: &str = "evenkeel_polls_total";

const FAULTS: Faults = Faults {
    lose_request: 15,
    lose_answer: 20,
    duplicate: 20,
    straggle: 10,
    delay: 15,
};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_recorded_is_what_happened() {
    let (seed, polls) = dice();
    let oldest = OLDEST.num_seconds();
    let settings =
        AUDITS.map(|audits| format!("{SETTINGS}max_staleness = \"{oldest}s\"\n{audits}"));
    let mut replicas = Replicas::start_each(&settings.each_ref().map(String::as_str)).await;
    let desk = Desk::new(&replicas.rest(), &replicas.token());
    let times = usize::try_from(number("EVENKEEL_HISTORY_CROWD", 1)).expect("a crowd");
    let crowded = Crowded {
        own: 36 * times,
        eim: 32 * times,
        sites: 9,
        faults: FAULTS,
        seed,
    };
    let crowd = Crowd::gather(&replicas, &desk, crowded).await;
    let wanted = (crowd.members(), crowd.gallery());
    let operator = Operator::new(desk.clone(), Chance::new(seed, 1), wanted, PATIENCE).await;
    let tally = Arc::clone(&crowd.weather.tally);

    let begun = Instant::now();
    let stop = CancellationToken::new();
    let ended = CancellationToken::new();
    let killer = kill_all_the_time(&mut replicas, Chance::new(seed, 2), stop.clone());
    let work = async {
        let book = operator.work(stop.clone()).await;
        ended.cancel();
        book
    };
    let pause = async {
        let answered = as_f64(tally.polls.load(Ordering::Relaxed));
        say(&format!(
            "{:.0} polls/s",
            answered / begun.elapsed().as_secs_f64()
        ));
        stop.cancel();
        ended.cancelled().await;
    };
    let lived = crowd.live(polls, pause);
    let ((kills, mut answered), book, done) = tokio::join!(killer, work, lived);

    let ended = Instant::now();
    let runs = read_runs(&desk).await;
    say(&format!(
        "{} runs read in {:.0?}",
        runs.len(),
        ended.elapsed()
    ));
    let shown = Seen::of(&done, &runs);
    say(&format!("{kills} kills, {}; {shown:?}", sizes(&book)));
    let ended = Instant::now();
    let found: Vec<_> = done
        .iter()
        .filter_map(|node| wrong(node, &runs, &book))
        .collect();
    say(&format!("checked in {:.0?}", ended.elapsed()));
    let logs = replicas.logs();
    let counted = replicas.measured(MISMATCHES).await;
    answered.add(&replicas.measured(POLLS).await);
    say(&answered.lines().join("\n"));
    replicas.stop().await;
    let found = found.join("\n\n");
    assert!(
        found.is_empty(),
        "{found}\n{logs}\nEVENKEEL_HISTORY_SEED={seed}"
    );
    must_have_remembered_well(&logs, &counted);
    assert!(kills > 1, "only {kills} kills: this shows nothing");
    shown.must_be_enough(polls);
    answered.must_be_enough(polls);
}

/// Fails if a server remembered a wrong answer, by what was logged or is counted.
fn must_have_remembered_well(logs: &str, counted: &[String]) {
    let logged = logs.lines().filter(|line| line.contains(MISMATCH));
    let counted = counted.iter().map(String::as_str);
    let counted = counted.filter(|line| !line.ends_with(" 0"));
    let wrong: Vec<_> = logged.chain(counted).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The seed, and how many polls are answered.
fn dice() -> (u64, u64) {
    let otherwise = u64::from(std::process::id()) * 7_919;
    let seed = number("EVENKEEL_HISTORY_SEED", otherwise);
    let polls = number("EVENKEEL_HISTORY_POLLS", 5_000);
    say(&format!(
        "EVENKEEL_HISTORY_SEED={seed} EVENKEEL_HISTORY_POLLS={polls}"
    ));
    (seed, polls)
}

/// What is wrong with the records of a node, with its whole story.
fn wrong((member, truth, is_done): &Lived, runs: &[Run], book: &Book) -> Option<String> {
    let of: Vec<_> = runs
        .iter()
        .filter(|run| run.instance == member.instance)
        .collect();
    let violations = match truth {
        Truth::Own(own) => check::own_node(member, own, &of, book),
        Truth::Eim(eim) => check::eim_node(member, eim, &of, book),
    };
    let mut wrong: Vec<String> = violations.iter().map(ToString::to_string).collect();
    if !is_done {
        wrong.push(format!(
            "{} did not come to an end with what it had",
            member.instance
        ));
    }
    let story = || format!("{}{}", story(member, truth, &of, book), wrong.join("\n"));
    (!wrong.is_empty()).then(story)
}

/// How much was wanted.
fn sizes(book: &Book) -> String {
    format!(
        "{} windows, {} schedules that repeat themselves, {} images, {} wishes, {} pauses",
        book.windows.len(),
        book.repeated.len(),
        book.images.len(),
        book.wishes.len(),
        book.pauses.len()
    )
}

/// A node, what it really did, and whether it came to an end with it.
type Lived = (Member, Truth, bool);

/// How much there was to see.
#[derive(Debug, Default)]
struct Seen {
    /// Runs by the state that they ended in.
    runs: BTreeMap<String, usize>,
    /// Attempts that began with leave that they asked for.
    asked: usize,
    /// Attempts that began with leave from before.
    ahead: usize,
    /// Updates of the ancestor's agents by how they ended.
    updates: BTreeMap<String, usize>,
    /// Attempts of nodes that are updated by images which booted another one, and such updates of the ancestor's agents.
    booted: (usize, usize),
    /// Attempts that began at images which had failed there.
    ordered: usize,
    /// Updates of the ancestor's agents in windows that they repeat themselves.
    again: usize,
}

impl Seen {
    fn of(done: &[Lived], runs: &[Run]) -> Self {
        let mut seen = Self::default();
        for run in runs {
            *seen.runs.entry(run.state.clone()).or_default() += 1;
        }
        for (_, truth, _) in done {
            match truth {
                Truth::Own(own) => {
                    for attempt in &own.attempts {
                        let last = attempt.events.last().map(|told| told.news);
                        let is_booted = attempt.image.is_some() && last == Some("finished");
                        seen.booted.0 += usize::from(is_booted);
                        let is_ordered = attempt.again && attempt.began().is_some();
                        seen.ordered += usize::from(is_ordered);
                        match attempt.leave {
                            Some(Leave::Asked { .. }) => seen.asked += 1,
                            Some(Leave::Ahead { .. }) => seen.ahead += 1,
                            None => {}
                        }
                    }
                }
                Truth::Eim(eim) => {
                    for update in &eim.updates {
                        let end = format!("{:?}", update.ended.map(|(_, end)| end));
                        *seen.updates.entry(end).or_default() += 1;
                        let is_booted = matches!(update.ended, Some((_, End::Updated)));
                        seen.booted.1 += usize::from(is_booted && update.image.is_some());
                        let is_again = |told: &&Delivered| matches!((&told.window, update.window), (Opening::Again(one), Some(at)) if one.opens(at));
                        seen.again += usize::from(eim.delivered.iter().any(|told| is_again(&told)));
                    }
                }
            }
        }
        seen
    }

    /// A history in which nothing happens shows nothing.
    fn must_be_enough(&self, polls: u64) {
        let least = usize::try_from(polls / 1_000).unwrap_or(usize::MAX).max(1);
        let updates: usize = self.updates.values().sum();
        assert!(
            self.asked >= least && updates >= least / 10,
            "too little happened: {self:?}"
        );
        if polls >= 50_000 {
            for state in ["succeeded", "failed", "reverted", "cancelled", "abandoned"] {
                assert!(self.runs.contains_key(state), "no run is {state}: {self:?}");
            }
            assert!(
                self.ahead > 0,
                "nobody began with leave from before: {self:?}"
            );
            assert!(
                self.booted.0 > 0 && self.booted.1 > 0 && self.again > 0,
                "no image was booted, or no window repeated itself: {self:?}"
            );
        }
        // It takes a failure first, and an order that reaches the node: some eight times in so many polls.
        if polls >= 100_000 {
            assert!(
                self.ordered > 0,
                "no image that had failed was ordered again: {self:?}"
            );
        }
    }
}

/// How many polls were answered in which way, by all servers that there were: what one has counted ends with it.
#[derive(Debug, Default)]
struct Answered(BTreeMap<String, u64>);

impl Answered {
    /// Adds what servers have counted in their lives.
    fn add(&mut self, counted: &[String]) {
        for line in counted {
            let (labels, count) = line.rsplit_once(' ').expect("a counter");
            let count: u64 = count.parse().expect("a whole number");
            *self.0.entry(labels.to_owned()).or_default() += count;
        }
    }

    fn lines(&self) -> Vec<String> {
        let all = self.0.iter();
        all.map(|(labels, count)| format!("{labels} {count}"))
            .collect()
    }

    fn of(&self, kind: &str) -> u64 {
        let label = format!("kind=\"{kind}\"");
        let of_kind = self.0.iter().filter(|(labels, _)| labels.contains(&label));
        of_kind.map(|(_, count)| count).sum()
    }

    /// A history in which nothing is remembered shows nothing of the view, and one in which nobody is held nothing of that.
    fn must_be_enough(&self, polls: u64) {
        let least = (polls / 1_000).max(1);
        assert!(
            self.of("hit") >= least && self.of("held") >= least,
            "too few polls were answered from memory, or held: {self:?}"
        );
    }
}

/// Kills a server every few seconds, and starts it again. In the end all of them run. Says how often it did, and what those
/// had counted that it killed.
async fn kill_all_the_time(
    replicas: &mut Replicas,
    mut chance: Chance,
    stop: CancellationToken,
) -> (usize, Answered) {
    let (mut kills, mut answered) = (0, Answered::default());
    loop {
        tokio::select! {
            () = stop.cancelled() => return (kills, answered),
            () = tokio::time::sleep(Duration::from_millis(chance.between(1_500, 5_000))) => {}
        }
        let counted = replicas.measured(POLLS).await;
        let servers = replicas.servers();
        let at = usize::from(chance.hits(500)) % servers.len();
        let both = chance.hits(100);
        servers[at].kill().await;
        if both {
            let other = (at + 1) % servers.len();
            servers[other].kill().await;
        }
        kills += 1;
        // All of them ran, and each counts the same things.
        let share = counted.len() / servers.len();
        let each = servers.iter().zip(counted.chunks(share));
        for (_, counted) in each.filter(|(server, _)| !server.is_running()) {
            answered.add(counted);
        }
        tokio::time::sleep(Duration::from_millis(chance.between(0, 800))).await;
        for server in servers.iter_mut().filter(|server| !server.is_running()) {
            server.start().await;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}
