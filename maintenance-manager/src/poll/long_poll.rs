//! Registers long polls and wakes them.
//!
//! A long poll looks its answer up in the cache once more after it was registered. That finds
//! changes from before the registration; later changes wake it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::tenant::TenantId;
use metrics::{Counter, Gauge};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::admission::connection::ConnectionState;
use crate::admission::semaphore::UnitPermit;
use crate::memory::MemoryPressure;
use crate::poll::cache::{CacheKey, CachedAnswer, Invalidation, InvalidationScope};

/// How many of the polls that wait for a slot of one assignment are woken at once, however many
/// slots are free.
const MAX_SLOT_WAITERS_WOKEN: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LongPollSettings {
    /// Maximum duration of a long poll. Must be shorter than `southbound.request_timeout`.
    #[serde(with = "humantime_serde")]
    pub max_duration: Duration,
    /// Maximum number of open long polls; 0 disables them.
    pub max_polls: usize,
    /// Minimum interval between two database queries of one long poll.
    #[serde(with = "humantime_serde")]
    pub min_query_interval: Duration,
    /// Interval at which each long poll is checked against the answer cache. Polls that wait for the
    /// same slots need this check, because a free slot wakes only a few of them.
    #[serde(with = "humantime_serde")]
    pub recheck_interval: Duration,
    /// Maximum number of long polls on one connection. Must be lower than
    /// `southbound.max_calls_per_connection`. Proxies limit the calls per connection as well.
    pub max_per_connection: u32,
}

impl Default for LongPollSettings {
    fn default() -> Self {
        Self {
            max_duration: Duration::from_hours(1),
            max_polls: 50_000,
            min_query_interval: Duration::from_secs(1),
            recheck_interval: Duration::from_mins(4),
            max_per_connection: 16,
        }
    }
}

/// All long polls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LongPolls(Arc<LongPollsInner>);

#[derive(Debug)]
struct LongPollsInner {
    settings: LongPollSettings,
    memory: MemoryPressure,
    registry: Mutex<LongPollRegistry>,
    metrics: LongPollMetrics,
}

#[derive(Debug)]
struct LongPollMetrics {
    open: Gauge,
    recheck: Counter,
    superseded: Counter,
    draining: Counter,
}

/// Why a long poll was woken. If there are several reasons, the greatest wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeReason {
    /// Something changed that its answer depends on.
    Recheck,
    /// A newer poll of the same node replaced it.
    Superseded,
    /// The server stops.
    Draining,
}

/// A registered long poll. Dropping the handle removes it.
#[derive(Debug)]
pub struct LongPollHandle {
    long_polls: LongPolls,
    number: u64,
    signal: Arc<WakeSignal>,
}

/// Wakes one long poll. A signal that is sent before the poll waits is not lost.
#[derive(Debug, Default)]
struct WakeSignal {
    pending: Mutex<Option<WakeReason>>,
    notify: Notify,
}

/// A long poll, and what its answer depends on.
#[derive(Debug)]
struct LongPollEntry {
    node: (TenantId, HostId),
    cache_key: CacheKey,
    instance: InstanceId,
    scope: InvalidationScope,
    awaited_slot: Option<Scope>,
    signal: Arc<WakeSignal>,
    _connection_permit: Option<UnitPermit>,
}

/// All long polls by number, and indexes by what may change.
#[derive(Debug, Default)]
struct LongPollRegistry {
    polls: BTreeMap<u64, LongPollEntry>,
    hosts: HashMap<(TenantId, HostId), u64>,
    instances: HashMap<(TenantId, InstanceId), u64>,
    scopes: HashMap<InvalidationScope, PollGroup>,
    tenants: HashMap<TenantId, PollGroup>,
    slot_waiters: HashMap<(TenantId, Scope), PollGroup>,
    last_number: u64,
    /// The last poll that was rechecked, and the last one of this round. Polls registered later are
    /// rechecked in the next round.
    last_rechecked: u64,
    round_end: u64,
    is_draining: bool,
}

/// The polls that depend on the same thing.
#[derive(Debug, Default)]
struct PollGroup {
    members: BTreeSet<u64>,
    /// The last member that was woken, if only a few are woken at a time.
    last_woken: u64,
    unclaimed: UnclaimedSlots,
}

/// Slots for which members of a group were woken, and which no node has taken yet. A woken node may
/// have lost its connection, or may not be ready to start.
#[derive(Debug, Default)]
struct UnclaimedSlots {
    slots: usize,
    /// How many members the next attempt wakes at most.
    next_batch: usize,
    /// How many members were not woken for them yet.
    waiters_left: usize,
}

impl LongPolls {
    /// Without polls. No poll is registered while memory is short.
    pub fn new(settings: LongPollSettings, memory: MemoryPressure) -> Self {
        let metrics = LongPollMetrics {
            open: metrics::gauge!("evenkeel_long_poll_open"),
            recheck: metrics::counter!("evenkeel_long_poll_wakeups_total", "reason" => "recheck"),
            superseded: metrics::counter!("evenkeel_long_poll_wakeups_total", "reason" => "superseded"),
            draining: metrics::counter!("evenkeel_long_poll_wakeups_total", "reason" => "draining"),
        };
        Self(Arc::new(LongPollsInner { settings, memory, registry: Mutex::default(), metrics }))
    }

    /// Registers a poll, which replaces an older one of the same node. Returns `None` if the poll
    /// must be answered at once: its answer is not cached, there are too many polls in all or on
    /// its connection, memory is short, or the server stops.
    pub fn register(
        &self,
        (node, cache_key): ((TenantId, HostId), CacheKey),
        cached: &CachedAnswer,
        connection: Option<&ConnectionState>,
    ) -> Option<LongPollHandle> {
        let settings = &self.0.settings;
        let mut registry = self.lock();
        let older = registry.hosts.get(&node).copied();
        if let Some(older) = older.and_then(|number| registry.remove(number)) {
            older.signal.signal(WakeReason::Superseded);
            self.0.metrics.open.decrement(1.0);
        }
        let is_full = registry.polls.len() >= settings.max_polls || self.0.memory.is_short();
        if !cached.is_cached || registry.is_draining || is_full {
            return None;
        }
        let connection_permit = match connection {
            Some(connection) => Some(connection.acquire_long_poll(settings.max_per_connection)?),
            None => None,
        };
        let signal = Arc::<WakeSignal>::default();
        let number = registry.insert(LongPollEntry {
            node,
            cache_key,
            instance: cached.instance,
            scope: cached.scope,
            awaited_slot: awaited_slot(cached),
            signal: Arc::clone(&signal),
            _connection_permit: connection_permit,
        });
        drop(registry);
        self.0.metrics.open.increment(1.0);
        Some(LongPollHandle { long_polls: self.clone(), number, signal })
    }

    /// Wakes the polls whose answers may have changed. Of those that wait only for a slot, as many
    /// are woken as slots were freed, in turn: the others would find the slot taken.
    pub fn wake(&self, invalidation: &Invalidation) {
        let signals = self.lock().affected_signals(invalidation);
        for signal in signals {
            signal.signal(WakeReason::Recheck);
        }
    }

    /// Wakes those of the next share of polls whose answers are no longer valid although no change
    /// woke them. Every poll is checked once in `shares` calls. Also wakes further polls for freed
    /// slots that no node has taken.
    pub fn recheck(&self, shares: usize, is_valid: impl Fn((TenantId, HostId), &CacheKey) -> bool) {
        let unclaimed = self.lock().signals_for_unclaimed_slots();
        for signal in unclaimed {
            signal.signal(WakeReason::Recheck);
        }
        let share = self.lock().next_share(shares);
        for (node, cache_key, signal) in share {
            if !is_valid(node, &cache_key) {
                signal.signal(WakeReason::Recheck);
            }
        }
    }

    /// Wakes all polls and accepts no more.
    pub fn drain(&self) {
        let drained = {
            let mut registry = self.lock();
            let drained = std::mem::take(&mut *registry);
            registry.last_number = drained.last_number;
            registry.is_draining = true;
            drained
        };
        for entry in drained.polls.values() {
            entry.signal.signal(WakeReason::Draining);
            self.0.metrics.open.decrement(1.0);
        }
    }

    /// The number of long polls.
    pub fn len(&self) -> usize {
        self.lock().polls.len()
    }

    fn lock(&self) -> MutexGuard<'_, LongPollRegistry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LongPollHandle {
    /// Waits for a wake-up. A wake-up before the call is not lost, nor is one if the future is
    /// dropped.
    pub async fn next_wake(&mut self) -> WakeReason {
        loop {
            if let Some(reason) = self.signal.take() {
                self.long_polls.0.metrics.record(reason);
                return reason;
            }
            self.signal.notify.notified().await;
        }
    }

    /// Whether no newer poll of the node has replaced this one.
    pub fn is_current(&self) -> bool {
        let registry = self.long_polls.lock();
        registry.polls.contains_key(&self.number) || registry.is_draining
    }

    /// Continues with another answer, which may depend on other things. Pending wake-ups are kept.
    pub fn update(&mut self, cached: &CachedAnswer) {
        let mut registry = self.long_polls.lock();
        if let Some(entry) = registry.remove(self.number) {
            self.number = registry.insert(LongPollEntry {
                instance: cached.instance,
                scope: cached.scope,
                awaited_slot: awaited_slot(cached),
                ..entry
            });
        }
    }
}

/// The assignment whose free slot the node waits for, if it waits for nothing else. A free slot
/// does not change the answers of the other nodes of the assignment.
fn awaited_slot(cached: &CachedAnswer) -> Option<Scope> {
    cached.answer.limit_scope.filter(|_| cached.answer.waits_for_slot)
}

impl Drop for LongPollHandle {
    fn drop(&mut self) {
        let entry = self.long_polls.lock().remove(self.number);
        if entry.is_some() {
            self.long_polls.0.metrics.open.decrement(1.0);
        }
    }
}

impl WakeSignal {
    fn signal(&self, reason: WakeReason) {
        {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            *pending = (*pending).max(Some(reason));
        }
        self.notify.notify_one();
    }

    fn take(&self) -> Option<WakeReason> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.take()
    }
}

impl LongPollMetrics {
    fn record(&self, reason: WakeReason) {
        let counter = match reason {
            WakeReason::Recheck => &self.recheck,
            WakeReason::Superseded => &self.superseded,
            WakeReason::Draining => &self.draining,
        };
        counter.increment(1);
    }
}

impl LongPollRegistry {
    fn insert(&mut self, entry: LongPollEntry) -> u64 {
        self.last_number += 1;
        let (number, tenant) = (self.last_number, entry.node.0);
        self.hosts.insert(entry.node, number);
        self.instances.insert((tenant, entry.instance), number);
        add_member(&mut self.scopes, entry.scope, number);
        add_member(&mut self.tenants, tenant, number);
        if let Some(scope) = entry.awaited_slot {
            add_member(&mut self.slot_waiters, (tenant, scope), number);
        }
        self.polls.insert(number, entry);
        number
    }

    fn remove(&mut self, number: u64) -> Option<LongPollEntry> {
        let entry = self.polls.remove(&number)?;
        let tenant = entry.node.0;
        let instance = (tenant, entry.instance);
        // A newer poll may have taken this entry.
        if self.hosts.get(&entry.node) == Some(&number) {
            self.hosts.remove(&entry.node);
        }
        if self.instances.get(&instance) == Some(&number) {
            self.instances.remove(&instance);
        }
        remove_member(&mut self.scopes, &entry.scope, number);
        remove_member(&mut self.tenants, &tenant, number);
        if let Some(scope) = entry.awaited_slot {
            remove_member(&mut self.slot_waiters, &(tenant, scope), number);
        }
        Some(entry)
    }

    fn next_share(
        &mut self,
        shares: usize,
    ) -> Vec<((TenantId, HostId), CacheKey, Arc<WakeSignal>)> {
        if self.round_end <= self.last_rechecked {
            (self.last_rechecked, self.round_end) = (0, self.last_number);
        }
        let count = self.polls.len().div_ceil(shares.max(1));
        let left =
            self.polls.range(self.last_rechecked + 1..=self.round_end.max(self.last_rechecked + 1));
        let share: Vec<_> = left.take(count).collect();
        self.last_rechecked = match share.last() {
            Some((number, _)) if share.len() == count => **number,
            _ => self.round_end,
        };
        let share = share.into_iter();
        share.map(|(_, entry)| (entry.node, entry.cache_key, Arc::clone(&entry.signal))).collect()
    }

    /// The signals are sent after the lock is released, because a woken poll may need it at once.
    fn affected_signals(&mut self, invalidation: &Invalidation) -> Vec<Arc<WakeSignal>> {
        let signal = |entry: &LongPollEntry| Arc::clone(&entry.signal);
        if invalidation.all {
            return self.polls.values().map(signal).collect();
        }
        let mut numbers: Vec<u64> = Vec::new();
        let hosts = invalidation.hosts.iter();
        numbers.extend(hosts.filter_map(|host| self.hosts.get(host)));
        let instances = invalidation.instances.iter();
        numbers.extend(instances.filter_map(|instance| self.instances.get(instance)));
        let groups = invalidation.scopes.iter();
        let groups = groups.filter_map(|scope| self.scopes.get(scope));
        numbers.extend(groups.flat_map(|group| &group.members));
        let tenants = invalidation.tenants.iter();
        let tenants = tenants.filter_map(|tenant| self.tenants.get(tenant));
        numbers.extend(tenants.flat_map(|group| &group.members));
        for scope in &invalidation.taken_slots {
            if let Some(group) = self.slot_waiters.get_mut(scope) {
                group.unclaimed.slots = group.unclaimed.slots.saturating_sub(1);
            }
        }
        let mut freed_slots: HashMap<_, usize> = HashMap::new();
        for scope in &invalidation.freed_slots {
            *freed_slots.entry(scope).or_default() += 1;
        }
        for (scope, count) in freed_slots {
            if let Some(group) = self.slot_waiters.get_mut(scope) {
                numbers.extend(group.wake_for_freed_slots(count));
            }
        }
        let entries = numbers.iter().filter_map(|number| self.polls.get(number));
        entries.map(signal).collect()
    }

    /// The signals of further polls that wait for a freed slot, if none of the woken nodes has
    /// taken it.
    fn signals_for_unclaimed_slots(&mut self) -> Vec<Arc<WakeSignal>> {
        let groups = self.slot_waiters.values_mut();
        let numbers: Vec<u64> = groups.flat_map(PollGroup::wake_for_unclaimed_slots).collect();
        let entries = numbers.iter().filter_map(|number| self.polls.get(number));
        entries.map(|entry| Arc::clone(&entry.signal)).collect()
    }
}

impl PollGroup {
    /// As many members as there are free slots.
    fn wake_for_freed_slots(&mut self, count: usize) -> Vec<u64> {
        self.unclaimed.slots += count;
        self.unclaimed.waiters_left = self.members.len();
        self.unclaimed.next_batch = self.unclaimed.slots;
        self.next_waiters()
    }

    /// Further members while a slot is free, twice as many each time. Each member is woken once at
    /// most: afterwards the slot is not free, or no member can use it.
    fn wake_for_unclaimed_slots(&mut self) -> Vec<u64> {
        if self.unclaimed.slots == 0 || self.unclaimed.waiters_left == 0 {
            self.unclaimed = UnclaimedSlots::default();
            return Vec::new();
        }
        self.next_waiters()
    }

    /// The next few members in turn, so that each is woken at some time.
    fn next_waiters(&mut self) -> Vec<u64> {
        let unclaimed = &mut self.unclaimed;
        let count = unclaimed.next_batch.min(MAX_SLOT_WAITERS_WOKEN).min(unclaimed.waiters_left);
        let later = self.members.range(self.last_woken + 1..);
        let earlier = self.members.range(..=self.last_woken);
        let next: Vec<u64> = later.chain(earlier).take(count).copied().collect();
        self.last_woken = next.last().copied().unwrap_or(self.last_woken);
        unclaimed.waiters_left -= count;
        unclaimed.next_batch = unclaimed.next_batch.min(MAX_SLOT_WAITERS_WOKEN) * 2;
        next
    }
}

fn add_member<K: Eq + Hash>(groups: &mut HashMap<K, PollGroup>, key: K, number: u64) {
    groups.entry(key).or_default().members.insert(number);
}

fn remove_member<K: Eq + Hash>(groups: &mut HashMap<K, PollGroup>, key: &K, number: u64) {
    if let Some(group) = groups.get_mut(key) {
        group.members.remove(&number);
        if group.members.is_empty() {
            groups.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
