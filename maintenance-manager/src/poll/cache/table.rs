//! The table of cached answers: one slot per host, indexed by host, instance and UUID.

use std::sync::Arc;

use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, InstanceId};
use hashbrown::HashTable;

use super::answers::InternedAnswers;
use super::recent_changes::{ChangedEntity, RecentChanges};
use super::scopes::{AnswerDependencies, InvalidationScopes};
use super::{
    CacheKey, CacheSizes, CachedAnswer, InvalidationScope, LiveNode, Lookup, NewAnswer, Pass,
};
use crate::evaluate::Answer;

const NO_SLOT: u32 = u32::MAX;

/// The cached answer of one node. A node has one answer only: for our own agent or for EIM's.
#[derive(Debug)]
struct CacheSlot {
    /// The hash of its UUID; 0 for our own agent.
    uuid_hash: u64,
    key_digest: [u64; 2],
    /// When the answer expires, in milliseconds since 1970.
    valid_until_millis: i64,
    /// `None` in a free slot.
    answer: Option<Arc<Answer>>,
    /// The bits of its host id; in a free slot the index of the next free one.
    host: u32,
    instance: u32,
    tenant: u32,
    scope: u32,
    waiting_for: u32,
    /// The last pass before the answer was read.
    as_of: u32,
    /// When the answer expires, in seconds by the monotonic clock.
    expires_at_second: u32,
    /// Whether a heartbeat of the node found nothing to write since then.
    heartbeat_seen: bool,
}

const _: () = assert!(size_of::<CacheSlot>() <= 72);

/// The current time, by the wall clock and by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct CacheTime {
    /// Milliseconds since 1970.
    pub millis: i64,
    /// Seconds since the cache was created.
    pub seconds: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum SlotKey {
    /// The bits of the host id.
    Host(u32),
    /// The hash of the UUID, not 0.
    Uuid(u64),
}

/// An answer to be cached.
#[derive(Debug)]
pub struct CacheEntry {
    /// The answer, with what it depends on.
    pub new_answer: NewAnswer,
    /// The hash of the UUID; 0 for our own agent.
    pub uuid_hash: u64,
    pub answer_hash: u64,
    /// When the answer expires.
    pub valid_until: Time,
    /// The same in milliseconds since 1970.
    pub valid_until_millis: i64,
    /// When the answer expires, in seconds by the monotonic clock.
    pub expires_at_second: u32,
    /// Whether changes are noticed at all, and the answer has not expired.
    pub is_cacheable: bool,
}

/// All cached answers.
#[derive(Debug)]
pub struct CacheTable {
    /// The scopes of projects and sites.
    pub scopes: InvalidationScopes,
    slots: Vec<CacheSlot>,
    /// The first free slot.
    first_free: u32,
    used: usize,
    by_host: HashTable<u32>,
    by_instance: HashTable<u32>,
    by_uuid: HashTable<u32>,
    answers: InternedAnswers,
    recent_changes: RecentChanges,
    /// The number of the last pass.
    pass: u32,
    /// The last pass that invalidated everything.
    invalidated_pass: u32,
    /// Whether an entity was invalidated under the number of the next pass.
    has_changes_of_next_pass: bool,
}

impl CacheTable {
    /// An empty table with a limit for the memory of the answers in bytes; 0 means no limit.
    pub fn new(memory_limit: u64) -> Self {
        Self {
            scopes: InvalidationScopes::default(),
            slots: Vec::new(),
            first_free: NO_SLOT,
            used: 0,
            by_host: HashTable::new(),
            by_instance: HashTable::new(),
            by_uuid: HashTable::new(),
            answers: InternedAnswers::new(memory_limit),
            recent_changes: RecentChanges::default(),
            pass: 0,
            invalidated_pass: 0,
            has_changes_of_next_pass: false,
        }
    }

    /// Looks up the answer of a node.
    pub fn lookup(
        &self,
        tenant: u32,
        key: SlotKey,
        cache_key: &CacheKey,
        now: CacheTime,
    ) -> Lookup {
        let slot = self.find(tenant, key).filter(|slot| {
            let is_expired =
                slot.valid_until_millis <= now.millis || slot.expires_at_second <= now.seconds;
            !is_expired && self.is_valid(slot)
        });
        let Some(slot) = slot else {
            return Lookup::Miss;
        };
        let waiting_changed = slot.waiting_for != cache_key.waiting_for;
        if waiting_changed || slot.key_digest != cache_key.digest {
            return Lookup::OtherKey { waiting_changed };
        }
        let until = Time::from_timestamp_millis(slot.valid_until_millis);
        let answer = slot.answer.as_ref().map(Arc::clone);
        let Some((until, answer)) = until.zip(answer) else {
            return Lookup::Miss;
        };
        Lookup::Hit(CachedAnswer {
            answer,
            host: HostId::from_bits(slot.host),
            instance: InstanceId::from_bits(slot.instance),
            scope: InvalidationScope(slot.scope),
            valid_until: until,
            is_cached: true,
        })
    }

    /// Caches an answer, if none of its dependencies can have changed since it was read.
    pub fn insert(&mut self, entry: CacheEntry) -> CachedAnswer {
        let new_answer = &entry.new_answer;
        let tenant = self.scopes.tenant(new_answer.node.tenant());
        let scope = self.scopes.scope(tenant, new_answer.site);
        let dependencies =
            AnswerDependencies { tenant, scope, limit_scope: new_answer.answer.limit_scope };
        let stale = self.invalidated_pass.max(self.scopes.last_changed(dependencies));
        let common = AnswerDependencies { limit_scope: None, ..dependencies };
        let common = self.invalidated_pass.max(self.scopes.last_changed(common));
        let has_room = self.answers.has_room(entry.answer_hash, &new_answer.answer);
        if !has_room && let Some(at) = self.index_of_instance(tenant, new_answer.instance.bits()) {
            // The previous answer uses memory as well.
            if let Some(slot) = self.slots.get_mut(at as usize) {
                slot.answer = None;
            }
        }
        let is_cacheable = entry.is_cacheable && has_room;
        let as_of = new_answer.as_of.map(|Pass(as_of)| as_of).filter(|as_of| {
            is_cacheable && *as_of >= stale && self.is_unchanged_since(tenant, new_answer, *as_of)
        });
        let CacheEntry { new_answer, .. } = entry;
        let (host, instance) = (new_answer.host, new_answer.instance);
        let answer = match as_of {
            Some(as_of) => {
                self.scopes.add_regions(scope, &new_answer.regions, common);
                let answer = self.answers.intern(entry.answer_hash, new_answer.answer);
                self.store_slot(CacheSlot {
                    uuid_hash: entry.uuid_hash,
                    key_digest: new_answer.cache_key.digest,
                    valid_until_millis: entry.valid_until_millis,
                    answer: Some(Arc::clone(&answer)),
                    host: host.bits(),
                    instance: instance.bits(),
                    tenant,
                    scope: scope.0,
                    waiting_for: new_answer.cache_key.waiting_for,
                    as_of,
                    expires_at_second: entry.expires_at_second,
                    heartbeat_seen: false,
                });
                answer
            }
            None => Arc::new(new_answer.answer),
        };
        CachedAnswer {
            answer,
            host,
            instance,
            scope,
            valid_until: entry.valid_until,
            is_cached: as_of.is_some(),
        }
    }

    /// The node, if its heartbeats found nothing to write since its answer was cached. Changes of
    /// its site or project do not matter for heartbeats.
    pub fn live_node(&self, tenant: u32, key: SlotKey, seconds: u32) -> Option<LiveNode> {
        let slot = self.find(tenant, key)?;
        let is_live = slot.heartbeat_seen
            && seconds < slot.expires_at_second
            && self.invalidated_pass <= slot.as_of;
        is_live.then(|| LiveNode {
            host: HostId::from_bits(slot.host),
            instance: InstanceId::from_bits(slot.instance),
        })
    }

    /// Records that a heartbeat that queried the database after a pass found nothing to write.
    pub fn record_heartbeat(&mut self, tenant: u32, key: SlotKey, live_node: LiveNode, as_of: u32) {
        let LiveNode { host, instance } = live_node;
        let node = [ChangedEntity::Host(host.bits()), ChangedEntity::Instance(instance.bits())];
        let is_unchanged = node
            .into_iter()
            .all(|entity| self.recent_changes.is_unchanged_since(tenant, entity, as_of));
        let at = match key {
            SlotKey::Host(host) => self.index_of_host(tenant, host),
            SlotKey::Uuid(uuid) => self.index_of_uuid(tenant, uuid),
        };
        let slot = at.and_then(|at| self.slots.get_mut(at as usize));
        let same = (host.bits(), instance.bits());
        let slot = slot.filter(|slot| is_unchanged && (slot.host, slot.instance) == same);
        if let Some(slot) = slot {
            slot.heartbeat_seen = true;
        }
    }

    /// Whether neither the node nor its site and regions changed after a pass.
    fn is_unchanged_since(&self, tenant: u32, new_answer: &NewAnswer, as_of: u32) -> bool {
        let node = [
            ChangedEntity::Host(new_answer.host.bits()),
            ChangedEntity::Instance(new_answer.instance.bits()),
        ];
        let site = new_answer.site.map(|site| ChangedEntity::Site(site.bits()));
        let regions = new_answer.regions.iter();
        let regions = regions.map(|region| ChangedEntity::Region(region.bits()));
        node.into_iter()
            .chain(site)
            .chain(regions)
            .all(|entity| self.recent_changes.is_unchanged_since(tenant, entity, as_of))
    }

    /// Removes the answer of an entity, and records the change so that no older read is cached.
    pub fn invalidate_entity(&mut self, tenant: u32, entity: ChangedEntity, pass: u32) {
        self.recent_changes.record(tenant, entity, pass);
        let at = match entity {
            ChangedEntity::Host(host) => self.index_of_host(tenant, host),
            ChangedEntity::Instance(instance) => self.index_of_instance(tenant, instance),
            ChangedEntity::Site(_) | ChangedEntity::Region(_) => None,
        };
        if let Some(at) = at {
            self.free_slot(at);
        }
    }

    /// Invalidates a node after a local commit: reads in progress count as older than the next
    /// pass.
    pub fn invalidate_node(&mut self, tenant: u32, host: u32, instance: u32, seconds: u32) {
        self.recent_changes.rotate(seconds);
        self.has_changes_of_next_pass = true;
        let next = self.pass.saturating_add(1);
        self.invalidate_entity(tenant, ChangedEntity::Host(host), next);
        self.invalidate_entity(tenant, ChangedEntity::Instance(instance), next);
    }

    /// Begins the next pass, unless it would be the same as the last one.
    pub fn begin_pass(&mut self, has_changes: bool, seconds: u32) {
        self.recent_changes.rotate(seconds);
        if has_changes || self.has_changes_of_next_pass {
            self.pass = self.pass.saturating_add(1);
            self.has_changes_of_next_pass = false;
        }
    }

    /// The number of the current pass.
    pub fn current_pass(&self) -> u32 {
        self.pass
    }

    /// The number of the last pass, for a reader that queries the database now. After 2^32 passes
    /// there are no more numbers, and nothing more is cached.
    pub fn last_pass(&self) -> Option<Pass> {
        (self.pass < u32::MAX).then_some(Pass(self.pass))
    }

    /// Invalidates all answers.
    pub fn invalidate_all(&mut self) {
        self.pass = self.pass.saturating_add(1);
        self.has_changes_of_next_pass = false;
        self.invalidated_pass = self.pass;
    }

    pub fn sizes(&self) -> CacheSizes {
        let bytes = self.slots.capacity() * size_of::<CacheSlot>()
            + self.by_host.allocation_size()
            + self.by_instance.allocation_size()
            + self.by_uuid.allocation_size()
            + self.answers.bytes()
            + self.scopes.bytes()
            + self.recent_changes.bytes();
        CacheSizes {
            nodes: self.used,
            answers: self.answers.len(),
            scopes: self.scopes.len(),
            bytes,
        }
    }

    fn is_valid(&self, slot: &CacheSlot) -> bool {
        let limit_scope = slot.answer.as_ref().and_then(|answer| answer.limit_scope);
        let dependencies = AnswerDependencies {
            tenant: slot.tenant,
            scope: InvalidationScope(slot.scope),
            limit_scope,
        };
        slot.as_of >= self.invalidated_pass.max(self.scopes.last_changed(dependencies))
    }

    /// Stores a slot. There is one slot per host, per instance and per UUID.
    fn store_slot(&mut self, slot: CacheSlot) {
        let (tenant, instance) = (slot.tenant, slot.instance);
        let same = self.index_of_host(tenant, slot.host);
        if let Some(at) = same {
            let before = self.slots.get_mut(at as usize).filter(|before| {
                before.instance == slot.instance && before.uuid_hash == slot.uuid_hash
            });
            if let Some(before) = before {
                *before = slot;
                return;
            }
            self.free_slot(at);
        }
        if let Some(at) = self.index_of_instance(tenant, instance) {
            self.free_slot(at);
        }
        let uuid_hash = (slot.uuid_hash != 0).then_some(slot.uuid_hash);
        if let Some(at) = uuid_hash.and_then(|uuid| self.index_of_uuid(tenant, uuid)) {
            self.free_slot(at);
        }
        self.add_slot(slot);
    }

    fn add_slot(&mut self, slot: CacheSlot) {
        let at = match self.slots.get(self.first_free as usize) {
            Some(free) => {
                let at = self.first_free;
                self.first_free = free.host;
                at
            }
            None => match u32::try_from(self.slots.len()) {
                Ok(at) if at < NO_SLOT => at,
                _ => return,
            },
        };
        let hashes = (slot.host_hash(), slot.instance_hash(), slot.uuid_hash);
        if let Some(reused) = self.slots.get_mut(at as usize) {
            *reused = slot;
        } else {
            if self.slots.len() == self.slots.capacity() {
                // Doubling the capacity would reserve as much memory as is in use.
                self.slots.reserve_exact(self.slots.len() / 8 + 64);
            }
            self.slots.push(slot);
        }
        self.used += 1;
        let slots = &self.slots;
        let of =
            |hash: fn(&CacheSlot) -> u64| move |at: &u32| slots.get(*at as usize).map_or(0, hash);
        self.by_host.insert_unique(hashes.0, at, of(CacheSlot::host_hash));
        self.by_instance.insert_unique(hashes.1, at, of(CacheSlot::instance_hash));
        if hashes.2 != 0 {
            self.by_uuid.insert_unique(hashes.2, at, of(|slot: &CacheSlot| slot.uuid_hash));
        }
    }

    fn free_slot(&mut self, at: u32) {
        let Some(slot) = self.slots.get_mut(at as usize) else {
            return;
        };
        remove_index(&mut self.by_host, slot.host_hash(), at);
        remove_index(&mut self.by_instance, slot.instance_hash(), at);
        remove_index(&mut self.by_uuid, slot.uuid_hash, at);
        slot.answer = None;
        slot.uuid_hash = 0;
        slot.host = self.first_free;
        self.first_free = at;
        self.used -= 1;
    }

    fn find(&self, tenant: u32, key: SlotKey) -> Option<&CacheSlot> {
        let (at, uuid) = match key {
            SlotKey::Host(host) => (self.index_of_host(tenant, host)?, 0),
            SlotKey::Uuid(uuid) => (self.index_of_uuid(tenant, uuid)?, uuid),
        };
        let slot = self.slots.get(at as usize)?;
        (slot.uuid_hash == uuid).then_some(slot)
    }

    fn index_of_host(&self, tenant: u32, host: u32) -> Option<u32> {
        let is_it = |slot: &CacheSlot| (slot.tenant, slot.host) == (tenant, host);
        self.index_of(&self.by_host, hash_id(tenant, host), is_it)
    }

    fn index_of_instance(&self, tenant: u32, instance: u32) -> Option<u32> {
        let is_it = |slot: &CacheSlot| (slot.tenant, slot.instance) == (tenant, instance);
        self.index_of(&self.by_instance, hash_id(tenant, instance), is_it)
    }

    fn index_of_uuid(&self, tenant: u32, uuid: u64) -> Option<u32> {
        let is_it = |slot: &CacheSlot| (slot.tenant, slot.uuid_hash) == (tenant, uuid);
        self.index_of(&self.by_uuid, uuid, is_it)
    }

    fn index_of(
        &self,
        index: &HashTable<u32>,
        hash: u64,
        is_it: impl Fn(&CacheSlot) -> bool,
    ) -> Option<u32> {
        let index_found = index.find(hash, |at| self.slots.get(*at as usize).is_some_and(&is_it));
        index_found.copied()
    }
}

impl CacheSlot {
    fn host_hash(&self) -> u64 {
        hash_id(self.tenant, self.host)
    }

    fn instance_hash(&self) -> u64 {
        hash_id(self.tenant, self.instance)
    }
}

fn remove_index(index: &mut HashTable<u32>, hash: u64, at: u32) {
    if let Ok(entry) = index.find_entry(hash, |one| *one == at) {
        entry.remove();
    }
}

/// Spreads ids over all 64 bits. Clients cannot choose ids, so the hash needs no secret key.
fn hash_id(tenant: u32, bits: u32) -> u64 {
    let n = (u64::from(tenant) << 32) | u64::from(bits);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_is_cached_after_the_last_pass_number() {
        let mut table = CacheTable::new(0);
        assert_eq!(table.last_pass(), Some(Pass(0)));
        table.begin_pass(true, 0);
        assert_eq!(table.last_pass(), Some(Pass(1)));
        table.pass = u32::MAX;
        assert_eq!(table.last_pass(), None);
        table.begin_pass(true, 0);
        table.invalidate_all();
        assert_eq!(table.last_pass(), None);
    }

    #[test]
    fn consecutive_ids_are_spread() {
        let hashes: std::collections::HashSet<u64> = (0..1_000)
            .flat_map(|tenant| (0..100).map(move |id| hash_id(tenant, id) >> 32))
            .collect();
        assert!(hashes.len() > 99_900, "{}", hashes.len());
    }
}
