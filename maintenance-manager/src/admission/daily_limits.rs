//! Daily limits: how much a node, and all nodes of a project together, may make the server store. A
//! rate of calls does not limit this, because one call may carry megabytes.
//!
//! Each limit is a bucket in memory that holds the amount of a day and fills up within a day.
//! Processes count separately and start with full buckets.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use governor::Quota;
use governor::clock::{Clock, MonotonicClock};
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::admission::concurrency::with_pushback;
use crate::admission::peer::Peer;
use crate::admission::rate_limit::PeerLimiter;

/// The maximum number of nodes and of projects that are counted, of each amount. A new one replaces
/// one that stored nothing lately, whose bucket was probably full again.
const MAX_BUCKETS: usize = 1 << 16;

/// Bytes are counted in units of this size. Messages below one unit cost nothing.
const BYTES_PER_UNIT: u64 = 1_024;

const DAY: Duration = Duration::from_hours(24);

/// How often a refusal of a node is shown: each time writes its row.
const SHOW_INTERVAL: TimeDelta = TimeDelta::hours(1);

/// Limits of what nodes may make the server store within a day; 0 means no limit. Each process
/// counts separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DailyLimitSettings {
    /// Bytes of the messages of a node that change something, such as facts, package lists and
    /// reports. At least 16 MiB, the longest message.
    pub max_bytes_per_node: u64,
    /// Bytes of the messages of all nodes of a project that change something.
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
    /// Runs that all nodes of a project open.
    pub max_runs_per_project: u32,
}

impl Default for DailyLimitSettings {
    fn default() -> Self {
        Self {
            max_bytes_per_node: 256 << 20,
            max_bytes_per_project: 0,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedAmount {
    Bytes,
    PackageLists,
    Versions,
    Runs,
}

impl LimitedAmount {
    /// The label in metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::PackageLists => "package_lists",
            Self::Versions => "versions",
            Self::Runs => "runs",
        }
    }
}

/// The daily limits, and how far they are used up.
#[derive(Debug)]
pub struct DailyLimits<C: Clock = MonotonicClock> {
    bytes: AmountLimits<C>,
    package_lists: AmountLimits<C>,
    versions: AmountLimits<C>,
    runs: AmountLimits<C>,
    refusals: Mutex<RefusedNodes>,
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

/// The limits of one amount.
#[derive(Debug)]
struct AmountLimits<C: Clock> {
    per_node: Option<PeerLimiter<C>>,
    per_project: Option<PeerLimiter<C>>,
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
        let limits =
            |node, project| AmountLimits { per_node: limiter(node), per_project: limiter(project) };
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

    /// Charges an amount to a node and its project, or refuses it with a retry delay. An amount
    /// above a limit costs the whole limit.
    pub fn charge(
        &self,
        (tenant, host): (TenantId, HostId),
        amount: LimitedAmount,
        count: u64,
    ) -> Result<(), Status> {
        let (limits, units) = match amount {
            LimitedAmount::Bytes => (&self.bytes, count / BYTES_PER_UNIT),
            LimitedAmount::PackageLists => (&self.package_lists, count),
            LimitedAmount::Versions => (&self.versions, count),
            LimitedAmount::Runs => (&self.runs, count),
        };
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let Some(units) = NonZeroU32::new(units) else {
            return Ok(());
        };
        let (node, project) = (Peer::Host(tenant, host), Peer::holder(tenant, ""));
        let both = [("node", &limits.per_node, node), ("project", &limits.per_project, project)];
        for (scope, limiter, peer) in both {
            let charged = limiter.as_ref().map_or(Ok(()), |limiter| limiter.charge(&peer, units));
            charged.map_err(|wait| self.refuse((tenant, host), (scope, amount), wait))?;
        }
        Ok(())
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
