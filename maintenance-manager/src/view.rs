//! What is remembered of answers, so that a poll that says nothing new is answered without the database.
//!
//! A memo is made of an answer that was just found in the database and for which nothing was to be written. It holds until
//! a change concerns it, until time alone could change it, or for an hour and a half. Changes come from the log of the database
//! in numbered passes (`follow`); each marks what it concerns as stale ([`marks`] says what that is). Whoever is about to
//! look into the database notes the number of the last pass before: what was committed later comes in a later pass, so an
//! answer is current as long as nothing that it depends on was marked by one.
//!
//! While nobody follows the log, or the view has grown too old, nothing is recalled and nothing is learnt.

mod answers;
mod follow;
mod grounds;
mod life;
mod marks;
mod reached;
mod recent;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId, RegionId, SiteId, scatter};
use evenkeel_domain::run::AttemptId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_proto::agent::Decision;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusResponse, UpdateStatus};
use evenkeel_store::log::Change;
use evenkeel_store::nodes::Machine;
use serde::Deserialize;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::settings::delta;
use reached::Reached;
use table::{Entry, Moment, Named, Table};

pub(crate) use follow::follow;
pub use life::Alive;

/// How many changes are marked at a time: nobody recalls anything meanwhile.
const AT_A_TIME: usize = 256;

/// What is remembered of answers, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ViewSettings {
    /// How long ago everything must have been read from the log for anything to be recalled.
    #[serde(with = "humantime_serde")]
    pub max_staleness: Duration,
    /// How long an answer is remembered at most.
    #[serde(with = "humantime_serde")]
    pub longest: Duration,
    /// One in how many answers that are recalled is compared with the database; 0 is none.
    pub audit_every: u32,
}

impl Default for ViewSettings {
    fn default() -> Self {
        Self {
            max_staleness: Duration::from_secs(10),
            longest: Duration::from_mins(90),
            audit_every: 10_000,
        }
    }
}

/// The memos of all nodes. Cheap to clone: all clones are one.
#[derive(Clone, Debug)]
pub struct View(Arc<Inner>);

struct Inner {
    settings: ViewSettings,
    /// With keys that nobody knows, or somebody could say other words that look the same.
    hashers: [RandomState; 2],
    /// When the view was made.
    made: Instant,
    /// How far the log was read.
    reached: Reached,
    /// Told of what concerns a project as a whole, its images among that.
    projects: Arc<Notify>,
    table: Mutex<Table>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").finish_non_exhaustive()
    }
}

/// The number of a pass through the log, counted by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pass(u32);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// Our own agent on a host.
    Host(TenantId, HostId),
    /// One of the ancestor's agents on the machine with a UUID.
    Uuid(TenantId, Uuid),
}

impl Who {
    /// The project that it is in.
    pub fn tenant(&self) -> TenantId {
        match self {
            Self::Host(tenant, _) | Self::Uuid(tenant, _) => *tenant,
        }
    }

    /// What its machine is found by.
    pub fn machine(&self) -> Machine {
        match self {
            Self::Host(_, host) => Machine::Host(*host),
            Self::Uuid(_, uuid) => Machine::Uuid(*uuid),
        }
    }
}

/// What is asked, as far as the answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Of all words but what the node waits for.
    digest: [u64; 2],
    /// Of what the node waits for.
    waits: u32,
}

/// The number of a site in its project, or of all hosts there that stand nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ground(u32);

/// What our own agent is told, without what goes by the clock or the credential.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnAnswer {
    /// What it should do.
    pub decision: Decision,
    /// When that may change by time alone.
    pub next: Option<Time>,
    /// Whether it is to tell its facts.
    pub want_facts: bool,
    /// Whether it is to tell its packages.
    pub want_packages: bool,
}

/// What an agent is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// Our own.
    Own(OwnAnswer),
    /// One of the ancestor's.
    Eim(PlatformUpdateStatusResponse),
}

/// An answer that can be given again.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What is told.
    pub said: Said,
    /// Identifies what is to be done, on all replicas.
    pub tag: u64,
    /// Whether nothing may have been committed since that it does not know of: it gives leave, or lets something begin.
    pub fresh: bool,
    /// The assignment whose limits it depends on.
    pub counted: Option<Scope>,
    /// Whether the node waits for a slot of that assignment, and for nothing else.
    pub in_line: bool,
}

/// An answer that holds.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The answer.
    pub answer: Arc<Answer>,
    /// The host of the node.
    pub host: HostId,
    /// Its instance.
    pub instance: InstanceId,
    /// Where it stands.
    pub ground: Ground,
    /// Until when, if nothing is changed.
    pub until: Time,
    /// Whether it is remembered: changes of it are noticed.
    pub kept: bool,
}

/// What is remembered for a question.
#[derive(Clone, Debug)]
pub enum Recall {
    /// The answer.
    Hit(Hit),
    /// The answer to another question of the same node.
    OtherWords {
        /// Whether it waits for something else now.
        waits: bool,
    },
    /// Nothing that holds.
    Unknown,
}

/// An answer that was found in the database, and for which nothing is to be written.
#[derive(Clone, Debug)]
pub struct Learnt {
    /// Who asked.
    pub who: Who,
    /// Its host.
    pub host: HostId,
    /// Its instance.
    pub instance: InstanceId,
    /// The site where the host stands.
    pub site: Option<SiteId>,
    /// The region of the site and those that it lies in.
    pub regions: Vec<RegionId>,
    /// What it asked.
    pub asked: Asked,
    /// What it is answered.
    pub answer: Answer,
    /// When time alone could change that.
    pub until: Option<Time>,
    /// The last pass before the database was looked into.
    pub as_of: Option<Pass>,
}

/// What was concerned by changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Single hosts.
    pub hosts: Vec<(TenantId, HostId)>,
    /// Single instances.
    pub instances: Vec<(TenantId, InstanceId)>,
    /// All that stand somewhere.
    pub grounds: Vec<Ground>,
    /// All of projects.
    pub tenants: Vec<TenantId>,
    /// All that depend on the limits of assignments.
    pub counted: Vec<(TenantId, Scope)>,
    /// Everybody.
    pub all: bool,
}

/// How much is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// How many nodes something is remembered of.
    pub nodes: usize,
    /// How many different answers.
    pub answers: usize,
    /// How many places nodes stand at.
    pub grounds: usize,
    /// How many bytes all of that takes up, with what is kept free for more.
    pub bytes: usize,
}

impl View {
    /// A view that nothing is remembered in, and that nobody keeps up yet.
    pub fn new(settings: ViewSettings) -> Self {
        Self(Arc::new(Inner {
            settings,
            hashers: [RandomState::new(), RandomState::new()],
            made: Instant::now(),
            reached: Reached::default(),
            projects: Arc::default(),
            table: Mutex::default(),
        }))
    }

    /// What one of our own agents asks that has no news.
    pub fn asked_own(&self, facts_digest: &[u8], attempt: Option<AttemptId>, waits: &str) -> Asked {
        self.asked(waits, |hasher| {
            hasher.write_u8(0);
            (facts_digest, attempt).hash(hasher);
        })
    }

    /// What one of the ancestor's agents asks, with all that it says.
    pub fn asked_eim(&self, uuid: Uuid, said: &UpdateStatus) -> Asked {
        self.asked("", |hasher| {
            hasher.write_u8(1);
            (uuid, said).hash(hasher);
        })
    }

    fn asked(&self, waits: &str, words: impl Fn(&mut DefaultHasher)) -> Asked {
        let digest = self.0.hashers.each_ref().map(|keys| {
            let mut hasher = keys.build_hasher();
            words(&mut hasher);
            hasher.finish()
        });
        let [keys, _] = &self.0.hashers;
        Asked {
            digest,
            waits: u32::try_from(keys.hash_one(waits) >> 32).unwrap_or_default(),
        }
    }

    /// The answer to a question, if it is remembered and holds.
    pub fn recall(&self, who: &Who, asked: &Asked, now: Time) -> Recall {
        if !self.is_fresh() {
            return Recall::Unknown;
        }
        let (uuid, moment) = (self.uuid(who), self.moment(now));
        let table = self.table();
        let Some(tenant) = table.grounds.known(who.tenant()) else {
            return Recall::Unknown;
        };
        let named = match who {
            Who::Host(_, host) => Named::Host(host.bits()),
            Who::Uuid(..) => Named::Uuid(uuid),
        };
        table.recall(tenant, named, asked, moment)
    }

    /// The number of the last pass. None while nobody follows the log or the view is too old: nothing would be learnt.
    pub fn pass(&self) -> Option<Pass> {
        if !self.is_fresh() {
            return None;
        }
        self.table().pass()
    }

    /// Remembers an answer, if it is certain that whatever changes it will be noticed. Gives it back in any case, with
    /// whether it is remembered.
    pub fn learn(&self, learnt: Learnt, now: Time) -> Hit {
        let longest = self.longest(learnt.host, learnt.instance);
        let end = now.checked_add_signed(delta(longest));
        let end = end.unwrap_or(Time::MAX_UTC);
        let until = learnt.until.map_or(end, |until| until.min(end));
        let millis = until.timestamp_millis();
        let moment = self.moment(now);
        let seconds = u32::try_from(longest.as_secs()).unwrap_or(u32::MAX);
        let entry = Entry {
            uuid: self.uuid(&learnt.who),
            likeness: answers::likeness(&learnt.answer, &self.0.hashers),
            millis,
            until: Time::from_timestamp_millis(millis).unwrap_or(until),
            ends: moment.seconds.saturating_add(seconds),
            may_keep: self.is_fresh() && moment.millis < millis,
            learnt,
        };
        self.table().learn(entry)
    }

    /// How long an answer to a node is remembered: those that were learnt together do not end together.
    fn longest(&self, host: HostId, instance: InstanceId) -> Duration {
        let longest = self.0.settings.longest;
        let share = f64::from(scatter(host.bits() ^ instance.bits())) / (f64::from(u32::MAX) + 1.0);
        longest.saturating_sub((longest / 4).mul_f64(share))
    }

    /// Forgets what is remembered of a node: something about it was committed here. What is being looked for at this
    /// moment is not remembered either.
    pub fn forget(&self, tenant: TenantId, host: HostId, instance: InstanceId) {
        let seconds = self.seconds();
        let mut table = self.table();
        let tenant = table.grounds.tenant(tenant);
        table.forget(tenant, host.bits(), instance.bits(), seconds);
    }

    /// Marks what changes concern, as the next pass. Only who follows the log does so, and in the log's order.
    pub fn apply(&self, changes: &[Change]) -> Touched {
        let seconds = self.seconds();
        let mut touched = Touched::default();
        self.table().begin_pass(!changes.is_empty(), seconds);
        for some in changes.chunks(AT_A_TIME) {
            let mut table = self.table();
            for change in some {
                marks::mark(&mut table, change, &mut touched);
            }
        }
        touched.tidy();
        touched.count();
        touched
    }

    /// Marks everything as stale: something may have happened that was not read. Nothing is recalled before the log was
    /// read to its end again.
    pub fn rebuild(&self, why: &'static str) -> Touched {
        metrics::counter!("evenkeel_view_rebuilds_total", "why" => why).increment(1);
        self.0.reached.lose();
        self.table().rebuild();
        let touched = Touched {
            all: true,
            ..Touched::default()
        };
        touched.count();
        touched
    }

    /// How long ago it was that everything had been read which was committed by then. None if that was never so, or not
    /// since everything was marked as stale.
    pub fn age(&self) -> Option<Duration> {
        self.0.reached.age()
    }

    /// Waits until all that was committed before an instant was marked. Says whether it was, after a quarter of a second
    /// at most.
    pub async fn fence(&self, since: Instant) -> bool {
        let began = Instant::now();
        let was_reached = self.0.reached.fence(since).await;
        metrics::histogram!("evenkeel_fence_wait_seconds").record(began.elapsed().as_secs_f64());
        was_reached
    }

    /// Who is told when something was changed that concerns a project as a whole, such as its images, or may have been. Any
    /// number of changes is one.
    pub fn projects(&self) -> Arc<Notify> {
        Arc::clone(&self.0.projects)
    }

    /// How much is remembered.
    pub fn sizes(&self) -> Sizes {
        self.table().sizes()
    }

    fn is_fresh(&self) -> bool {
        self.age()
            .is_some_and(|age| age <= self.0.settings.max_staleness)
    }

    /// What a UUID is found by, never 0; 0 for who has none.
    fn uuid(&self, who: &Who) -> u64 {
        let [keys, _] = &self.0.hashers;
        match who {
            Who::Host(..) => 0,
            Who::Uuid(tenant, uuid) => keys.hash_one((tenant, uuid)).max(1),
        }
    }

    fn moment(&self, now: Time) -> Moment {
        Moment {
            millis: now.timestamp_millis(),
            seconds: self.seconds(),
        }
    }

    /// How many seconds ago the view was made, by a clock that nobody sets.
    fn seconds(&self) -> u32 {
        u32::try_from(self.0.made.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Touched {
    /// Names everything once.
    fn tidy(&mut self) {
        self.hosts.sort_unstable();
        self.hosts.dedup();
        self.instances.sort_unstable();
        self.instances.dedup();
        self.grounds.sort_unstable_by_key(|ground| ground.0);
        self.grounds.dedup();
        self.tenants.sort_unstable();
        self.tenants.dedup();
        self.counted.sort_unstable();
        self.counted.dedup();
    }

    fn count(&self) {
        let counts = [
            ("node", self.hosts.len() + self.instances.len()),
            ("site", self.grounds.len()),
            ("project", self.tenants.len()),
            ("slot", self.counted.len()),
            ("all", usize::from(self.all)),
        ];
        for (why, count) in counts {
            if count > 0 {
                let count = u64::try_from(count).unwrap_or(u64::MAX);
                metrics::counter!("evenkeel_view_stale_total", "why" => why).increment(count);
            }
        }
    }
}
