//! Limits the number of concurrent transfers, in total, per project and per caller.

use std::sync::Arc;

use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{KeyedPermit, KeyedSemaphore, max_per_project};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::{FileCaller, TransferOwner, VisibleProjects};

/// Counts the running transfers.
#[derive(Debug)]
pub(super) struct TransferLimiter {
    slots: Arc<Semaphore>,
    /// The callers that see a project share a part of the transfers. A transfer counts for each project
    /// that its caller sees, and for none if its caller sees all.
    per_project: KeyedSemaphore<TenantId>,
    per_owner: KeyedSemaphore<TransferOwner>,
}

/// Which limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferLimit {
    /// The limit for all callers.
    Total,
    /// The limit for the callers of one project.
    PerProject,
    PerCaller,
}

/// A running transfer. It counts until it is dropped.
#[derive(Debug)]
pub(super) struct Transfer {
    _owner: KeyedPermit<TransferOwner>,
    _projects: Vec<KeyedPermit<TenantId>>,
    _permit: OwnedSemaphorePermit,
}

impl TransferLimiter {
    /// A limiter; 0 transfers per owner for no limit.
    pub fn new(max_total: usize, max_per_owner: usize) -> Self {
        let max_total = max_total.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            slots: Arc::new(Semaphore::new(max_total)),
            per_project: KeyedSemaphore::new(max_per_project(max_total)),
            per_owner: KeyedSemaphore::new(max_per_owner),
        }
    }

    /// Starts a transfer.
    pub fn acquire(&self, caller: FileCaller) -> Result<Transfer, TransferLimit> {
        let owner = self.per_owner.try_acquire(caller.owner).ok_or(TransferLimit::PerCaller)?;
        let projects = match caller.visible {
            VisibleProjects::All => Vec::new(),
            VisibleProjects::Only(projects) => projects,
        };
        let projects = projects.into_iter().map(|project| self.per_project.try_acquire(project));
        let projects: Option<Vec<_>> = projects.collect();
        let projects = projects.ok_or(TransferLimit::PerProject)?;
        let permit = Arc::clone(&self.slots).try_acquire_owned();
        let permit = permit.map_err(|_| TransferLimit::Total)?;
        Ok(Transfer { _owner: owner, _projects: projects, _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn caller(name: &str, visible: VisibleProjects) -> FileCaller {
        FileCaller { owner: TransferOwner::Subject(name.to_owned()), visible }
    }

    /// A caller of no project.
    fn administrator(name: &str) -> FileCaller {
        caller(name, VisibleProjects::All)
    }

    fn node(name: &str, project: u128) -> FileCaller {
        let project = TenantId::new(Uuid::from_u128(project));
        caller(name, VisibleProjects::Only(vec![project]))
    }

    #[test]
    fn a_project_leaves_transfers_to_others() {
        let limiter = TransferLimiter::new(4, 1);
        let names = ["one", "two", "three"];
        let running: Vec<_> =
            names.iter().map(|name| limiter.acquire(node(name, 1)).expect("a transfer")).collect();
        assert_eq!(limiter.acquire(node("four", 1)).unwrap_err(), TransferLimit::PerProject);
        let other = limiter.acquire(node("five", 2)).expect("a transfer of another project");
        assert_eq!(limiter.acquire(node("six", 3)).unwrap_err(), TransferLimit::Total);
        drop((running, other));
        assert_eq!(limiter.per_project.key_count(), 0);
    }

    #[test]
    fn callers_with_further_projects_share_the_transfers_of_a_project() {
        let limiter = TransferLimiter::new(4, 1);
        let member = |name: &str, projects: &[u128]| {
            let projects = projects.iter().map(|project| TenantId::new(Uuid::from_u128(*project)));
            limiter.acquire(caller(name, VisibleProjects::Only(projects.collect())))
        };
        let running = [("one", &[1][..]), ("two", &[1, 2][..]), ("three", &[1, 3][..])]
            .map(|(name, projects)| member(name, projects).expect("a transfer"));
        assert_eq!(member("four", &[4, 1]).unwrap_err(), TransferLimit::PerProject);
        let other = member("five", &[2]).expect("a transfer of another project");
        drop((running, other));
        assert_eq!(limiter.per_project.key_count(), 0, "also those of a refused transfer");
    }

    #[test]
    fn the_limits_per_caller_and_in_total_hold() {
        let limiter = TransferLimiter::new(3, 2);
        let first = limiter.acquire(administrator("one")).expect("a transfer");
        let second = limiter.acquire(administrator("one")).expect("a transfer");
        assert_eq!(limiter.acquire(administrator("one")).unwrap_err(), TransferLimit::PerCaller);
        let third = limiter.acquire(administrator("two")).expect("a transfer");
        assert_eq!(limiter.acquire(administrator("three")).unwrap_err(), TransferLimit::Total);
        drop(first);
        assert!(limiter.acquire(administrator("three")).is_ok());
        drop((second, third));
        assert_eq!(limiter.per_owner.key_count(), 0, "callers without transfers are not stored");
    }

    #[test]
    fn the_limit_per_caller_can_be_switched_off() {
        let limiter = TransferLimiter::new(9, 0);
        let all: Vec<_> = (0..9).map(|_| limiter.acquire(administrator("one"))).collect();
        assert!(all.iter().all(Result::is_ok));
    }
}
