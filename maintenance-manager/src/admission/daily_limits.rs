//! Daily limits: how much a node, and all nodes of a project together, may make the server store. A
//! rate of calls does not limit this, because one call may carry megabytes.
//!
//! Each limit is a bucket that holds the amount of a day and fills up within a day. Buckets are in
//! the database, so they hold for all processes and over restarts: that of a node is charged in the
//! transaction that stores what is counted, that of a project every few seconds. A bucket of each
//! node in memory comes first, so that a node that sends too much is refused without the database.

mod project_usage;

use std::collections::HashMap;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use governor::Quota;
use governor::clock::{Clock, MonotonicClock};
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::admission::concurrency::with_pushback;
use crate::admission::daily_limits::project_usage::ProjectUsage;
use crate::admission::peer::Peer;
use crate::admission::rate_limit::PeerLimiter;

/// The maximum number of nodes that are counted in memory, of each amount. A new one replaces one
/// that stored nothing lately, whose bucket was probably full again.
const MAX_BUCKETS: usize = 1 << 16;

/// Bytes are counted in units of this size. Messages below one unit cost nothing.
const BYTES_PER_UNIT: u64 = 1_024;

/// The part of the limit of bytes that a process collects before it charges the bucket of a node in
/// the database. Messages are frequent and mostly short, so each would write a row otherwise.
const COLLECTED_SHARE: u32 = 64;

const DAY: Duration = Duration::from_hours(24);

/// How often a refusal of a node is shown: each time writes its row.
const SHOW_INTERVAL: TimeDelta = TimeDelta::hours(1);

/// Limits of what nodes may make the server store within a day; 0 means no limit. All processes count
/// together. The limits of a project may be exceeded by 2 % for each process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DailyLimitSettings {
    /// Bytes of the messages of a node that change something, such as facts, package lists,
    /// hardware and reports. At least 16 MiB, the longest message.
    pub max_bytes_per_node: u64,
    /// Bytes of the messages of all nodes of a project that change something. The default is 256 GiB,
    /// which is 2.6 MiB for each of 100,000 nodes: more than a complete package list of each.
    pub max_bytes_per_project: u64,
    /// Lists of installed packages that no other node of the project has, from one node.
    pub max_package_lists_per_node: u32,
    /// Lists of installed packages that no other node has, from all nodes of a project.
    pub max_package_lists_per_project: u32,
    /// Versions of available packages that the project has not recorded lately, from one node. At
    /// least 20,000, the versions that are read from one message.
    pub max_versions_per_node: u32,
    /// Versions of available packages that the project has not recorded lately.
    pub max_versions_per_project: u32,
    /// Runs that a node opens.
    pub max_runs_per_node: u32,
    /// Runs that all nodes of a project open. The ids of runs have 32 bits for all projects together,
    /// and none is used again: one project that opens 1,000,000 runs each day uses them up in 11.7
    /// years. With 0, which removes the limit, a project can use them up sooner.
    pub max_runs_per_project: u32,
}

impl Default for DailyLimitSettings {
    fn default() -> Self {
        Self {
            max_bytes_per_node: 256 << 20,
            max_bytes_per_project: 256 << 30,
            max_package_lists_per_node: 100,
            max_package_lists_per_project: 200_000,
            max_versions_per_node: 60_000,
            max_versions_per_project: 2_000_000,
            max_runs_per_node: 1_000,
            max_runs_per_project: 1_000_000,
        }
    }
}

/// What a daily limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitedAmount {
    Bytes,
    PackageLists,
    Versions,
    Runs,
}

impl LimitedAmount {
    const ALL: [Self; 4] = [Self::Bytes, Self::PackageLists, Self::Versions, Self::Runs];

    /// The name in the database, and the label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::PackageLists => "package_lists",
            Self::Versions => "versions",
            Self::Runs => "runs",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|amount| amount.name() == name)
    }

    /// The units in which an amount is counted.
    fn units(self, count: u64) -> u32 {
        let units = match self {
            Self::Bytes => count / BYTES_PER_UNIT,
            Self::PackageLists | Self::Versions | Self::Runs => count,
        };
        u32::try_from(units).unwrap_or(u32::MAX)
    }
}

/// The daily limits, and how far they are used up.
#[derive(Debug)]
pub struct DailyLimits<C: Clock = MonotonicClock> {
    bytes: AmountLimits<C>,
    package_lists: AmountLimits<C>,
    versions: AmountLimits<C>,
    runs: AmountLimits<C>,
    /// The units of bytes of nodes that are not charged in the database yet.
    collected_bytes: Cache<(TenantId, HostId), Arc<AtomicU32>>,
    projects: ProjectUsage,
    refusals: Mutex<RefusedNodes>,
}

/// An amount that is to be charged to the bucket of a node in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCharge {
    pub amount: LimitedAmount,
    /// The time in which the bucket gains as much again, at most a day.
    pub cost: Duration,
    /// The units that the cost stands for, and those of this call alone.
    units: u32,
    own_units: u32,
}

/// A refusal that is to be shown on the instance of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRefusal {
    pub node: (TenantId, HostId),
    /// The limit, for people.
    pub text: String,
}

/// The refused nodes.
#[derive(Debug, Default)]
struct RefusedNodes {
    /// Refusals that are not taken yet.
    new: Vec<LimitRefusal>,
    /// When a refusal of a node was last taken.
    taken_at: HashMap<(TenantId, HostId), Time>,
}

/// The limits of one amount, in units; 0 means no limit.
#[derive(Debug)]
struct AmountLimits<C: Clock> {
    per_node: u32,
    per_project: u32,
    /// The buckets of nodes in memory.
    nodes: Option<PeerLimiter<C>>,
}

impl DailyLimits {
    pub fn new(settings: &DailyLimitSettings) -> Self {
        Self::with_clock(settings, &MonotonicClock)
    }
}

impl<C: Clock + Clone> DailyLimits<C> {
    fn with_clock(settings: &DailyLimitSettings, clock: &C) -> Self {
        let limiter = |units: u32| {
            let units = NonZeroU32::new(units)?;
            let quota = Quota::with_period(DAY / units.get())?.allow_burst(units);
            Some(PeerLimiter::new(quota, MAX_BUCKETS, clock))
        };
        let limits = |per_node, per_project| AmountLimits {
            per_node,
            per_project,
            nodes: limiter(per_node),
        };
        Self {
            bytes: limits(
                byte_units(settings.max_bytes_per_node),
                byte_units(settings.max_bytes_per_project),
            ),
            package_lists: limits(
                settings.max_package_lists_per_node,
                settings.max_package_lists_per_project,
            ),
            versions: limits(settings.max_versions_per_node, settings.max_versions_per_project),
            runs: limits(settings.max_runs_per_node, settings.max_runs_per_project),
            collected_bytes: Cache::new(MAX_BUCKETS),
            projects: ProjectUsage::default(),
            refusals: Mutex::default(),
        }
    }

    /// Takes the refusals since the last call, at most one per node and hour.
    pub fn take_refusals(&self, now: Time) -> Vec<LimitRefusal> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = std::mem::take(&mut refusals.new);
        if new.is_empty() {
            return new;
        }
        let is_recent = |at: &Time| *at <= now && now < *at + SHOW_INTERVAL;
        if refusals.taken_at.len() >= MAX_BUCKETS {
            refusals.taken_at.clear();
        }
        new.retain(|refusal| {
            let last = refusals.taken_at.insert(refusal.node, now);
            let is_shown = last.filter(is_recent);
            if let Some(last) = is_shown {
                refusals.taken_at.insert(refusal.node, last);
            }
            is_shown.is_none()
        });
        new
    }

    /// Charges an amount to the buckets of a node and its project in memory, or refuses it with a
    /// retry delay. An amount above a limit costs the whole limit.
    pub fn charge(
        &self,
        node: (TenantId, HostId),
        amount: LimitedAmount,
        count: u64,
    ) -> Result<(), Status> {
        let limits = self.limits(amount);
        let Some(units) = NonZeroU32::new(amount.units(count)) else {
            return Ok(());
        };
        let (tenant, host) = node;
        if let Some(limiter) = &limits.nodes {
            let charged = limiter.charge(&Peer::Host(tenant, host), units);
            charged.map_err(|wait| self.refuse(node, ("node", amount), wait))?;
        }
        if let Some(cost) = cost(units.get(), limits.per_project) {
            let charged = self.projects.charge((tenant, amount), cost);
            charged.map_err(|wait| self.refuse(node, ("project", amount), wait))?;
        }
        if amount == LimitedAmount::Bytes {
            let collected = self.collected_bytes(node);
            let add = |sum: u32| Some(sum.saturating_add(units.get()));
            let _ = collected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
        Ok(())
    }

    /// The amount that a call must charge to the bucket of the node in the database, if any.
    pub fn node_charge(
        &self,
        node: (TenantId, HostId),
        amount: LimitedAmount,
        count: u64,
    ) -> Option<NodeCharge> {
        let limit = self.limits(amount).per_node;
        let own_units = amount.units(count);
        let units = if amount == LimitedAmount::Bytes {
            let collected = self.collected_bytes(node).load(Ordering::Relaxed);
            Some(collected).filter(|units| *units >= limit / COLLECTED_SHARE)?
        } else {
            own_units
        };
        Some(NodeCharge { amount, cost: cost(units, limit)?, units, own_units })
    }

    /// Records that the bucket of a node was charged in the database.
    pub fn note_charged(&self, node: (TenantId, HostId), charge: &NodeCharge) {
        self.uncollect(node, charge, charge.units);
    }

    /// Refuses a call because the bucket of the node in the database does not contain the amount.
    pub fn refuse_charge(
        &self,
        node: (TenantId, HostId),
        charge: &NodeCharge,
        wait: Duration,
    ) -> Status {
        // What the call has sent is not stored. What was collected before is charged later.
        self.uncollect(node, charge, charge.own_units);
        self.refuse(node, ("node", charge.amount), wait)
    }

    /// How far the projects have used up their limits.
    pub fn projects(&self) -> &ProjectUsage {
        &self.projects
    }

    fn uncollect(&self, node: (TenantId, HostId), charge: &NodeCharge, units: u32) {
        if charge.amount == LimitedAmount::Bytes {
            let subtract = |sum: u32| Some(sum.saturating_sub(units));
            let collected = self.collected_bytes(node);
            let _ = collected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
        }
    }

    fn collected_bytes(&self, node: (TenantId, HostId)) -> Arc<AtomicU32> {
        let new = || Ok::<_, Infallible>(Arc::default());
        let Ok(collected) = self.collected_bytes.get_or_insert_with(&node, new);
        collected
    }

    const fn limits(&self, amount: LimitedAmount) -> &AmountLimits<C> {
        match amount {
            LimitedAmount::Bytes => &self.bytes,
            LimitedAmount::PackageLists => &self.package_lists,
            LimitedAmount::Versions => &self.versions,
            LimitedAmount::Runs => &self.runs,
        }
    }

    fn refuse(
        &self,
        node: (TenantId, HostId),
        (scope, amount): (&'static str, LimitedAmount),
        wait: Duration,
    ) -> Status {
        let amount = amount.name();
        let labels = [("scope", scope), ("amount", amount)];
        metrics::counter!("evenkeel_daily_limit_refused_total", &labels).increment(1);
        let text = format!("the {scope} has used up its daily limit of {amount} (daily_limits)");
        let seconds = wait.as_secs() + 1;
        let refused = Status::resource_exhausted(format!("{text}; try again in {seconds} s"));
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.new.push(LimitRefusal { node, text });
        with_pushback(refused, wait)
    }
}

/// The time in which a bucket gains these units again; none without units or a limit. More units
/// than a bucket holds cost a day.
fn cost(units: u32, limit: u32) -> Option<Duration> {
    let (units, limit) = (NonZeroU32::new(units.min(limit))?, NonZeroU32::new(limit)?);
    let nanos = DAY.as_nanos() * u128::from(units.get()) / u128::from(limit.get());
    Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

/// The units of a limit in bytes.
fn byte_units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;
    use uuid::Uuid;

    use super::*;
    use LimitedAmount as A;

    const NONE: DailyLimitSettings = DailyLimitSettings {
        max_bytes_per_node: 0,
        max_bytes_per_project: 0,
        max_package_lists_per_node: 0,
        max_package_lists_per_project: 0,
        max_versions_per_node: 0,
        max_versions_per_project: 0,
        max_runs_per_node: 0,
        max_runs_per_project: 0,
    };

    fn node(project: u128, n: u32) -> (TenantId, HostId) {
        (TenantId::new(Uuid::from_u128(project)), HostId::nth(n))
    }

    #[test]
    fn a_node_may_store_the_amount_of_a_day_and_then_waits() {
        let clock = FakeRelativeClock::default();
        let settings = DailyLimitSettings { max_runs_per_node: 24, ..NONE };
        let limits = DailyLimits::with_clock(&settings, &clock);
        for _ in 0..24 {
            limits.charge(node(1, 1), A::Runs, 1).expect("within the limit");
        }
        let refused = limits.charge(node(1, 1), A::Runs, 1).expect_err("too many");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        let hint = refused.metadata().get("grpc-retry-pushback-ms").expect("a retry delay");
        assert_eq!(hint, "3600000");
        limits.charge(node(1, 2), A::Runs, 1).expect("another node");
        limits.charge(node(1, 1), A::Versions, 1).expect("another amount");
        clock.advance(Duration::from_hours(1));
        limits.charge(node(1, 1), A::Runs, 1).expect("one hour, one run");
        limits.charge(node(1, 1), A::Runs, 1).expect_err("too many again");
    }

    #[test]
    fn the_nodes_of_a_project_share_its_limit() {
        let settings = DailyLimitSettings { max_runs_per_project: 3, ..NONE };
        let limits = DailyLimits::with_clock(&settings, &FakeRelativeClock::default());
        for n in 0..3 {
            limits.charge(node(1, n), A::Runs, 1).expect("within the limit");
        }
        let refused = limits.charge(node(1, 3), A::Runs, 1).expect_err("too many");
        assert!(refused.message().starts_with("the project "), "{}", refused.message());
        limits.charge(node(2, 3), A::Runs, 1).expect("another project");
    }

    #[test]
    fn a_message_costs_its_bytes_and_a_short_one_nothing() {
        let settings = DailyLimitSettings { max_bytes_per_node: 10 << 20, ..NONE };
        let limits = DailyLimits::with_clock(&settings, &FakeRelativeClock::default());
        limits.charge(node(1, 1), A::Bytes, 6 << 20).expect("within the limit");
        limits.charge(node(1, 1), A::Bytes, 6 << 20).expect_err("above the limit");
        limits.charge(node(1, 1), A::Bytes, 4 << 20).expect("the rest of the day");
        for _ in 0..1_000 {
            limits.charge(node(1, 1), A::Bytes, 1_000).expect("a short message");
        }
        limits.charge(node(1, 2), A::Bytes, 64 << 20).expect("all of the day at once");
        limits.charge(node(1, 2), A::Bytes, 1 << 20).expect_err("nothing is left");
    }

    #[test]
    fn bytes_are_charged_to_the_database_when_enough_are_collected() {
        let settings = DailyLimitSettings { max_bytes_per_node: 64 << 20, ..NONE };
        let limits = DailyLimits::with_clock(&settings, &FakeRelativeClock::default());
        let send = |bytes: u64| {
            limits.charge(node(1, 1), A::Bytes, bytes).expect("within the limit");
            limits.node_charge(node(1, 1), A::Bytes, bytes)
        };
        assert_eq!(send(600 << 10), None);
        let charge = send(600 << 10).expect("more than a 64th");
        assert_eq!(charge.cost, DAY * 1_200 / (64 << 10));
        limits.note_charged(node(1, 1), &charge);
        assert_eq!(send(1 << 10), None);
        // A call that is refused counts no more, and those before it still do.
        let charge = send(2 << 20).expect("more than a 64th");
        let refused = limits.refuse_charge(node(1, 1), &charge, Duration::from_secs(9));
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!(send(1 << 10), None);
        let charge = send(1_022 << 10).expect("1 + 1 + 1,022 KiB");
        assert_eq!(charge.cost, DAY / 64);
    }

    #[test]
    fn other_amounts_are_charged_to_the_database_at_once() {
        let settings = DailyLimitSettings { max_versions_per_node: 20, ..NONE };
        let limits = DailyLimits::with_clock(&settings, &FakeRelativeClock::default());
        let cost =
            |amount, count| limits.node_charge(node(1, 1), amount, count).map(|charge| charge.cost);
        assert_eq!(cost(A::Versions, 5), Some(DAY / 4));
        assert_eq!(cost(A::Versions, 50), Some(DAY), "all of the day at once");
        assert_eq!(cost(A::Versions, 0), None);
        assert_eq!(cost(A::Runs, 1), None, "there is no limit");
    }

    #[test]
    fn a_project_of_100_000_nodes_can_send_all_its_package_lists_in_a_day() {
        /// More than 4,000 packages with names, versions and available updates have.
        const LIST_BYTES: u64 = 1 << 20;
        let settings = DailyLimitSettings::default();
        let limits = DailyLimits::with_clock(&settings, &FakeRelativeClock::default());
        for n in 1..=100_000 {
            limits.charge(node(1, n), A::Bytes, LIST_BYTES).expect("within the limit");
            limits.charge(node(1, n), A::Bytes, LIST_BYTES).expect("and once more");
        }
        let node_limit = settings.max_bytes_per_node;
        let full_nodes = (1..=2_000)
            .take_while(|n| limits.charge(node(2, *n), A::Bytes, node_limit).is_ok())
            .count();
        assert!((1_000..1_100).contains(&full_nodes), "the project has a limit: {full_nodes}");
    }

    /// The ids of runs have 32 bits for all projects together (docs/adr/0034).
    #[test]
    fn the_runs_of_a_project_do_not_use_up_the_ids_of_runs_within_ten_years() {
        let runs_per_day = DailyLimitSettings::default().max_runs_per_project;
        assert!(runs_per_day > 0 && u32::MAX / runs_per_day > 10 * 366);
    }

    #[test]
    fn amounts_are_found_by_their_names() {
        for amount in LimitedAmount::ALL {
            assert_eq!(LimitedAmount::from_name(amount.name()), Some(amount));
        }
        assert_eq!(LimitedAmount::from_name("files"), None);
    }

    #[test]
    fn a_refusal_is_shown_once_an_hour() {
        let settings = DailyLimitSettings { max_runs_per_node: 1, ..NONE };
        let limits = DailyLimits::with_clock(&settings, &FakeRelativeClock::default());
        let refused_at = |minute: i64| {
            let _ = limits.charge(node(1, 1), A::Runs, 1);
            limits.take_refusals(Time::UNIX_EPOCH + TimeDelta::minutes(minute)).len()
        };
        assert_eq!([0, 1, 2, 60, 61, 90, 121].map(refused_at), [0, 1, 0, 0, 1, 0, 1]);
    }

    #[test]
    fn without_limits_nothing_is_refused() {
        let limits = DailyLimits::with_clock(&NONE, &FakeRelativeClock::default());
        for amount in [A::Bytes, A::PackageLists, A::Versions, A::Runs] {
            assert!((0..1_000).all(|_| limits.charge(node(1, 1), amount, u64::MAX).is_ok()));
        }
    }
}
