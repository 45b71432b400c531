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
    /// Permits to stream a long list.
    stream_permits: Arc<Semaphore>,
    project_streams: KeyedSemaphore<TenantId>,
}

/// Permission to stream a long list; returned on drop.
#[derive(Debug)]
pub struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    _project: KeyedPermit<TenantId>,
}

impl AppState {
    pub fn new(inventory: Inventory) -> Self {
        let permits = inventory.settings.max_streamed_lists.min(Semaphore::MAX_PERMITS);
        // One project must not take the permits of all others.
        let per_project = (permits - permits / 4).min(permits.saturating_sub(1)).max(1);
        Self {
            stream_permits: Arc::new(Semaphore::new(permits)),
            project_streams: KeyedSemaphore::new(per_project),
            inventory,
        }
    }

    /// Takes a permit to stream a long list of a project; none if too many are being streamed.
    pub fn acquire_stream(&self, project: TenantId) -> Option<StreamPermit> {
        let project = self.project_streams.try_acquire(project)?;
        let permit = Arc::clone(&self.stream_permits).try_acquire_owned().ok()?;
        Some(StreamPermit { _permit: permit, _project: project })
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
