//! How much is taken on at once, and how often nodes should ask while there is too much to do.
//!
//! Calls that are too many are refused before they are read, with a time after which the caller should try again: what only
//! asks first, what tells or begins something last. What asks and cannot be answered from memory is refused sooner. Whoever
//! is answered is told to come back less often while the pressure lasts.

mod line;
mod pens;
mod pressure;
#[cfg(test)]
mod tests;
mod weight;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenkeel_kit::beat;
use metrics::{Counter, Gauge};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::metadata::MetadataValue;

use line::{EACH, LATE, Line, SOON};
use pressure::{adapted, most, part, smoothed, strain};

pub use weight::Weight;

/// How often the pressure is looked at. A look that comes later than another one was due is all the pressure there is.
const LOOK: Duration = Duration::from_millis(250);

/// How often at rest. To wake costs an idle process more than what it does then.
const LOOK_AT_REST: Duration = Duration::from_secs(1);

const MINUTE: Duration = Duration::from_mins(1);

/// How long those that are held may take to be answered at a stop, and how often it is seen whether they are.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);
const LET_GO_EACH: Duration = Duration::from_millis(10);

/// Where a refusal says after how many milliseconds to try again.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// How much is taken on at once.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadSettings {
    /// How many calls may be under way when one is taken on that only asks; held ones do not count. 0 is without limit,
    /// also for the others.
    pub calls: u32,
    /// How many may be when one is taken on that tells or begins something; never fewer than `calls`.
    pub calls_of_any_kind: u32,
    /// How seldom nodes are asked to poll while there is too much to do.
    #[serde(with = "humantime_serde")]
    pub poll_interval_max: Duration,
    /// How many calls may write at once.
    pub writers: usize,
    /// How many may wait to write.
    pub writers_waiting: usize,
    /// How many bytes of messages that are on their way may be held in all, the first 64 KiB of each not counted; a quarter
    /// of that for all that come over connections of which nothing is known yet. 0 is without limit.
    pub message_memory: u64,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            calls: 1_024,
            calls_of_any_kind: 1_280,
            poll_interval_max: Duration::from_mins(5),
            writers: 16,
            writers_waiting: 2_048,
            message_memory: 128 << 20,
        }
    }
}

/// How the paths of calls of our own agents begin.
const OUR_OWN: &str = "/evenkeel.agent.";

/// What a call is for, as far as its path says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// It asks, and can ask again.
    Quiet,
    /// It does as well, but comes back at its own pace whatever it is told, as the ancestor's do.
    Eim,
    /// It tells something, or something waits for its answer.
    News,
}

impl CallKind {
    /// What a call with this path is for.
    pub fn of(path: &str) -> Self {
        match path.rsplit('/').next() {
            _ if !path.starts_with(OUR_OWN) => Self::Eim,
            Some("Begin" | "Report" | "Enroll") => Self::News,
            _ => Self::Quiet,
        }
    }
}

/// There is too much to do for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// After what time to try again.
    pub again: Duration,
}

impl Busy {
    /// The same for the caller.
    pub fn status(self) -> Status {
        let millis = self.again.as_millis();
        let text = format!("the server has too much to do; try again in {millis} ms");
        pushback(Status::unavailable(text), self.again)
    }
}

/// Adds to a refusal after what time to try again.
pub fn pushback(mut refused: Status, again: Duration) -> Status {
    let millis = u64::try_from(again.as_millis()).unwrap_or(u64::MAX);
    let value = MetadataValue::from(millis.max(1));
    refused.metadata_mut().insert(PUSHBACK, value);
    refused
}

/// How much there is to do in this process.
#[derive(Debug)]
pub struct Load {
    settings: LoadSettings,
    /// Calls that came in and were not answered yet.
    entered: AtomicU32,
    /// How many of them are held.
    aside: AtomicU32,
    /// How many of them wait for their message.
    arriving: AtomicU32,
    /// How many bytes of long messages came that are not read yet.
    weight: AtomicU64,
    /// How many of those came over connections of which nothing is known.
    weight_of_strangers: AtomicU64,
    /// Those who were refused.
    line: Line,
    /// How many calls are at the database, or wait for that, without those that ask and come back at their own pace; and how
    /// many of these.
    at_database: AtomicU32,
    eim_at_database: AtomicU32,
    /// How many calls had their turn at the database since the last look, however they ended.
    turns: AtomicU32,
    /// How many were held when those were let go.
    let_go: AtomicU32,
    /// Quiet calls that came in this minute, and in the one before.
    this_minute: AtomicU32,
    last_minute: AtomicU32,
    /// Numbers from 0 to 1 and from 1 on, as bits.
    pressure: AtomicU64,
    factor: AtomicU64,
    /// The interval without pressure, in milliseconds, as it was asked for last.
    base: AtomicU64,
    pens: Arc<Semaphore>,
    waiting_for_pens: AtomicUsize,
    random: RandomState,
    drawn: AtomicU64,
    told: Told,
}

/// What is counted.
#[derive(Debug)]
struct Told {
    quiet: Counter,
    news: Counter,
    arriving: Counter,
    messages: Counter,
    memory: Counter,
    writers: Counter,
    database: Counter,
    pressure: Gauge,
    interval: Gauge,
}

impl Told {
    fn new() -> Self {
        const REFUSED: &str = "evenkeel_overload_refused_total";
        let refused = |kind: &'static str| metrics::counter!(REFUSED, "kind" => kind);
        Self {
            quiet: refused("quiet"),
            news: refused("news"),
            arriving: refused("arriving"),
            messages: refused("messages"),
            memory: refused("memory"),
            writers: refused("writers"),
            database: refused("database"),
            pressure: metrics::gauge!("evenkeel_load_pressure"),
            interval: metrics::gauge!("evenkeel_poll_interval_seconds"),
        }
    }
}

impl Load {
    /// Nothing to do yet.
    pub fn new(settings: LoadSettings) -> Self {
        let pens = settings.writers.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            settings,
            entered: AtomicU32::new(0),
            aside: AtomicU32::new(0),
            arriving: AtomicU32::new(0),
            weight: AtomicU64::new(0),
            weight_of_strangers: AtomicU64::new(0),
            line: Line::new(),
            at_database: AtomicU32::new(0),
            eim_at_database: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            let_go: AtomicU32::new(0),
            this_minute: AtomicU32::new(0),
            last_minute: AtomicU32::new(0),
            pressure: AtomicU64::new(0.0_f64.to_bits()),
            factor: AtomicU64::new(1.0_f64.to_bits()),
            base: AtomicU64::new(0),
            pens: Arc::new(Semaphore::new(pens)),
            waiting_for_pens: AtomicUsize::new(0),
            random: RandomState::new(),
            drawn: AtomicU64::new(0),
            told: Told::new(),
        }
    }

    /// Takes a call on, or says when to try again. It counts until what is returned is dropped.
    pub fn enter(self: &Arc<Self>, kind: CallKind) -> Result<Inside, Busy> {
        if kind != CallKind::News {
            self.this_minute.fetch_add(1, Ordering::Relaxed);
        }
        if !has_room(&self.settings, kind, self.inside()) {
            match kind {
                CallKind::Quiet | CallKind::Eim => self.told.quiet.increment(1),
                CallKind::News => self.told.news.increment(1),
            }
            return Err(self.busy(kind));
        }
        self.entered.fetch_add(1, Ordering::Relaxed);
        Ok(Inside {
            load: Arc::clone(self),
            kind,
        })
    }

    /// When a call should be tried again that there is no memory for.
    pub fn turn_away(&self, kind: CallKind) -> Busy {
        self.told.memory.increment(1);
        self.busy(kind)
    }

    /// When a call should be tried again that is refused for another reason, about so long from now.
    pub fn again(&self, about: Duration) -> Busy {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let noise = u32::try_from(self.random.hash_one(drawn) >> 32).unwrap_or_default();
        Busy {
            again: draw(about, noise),
        }
    }

    /// While what is returned lives, one of the calls that were taken on is held: it waits and costs nothing.
    pub fn aside(self: &Arc<Self>) -> Aside {
        self.aside.fetch_add(1, Ordering::Relaxed);
        Aside(Arc::clone(self))
    }

    /// While what is returned lives, one of the calls that were taken on waits for its message and does not count. What has
    /// come of it is in memory, so no more than may be under way may wait.
    pub fn arriving(self: &Arc<Self>) -> Result<Late, Busy> {
        let before = self.arriving.fetch_add(1, Ordering::Relaxed);
        let late = Late(Arc::clone(self));
        if has_room(&self.settings, CallKind::News, before) {
            return Ok(late);
        }
        self.told.arriving.increment(1);
        Err(self.again(SOON))
    }

    /// How many calls are under way, without those that are held or wait for their message.
    fn inside(&self) -> u32 {
        let entered = self.entered.load(Ordering::Relaxed);
        let aside = self.aside.load(Ordering::Relaxed);
        entered.saturating_sub(aside.saturating_add(self.arriving.load(Ordering::Relaxed)))
    }

    /// How often nodes should ask now that would ask each `base` without pressure.
    pub fn interval(&self, base: Duration) -> Duration {
        let millis = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
        self.base.store(millis, Ordering::Relaxed);
        let factor = f64::from_bits(self.factor.load(Ordering::Relaxed));
        let longer = Duration::try_from_secs_f64(base.as_secs_f64() * factor).unwrap_or(base);
        longer.min(self.settings.poll_interval_max).max(base)
    }

    /// Over how long nodes that lost their connection should come back: as long as it takes to let in as many as asked
    /// in a minute or are held.
    pub fn spread(&self) -> Duration {
        let this = self.this_minute.load(Ordering::Relaxed);
        let asked = this.max(self.last_minute.load(Ordering::Relaxed));
        let held = self.aside.load(Ordering::Relaxed);
        let held = held.max(self.let_go.load(Ordering::Relaxed));
        let all = EACH.saturating_mul(asked.saturating_add(held));
        all.clamp(SOON, LATE)
    }

    /// Those that are held now are let go, and come back all together.
    pub fn lets_go(&self) {
        let held = self.aside.load(Ordering::Relaxed);
        self.let_go.store(held, Ordering::Relaxed);
    }

    /// Waits until those that were held are answered, for a while.
    pub async fn has_let_go(&self) {
        let answered = async {
            while self.aside.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(LET_GO_EACH).await;
            }
        };
        // Who is not answered by then is not waited for.
        let _ = tokio::time::timeout(LET_GO_WITHIN, answered).await;
    }

    /// How much there is to do: 0 is nothing, 1 as much as can be borne.
    pub fn pressure(&self) -> f64 {
        f64::from_bits(self.pressure.load(Ordering::Relaxed))
    }

    /// Looks at the pressure until it is asked to stop.
    pub async fn watch(self: Arc<Self>, stopping: CancellationToken) {
        let mut last = tokio::time::Instant::now();
        let mut minute = last + MINUTE;
        loop {
            let due = beat::next(self.next_look());
            tokio::select! {
                () = stopping.cancelled() => return,
                () = sleep_until(due) => {}
            }
            let now = tokio::time::Instant::now();
            self.look(now - due, now - last);
            last = now;
            if minute <= now {
                let quiet = self.this_minute.swap(0, Ordering::Relaxed);
                self.last_minute.store(quiet, Ordering::Relaxed);
                minute = now + MINUTE;
            }
        }
    }

    /// After what time to look again.
    fn next_look(&self) -> Duration {
        let factor = f64::from_bits(self.factor.load(Ordering::Relaxed));
        if pressure::is_at_rest(self.pressure(), factor) {
            LOOK_AT_REST
        } else {
            LOOK
        }
    }

    /// Takes into account how late this look is, and how many calls are under way, and had their turn since the last one.
    fn look(&self, late: Duration, since: Duration) {
        let turns = self.turns.swap(0, Ordering::Relaxed);
        self.line.look(turns, since);
        let calls = self.settings.calls;
        let full = [CallKind::Quiet, CallKind::Eim].map(|kind| {
            let (there, most) = self.room_at_database(kind);
            part(there.load(Ordering::Relaxed), most)
        });
        let full = full.into_iter().fold(part(self.inside(), calls), f64::max);
        let strain = strain(late, full);
        let pressure = smoothed(self.pressure(), strain);
        self.pressure.store(pressure.to_bits(), Ordering::Relaxed);
        self.told.pressure.set(pressure);

        let base = Duration::from_millis(self.base.load(Ordering::Relaxed));
        let most = most(self.settings.poll_interval_max, base);
        let factor = f64::from_bits(self.factor.load(Ordering::Relaxed));
        let factor = adapted(factor, pressure, most);
        self.factor.store(factor.to_bits(), Ordering::Relaxed);
        self.told.interval.set(base.as_secs_f64() * factor);
    }

    /// So many calls had their turn at the database: it is what those wait for who are refused.
    pub fn had_turns(&self, count: u32) {
        self.turns.fetch_add(count, Ordering::Relaxed);
    }

    /// While what is returned lives, a call of a kind is at the database, or waits for that. Those that only ask may take half
    /// of the room in all: to answer one from memory costs hardly more than to refuse it, and it is one less that comes back.
    /// Those that come back at their own pace have a quarter to themselves: to refuse one brings three more within seconds.
    pub fn to_the_database(self: &Arc<Self>, kind: CallKind) -> Result<AtDatabase, Busy> {
        let (there, most) = self.room_at_database(kind);
        let before = there.fetch_add(1, Ordering::Relaxed);
        let one = AtDatabase {
            load: Arc::clone(self),
            kind,
        };
        if kind == CallKind::News || most == 0 || before < most {
            return Ok(one);
        }
        self.told.database.increment(1);
        Err(self.busy(kind))
    }

    /// How many calls there are at the database that share the room of a kind, and how many of them may ask; 0 is without limit.
    fn room_at_database(&self, kind: CallKind) -> (&AtomicU32, u32) {
        let calls = self.settings.calls;
        match kind {
            CallKind::Quiet | CallKind::News => (&self.at_database, calls.div_ceil(2)),
            CallKind::Eim => (&self.eim_at_database, calls.div_ceil(4)),
        }
    }

    /// When a call should be tried again that is refused now because there is too much to do. One that comes back at its own
    /// pace would only keep a place that others wait behind.
    pub fn busy(&self, kind: CallKind) -> Busy {
        match kind {
            CallKind::Quiet => self.again(self.line.join(Instant::now())),
            CallKind::Eim => self.again(SOON),
            // Few tell something, and they go first.
            CallKind::News => self.again(SOON.mul_f64(1.0 + 9.0 * self.pressure())),
        }
    }
}

/// A call that was taken on and is not answered yet.
#[derive(Debug)]
pub struct Inside {
    load: Arc<Load>,
    kind: CallKind,
}

impl Inside {
    /// After what time to try again, if it is refused after all.
    pub fn again(&self) -> Duration {
        self.load.busy(self.kind).again
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.load.entered.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that is at the database, or waits for that.
#[derive(Debug)]
pub struct AtDatabase {
    load: Arc<Load>,
    kind: CallKind,
}

impl Drop for AtDatabase {
    fn drop(&mut self) {
        let (there, _) = self.load.room_at_database(self.kind);
        there.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that was taken on and is held.
#[derive(Debug)]
pub struct Aside(Arc<Load>);

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.aside.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that was taken on and whose message has not come.
#[derive(Debug)]
pub struct Late(Arc<Load>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.arriving.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a call is taken on beside those that are under way.
fn has_room(settings: &LoadSettings, kind: CallKind, inside: u32) -> bool {
    let calls = settings.calls;
    if calls == 0 {
        return true;
    }
    match kind {
        CallKind::Quiet | CallKind::Eim => inside < calls,
        CallKind::News => inside < settings.calls_of_any_kind.max(calls),
    }
}

/// A time between half and one and a half of another: those who are refused at once do not come back at once.
fn draw(base: Duration, noise: u32) -> Duration {
    base / 2 + base.mul_f64(f64::from(noise) / f64::from(u32::MAX))
}
