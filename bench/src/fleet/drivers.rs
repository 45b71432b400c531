//! The processes that drive nodes, as the one that started them sees them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::{Clock, SystemClock};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::histogram::Histogram;
use super::plan::{Order, Plan, Second, Told};
use crate::children::Measured;
use crate::measure::Meter;

/// How long after its end a second is told by all.
const TOLD_WITHIN: Duration = Duration::from_millis(1_500);

/// What happened in some seconds, and what was spent on it.
#[derive(Clone, Debug)]
pub struct Slice {
    /// What happened.
    pub all: Second,
    /// In which seconds.
    pub seconds: Range<u32>,
    /// What each meter counted.
    pub spent: Vec<Duration>,
    /// What the drivers cost.
    pub drivers: Duration,
}

impl Slice {
    /// How long it was, in seconds.
    pub fn length(&self) -> f64 {
        f64::from(self.seconds.end - self.seconds.start)
    }

    /// What a meter counted.
    pub fn spent(&self, meter: usize) -> Duration {
        self.spent.get(meter).copied().unwrap_or_default()
    }
}

/// What a driver said, or that it says no more.
type Word = (u32, anyhow::Result<Told>);

/// All drivers, and what they told.
pub struct Drivers {
    all: Vec<Driver>,
    words: mpsc::UnboundedReceiver<Word>,
    /// Keeps those who listen.
    _listeners: JoinSet<()>,
    begun: DateTime<Utc>,
    seconds: BTreeMap<u32, Second>,
    opened: usize,
    changed: Histogram,
    reports: Histogram,
}

struct Driver {
    process: Measured,
    hears: ChildStdin,
    /// Calls that let themselves be held.
    held: u32,
}

impl Drivers {
    /// Starts a driver for each plan, and waits until the shared connections are open.
    pub async fn start(plans: &[Plan]) -> anyhow::Result<Self> {
        let (give, words) = mpsc::unbounded_channel();
        let mut listeners = JoinSet::new();
        let mut all = Vec::new();
        for plan in plans {
            let (process, mut hears, says) = Measured::talking(&["drive"])?;
            write(&mut hears, &serde_json::to_string(plan)?).await?;
            listeners.spawn(listen(plan.part, says, give.clone()));
            all.push(Driver {
                process,
                hears,
                held: 0,
            });
        }
        let mut drivers = Self {
            all,
            words,
            _listeners: listeners,
            begun: SystemClock.now(),
            seconds: BTreeMap::new(),
            opened: 0,
            changed: Histogram::default(),
            reports: Histogram::default(),
        };
        drivers.until_opened().await?;
        Ok(drivers)
    }

    /// Lets the nodes call from now on.
    pub async fn begin(&mut self, within: Duration) -> anyhow::Result<()> {
        self.begun = SystemClock.now() + TimeDelta::milliseconds(200);
        let at = self.begun.timestamp_millis();
        let within = u64::try_from(within.as_millis())?;
        self.order(&Order::Begin { at, within }).await
    }

    /// Opens the connections that a node has for itself.
    pub async fn keep(&mut self) -> anyhow::Result<()> {
        self.order(&Order::Keep).await?;
        self.until_opened().await
    }

    /// Tells all drivers.
    pub async fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        for part in self.parts() {
            self.order_one(part, order).await?;
        }
        Ok(())
    }

    /// Tells one driver.
    pub async fn order_one(&mut self, part: u32, order: &Order) -> anyhow::Result<()> {
        let driver = self.all.get_mut(usize::try_from(part)?);
        let driver = driver.context("there is no such driver")?;
        write(&mut driver.hears, &serde_json::to_string(order)?).await
    }

    /// Begins to look for nodes with another decision than they had now. Returns when that is.
    pub async fn watch(&mut self) -> anyhow::Result<()> {
        self.changed = Histogram::default();
        let since = SystemClock.now().timestamp_millis();
        self.order(&Order::Watch { since }).await
    }

    /// Takes in what is told for so long.
    pub async fn listen(&mut self, length: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + length;
        loop {
            let word = tokio::select! {
                word = self.words.recv() => word,
                () = tokio::time::sleep_until(end) => return Ok(()),
            };
            self.note(word)?;
        }
    }

    /// Takes in what is told until a second has begun.
    pub async fn listen_until(&mut self, second: u32) -> anyhow::Result<()> {
        let at = self.begun + TimeDelta::seconds(second.into());
        let length = (at - SystemClock.now()).to_std().unwrap_or_default();
        self.listen(length).await
    }

    /// The second that it is, counted from the beginning.
    pub fn present(&self) -> u32 {
        let passed = SystemClock.now() - self.begun;
        u32::try_from(passed.num_seconds()).unwrap_or(0)
    }

    /// When a second begins, in milliseconds since 1970.
    pub fn beginning_of(&self, second: u32) -> i64 {
        (self.begun + TimeDelta::seconds(second.into())).timestamp_millis()
    }

    /// What happened in one second after the other, those left out in which nothing was told.
    pub fn seconds(&self, range: Range<u32>) -> impl Iterator<Item = (u32, &Second)> {
        let range = range.start..range.end.max(range.start);
        self.seconds.range(range).map(|(number, of)| (*number, of))
    }

    /// What happened in some seconds, added up.
    pub fn sum(&self, range: Range<u32>) -> Second {
        let mut all = Second::default();
        for (_, second) in self.seconds(range) {
            all.merge(second);
        }
        all
    }

    /// Adds up what happens in whole seconds from the next one on, and what is spent meanwhile. `begin` begins to count.
    pub async fn measure(
        &mut self,
        length: Duration,
        begin: impl FnOnce() -> Vec<Meter>,
    ) -> anyhow::Result<Slice> {
        let from = self.present() + 1;
        let to = from + u32::try_from(length.as_secs().max(1))?;
        self.listen_until(from).await?;
        let (meters, own) = (begin(), self.meter());
        self.listen_until(to).await?;
        let spent = meters.iter().map(Meter::spent).collect();
        let drivers = own.spent();
        // The last second is told a bit later.
        self.listen(TOLD_WITHIN).await?;
        Ok(Slice {
            all: self.sum(from..to),
            seconds: from..to,
            spent,
            drivers,
        })
    }

    /// How long after a change nodes had their new decision, since [`Drivers::watch`].
    pub const fn changed(&self) -> &Histogram {
        &self.changed
    }

    /// Begins to count reports anew.
    pub fn forget_reports(&mut self) {
        self.reports = Histogram::default();
    }

    /// How long reports took, since [`Drivers::forget_reports`].
    pub const fn reports(&self) -> &Histogram {
        &self.reports
    }

    /// How many calls let themselves be held.
    pub fn held(&self) -> u32 {
        self.all.iter().map(|driver| driver.held).sum()
    }

    /// The numbers of the drivers.
    pub fn parts(&self) -> Range<u32> {
        0..u32::try_from(self.all.len()).unwrap_or(0)
    }

    /// The driver that has a node.
    pub fn part_of(&self, number: u32) -> u32 {
        number % self.parts().end.max(1)
    }

    /// Counts what they cost from now on.
    fn meter(&self) -> Meter {
        Meter::start(self.all.iter().map(|driver| driver.process.pid()).collect())
    }

    async fn until_opened(&mut self) -> anyhow::Result<()> {
        while self.opened < self.all.len() {
            let word = self.words.recv().await;
            self.note(word)?;
        }
        self.opened = 0;
        Ok(())
    }

    fn note(&mut self, word: Option<Word>) -> anyhow::Result<()> {
        let (part, told) = word.context("nobody drives any more")?;
        match told.with_context(|| format!("driver {part}"))? {
            Told::Opened => self.opened += 1,
            Told::Second { number, held, of } => {
                let driver = self.all.get_mut(usize::try_from(part)?);
                driver.context("there is no such driver")?.held = held;
                self.changed.merge(&of.changed);
                self.reports.merge(&of.reports);
                self.seconds.entry(number).or_default().merge(&of);
            }
        }
        Ok(())
    }
}

async fn write(to: &mut ChildStdin, line: &str) -> anyhow::Result<()> {
    to.write_all(line.as_bytes()).await?;
    to.write_all(b"\n").await?;
    Ok(to.flush().await?)
}

/// Passes on what a driver says. Its end is an error: it ends when it is told nothing any more.
async fn listen(part: u32, says: ChildStdout, give: mpsc::UnboundedSender<Word>) {
    let mut lines = BufReader::new(says).lines();
    loop {
        let told = match lines.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(Into::into),
            Ok(None) => Err(anyhow!("it ended")),
            Err(error) => Err(error.into()),
        };
        let is_over = told.is_err();
        if give.send((part, told)).is_err() || is_over {
            return;
        }
    }
}

/// How nodes and connections are shared out among drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Connections that nodes share.
    pub multiplexed: u32,
    /// Connections that a node has for itself.
    pub kept: u32,
    /// Connections of the drivers before.
    pub before: u32,
}

/// The share of each of so many drivers.
pub fn shares(drivers: u32, multiplexed: u32, kept: u32) -> anyhow::Result<Vec<Share>> {
    ensure!(
        0 < drivers && drivers <= multiplexed,
        "each of {drivers} drivers needs one of the {multiplexed} shared connections"
    );
    let part = |of: u32, n: u32| of / drivers + u32::from(n < of % drivers);
    let mut before = 0;
    let share = |n| {
        let share = Share {
            multiplexed: part(multiplexed, n),
            kept: part(kept, n),
            before,
        };
        before += share.multiplexed + share.kept;
        share
    };
    Ok((0..drivers).map(share).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shared_out_evenly_and_none_is_left_over() {
        let all = shares(3, 64, 20_000).expect("shares");
        let sum = |of: fn(&Share) -> u32| all.iter().map(of).sum::<u32>();
        assert_eq!(sum(|share| share.multiplexed), 64);
        assert_eq!(sum(|share| share.kept), 20_000);
        assert_eq!(all[0].before, 0);
        assert_eq!(all[2].before, 22 + 6_667 + 21 + 6_667);
        assert!(shares(3, 2, 10).is_err(), "a driver without a connection");
    }
}
