//! The answer cache: answers polls that need no write without the database.
//!
//! An answer is cached if it was just read from the database and nothing had to be written for it.
//! It is valid until a change affects it, until time alone may change it, or for at most `max_age`.
//! Changes are read from the change log in numbered passes ([`log_follower`]); each pass marks what
//! it affects as stale ([`invalidation`] lists what that is). A reader notes the number of the last
//! pass before it queries the database. Later commits appear in a later pass, so an answer is
//! current as long as no later pass has marked anything that it depends on.
//!
//! While the change log is not followed, or the cache is older than `max_staleness`, nothing is
//! looked up and nothing is cached.

mod answers;
mod heartbeats;
mod invalidation;
mod log_follower;
mod log_progress;
mod recent_changes;
mod scopes;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_auth::KeyFingerprint;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId, RegionId, SiteId, scatter};
use evenkeel_domain::run::AttemptId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_proto::maintmgr::UpdateStatus;
use evenkeel_store::log::LoggedChange;
use evenkeel_store::nodes::MachineKey;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::durations::to_time_delta;
use crate::evaluate::Answer;
use log_progress::LogProgress;
use table::{CacheEntry, CacheTable, CacheTime, SlotKey};

pub use heartbeats::LiveNode;
pub(crate) use log_follower::follow_log;

/// The number of changes that are applied under one lock. Lookups wait meanwhile.
const MAX_CHANGES_PER_LOCK: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AnswerCacheSettings {
    /// Maximum age of the last complete read of the change log. If it is older, the cache is not
    /// used; `0s` disables the cache.
    #[serde(with = "humantime_serde")]
    pub max_staleness: Duration,
    /// Maximum age of a cached answer.
    #[serde(with = "humantime_serde")]
    pub max_age: Duration,
    /// One in this many cached answers is compared with the database; 0 disables the comparison.
    pub audit_every: u32,
    /// Maximum memory of the different answers in bytes. Beyond it, an answer larger than 1 KiB is
    /// cached only if an equal one is already stored. Smaller answers are always cached, and each
    /// node needs about 100 bytes in addition. 0 means no limit.
    pub memory_limit: u64,
}

impl Default for AnswerCacheSettings {
    fn default() -> Self {
        Self {
            max_staleness: Duration::from_secs(10),
            max_age: Duration::from_mins(90),
            audit_every: 10_000,
            memory_limit: 64 << 20,
        }
    }
}

/// The cached answers of all nodes. Clones share one cache.
#[derive(Clone, Debug)]
pub struct AnswerCache(Arc<AnswerCacheInner>);

struct AnswerCacheInner {
    settings: AnswerCacheSettings,
    /// Secret random keys, so that no node can construct payloads with equal hashes.
    hashers: [RandomState; 2],
    /// When the cache was created.
    created_at: Instant,
    /// How far the change log was read.
    log_progress: LogProgress,
    /// Notified of changes that affect a whole project, such as changes of its images.
    project_changes: Arc<Notify>,
    table: Mutex<CacheTable>,
}

impl fmt::Debug for AnswerCacheInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerCache").finish_non_exhaustive()
    }
}

/// The number of a pass through the change log, counted in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pass(u32);

/// Identifies a polling node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKey {
    /// Our own agent, by its host.
    Host(TenantId, HostId),
    /// One of EIM's agents, by the UUID of its machine.
    Uuid(TenantId, Uuid),
}

impl NodeKey {
    /// The project of the node.
    pub fn tenant(&self) -> TenantId {
        match self {
            Self::Host(tenant, _) | Self::Uuid(tenant, _) => *tenant,
        }
    }

    /// The machine to look up in the database.
    pub fn machine(&self) -> MachineKey {
        match self {
            Self::Host(_, host) => MachineKey::Host(*host),
            Self::Uuid(_, uuid) => MachineKey::Uuid(*uuid),
        }
    }
}

/// The key of a cached answer: a digest of the payload of the poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheKey {
    /// The digest of everything but the waiting reason.
    digest: [u64; 2],
    /// The hash of the waiting reason.
    waiting_for: u32,
}

/// The cache index of a site; the hosts of a project without a site share one index. All answers of
/// a scope are invalidated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InvalidationScope(u32);

/// A valid answer, with what it belongs to.
#[derive(Clone, Debug)]
pub struct CachedAnswer {
    pub answer: Arc<Answer>,
    /// The host of the node.
    pub host: HostId,
    /// The instance of the node.
    pub instance: InstanceId,
    /// The scope of the node.
    pub scope: InvalidationScope,
    /// When the answer expires, if nothing changes before.
    pub valid_until: Time,
    /// Whether the answer is cached, so that a change invalidates it.
    pub is_cached: bool,
}

/// The result of a lookup.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// A valid answer.
    Hit(CachedAnswer),
    /// A valid answer for another payload of the same node.
    OtherKey {
        /// Whether the waiting reason differs.
        waiting_changed: bool,
    },
    /// No valid answer.
    Miss,
}

/// An answer that was read from the database without a need to write.
#[derive(Clone, Debug)]
pub struct NewAnswer {
    /// The polling node.
    pub node: NodeKey,
    /// The host of the node.
    pub host: HostId,
    /// The instance of the node.
    pub instance: InstanceId,
    /// The site of the host.
    pub site: Option<SiteId>,
    /// The region of the site, and its parent regions.
    pub regions: Vec<RegionId>,
    /// The key of the payload.
    pub cache_key: CacheKey,
    pub answer: Answer,
    /// When time alone may change the answer.
    pub valid_until: Option<Time>,
    /// The last pass before the database was queried.
    pub as_of: Option<Pass>,
}

/// What changes affect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invalidation {
    pub hosts: Vec<(TenantId, HostId)>,
    pub instances: Vec<(TenantId, InstanceId)>,
    /// All nodes of these scopes.
    pub scopes: Vec<InvalidationScope>,
    /// All nodes of these projects.
    pub tenants: Vec<TenantId>,
    /// All nodes that depend on the limits of these assignments.
    pub limit_scopes: Vec<(TenantId, Scope)>,
    /// The assignments of freed slots, each as often as a slot was freed.
    pub freed_slots: Vec<(TenantId, Scope)>,
    /// The assignments of slots that were taken, in the same way.
    pub taken_slots: Vec<(TenantId, Scope)>,
    /// All nodes.
    pub all: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSizes {
    /// The number of nodes with a cached answer.
    pub nodes: usize,
    /// The number of different answers.
    pub answers: usize,
    /// The number of scopes.
    pub scopes: usize,
    /// The memory in bytes, including reserved space.
    pub bytes: usize,
}

impl AnswerCache {
    /// An empty cache that follows no change log yet.
    pub fn new(settings: AnswerCacheSettings) -> Self {
        Self(Arc::new(AnswerCacheInner {
            table: Mutex::new(CacheTable::new(settings.memory_limit)),
            settings,
            hashers: [RandomState::new(), RandomState::new()],
            created_at: Instant::now(),
            log_progress: LogProgress::default(),
            project_changes: Arc::default(),
        }))
    }

    /// The key of a poll of our own agent without facts and packages. It covers the key that the
    /// node authenticates with, so no other machine gets a cached answer.
    pub fn key_for_own_poll(
        &self,
        node_key: &KeyFingerprint,
        facts_digest: &[u8],
        attempt: Option<AttemptId>,
        waiting_for: &str,
    ) -> CacheKey {
        self.hash_key(waiting_for, |hasher| {
            hasher.write_u8(0);
            (node_key, facts_digest, attempt).hash(hasher);
        })
    }

    /// The key of a poll of one of EIM's agents. It covers the whole status.
    pub fn key_for_eim_poll(&self, uuid: Uuid, update_status: &UpdateStatus) -> CacheKey {
        self.hash_key("", |hasher| {
            hasher.write_u8(1);
            (uuid, update_status).hash(hasher);
        })
    }

    fn hash_key(&self, waiting_for: &str, hash_payload: impl Fn(&mut DefaultHasher)) -> CacheKey {
        let digest = self.0.hashers.each_ref().map(|keys| {
            let mut hasher = keys.build_hasher();
            hash_payload(&mut hasher);
            hasher.finish()
        });
        let [keys, _] = &self.0.hashers;
        CacheKey {
            digest,
            waiting_for: u32::try_from(keys.hash_one(waiting_for) >> 32).unwrap_or_default(),
        }
    }

    /// Looks up the answer for a node and key.
    pub fn lookup(&self, node: &NodeKey, cache_key: &CacheKey, now: Time) -> Lookup {
        if !self.is_current() {
            return Lookup::Miss;
        }
        let (uuid, moment) = (self.uuid_hash(node), self.moment(now));
        let table = self.table();
        let Some(tenant) = table.scopes.find_tenant(node.tenant()) else {
            return Lookup::Miss;
        };
        let key = match node {
            NodeKey::Host(_, host) => SlotKey::Host(host.bits()),
            NodeKey::Uuid(..) => SlotKey::Uuid(uuid),
        };
        table.lookup(tenant, key, cache_key, moment)
    }

    /// The number of the last pass. `None` while nothing would be cached: the change log is not
    /// followed, or the cache is too old.
    pub fn last_pass(&self) -> Option<Pass> {
        if !self.is_current() {
            return None;
        }
        self.table().last_pass()
    }

    /// Caches an answer, if every change that affects it is certain to be noticed. Returns the
    /// answer in any case.
    pub fn insert(&self, new_answer: NewAnswer, now: Time) -> CachedAnswer {
        let max_age = self.max_age_for(new_answer.host, new_answer.instance);
        let end = now.checked_add_signed(to_time_delta(max_age));
        let end = end.unwrap_or(Time::MAX_UTC);
        let until = new_answer.valid_until.map_or(end, |until| until.min(end));
        let millis = until.timestamp_millis();
        let moment = self.moment(now);
        let seconds = u32::try_from(max_age.as_secs()).unwrap_or(u32::MAX);
        let entry = CacheEntry {
            uuid_hash: self.uuid_hash(&new_answer.node),
            answer_hash: answers::answer_hash(&new_answer.answer, &self.0.hashers),
            valid_until_millis: millis,
            valid_until: Time::from_timestamp_millis(millis).unwrap_or(until),
            expires_at_second: moment.seconds.saturating_add(seconds),
            is_cacheable: self.is_current() && moment.millis < millis,
            new_answer,
        };
        self.table().insert(entry)
    }

    /// The maximum age for the answers of a node. It varies, so that answers cached together expire
    /// apart.
    fn max_age_for(&self, host: HostId, instance: InstanceId) -> Duration {
        let max_age = self.0.settings.max_age;
        let share = f64::from(scatter(host.bits() ^ instance.bits())) / (f64::from(u32::MAX) + 1.0);
        max_age.saturating_sub((max_age / 4).mul_f64(share))
    }

    /// Invalidates the answers of a node after a commit in this process. Answers that are being
    /// read at this moment are not cached.
    pub fn invalidate_node(&self, tenant: TenantId, host: HostId, instance: InstanceId) {
        let seconds = self.uptime_seconds();
        let mut table = self.table();
        let tenant = table.scopes.tenant(tenant);
        table.invalidate_node(tenant, host.bits(), instance.bits(), seconds);
    }

    /// Applies the changes of the next pass. Only the log follower calls it, in the order of the
    /// log.
    pub fn apply_changes(&self, changes: &[LoggedChange]) -> Invalidation {
        let seconds = self.uptime_seconds();
        let mut invalidation = Invalidation::default();
        self.table().begin_pass(!changes.is_empty(), seconds);
        for chunk in changes.chunks(MAX_CHANGES_PER_LOCK) {
            let mut table = self.table();
            for change in chunk {
                invalidation::invalidate(&mut table, change, &mut invalidation);
            }
        }
        invalidation.deduplicate();
        invalidation.record_metrics();
        invalidation
    }

    /// Marks everything as stale, because changes may have been missed. Nothing is looked up until
    /// the log has been read to its end again.
    pub fn invalidate_all(&self, why: &'static str) -> Invalidation {
        metrics::counter!("evenkeel_answer_cache_rebuilds_total", "reason" => why).increment(1);
        self.0.log_progress.reset();
        self.table().invalidate_all();
        let invalidation = Invalidation { all: true, ..Invalidation::default() };
        invalidation.record_metrics();
        invalidation
    }

    /// The time since the last moment whose commits are all applied. `None` if there was none since
    /// everything was marked as stale.
    pub fn age(&self) -> Option<Duration> {
        self.0.log_progress.age()
    }

    /// Waits until all commits before an instant are applied. Returns whether they are, after at
    /// most 250 ms.
    pub async fn fence(&self, since: Instant) -> bool {
        let began = Instant::now();
        let was_reached = self.0.log_progress.fence(since).await;
        metrics::histogram!("evenkeel_fence_wait_seconds").record(began.elapsed().as_secs_f64());
        was_reached
    }

    /// Notified when something changed, or may have changed, that affects a whole project, such as
    /// its images. Several changes may cause one notification.
    pub fn project_changes(&self) -> Arc<Notify> {
        Arc::clone(&self.0.project_changes)
    }

    pub fn sizes(&self) -> CacheSizes {
        self.table().sizes()
    }

    fn is_current(&self) -> bool {
        self.age().is_some_and(|age| age <= self.0.settings.max_staleness)
    }

    /// The hash of a UUID, never 0; 0 for nodes of our own agent.
    fn uuid_hash(&self, node: &NodeKey) -> u64 {
        let [keys, _] = &self.0.hashers;
        match node {
            NodeKey::Host(..) => 0,
            NodeKey::Uuid(tenant, uuid) => keys.hash_one((tenant, uuid)).max(1),
        }
    }

    fn moment(&self, now: Time) -> CacheTime {
        CacheTime { millis: now.timestamp_millis(), seconds: self.uptime_seconds() }
    }

    /// Seconds since the cache was created, by the monotonic clock.
    fn uptime_seconds(&self) -> u32 {
        u32::try_from(self.0.created_at.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    fn table(&self) -> MutexGuard<'_, CacheTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Invalidation {
    /// Removes duplicates.
    fn deduplicate(&mut self) {
        self.hosts.sort_unstable();
        self.hosts.dedup();
        self.instances.sort_unstable();
        self.instances.dedup();
        self.scopes.sort_unstable_by_key(|scope| scope.0);
        self.scopes.dedup();
        self.tenants.sort_unstable();
        self.tenants.dedup();
        self.limit_scopes.sort_unstable();
        self.limit_scopes.dedup();
    }

    fn record_metrics(&self) {
        let counts = [
            ("node", self.hosts.len() + self.instances.len()),
            ("site", self.scopes.len()),
            ("project", self.tenants.len()),
            ("slot", self.limit_scopes.len()),
            ("all", usize::from(self.all)),
        ];
        for (why, count) in counts {
            if count > 0 {
                let count = u64::try_from(count).unwrap_or(u64::MAX);
                metrics::counter!("evenkeel_answer_cache_stale_total", "reason" => why)
                    .increment(count);
            }
        }
    }
}
