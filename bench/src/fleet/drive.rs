//! A process that drives nodes: one thread, one heap of what is due, and as many calls under way as there must be.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::line::Faults;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use super::calendar::Calendar;
use super::call::{Came, Errand, Fate, Passage, Way};
use super::connect::Dialer;
use super::faults::Returners;
use super::histogram::Histogram;
use super::lines::Lines;
use super::node::{Ended, Heard, Node, Pace};
use super::plan::{Order, Plan, Second, Told};
use super::roster::Card;
use super::storm::{Tale, Teller};
use super::talk::{heard_orders, instant, say};
use crate::report::remark;

/// How long a node waits for an answer, besides the time for which it may be held.
const DEADLINE: Duration = Duration::from_secs(20);

/// How late a timer may be: what is not later than that counts from when it was sent.
const GRAIN: Duration = Duration::from_millis(2);

/// The digest of the facts that nodes of ours are filled into the database with.
pub const FILLED: [u8; 32] = [3; 32];

/// How many failures are told in words.
const WORDS: u32 = 5;

/// Within what time all those come back that were away.
const BACK_WITHIN: Duration = Duration::from_secs(1);

/// Drives nodes as standard input says, until that ends.
pub async fn run() -> anyhow::Result<ExitCode> {
    let mut orders = heard_orders();
    let plan = orders.recv().await.context("nobody gave a plan")?;
    let plan: Plan = serde_json::from_str(&plan)?;
    let mut driver = Driver::new(plan)?;
    loop {
        let wake = driver.wakes_at();
        tokio::select! {
            order = orders.recv() => match order {
                None => return Ok(ExitCode::SUCCESS),
                Some(order) => driver.obey(serde_json::from_str(&order)?)?,
            },
            Some(done) = driver.calls.join_next() => driver.note_joined(done)?,
            () = driver.lines.progress() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
        while let Some(done) = driver.calls.try_join_next() {
            driver.note_joined(done)?;
        }
        driver.send_due();
        driver.tell()?;
    }
}

/// Something that was under way and is over.
enum Done {
    Call(Over),
    Report(Option<Duration>),
}

/// A call that is over.
struct Over {
    node: usize,
    ended: Ended,
    /// From when it counts.
    since: Instant,
    has_news: bool,
    came: Came,
}

/// A call that is under way.
#[derive(Debug)]
struct Calling {
    task: AbortHandle,
    is_held: bool,
}

/// What is looked for after a change.
#[derive(Debug)]
struct Watch {
    since: Instant,
    /// Which nodes have not changed their decision yet.
    waits: Vec<bool>,
}

struct Driver {
    part: u32,
    pace: Pace,
    chance: Chance,
    cards: Vec<Card>,
    nodes: Vec<Node>,
    lines: Lines,
    /// When which node calls next.
    due: Calendar,
    calls: JoinSet<Done>,
    /// What each node is about.
    calling: Vec<Option<Calling>>,
    /// Calls under way that may be held.
    held: u32,
    /// What calls go through; none while nothing is to go wrong there.
    passage: Option<Passage>,
    /// Requests that failed when nobody waited for them any more.
    late_failures: Arc<AtomicU64>,
    returners: Returners,
    begun: Option<Instant>,
    number: u32,
    second: Second,
    watch: Option<Watch>,
    words: u32,
}

impl Driver {
    /// Its shared connections begin to open.
    fn new(plan: Plan) -> anyhow::Result<Self> {
        let cards = Card::read(&plan.nodes)?;
        ensure!(0 < plan.multiplexed, "nodes need a connection");
        let now = Instant::now();
        let node = |card: &Card| match &card.uuid {
            None => Node::own(card.number, FILLED, now),
            Some(uuid) => Node::eim(uuid, now),
        };
        let dialer = Dialer::new(plan.address, &plan.authority)?;
        Ok(Self {
            part: plan.part,
            pace: Pace {
                interval: Duration::from_millis(plan.interval_millis.max(1)),
                news: plan.news_per_mille,
                obey: plan.obey,
                hold: 0,
            },
            chance: Chance::new(7, plan.part.into()),
            nodes: cards.iter().map(node).collect(),
            lines: Lines::new(dialer, &plan, cards.len()),
            calling: cards.iter().map(|_| None).collect(),
            cards,
            due: Calendar::default(),
            calls: JoinSet::new(),
            held: 0,
            passage: None,
            late_failures: Arc::default(),
            returners: Returners::default(),
            begun: None,
            number: 0,
            second: Second::default(),
            watch: None,
            words: 0,
        })
    }

    /// When something is to be done at the latest.
    fn wakes_at(&self) -> Instant {
        let tells = self.begun.map(|_| self.tells_at());
        let soonest = self.due.next().into_iter().chain(tells).min();
        soonest.unwrap_or_else(|| Instant::now() + Duration::from_secs(1))
    }

    /// When the present second ends.
    fn tells_at(&self) -> Instant {
        let begun = self.begun.unwrap_or_else(Instant::now);
        begun + Duration::from_secs(u64::from(self.number) + 1)
    }

    fn obey(&mut self, order: Order) -> anyhow::Result<()> {
        match order {
            Order::Begin { at, within } => self.begin(instant(at), within),
            Order::Keep => self.lines.keep(),
            Order::Hold { millis } => self.pace.hold = millis,
            Order::Quiet => {
                self.pace.hold = 0;
                self.pace.news = 0;
            }
            Order::Pause => self.due.pause(Instant::now()),
            Order::Resume => {
                let by = self.due.resume(Instant::now());
                self.nodes.iter_mut().for_each(|node| node.postpone(by));
            }
            Order::Watch { since } => {
                let is_own = |card: &Card| card.uuid.is_none();
                self.second.changed = Histogram::default();
                self.watch = Some(Watch {
                    since: instant(since),
                    waits: self.cards.iter().map(is_own).collect(),
                });
            }
            Order::Astray {
                lose,
                duplicate,
                late,
            } => {
                let faults = Faults {
                    lose_request: lose / 2,
                    lose_answer: lose - lose / 2,
                    duplicate,
                    straggle: late,
                    delay: 0,
                };
                self.passage = Some(Passage::new(faults, &self.late_failures));
            }
            Order::Leave => self.leave(),
            Order::Return { at } => self.come_back(instant(at)),
            Order::Calm => {
                self.passage = None;
                self.returners = Returners::default();
            }
            Order::Storm {
                at,
                within_millis,
                wrong_clocks,
                count,
                target,
            } => {
                let within = Duration::from_millis(within_millis);
                let tale = Tale {
                    count,
                    within,
                    wrong_clocks,
                };
                return self.storm(instant(at), tale, &target);
            }
        }
        Ok(())
    }

    /// Every other node gives up what it is about, and closes the connection that it has for itself.
    fn leave(&mut self) {
        for place in self.returners.leave(self.nodes.len()) {
            self.second.left += 1;
            self.lines.close(place);
            let calling = self.calling.get_mut(place).and_then(Option::take);
            let Some(calling) = calling.filter(|calling| !calling.task.is_finished()) else {
                continue;
            };
            calling.task.abort();
            self.held -= u32::from(calling.is_held);
        }
        let returners = &self.returners;
        self.due.retain(|place| !returners.is_away(place));
    }

    fn come_back(&mut self, at: Instant) {
        for place in self.returners.come_back() {
            let Some(node) = self.nodes.get_mut(place) else {
                continue;
            };
            let micros = u64::try_from(BACK_WITHIN.as_micros()).unwrap_or(0);
            let wait = Duration::from_micros(self.chance.between(0, micros));
            node.begin(at + wait);
            self.due.push(node.planned, place);
        }
    }

    /// The nodes have their first calls at any instant within some milliseconds.
    fn begin(&mut self, at: Instant, within: u64) {
        self.begun = Some(at);
        for (place, node) in self.nodes.iter_mut().enumerate() {
            let micros = self.chance.between(0, within.saturating_mul(1_000));
            node.begin(at + Duration::from_micros(micros));
            self.due.push(node.planned, place);
        }
    }

    fn storm(&mut self, at: Instant, tale: Tale, target: &str) -> anyhow::Result<()> {
        let own = self.cards.iter().enumerate();
        let own = own.filter(|(_, card)| card.uuid.is_none());
        let gap = tale.within / tale.count.max(1);
        for (n, (place, card)) in (0_u32..).zip(own.take(usize::try_from(tale.count)?)) {
            let teller = Teller {
                number: card.number,
                wrong_clock: tale.wrong_clocks,
                authorization: card.authorization.clone(),
                channel: self.lines.of(place).context("no connection")?,
            };
            let (target, chance) = (target.to_owned(), self.chance.split());
            let told = teller.tell(target, at + gap * n, chance);
            self.calls.spawn(async move { Done::Report(told.await) });
        }
        Ok(())
    }

    /// Lets those call whose time has come.
    fn send_due(&mut self) {
        let now = Instant::now();
        while let Some(place) = self.due.pop(now) {
            self.send(place, now);
        }
    }

    fn send(&mut self, place: usize, now: Instant) {
        let way = self.way_of(place);
        let (Some(node), Some(card)) = (self.nodes.get_mut(place), self.cards.get(place)) else {
            return;
        };
        let Some(way) = way else {
            self.due.push(now + GRAIN, place);
            return;
        };
        let ask = node.ask(&self.pace, &mut self.chance);
        self.held += u32::from(0 < ask.hold);
        let is_late = GRAIN <= now.saturating_duration_since(node.planned);
        let since = if is_late { node.planned } else { now };
        let passage = self.passage.clone().filter(|_| ask.hold == 0);
        let errand = Errand {
            way,
            authorization: card.authorization.clone(),
            words: ask.words,
            within: DEADLINE + Duration::from_millis(ask.hold.into()),
            passage: passage.map(|passage| (passage, self.chance.split())),
        };
        let task = self.calls.spawn(async move {
            let came = errand.run().await;
            let at = Instant::now();
            Done::Call(Over {
                node: place,
                ended: Ended {
                    at,
                    waited: at - now,
                    hold: ask.hold,
                },
                since,
                has_news: ask.has_news,
                came,
            })
        });
        if let Some(calling) = self.calling.get_mut(place) {
            let is_held = 0 < ask.hold;
            *calling = Some(Calling { task, is_held });
        }
    }

    /// Who comes back opens its own connection again, before anything else. None if there is no way yet.
    fn way_of(&self, place: usize) -> Option<Way> {
        let is_back = self.returners.is_back(place);
        let missing = is_back.then(|| self.lines.missing(place)).flatten();
        match missing {
            Some((dialer, number)) => Some(Way::Opens(Box::new(dialer), number)),
            None => self.lines.of(place).map(Way::Open),
        }
    }

    /// Calls of those who left are no more.
    fn note_joined(&mut self, done: Result<Done, JoinError>) -> anyhow::Result<()> {
        match done {
            Err(error) if error.is_cancelled() => {}
            done => self.note(done?),
        }
        Ok(())
    }

    fn note(&mut self, done: Done) {
        match done {
            Done::Report(took) => {
                if let Some(took) = took {
                    self.second.reports.record(took);
                } else {
                    self.complain("a report was given up");
                }
            }
            Done::Call(over) => self.note_call(over),
        }
    }

    fn note_call(&mut self, over: Over) {
        let Over {
            node, ended, came, ..
        } = over;
        let Came {
            answer,
            fate,
            opened,
        } = came;
        self.held -= u32::from(0 < ended.hold);
        if let Some(calling) = self.calling.get_mut(node) {
            *calling = None;
        }
        if let Some(channel) = opened {
            self.lines.put(node, channel);
        }
        let heard = answer.unwrap_or_else(|status| {
            let heard = Heard::status(&status);
            let is_meant = matches!(fate, Fate::Lost | Fate::Late);
            if matches!(heard, Heard::Failed) && !is_meant {
                self.complain(&format!("a call failed: {status}"));
            }
            heard
        });
        match fate {
            Fate::Lost => self.second.astray.lost += 1,
            Fate::Late => self.second.astray.late += 1,
            Fate::Plain | Fate::Twice => {
                let is_doubled = fate == Fate::Twice;
                self.second.astray.duplicated += u64::from(is_doubled);
                let counts = !is_doubled && ended.hold == 0;
                let took = counts.then(|| ended.at - over.since);
                self.second.news += u64::from(over.has_news && heard.is_answer());
                self.count(node, &heard, took);
            }
        }
        self.plan_next(node, &heard, ended);
    }

    /// Counts a call of a node, and how long it took if that counts.
    fn count(&mut self, place: usize, heard: &Heard, took: Option<Duration>) {
        let second = &mut self.second;
        let calls = if self.returners.is_back(place) {
            &mut second.returned
        } else {
            &mut second.calls
        };
        match heard {
            Heard::Refused(_) => calls.refused += 1,
            Heard::Failed => calls.failed += 1,
            Heard::Own(_) | Heard::Eim => {
                calls.ok += 1;
                if let Some(took) = took {
                    calls.latencies.record(took);
                }
                second.back += u64::from(self.returners.answered(place));
            }
        }
        if let Heard::Own(answer) = heard {
            second.told_millis += u64::from(answer.next_poll_millis);
            second.told += 1;
        }
    }

    fn plan_next(&mut self, place: usize, heard: &Heard, ended: Ended) {
        let Some(node) = self.nodes.get_mut(place) else {
            return;
        };
        let changed = node.hear(heard, ended, &self.pace, &mut self.chance);
        if !self.returners.is_away(place) {
            self.due.push(node.planned, place);
        }
        let Some(watch) = self.watch.as_mut().filter(|_| changed) else {
            return;
        };
        if let Some(waits) = watch.waits.get_mut(place)
            && std::mem::take(waits)
        {
            let length = ended.at.saturating_duration_since(watch.since);
            self.second.changed.record(length);
        }
    }

    /// Tells what came of its orders, and of each second that is over.
    fn tell(&mut self) -> anyhow::Result<()> {
        if self.lines.opened()? {
            say(&Told::Opened)?;
        }
        let late = self.late_failures.swap(0, Ordering::Relaxed);
        if 0 < late {
            self.second.calls.failed += late;
            self.complain("a call failed that was late");
        }
        while self.begun.is_some() && self.tells_at() <= Instant::now() {
            let of = std::mem::take(&mut self.second);
            say(&Told::Second {
                number: self.number,
                held: self.held,
                of: Box::new(of),
            })?;
            self.number += 1;
        }
        Ok(())
    }

    fn complain(&mut self, text: &str) {
        if self.words < WORDS {
            self.words += 1;
            remark(&format!("driver {}: {text}", self.part));
        }
    }
}
