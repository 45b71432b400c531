//! A process that drives nodes: one thread, one heap of what is due, and as many calls under way as there must be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::TimeDelta;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_simulator::chance::Chance;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::connect::Dialer;
use super::histogram::Histogram;
use super::lines::Lines;
use super::node::{Ended, Heard, Node, Pace, Words};
use super::plan::{Order, Plan, Second, Told};
use super::roster::Card;
use super::storm::Teller;
use crate::report::remark;

/// How long a node waits for an answer, besides the time for which it may be held.
const DEADLINE: Duration = Duration::from_secs(20);

/// How late a timer may be: what is not later than that counts from when it was sent.
const GRAIN: Duration = Duration::from_millis(2);

/// The digest of the facts that nodes of ours are filled into the database with.
pub const FILLED: [u8; 32] = [3; 32];

/// How many failures are told in words.
const WORDS: u32 = 5;

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
            Some(done) = driver.calls.join_next() => driver.note(done?),
            () = driver.lines.progress() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
        while let Some(done) = driver.calls.try_join_next() {
            driver.note(done?);
        }
        driver.send_due();
        driver.tell()?;
    }
}

/// The lines of standard input. A thread reads them: nothing else waits for it.
fn heard_orders() -> mpsc::UnboundedReceiver<String> {
    let (give, take) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines();
        for line in lines.map_while(Result::ok) {
            if give.send(line).is_err() {
                return;
            }
        }
    });
    take
}

fn say(told: &Told) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, told)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// The instant of this process at which the clock shows so many milliseconds since 1970.
fn instant(millis: i64) -> Instant {
    let now = Instant::now();
    let ahead = millis - SystemClock.now().timestamp_millis();
    let length = TimeDelta::milliseconds(ahead).abs().to_std();
    let length = length.unwrap_or_default();
    if ahead < 0 {
        now.checked_sub(length).unwrap_or(now)
    } else {
        now + length
    }
}

/// Something that was under way and is over.
enum Done {
    Call {
        node: usize,
        ended: Ended,
        /// From when it counts.
        since: Instant,
        has_news: bool,
        answer: Result<Heard, Status>,
    },
    Report(Option<Duration>),
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
    /// When which node calls next; those that are calling are not in it.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    calls: JoinSet<Done>,
    /// Calls under way that may be held.
    held: u32,
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
            cards,
            due: BinaryHeap::new(),
            calls: JoinSet::new(),
            held: 0,
            begun: None,
            number: 0,
            second: Second::default(),
            watch: None,
            words: 0,
        })
    }

    /// When something is to be done at the latest.
    fn wakes_at(&self) -> Instant {
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        let tells = self.begun.map(|_| self.tells_at());
        let soonest = due.into_iter().chain(tells).min();
        soonest.unwrap_or_else(|| Instant::now() + Duration::from_secs(1))
    }

    /// When the present second ends.
    fn tells_at(&self) -> Instant {
        let begun = self.begun.unwrap_or_else(Instant::now);
        begun + Duration::from_secs(u64::from(self.number) + 1)
    }

    fn obey(&mut self, order: Order) -> anyhow::Result<()> {
        match order {
            Order::Begin { at } => self.begin(instant(at)),
            Order::Keep => self.lines.keep(),
            Order::Hold { millis } => self.pace.hold = millis,
            Order::Quiet => {
                self.pace.hold = 0;
                self.pace.news = 0;
            }
            Order::Watch { since } => {
                let is_own = |card: &Card| card.uuid.is_none();
                self.second.changed = Histogram::default();
                self.watch = Some(Watch {
                    since: instant(since),
                    waits: self.cards.iter().map(is_own).collect(),
                });
            }
            Order::Storm { at, count, target } => {
                return self.storm(instant(at), count, &target);
            }
        }
        Ok(())
    }

    /// The nodes have their first calls at any instant of the first interval.
    fn begin(&mut self, at: Instant) {
        self.begun = Some(at);
        for (place, node) in self.nodes.iter_mut().enumerate() {
            let millis = u64::try_from(self.pace.interval.as_millis()).unwrap_or(u64::MAX);
            let micros = self.chance.between(0, millis.saturating_mul(1_000));
            node.begin(at + Duration::from_micros(micros));
            self.due.push(Reverse((node.planned, place)));
        }
    }

    fn storm(&mut self, at: Instant, count: u32, target: &str) -> anyhow::Result<()> {
        let own = self.cards.iter().enumerate();
        let own = own.filter(|(_, card)| card.uuid.is_none());
        let gap = Duration::from_secs(1) / count.max(1);
        for (n, (place, card)) in (0_u32..).zip(own.take(usize::try_from(count)?)) {
            let teller = Teller {
                number: card.number,
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
        while let Some(Reverse((at, place))) = self.due.peek().copied() {
            if now < at {
                return;
            }
            self.due.pop();
            self.send(place, now);
        }
    }

    fn send(&mut self, place: usize, now: Instant) {
        let (Some(node), Some(card)) = (self.nodes.get_mut(place), self.cards.get(place)) else {
            return;
        };
        let Some(channel) = self.lines.of(place) else {
            self.due.push(Reverse((now + GRAIN, place)));
            return;
        };
        let ask = node.ask(&self.pace, &mut self.chance);
        self.held += u32::from(0 < ask.hold);
        let is_late = GRAIN <= now.saturating_duration_since(node.planned);
        let since = if is_late { node.planned } else { now };
        let authorization = card.authorization.clone();
        self.calls.spawn(async move {
            let hold = Duration::from_millis(ask.hold.into());
            let call = call(channel, authorization, ask.words);
            let answer = tokio::time::timeout(DEADLINE + hold, call).await;
            let at = Instant::now();
            Done::Call {
                node: place,
                ended: Ended {
                    at,
                    waited: at - now,
                    hold: ask.hold,
                },
                since,
                has_news: ask.has_news,
                answer: answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))),
            }
        });
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
            Done::Call {
                node,
                ended,
                since,
                has_news,
                answer,
            } => {
                self.held -= u32::from(0 < ended.hold);
                let heard = answer.unwrap_or_else(|status| {
                    let heard = Heard::status(&status);
                    if matches!(heard, Heard::Failed) {
                        self.complain(&format!("a call failed: {status}"));
                    }
                    heard
                });
                self.count(&heard, ended, since, has_news);
                self.plan_next(node, &heard, ended);
            }
        }
    }

    fn count(&mut self, heard: &Heard, ended: Ended, since: Instant, has_news: bool) {
        let second = &mut self.second;
        match heard {
            Heard::Refused(_) => second.refused += 1,
            Heard::Failed => second.failed += 1,
            Heard::Own(_) | Heard::Eim => {
                second.ok += 1;
                second.news += u64::from(has_news);
                if ended.hold == 0 {
                    second.latencies.record(ended.at - since);
                }
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
        self.due.push(Reverse((node.planned, place)));
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

async fn call(
    channel: Channel,
    authorization: MetadataValue<Ascii>,
    words: Words,
) -> Result<Heard, Status> {
    match words {
        Words::Own(message) => {
            let mut request = Request::new(*message);
            request
                .metadata_mut()
                .insert("authorization", authorization);
            let answer = AgentServiceClient::new(channel).poll(request).await?;
            Ok(Heard::Own(Box::new(answer.into_inner())))
        }
        Words::Eim(message) => {
            let mut request = Request::new(message);
            request
                .metadata_mut()
                .insert("authorization", authorization);
            let mut client = MaintmgrServiceClient::new(channel);
            client.platform_update_status(request).await?;
            Ok(Heard::Eim)
        }
    }
}
