//! State and settings of the API.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_auth::Authority;
use evenkeel_domain::os::catalogue::CatalogSelection;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{Clock, KeyedPermit, KeyedSemaphore};
use evenkeel_store::Store;
use evenkeel_store::decisions::PlanningLimits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Everything that the API needs.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The database.
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    /// Verifies the tokens.
    pub authority: Arc<Authority>,
    /// SHA-256 of the certificate authority's certificate, which join tokens contain. None if nodes
    /// do not need it to verify the server.
    pub ca_digest: Option<String>,
    /// Settings of the API.
    pub settings: Settings,
}

/// Settings of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest body, in bytes.
    pub body_limit: usize,
    pub request_timeout: Duration,
    /// Planning limits of decisions; must be the same as in the maintenance manager.
    pub planning_limits: PlanningLimits,
    /// Origins whose pages may send requests, such as `https://ui.example.org`, or `*` for all.
    pub cors_origins: Vec<String>,
    /// Most lists that are streamed at the same time. Each holds a database connection while its
    /// client reads.
    pub max_streamed_lists: usize,
    /// Bytes per second that a client of a streamed list must read at least; 0 for no minimum.
    pub min_stream_rate: u64,
    /// How long such a client may pause.
    pub stream_grace_period: Duration,
    /// Defaults for the registry settings of projects.
    pub os_defaults: OsDefaults,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_limit: 1024 * 1024,
            request_timeout: Duration::from_secs(15),
            planning_limits: PlanningLimits::default(),
            cors_origins: Vec::new(),
            max_streamed_lists: 8,
            min_stream_rate: 16 * 1024,
            stream_grace_period: Duration::from_secs(15),
            os_defaults: OsDefaults::default(),
        }
    }
}

/// State of the handlers.
pub type App = Arc<AppState>;

/// The API with its runtime state.
#[derive(Debug)]
pub struct AppState {
    inventory: Inventory,
    pub streams: StreamLimiter,
}

impl AppState {
    pub fn new(inventory: Inventory) -> Self {
        Self { streams: StreamLimiter::new(inventory.settings.max_streamed_lists), inventory }
    }
}

/// Limits how many long lists are streamed at the same time: in total, per project and per caller.
#[derive(Debug)]
pub struct StreamLimiter {
    all: Arc<Semaphore>,
    per_project: KeyedSemaphore<TenantId>,
    per_caller: KeyedSemaphore<Arc<str>>,
}

/// Permission to stream a long list; returned on drop.
#[derive(Debug)]
pub struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    _project: KeyedPermit<TenantId>,
    _caller: KeyedPermit<Arc<str>>,
}

impl StreamLimiter {
    fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        // A project leaves a quarter to others, but at least one.
        let per_project = (max - max / 4).min(max.saturating_sub(1)).max(1);
        Self {
            all: Arc::new(Semaphore::new(max)),
            per_project: KeyedSemaphore::new(per_project),
            per_caller: KeyedSemaphore::new(max.div_ceil(2)),
        }
    }

    /// Takes a permit to stream a list of a project for a caller; none if too many are being
    /// streamed.
    pub fn try_acquire(&self, project: TenantId, caller: &str) -> Option<StreamPermit> {
        let caller = self.per_caller.try_acquire(caller.into())?;
        let project = self.per_project.try_acquire(project)?;
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(StreamPermit { _permit: permit, _project: project, _caller: caller })
    }
}

impl Deref for AppState {
    type Target = Inventory;

    fn deref(&self) -> &Inventory {
        &self.inventory
    }
}

/// Defaults of the server for the registry settings of projects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsDefaults {
    /// Names of the registries in the server's configuration.
    pub registries: Vec<String>,
    /// Default selection of the server.
    pub selection: CatalogSelection,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn project(n: u128) -> TenantId {
        TenantId::new(Uuid::from_u128(n))
    }

    /// Takes permits for callers that each stream one list, until there is none.
    fn take_all(streams: &StreamLimiter, n: u128) -> Vec<StreamPermit> {
        let take = |caller: u32| streams.try_acquire(project(n), &format!("{n} {caller}"));
        (0..100).map_while(take).collect()
    }

    #[test]
    fn a_project_leaves_streams_to_others() {
        for (max, most) in [(0, 0), (1, 1), (2, 1), (8, 6)] {
            let streams = StreamLimiter::new(max);
            let taken = take_all(&streams, 1);
            assert_eq!(taken.len(), most, "of {max}");
            let others = take_all(&streams, 2);
            assert_eq!(taken.len() + others.len(), max, "of {max}");
            drop(taken);
            assert_eq!(streams.try_acquire(project(1), "one").is_some(), max > 0);
        }
    }

    #[test]
    fn a_caller_leaves_streams_to_others() {
        for (max, most) in [(1, 1), (2, 1), (5, 3), (8, 4)] {
            let streams = StreamLimiter::new(max);
            let take = |n: u128| streams.try_acquire(project(n), "one");
            let taken: Vec<_> = (0..100).map_while(take).collect();
            assert_eq!(taken.len(), most, "of {max}");
            assert_eq!(streams.try_acquire(project(100), "other").is_some(), max > 1);
        }
    }
}
