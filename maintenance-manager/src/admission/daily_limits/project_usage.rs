//! How far projects have used up their daily limits: in memory, and exchanged with the database.
//!
//! A row per project that each write locks would make all nodes of the project wait for each other.
//! So a process collects the use of its nodes. Every few seconds it adds this use to the database
//! and reads the use of all processes.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_domain::tenant::TenantId;
use evenkeel_store::daily_usage::{self, ProjectCharge, ProjectDailyUsage};
use evenkeel_store::{Store, StoreError};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use crate::admission::daily_limits::{DAY, LimitedAmount};
use crate::outage::Outage;

/// How often a process exchanges its use of the limits.
const EXCHANGE_INTERVAL: Duration = Duration::from_secs(10);

/// The part of a limit that a process uses before it exchanges at once.
const EXCHANGE_SHARE: u32 = 50;

/// How far the projects have used up their limits. Amounts are counted by the time in which their
/// buckets gain as much again.
#[derive(Debug, Default)]
pub struct ProjectUsage {
    amounts: Mutex<HashMap<(TenantId, LimitedAmount), AmountUsage>>,
    /// Whether the use of all processes was read once.
    is_read: AtomicBool,
    /// Wakes the task that exchanges.
    exchange_due: Notify,
}

/// How far a project has used up one limit.
#[derive(Clone, Copy, Debug, Default)]
struct AmountUsage {
    /// The use of all processes at the last exchange, and its time.
    shared: Option<(Duration, Instant)>,
    /// The use of this process since then.
    unwritten: Duration,
}

impl AmountUsage {
    /// The time until the bucket is full.
    fn used(&self, now: Instant) -> Duration {
        let shared = self.shared.map_or(Duration::ZERO, |(used, at)| {
            used.saturating_sub(now.saturating_duration_since(at))
        });
        shared + self.unwritten
    }
}

impl ProjectUsage {
    /// Charges an amount to a project. The error is the time until its bucket has as much.
    pub fn charge(&self, key: (TenantId, LimitedAmount), cost: Duration) -> Result<(), Duration> {
        let mut amounts = self.lock();
        let usage = amounts.entry(key).or_default();
        let used = usage.used(Instant::now()) + cost;
        if used > DAY {
            return Err(used.saturating_sub(DAY));
        }
        usage.unwritten += cost;
        if usage.unwritten >= DAY / EXCHANGE_SHARE {
            self.exchange_due.notify_one();
        }
        Ok(())
    }

    /// Exchanges at an interval and when a project has used much, and once more at the stop.
    pub async fn run(&self, store: Store, outage: &Outage, stopping: impl Future<Output = ()>) {
        let mut stopping = pin!(stopping);
        let mut ticks = tokio::time::interval(EXCHANGE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let last = tokio::select! {
                () = &mut stopping => true,
                _ = ticks.tick() => false,
                () = self.exchange_due.notified() => false,
            };
            let exchanged = self.exchange(&store).await;
            // A pass without anything to exchange has not used the database.
            if !matches!(exchanged, Ok(false)) {
                outage.note_pass("daily usage", &exchanged);
            }
            if last {
                return;
            }
            if exchanged.is_err() {
                // The next pass waits for the interval, and not for the next charge.
                ticks.reset();
                tokio::select! {
                    () = &mut stopping => return,
                    _ = ticks.tick() => {}
                }
            }
        }
    }

    /// Writes the use of this process, and reads the use of all processes. Returns whether there
    /// was anything to do. After a failure the next exchange writes the same use.
    pub async fn exchange(&self, store: &Store) -> Result<bool, StoreError> {
        let written = self.unwritten();
        if written.is_empty() && self.is_read.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let tx = store.fleet().await?;
        let shared = daily_usage::charge_projects(&tx, &written).await?;
        tx.commit().await?;
        self.replace(&written, &shared, Instant::now());
        self.is_read.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// The use of this process that is not written yet.
    fn unwritten(&self) -> Vec<ProjectCharge<'static>> {
        let amounts = self.lock();
        let unwritten = amounts.iter().filter(|(_, usage)| !usage.unwritten.is_zero());
        let charge = |(key, usage): (&(TenantId, LimitedAmount), &AmountUsage)| ProjectCharge {
            tenant: key.0,
            amount: key.1.name(),
            cost: usage.unwritten,
        };
        unwritten.map(charge).collect()
    }

    /// Replaces the use of all processes. Unused amounts are removed.
    fn replace(&self, written: &[ProjectCharge<'_>], shared: &[ProjectDailyUsage], at: Instant) {
        let mut amounts = self.lock();
        for charge in written {
            let amount = LimitedAmount::from_name(charge.amount);
            if let Some(usage) = amount.and_then(|amount| amounts.get_mut(&(charge.tenant, amount)))
            {
                usage.unwritten = usage.unwritten.saturating_sub(charge.cost);
            }
        }
        for usage in amounts.values_mut() {
            usage.shared = None;
        }
        for usage in shared {
            if let Some(amount) = LimitedAmount::from_name(&usage.amount) {
                let entry = amounts.entry((usage.tenant, amount)).or_default();
                entry.shared = Some((usage.used, at));
            }
        }
        amounts.retain(|_, usage| usage.shared.is_some() || !usage.unwritten.is_zero());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(TenantId, LimitedAmount), AmountUsage>> {
        self.amounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_store::testing::fresh_store;
    use uuid::Uuid;

    use super::*;
    use LimitedAmount as A;

    const HOUR: Duration = Duration::from_hours(1);

    fn project(n: u128) -> TenantId {
        TenantId::new(Uuid::from_u128(n))
    }

    #[test]
    fn a_bucket_empties_with_charges_and_fills_with_time() {
        let now = Instant::now();
        let mut usage = AmountUsage { shared: Some((HOUR * 3, now)), unwritten: HOUR };
        assert_eq!(usage.used(now), HOUR * 4);
        assert_eq!(usage.used(now + HOUR), HOUR * 3);
        assert_eq!(usage.used(now + HOUR * 5), HOUR, "what is not written does not fill up");
        usage.shared = None;
        assert_eq!(usage.used(now), HOUR);
    }

    #[test]
    fn the_use_of_other_processes_counts_and_written_use_counts_once() {
        let usage = ProjectUsage::default();
        usage.charge((project(1), A::Runs), HOUR * 6).expect("within the limit");
        let written = usage.unwritten();
        usage.charge((project(1), A::Runs), HOUR).expect("within the limit");
        let shared = ProjectDailyUsage {
            tenant: project(1),
            amount: A::Runs.name().to_owned(),
            used: HOUR * 16,
        };
        usage.replace(&written, &[shared], Instant::now());
        let wait = usage.charge((project(1), A::Runs), HOUR * 8).expect_err("16 + 1 + 8 hours");
        assert!(HOUR.mul_f32(0.9) < wait && wait <= HOUR, "{wait:?}");
        usage.charge((project(1), A::Runs), HOUR * 6).expect("within the limit");
        usage.charge((project(2), A::Runs), HOUR * 24).expect("another project");
    }

    #[test]
    fn unused_amounts_are_forgotten() {
        let usage = ProjectUsage::default();
        usage.charge((project(1), A::Versions), HOUR).expect("within the limit");
        let written = usage.unwritten();
        usage.replace(&written, &[], Instant::now());
        assert!(usage.lock().is_empty());
    }

    #[tokio::test]
    async fn unwritten_use_is_written_by_a_later_exchange() {
        let (store, away) = (fresh_store().await, fresh_store().await);
        away.close().await;
        let usage = ProjectUsage::default();
        usage.charge((project(1), A::Runs), HOUR).expect("within the limit");
        usage.exchange(&away).await.expect_err("it is closed");
        assert_eq!(usage.unwritten().len(), 1);
        assert!(usage.exchange(&store).await.expect("written"));
        assert!(!usage.exchange(&store).await.expect("nothing to do"));
    }
}
