//! Shares of the database connections. Work of one share cannot use the connections of another, and
//! within a share neither a project nor a caller can use all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{KeyedPermit, KeyedSemaphore, max_per_project};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::StoreError;
use crate::session::connection_error;
use crate::tx::ProjectKey;

/// Maximum number of projects whose ids are known.
const MAX_KNOWN_PROJECTS: usize = 10_000;

/// Work that has its own share of the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionShare {
    /// Calls of nodes, and the tasks of the server.
    #[default]
    Nodes,
    /// Requests to the REST API that read.
    RestReads,
    /// Requests to the REST API that write.
    RestWrites,
    /// Logins with a password, and their refresh tokens.
    Logins,
}

impl ConnectionShare {
    pub const ALL: [Self; 4] = [Self::Nodes, Self::RestReads, Self::RestWrites, Self::Logins];

    /// The name in metrics and errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::RestReads => "rest_reads",
            Self::RestWrites => "rest_writes",
            Self::Logins => "logins",
        }
    }
}

/// Number of connections of each share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareSizes {
    pub nodes: u32,
    pub rest_reads: u32,
    pub rest_writes: u32,
    pub logins: u32,
}

/// Use of a share since the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareUsage {
    pub share: ConnectionShare,
    /// Connections that are in use.
    pub in_use: usize,
    /// Requests that wait for a connection.
    pub waiting: usize,
    /// Requests that got no connection in time.
    pub refused: u64,
}

/// Which limit of a share is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareLimit {
    /// The limit of the whole share.
    Total,
    PerProject,
    PerCaller,
}

/// The shares of a pool.
#[derive(Debug)]
pub(crate) struct ConnectionShares {
    nodes: Share,
    rest_reads: Share,
    rest_writes: Share,
    logins: Share,
    /// How long to wait for a connection of a share.
    acquire_timeout: Duration,
    /// Ids of projects by their names, so that a project is one key however a request names it.
    /// An old id has no consequences.
    project_ids: Mutex<HashMap<String, TenantId>>,
}

#[derive(Debug)]
struct Share {
    size: usize,
    connections: Arc<Semaphore>,
    per_project: KeyedSemaphore<String>,
    per_caller: KeyedSemaphore<Arc<str>>,
    waiting: AtomicUsize,
    refused: AtomicU64,
}

/// Counts a request as waiting until it is dropped.
struct WaitingRequest<'a>(&'a AtomicUsize);

impl<'a> WaitingRequest<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Permission to use a connection of a share; returned on drop.
#[derive(Debug)]
pub(crate) struct SharePermit {
    _connection: Option<OwnedSemaphorePermit>,
    _project: Option<KeyedPermit<String>>,
    _caller: Option<KeyedPermit<Arc<str>>>,
}

impl Share {
    /// A project may use three quarters of a share and a caller of the REST API half of it, but
    /// both at least one connection.
    fn new(size: u32) -> Self {
        let size = usize::try_from(size).unwrap_or(Semaphore::MAX_PERMITS);
        let size = size.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            size,
            connections: Arc::new(Semaphore::new(size)),
            per_project: KeyedSemaphore::new(max_per_project(size)),
            per_caller: KeyedSemaphore::new(size.div_ceil(2)),
            waiting: AtomicUsize::default(),
            refused: AtomicU64::default(),
        }
    }

    /// Waits for a connection. The limit of the caller comes first, so that callers who wait for
    /// their own limit do not delay others. `limit` is set to the limit that the call waits for.
    async fn acquire(
        &self,
        project: Option<String>,
        caller: Option<&Arc<str>>,
        limit: &mut ShareLimit,
    ) -> SharePermit {
        let _waiting = WaitingRequest::new(&self.waiting);
        *limit = ShareLimit::PerCaller;
        let caller = match caller {
            Some(caller) => Some(self.per_caller.acquire(Arc::clone(caller)).await),
            None => None,
        };
        *limit = ShareLimit::PerProject;
        let project = match project {
            Some(project) => Some(self.per_project.acquire(project).await),
            None => None,
        };
        *limit = ShareLimit::Total;
        // Nothing closes the semaphore.
        let connection = Arc::clone(&self.connections).acquire_owned().await.ok();
        SharePermit { _connection: connection, _project: project, _caller: caller }
    }
}

impl ConnectionShares {
    pub(crate) fn new(sizes: ShareSizes, acquire_timeout: Duration) -> Self {
        Self {
            nodes: Share::new(sizes.nodes),
            rest_reads: Share::new(sizes.rest_reads),
            rest_writes: Share::new(sizes.rest_writes),
            logins: Share::new(sizes.logins),
            acquire_timeout,
            project_ids: Mutex::default(),
        }
    }

    const fn share(&self, share: ConnectionShare) -> &Share {
        match share {
            ConnectionShare::Nodes => &self.nodes,
            ConnectionShare::RestReads => &self.rest_reads,
            ConnectionShare::RestWrites => &self.rest_writes,
            ConnectionShare::Logins => &self.logins,
        }
    }

    /// Waits until work of a share may take a connection of the pool.
    ///
    /// # Errors
    /// No connection of the share was free in time.
    pub(crate) async fn acquire(
        &self,
        which: ConnectionShare,
        project: Option<&ProjectKey>,
        caller: Option<&Arc<str>>,
    ) -> Result<SharePermit, StoreError> {
        let (share, mut limit) = (self.share(which), ShareLimit::Total);
        let project = project.map(|project| self.limit_key(project));
        let acquired = timeout(self.acquire_timeout, share.acquire(project, caller, &mut limit));
        if let Ok(permit) = acquired.await {
            return Ok(permit);
        }
        share.refused.fetch_add(1, Ordering::Relaxed);
        Err(match which {
            ConnectionShare::Nodes => connection_error(sqlx::Error::PoolTimedOut),
            ConnectionShare::RestReads | ConnectionShare::RestWrites | ConnectionShare::Logins => {
                StoreError::ShareInUse { share: which, limit }
            }
        })
    }

    /// Remembers the id of a project that was found by its name.
    pub(crate) fn note_project(&self, project: &ProjectKey, tenant: TenantId) {
        let ProjectKey::Named(name) = project else {
            return;
        };
        let mut ids = self.project_ids.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.get(name.as_str()) == Some(&tenant) {
            return;
        }
        if ids.len() >= MAX_KNOWN_PROJECTS {
            ids.clear();
        }
        ids.insert(name.to_string(), tenant);
    }

    /// The key of a project in the limits.
    fn limit_key(&self, project: &ProjectKey) -> String {
        match project {
            ProjectKey::Id(id) => id.to_string(),
            ProjectKey::Named(name) => {
                let ids = self.project_ids.lock().unwrap_or_else(PoisonError::into_inner);
                ids.get(name.as_str()).map_or_else(|| name.to_string(), TenantId::to_string)
            }
        }
    }

    pub(crate) fn usage(&self) -> Vec<ShareUsage> {
        let usage = |which| {
            let share = self.share(which);
            ShareUsage {
                share: which,
                in_use: share.size.saturating_sub(share.connections.available_permits()),
                waiting: share.waiting.load(Ordering::Relaxed),
                refused: share.refused.load(Ordering::Relaxed),
            }
        };
        ConnectionShare::ALL.into_iter().map(usage).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use evenkeel_domain::tenant::ProjectName;
    use uuid::Uuid;

    use super::*;

    fn shares(rest_reads: u32) -> ConnectionShares {
        let sizes = ShareSizes { nodes: 2, rest_reads, rest_writes: 1, logins: 1 };
        ConnectionShares::new(sizes, Duration::from_secs(3))
    }

    fn project(n: u128) -> ProjectKey {
        ProjectKey::Id(TenantId::new(Uuid::from_u128(n)))
    }

    /// Takes connections for callers that each have one, until the next one has to wait.
    fn take_all(shares: &ConnectionShares, project: &ProjectKey) -> Vec<SharePermit> {
        let mut permits = Vec::new();
        for n in 0..100 {
            let caller: Arc<str> = format!("{project:?} {n}").into();
            let acquired = shares.acquire(ConnectionShare::RestReads, Some(project), Some(&caller));
            let mut acquired = pin!(acquired);
            let mut context = Context::from_waker(Waker::noop());
            match acquired.as_mut().poll(&mut context) {
                Poll::Ready(permit) => permits.push(permit.expect("a connection")),
                Poll::Pending => break,
            }
        }
        permits
    }

    #[tokio::test]
    async fn a_project_leaves_a_part_of_a_share_to_others() {
        for (size, most) in [(2, 1), (3, 2), (4, 3), (8, 6)] {
            let shares = shares(size);
            let taken = take_all(&shares, &project(1));
            assert_eq!(taken.len(), most, "of {size}");
            assert!(!take_all(&shares, &project(2)).is_empty(), "of {size}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_connections_of_a_share_are_not_taken_from_another() {
        let shares = shares(1);
        let _reads = take_all(&shares, &project(1));
        for share in [ConnectionShare::Nodes, ConnectionShare::RestWrites, ConnectionShare::Logins]
        {
            shares.acquire(share, Some(&project(1)), None).await.expect("its own connection");
        }
        let caller: Arc<str> = "another".into();
        let refused =
            shares.acquire(ConnectionShare::RestReads, Some(&project(2)), Some(&caller)).await;
        let refused = refused.expect_err("no connection is free");
        assert!(
            matches!(refused, StoreError::ShareInUse { limit: ShareLimit::Total, .. }),
            "{refused:?}"
        );
        let usage = shares.usage();
        let counts: Vec<_> = usage.iter().map(|usage| (usage.in_use, usage.refused)).collect();
        assert_eq!(counts, [(0, 0), (1, 1), (0, 0), (0, 0)]);
    }

    #[tokio::test]
    async fn a_request_counts_as_waiting_until_it_ends() {
        let shares = shares(1);
        let waiting = || shares.usage()[1].waiting;
        let permits = take_all(&shares, &project(1));
        assert_eq!((permits.len(), waiting()), (1, 0));
        let mut context = Context::from_waker(Waker::noop());
        {
            let project = project(2);
            let next = shares.acquire(ConnectionShare::RestReads, Some(&project), None);
            let mut next = pin!(next);
            assert!(next.as_mut().poll(&mut context).is_pending());
            assert_eq!(waiting(), 1);
        }
        assert_eq!(waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_names_the_limit_that_is_reached() {
        let shares = shares(4);
        let caller: Arc<str> = "one".into();
        let read = |n| {
            let (shares, caller) = (&shares, &caller);
            async move {
                let project = project(n);
                shares.acquire(ConnectionShare::RestReads, Some(&project), Some(caller)).await
            }
        };
        let _first = (read(1).await.expect("a connection"), read(2).await.expect("a connection"));
        assert!(matches!(
            read(3).await,
            Err(StoreError::ShareInUse { limit: ShareLimit::PerCaller, .. })
        ));
        let shares = self::shares(4);
        let _all = take_all(&shares, &project(1));
        let read = shares.acquire(ConnectionShare::RestReads, Some(&project(1)), None).await;
        assert!(matches!(read, Err(StoreError::ShareInUse { limit: ShareLimit::PerProject, .. })));
    }

    #[test]
    fn a_project_is_one_key_by_name_and_by_id() {
        let shares = shares(4);
        let named = ProjectName::parse("projectName", "edge").expect("a name");
        let named = ProjectKey::Named(named);
        assert_ne!(shares.limit_key(&named), shares.limit_key(&project(1)));
        shares.note_project(&named, TenantId::new(Uuid::from_u128(1)));
        assert_eq!(shares.limit_key(&named), shares.limit_key(&project(1)));
    }
}
