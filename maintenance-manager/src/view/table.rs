//! The memos themselves: one slot a host, found by its host, its instance and its UUID.

use std::sync::Arc;

use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, InstanceId};
use hashbrown::HashTable;

use super::answers::Answers;
use super::grounds::{Grounded, Grounds};
use super::recent::{Recent, Thing};
use super::{Alive, Answer, Asked, Ground, Hit, Learnt, Pass, Recall, Sizes};

/// No slot.
const NONE: u32 = u32::MAX;

/// What is remembered of one node. It speaks as ours or as the ancestor's: only one of them is told anything.
#[derive(Debug)]
struct Slot {
    /// Whether this is the one that its UUID is found by; 0 if it spoke as ours.
    uuid: u64,
    asked: [u64; 2],
    /// Before which instant the answer holds, in milliseconds.
    until: i64,
    /// None in a slot that is free.
    answer: Option<Arc<Answer>>,
    /// The bits of its host; the next free slot in one that is free.
    host: u32,
    instance: u32,
    tenant: u32,
    ground: u32,
    waits: u32,
    /// The last pass before it was learnt.
    as_of: u32,
    /// Before which second it holds, by a clock that nobody sets.
    ends: u32,
    /// Whether a heartbeat of the node had nothing to say since.
    beats: bool,
}

const _: () = assert!(size_of::<Slot>() <= 72);

/// An instant, by the clock of the world and by one that nobody sets.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Milliseconds of the world.
    pub millis: i64,
    /// Seconds since the view was made.
    pub seconds: u32,
}

/// What a node is found by.
#[derive(Clone, Copy, Debug)]
pub enum Named {
    /// The bits of its host.
    Host(u32),
    /// A number made of its UUID, not 0.
    Uuid(u64),
}

/// What is to be remembered.
#[derive(Debug)]
pub struct Entry {
    /// What was learnt.
    pub learnt: Learnt,
    /// A number made of its UUID; 0 if it speaks as ours.
    pub uuid: u64,
    /// A number made of the answer.
    pub likeness: u64,
    /// Before which instant it holds.
    pub until: Time,
    /// The same in milliseconds.
    pub millis: i64,
    /// Before which second it holds.
    pub ends: u32,
    /// Whether changes of it would be noticed at all, and it is not over.
    pub may_keep: bool,
}

/// All memos.
#[derive(Debug)]
pub struct Table {
    /// The projects and the places.
    pub grounds: Grounds,
    slots: Vec<Slot>,
    /// The first slot that is free.
    free: u32,
    used: usize,
    by_host: HashTable<u32>,
    by_instance: HashTable<u32>,
    by_uuid: HashTable<u32>,
    answers: Answers,
    recent: Recent,
    /// The number of the last pass.
    pass: u32,
    /// The last pass that changed everything.
    all: u32,
    /// Something was forgotten under the number of the next pass.
    is_ahead: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            grounds: Grounds::default(),
            slots: Vec::new(),
            free: NONE,
            used: 0,
            by_host: HashTable::new(),
            by_instance: HashTable::new(),
            by_uuid: HashTable::new(),
            answers: Answers::default(),
            recent: Recent::default(),
            pass: 0,
            all: 0,
            is_ahead: false,
        }
    }
}

impl Table {
    /// What is remembered of a node.
    pub fn recall(&self, tenant: u32, named: Named, asked: &Asked, now: Moment) -> Recall {
        let slot = self.find(tenant, named).filter(|slot| {
            let is_over = slot.until <= now.millis || slot.ends <= now.seconds;
            !is_over && self.holds(slot)
        });
        let Some(slot) = slot else {
            return Recall::Unknown;
        };
        let waits = slot.waits != asked.waits;
        if waits || slot.asked != asked.digest {
            return Recall::OtherWords { waits };
        }
        let until = Time::from_timestamp_millis(slot.until);
        let answer = slot.answer.as_ref().map(Arc::clone);
        let Some((until, answer)) = until.zip(answer) else {
            return Recall::Unknown;
        };
        Recall::Hit(Hit {
            answer,
            host: HostId::from_bits(slot.host),
            instance: InstanceId::from_bits(slot.instance),
            ground: Ground(slot.ground),
            until,
            kept: true,
        })
    }

    /// Remembers an answer, if nothing that it depends on can have changed since it was looked for.
    pub fn learn(&mut self, entry: Entry) -> Hit {
        let learnt = &entry.learnt;
        let tenant = self.grounds.tenant(learnt.who.tenant());
        let ground = self.grounds.ground(tenant, learnt.site);
        let on = Grounded {
            tenant,
            ground,
            counted: learnt.answer.counted,
        };
        let stale = self.all.max(self.grounds.stale(on));
        let common = Grounded {
            counted: None,
            ..on
        };
        let common = self.all.max(self.grounds.stale(common));
        let has_room = self.answers.has_room(entry.likeness, &learnt.answer);
        if !has_room && let Some(at) = self.at_instance(tenant, learnt.instance.bits()) {
            // What was remembered before takes room as well.
            if let Some(slot) = self.slots.get_mut(at as usize) {
                slot.answer = None;
            }
        }
        let may_keep = entry.may_keep && has_room;
        let as_of = learnt
            .as_of
            .map(|Pass(as_of)| as_of)
            .filter(|as_of| may_keep && *as_of >= stale && self.is_calm(tenant, learnt, *as_of));
        let Entry { learnt, .. } = entry;
        let (host, instance) = (learnt.host, learnt.instance);
        let answer = match as_of {
            Some(as_of) => {
                self.grounds.lies_in(ground, &learnt.regions, common);
                let answer = self.answers.intern(entry.likeness, learnt.answer);
                self.keep(Slot {
                    uuid: entry.uuid,
                    asked: learnt.asked.digest,
                    until: entry.millis,
                    answer: Some(Arc::clone(&answer)),
                    host: host.bits(),
                    instance: instance.bits(),
                    tenant,
                    ground: ground.0,
                    waits: learnt.asked.waits,
                    as_of,
                    ends: entry.ends,
                    beats: false,
                });
                answer
            }
            None => Arc::new(learnt.answer),
        };
        Hit {
            answer,
            host,
            instance,
            ground,
            until: entry.until,
            kept: as_of.is_some(),
        }
    }

    /// A node whose heartbeats had nothing to say since something is remembered of it. What is changed for all who stand at
    /// its site, or in its project, is no matter of theirs.
    pub fn alive(&self, tenant: u32, named: Named, seconds: u32) -> Option<Alive> {
        let slot = self.find(tenant, named)?;
        let holds = slot.beats && seconds < slot.ends && self.all <= slot.as_of;
        holds.then(|| Alive {
            host: HostId::from_bits(slot.host),
            instance: InstanceId::from_bits(slot.instance),
        })
    }

    /// A heartbeat that looked after a pass had nothing to say.
    pub fn beats(&mut self, tenant: u32, named: Named, alive: Alive, as_of: u32) {
        let Alive { host, instance } = alive;
        let node = [Thing::Host(host.bits()), Thing::Instance(instance.bits())];
        let is_calm = node
            .into_iter()
            .all(|thing| self.recent.is_calm(tenant, thing, as_of));
        let at = match named {
            Named::Host(host) => self.at_host(tenant, host),
            Named::Uuid(uuid) => self.at_uuid(tenant, uuid),
        };
        let slot = at.and_then(|at| self.slots.get_mut(at as usize));
        let same = (host.bits(), instance.bits());
        let slot = slot.filter(|slot| is_calm && (slot.host, slot.instance) == same);
        if let Some(slot) = slot {
            slot.beats = true;
        }
    }

    /// Whether nothing of a node, nor of the places where it stands, was touched after a pass.
    fn is_calm(&self, tenant: u32, learnt: &Learnt, as_of: u32) -> bool {
        let node = [
            Thing::Host(learnt.host.bits()),
            Thing::Instance(learnt.instance.bits()),
        ];
        let site = learnt.site.map(|site| Thing::Site(site.bits()));
        let regions = learnt.regions.iter();
        let regions = regions.map(|region| Thing::Region(region.bits()));
        node.into_iter()
            .chain(site)
            .chain(regions)
            .all(|thing| self.recent.is_calm(tenant, thing, as_of))
    }

    /// Forgets a node, and notes that so that nothing is remembered which is being looked for.
    pub fn touch(&mut self, tenant: u32, thing: Thing, pass: u32) {
        self.recent.note(tenant, thing, pass);
        let at = match thing {
            Thing::Host(host) => self.at_host(tenant, host),
            Thing::Instance(instance) => self.at_instance(tenant, instance),
            Thing::Site(_) | Thing::Region(_) => None,
        };
        if let Some(at) = at {
            self.clear(at);
        }
    }

    /// Something about a node was committed here: what is being looked for is of before the next pass.
    pub fn forget(&mut self, tenant: u32, host: u32, instance: u32, seconds: u32) {
        self.recent.turn(seconds);
        self.is_ahead = true;
        let next = self.pass.saturating_add(1);
        self.touch(tenant, Thing::Host(host), next);
        self.touch(tenant, Thing::Instance(instance), next);
    }

    /// Begins the next pass, unless there is nothing to tell it from the last one.
    pub fn begin_pass(&mut self, has_changes: bool, seconds: u32) {
        self.recent.turn(seconds);
        if has_changes || self.is_ahead {
            self.pass = self.pass.saturating_add(1);
            self.is_ahead = false;
        }
    }

    /// The number of the present pass.
    pub fn present(&self) -> u32 {
        self.pass
    }

    /// The number of the last pass, for who looks into the database now. After four thousand million of them there are no
    /// more numbers, and nothing more is learnt.
    pub fn pass(&self) -> Option<Pass> {
        (self.pass < u32::MAX).then_some(Pass(self.pass))
    }

    /// Nothing that is remembered holds any more.
    pub fn rebuild(&mut self) {
        self.pass = self.pass.saturating_add(1);
        self.is_ahead = false;
        self.all = self.pass;
    }

    /// How much is remembered.
    pub fn sizes(&self) -> Sizes {
        let bytes = self.slots.capacity() * size_of::<Slot>()
            + self.by_host.allocation_size()
            + self.by_instance.allocation_size()
            + self.by_uuid.allocation_size()
            + self.answers.bytes()
            + self.grounds.bytes()
            + self.recent.bytes();
        Sizes {
            nodes: self.used,
            answers: self.answers.len(),
            grounds: self.grounds.len(),
            bytes,
        }
    }

    fn holds(&self, slot: &Slot) -> bool {
        let counted = slot.answer.as_ref().and_then(|answer| answer.counted);
        let on = Grounded {
            tenant: slot.tenant,
            ground: Ground(slot.ground),
            counted,
        };
        slot.as_of >= self.all.max(self.grounds.stale(on))
    }

    /// Of one host there is one slot, and of one instance as well.
    fn keep(&mut self, slot: Slot) {
        let (tenant, instance) = (slot.tenant, slot.instance);
        let same = self.at_host(tenant, slot.host);
        if let Some(at) = same {
            let before = self
                .slots
                .get_mut(at as usize)
                .filter(|before| before.instance == slot.instance && before.uuid == slot.uuid);
            if let Some(before) = before {
                *before = slot;
                return;
            }
            self.clear(at);
        }
        if let Some(at) = self.at_instance(tenant, instance) {
            self.clear(at);
        }
        let named = (slot.uuid != 0).then_some(slot.uuid);
        if let Some(at) = named.and_then(|uuid| self.at_uuid(tenant, uuid)) {
            self.clear(at);
        }
        self.add(slot);
    }

    fn add(&mut self, slot: Slot) {
        let at = match self.slots.get(self.free as usize) {
            Some(free) => {
                let at = self.free;
                self.free = free.host;
                at
            }
            None => match u32::try_from(self.slots.len()) {
                Ok(at) if at < NONE => at,
                _ => return,
            },
        };
        let hashes = (slot.host_hash(), slot.instance_hash(), slot.uuid);
        if let Some(place) = self.slots.get_mut(at as usize) {
            *place = slot;
        } else {
            if self.slots.len() == self.slots.capacity() {
                // A vector that doubles would keep as much free as it holds.
                self.slots.reserve_exact(self.slots.len() / 8 + 64);
            }
            self.slots.push(slot);
        }
        self.used += 1;
        let slots = &self.slots;
        let of = |hash: fn(&Slot) -> u64| move |at: &u32| slots.get(*at as usize).map_or(0, hash);
        self.by_host
            .insert_unique(hashes.0, at, of(Slot::host_hash));
        self.by_instance
            .insert_unique(hashes.1, at, of(Slot::instance_hash));
        if hashes.2 != 0 {
            self.by_uuid
                .insert_unique(hashes.2, at, of(|slot: &Slot| slot.uuid));
        }
    }

    /// Frees a slot.
    fn clear(&mut self, at: u32) {
        let Some(slot) = self.slots.get_mut(at as usize) else {
            return;
        };
        remove(&mut self.by_host, slot.host_hash(), at);
        remove(&mut self.by_instance, slot.instance_hash(), at);
        remove(&mut self.by_uuid, slot.uuid, at);
        slot.answer = None;
        slot.uuid = 0;
        slot.host = self.free;
        self.free = at;
        self.used -= 1;
    }

    fn find(&self, tenant: u32, named: Named) -> Option<&Slot> {
        let (at, uuid) = match named {
            Named::Host(host) => (self.at_host(tenant, host)?, 0),
            Named::Uuid(uuid) => (self.at_uuid(tenant, uuid)?, uuid),
        };
        let slot = self.slots.get(at as usize)?;
        (slot.uuid == uuid).then_some(slot)
    }

    fn at_host(&self, tenant: u32, host: u32) -> Option<u32> {
        let is_it = |slot: &Slot| (slot.tenant, slot.host) == (tenant, host);
        self.at(&self.by_host, mix(tenant, host), is_it)
    }

    fn at_instance(&self, tenant: u32, instance: u32) -> Option<u32> {
        let is_it = |slot: &Slot| (slot.tenant, slot.instance) == (tenant, instance);
        self.at(&self.by_instance, mix(tenant, instance), is_it)
    }

    fn at_uuid(&self, tenant: u32, uuid: u64) -> Option<u32> {
        let is_it = |slot: &Slot| (slot.tenant, slot.uuid) == (tenant, uuid);
        self.at(&self.by_uuid, uuid, is_it)
    }

    fn at(&self, index: &HashTable<u32>, hash: u64, is_it: impl Fn(&Slot) -> bool) -> Option<u32> {
        let found = index.find(hash, |at| self.slots.get(*at as usize).is_some_and(&is_it));
        found.copied()
    }
}

impl Slot {
    fn host_hash(&self) -> u64 {
        mix(self.tenant, self.host)
    }

    fn instance_hash(&self) -> u64 {
        mix(self.tenant, self.instance)
    }
}

fn remove(index: &mut HashTable<u32>, hash: u64, at: u32) {
    if let Ok(found) = index.find_entry(hash, |one| *one == at) {
        found.remove();
    }
}

/// Spreads ids over all 64 bits. Nobody chooses them, so no key is needed.
fn mix(tenant: u32, bits: u32) -> u64 {
    let n = (u64::from(tenant) << 32) | u64::from(bits);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_last_number_nothing_is_learnt() {
        let mut table = Table::default();
        assert_eq!(table.pass(), Some(Pass(0)));
        table.begin_pass(true, 0);
        assert_eq!(table.pass(), Some(Pass(1)));
        table.pass = u32::MAX;
        assert_eq!(table.pass(), None);
        table.begin_pass(true, 0);
        table.rebuild();
        assert_eq!(table.pass(), None);
    }

    #[test]
    fn ids_that_follow_each_other_are_spread() {
        let hashes: std::collections::HashSet<u64> = (0..1_000)
            .flat_map(|tenant| (0..100).map(move |id| mix(tenant, id) >> 32))
            .collect();
        assert!(hashes.len() > 99_900, "{}", hashes.len());
    }
}
