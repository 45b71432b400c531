//! Polls that are held: who waits, and what wakes it.
//!
//! Whoever holds a poll recalls its answer once more after it was registered here. What changed before that the recall
//! notices, and what changes later wakes it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::tenant::TenantId;
use metrics::{Counter, Gauge};
use serde::Deserialize;
use tokio::sync::Notify;

use crate::carried::Carried;
use crate::memory::Memory;
use crate::view::{Asked, Ground, Hit, Touched};

/// How many are woken at once of those that wait for a free slot of one assignment: the others would find it taken.
const FEW: usize = 16;

/// How polls are held until there is something to say.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HoldSettings {
    /// How long one is held at most.
    #[serde(with = "humantime_serde")]
    pub longest: Duration,
    /// How many are held at once; 0 to answer all at once.
    pub most: usize,
    /// How far apart the looks into the database are that one held poll causes.
    #[serde(with = "humantime_serde")]
    pub rest: Duration,
    /// How often it is seen in memory whether what a held poll goes by still holds: of those that wait for the same slots
    /// only a few are woken.
    #[serde(with = "humantime_serde")]
    pub recheck: Duration,
    /// How many are held at once that came over one connection: a proxy's has room for so many calls only.
    pub per_connection: u32,
}

impl Default for HoldSettings {
    fn default() -> Self {
        Self {
            longest: Duration::from_hours(1),
            most: 50_000,
            rest: Duration::from_secs(1),
            recheck: Duration::from_mins(4),
            per_connection: 16,
        }
    }
}

/// All polls that are held. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Holds(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: HoldSettings,
    memory: Memory,
    all: Mutex<All>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Metrics {
    held: Gauge,
    look: Counter,
    superseded: Counter,
    drain: Counter,
}

/// Why a held poll was woken. A later one outweighs an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Woken {
    /// Something changed that its answer depends on.
    Look,
    /// A newer poll of the same node is held instead of it.
    Superseded,
    /// The server stops.
    Drain,
}

/// A poll that is held, as long as this lives.
#[derive(Debug)]
pub struct Waiting {
    holds: Holds,
    number: u64,
    bell: Arc<Bell>,
}

/// What wakes one held poll. What was rung before anybody listened is not lost.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<Option<Woken>>,
    notify: Notify,
}

/// One held poll, and what its answer depends on.
#[derive(Debug)]
struct Held {
    who: (TenantId, HostId),
    asked: Asked,
    instance: InstanceId,
    ground: Ground,
    counted: Option<Scope>,
    bell: Arc<Bell>,
    _share: Option<Share>,
}

/// The place of one held poll among those of its connection.
#[derive(Debug)]
struct Share(Carried);

/// All of them by number, and their numbers by what may change.
#[derive(Debug, Default)]
struct All {
    held: BTreeMap<u64, Held>,
    hosts: HashMap<(TenantId, HostId), u64>,
    instances: HashMap<(TenantId, InstanceId), u64>,
    grounds: HashMap<Ground, Group>,
    tenants: HashMap<TenantId, Group>,
    counted: HashMap<(TenantId, Scope), Group>,
    last: u64,
    /// The last one that had its turn to be looked at, and the last one of this round: those who come meanwhile have theirs
    /// in the next.
    turn: u64,
    round: u64,
    is_draining: bool,
}

/// Those that depend on the same thing.
#[derive(Debug, Default)]
struct Group {
    members: BTreeSet<u64>,
    /// The last one that had its turn, where only a few are woken.
    turn: u64,
}

impl Holds {
    /// Without any yet. While memory is short none is added.
    pub fn new(settings: HoldSettings, memory: Memory) -> Self {
        let metrics = Metrics {
            held: metrics::gauge!("evenkeel_held_polls"),
            look: metrics::counter!("evenkeel_held_woken_total", "why" => "look"),
            superseded: metrics::counter!("evenkeel_held_woken_total", "why" => "superseded"),
            drain: metrics::counter!("evenkeel_held_woken_total", "why" => "drain"),
        };
        Self(Arc::new(Inner {
            settings,
            memory,
            all: Mutex::default(),
            metrics,
        }))
    }

    /// Registers a poll of a node, which supersedes an older one of the same. None if it is to be answered at once:
    /// changes of its answer would not be noticed, too many are held, here or over its connection, memory is short, or the
    /// server stops.
    pub fn hold(
        &self,
        (who, asked): ((TenantId, HostId), Asked),
        hit: &Hit,
        carried: Option<&Carried>,
    ) -> Option<Waiting> {
        let settings = &self.0.settings;
        let mut all = self.lock();
        let older = all.hosts.get(&who).copied();
        if let Some(older) = older.and_then(|number| all.take(number)) {
            older.bell.ring(Woken::Superseded);
            self.0.metrics.held.decrement(1.0);
        }
        let is_full = all.held.len() >= settings.most || self.0.memory.is_short();
        if !hit.kept || all.is_draining || is_full {
            return None;
        }
        let share = match carried {
            Some(carried) => Some(Share::of(carried, settings.per_connection)?),
            None => None,
        };
        let bell = Arc::<Bell>::default();
        let number = all.put(Held {
            who,
            asked,
            instance: hit.instance,
            ground: hit.ground,
            counted: in_line(hit),
            bell: Arc::clone(&bell),
            _share: share,
        });
        drop(all);
        self.0.metrics.held.increment(1.0);
        Some(Waiting {
            holds: self.clone(),
            number,
            bell,
        })
    }

    /// Wakes those whose answers may have changed. Of those that only wait for a free slot a few are woken, another few
    /// each time.
    pub fn wake(&self, touched: &Touched) {
        let bells = self.lock().touched(touched);
        for bell in bells {
            bell.ring(Woken::Look);
        }
    }

    /// Wakes those of a share whose answers do not hold any more, and nobody woke them: of those who depend on the same slots
    /// only a few are woken. All have had their turn after as many times as there are shares.
    pub fn recheck(&self, shares: usize, holds: impl Fn((TenantId, HostId), &Asked) -> bool) {
        let share = self.lock().next_share(shares);
        for (who, asked, bell) in share {
            if !holds(who, &asked) {
                bell.ring(Woken::Look);
            }
        }
    }

    /// Wakes all, for good: none is held from now on.
    pub fn drain(&self) {
        let drained = {
            let mut all = self.lock();
            let drained = std::mem::take(&mut *all);
            all.last = drained.last;
            all.is_draining = true;
            drained
        };
        for held in drained.held.values() {
            held.bell.ring(Woken::Drain);
            self.0.metrics.held.decrement(1.0);
        }
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.lock().held.len()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Waits until it is woken. What woke it before this was called is not lost, nor is it if this is given up.
    pub async fn woken(&mut self) -> Woken {
        loop {
            if let Some(woken) = self.bell.taken() {
                self.holds.0.metrics.woken(woken);
                return woken;
            }
            self.bell.notify.notified().await;
        }
    }

    /// Whether no newer poll of the node is held, or was, instead of it.
    pub fn is_last(&self) -> bool {
        let all = self.holds.lock();
        all.held.contains_key(&self.number) || all.is_draining
    }

    /// Goes on with another answer, which may depend on other things. What was to wake it still does.
    pub fn renew(&mut self, hit: &Hit) {
        let mut all = self.holds.lock();
        if let Some(held) = all.take(self.number) {
            self.number = all.put(Held {
                instance: hit.instance,
                ground: hit.ground,
                counted: in_line(hit),
                ..held
            });
        }
    }
}

/// The assignment that a node waits for a slot of, if that is all that it waits for: of the others under the assignment none
/// has anything of a slot that is free.
fn in_line(hit: &Hit) -> Option<Scope> {
    hit.answer.counted.filter(|_| hit.answer.in_line)
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let held = self.holds.lock().take(self.number);
        if held.is_some() {
            self.holds.0.metrics.held.decrement(1.0);
        }
    }
}

impl Bell {
    fn ring(&self, woken: Woken) {
        {
            let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
            *rung = (*rung).max(Some(woken));
        }
        self.notify.notify_one();
    }

    fn taken(&self) -> Option<Woken> {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        rung.take()
    }
}

impl Share {
    /// None if the connection carries as many as it may. Only called under the lock of all.
    fn of(carried: &Carried, most: u32) -> Option<Self> {
        if carried.held() >= most {
            return None;
        }
        carried.hold();
        Some(Self(carried.clone()))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Metrics {
    fn woken(&self, woken: Woken) {
        let counter = match woken {
            Woken::Look => &self.look,
            Woken::Superseded => &self.superseded,
            Woken::Drain => &self.drain,
        };
        counter.increment(1);
    }
}

impl All {
    fn put(&mut self, held: Held) -> u64 {
        self.last += 1;
        let (number, tenant) = (self.last, held.who.0);
        self.hosts.insert(held.who, number);
        self.instances.insert((tenant, held.instance), number);
        join(&mut self.grounds, held.ground, number);
        join(&mut self.tenants, tenant, number);
        if let Some(scope) = held.counted {
            join(&mut self.counted, (tenant, scope), number);
        }
        self.held.insert(number, held);
        number
    }

    fn take(&mut self, number: u64) -> Option<Held> {
        let held = self.held.remove(&number)?;
        let tenant = held.who.0;
        let instance = (tenant, held.instance);
        // A newer one may stand there.
        if self.hosts.get(&held.who) == Some(&number) {
            self.hosts.remove(&held.who);
        }
        if self.instances.get(&instance) == Some(&number) {
            self.instances.remove(&instance);
        }
        leave(&mut self.grounds, &held.ground, number);
        leave(&mut self.tenants, &tenant, number);
        if let Some(scope) = held.counted {
            leave(&mut self.counted, &(tenant, scope), number);
        }
        Some(held)
    }

    fn next_share(&mut self, shares: usize) -> Vec<((TenantId, HostId), Asked, Arc<Bell>)> {
        if self.round <= self.turn {
            (self.turn, self.round) = (0, self.last);
        }
        let count = self.held.len().div_ceil(shares.max(1));
        let left = self
            .held
            .range(self.turn + 1..=self.round.max(self.turn + 1));
        let share: Vec<_> = left.take(count).collect();
        self.turn = match share.last() {
            Some((number, _)) if share.len() == count => **number,
            _ => self.round,
        };
        let share = share.into_iter();
        share
            .map(|(_, held)| (held.who, held.asked, Arc::clone(&held.bell)))
            .collect()
    }

    /// The bells are rung without the lock: whoever is woken may want it at once.
    fn touched(&mut self, touched: &Touched) -> Vec<Arc<Bell>> {
        let bell = |held: &Held| Arc::clone(&held.bell);
        if touched.all {
            return self.held.values().map(bell).collect();
        }
        let mut numbers: Vec<u64> = Vec::new();
        let hosts = touched.hosts.iter();
        numbers.extend(hosts.filter_map(|host| self.hosts.get(host)));
        let instances = touched.instances.iter();
        numbers.extend(instances.filter_map(|instance| self.instances.get(instance)));
        let grounds = touched.grounds.iter();
        let grounds = grounds.filter_map(|ground| self.grounds.get(ground));
        numbers.extend(grounds.flat_map(|group| &group.members));
        let tenants = touched.tenants.iter();
        let tenants = tenants.filter_map(|tenant| self.tenants.get(tenant));
        numbers.extend(tenants.flat_map(|group| &group.members));
        // Several slots of one assignment may have changed at once.
        let scopes: HashSet<_> = touched.counted.iter().collect();
        for scope in scopes {
            if let Some(group) = self.counted.get_mut(scope) {
                numbers.extend(group.next_few());
            }
        }
        let held = numbers.iter().filter_map(|number| self.held.get(number));
        held.map(bell).collect()
    }
}

impl Group {
    /// The next few in turn, so that all have theirs some time.
    fn next_few(&mut self) -> Vec<u64> {
        let later = self.members.range(self.turn + 1..);
        let earlier = self.members.range(..=self.turn);
        let few: Vec<u64> = later.chain(earlier).take(FEW).copied().collect();
        self.turn = few.last().copied().unwrap_or(self.turn);
        few
    }
}

fn join<K: Eq + Hash>(groups: &mut HashMap<K, Group>, key: K, number: u64) {
    groups.entry(key).or_default().members.insert(number);
}

fn leave<K: Eq + Hash>(groups: &mut HashMap<K, Group>, key: &K, number: u64) {
    if let Some(group) = groups.get_mut(key) {
        group.members.remove(&number);
        if group.members.is_empty() {
            groups.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
