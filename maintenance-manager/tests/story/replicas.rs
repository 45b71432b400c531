//! Managers that follow the change log and cache answers: that of the test server, and replicas.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::{AnswerCacheSettings, MaintenanceManager, Settings};
use evenkeel_store::{Store, StoreOptions};

use crate::test_server::TestServer;

/// The managers of a test server that follow the change log. Each cached answer is audited, and at
/// the end no audit may have found a mismatch.
#[derive(Default)]
pub struct Replicas {
    life: Lifecycle,
    all: Mutex<Vec<MaintenanceManager>>,
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.life.stop();
        if std::thread::panicking() {
            return;
        }
        let all = self.all.lock().expect("not poisoned");
        let wrong: u64 = all.iter().map(MaintenanceManager::cache_mismatches).sum();
        assert_eq!(wrong, 0, "cached answers were wrong");
    }
}

/// Audits each cached answer before it is sent.
pub fn with_full_audit(settings: Settings) -> Settings {
    let answer_cache = AnswerCacheSettings { audit_every: 1, ..settings.answer_cache };
    Settings { answer_cache, ..settings }
}

/// Lets nodes authenticate with credentials, because most tests have no connections.
pub fn with_credentials(settings: Settings) -> Settings {
    Settings { bearer_credentials: true, ..settings }
}

impl TestServer {
    /// Lets a manager follow the change log, as its background tasks do.
    pub async fn follow(&self, manager: &MaintenanceManager) {
        manager.start_log_follower(&self.replicas.life);
        manager.start_rechecks(&self.replicas.life);
        let followed = async { while !manager.wait_until_caught_up().await {} };
        tokio::time::timeout(Duration::from_mins(1), followed).await.expect("all changes are read");
        let mut all = self.replicas.all.lock().expect("not poisoned");
        all.push(manager.clone());
    }

    /// Lets the manager read the changes up to now.
    pub async fn read_changes(&self) {
        self.manager.wait_until_caught_up().await;
    }

    /// Another replica: like another process it has its own connection pool, and shares everything
    /// else.
    pub async fn replica(&self) -> (MaintenanceManager, Store) {
        self.replica_on(self.connect().await).await
    }

    /// A replica with a very short lock timeout.
    pub async fn replica_with_short_lock_timeout(&self) -> (MaintenanceManager, Store) {
        let options =
            StoreOptions { lock_timeout: Duration::from_millis(100), ..StoreOptions::default() };
        self.replica_on(self.connect_with(options).await).await
    }

    async fn replica_on(&self, store: Store) -> (MaintenanceManager, Store) {
        let manager = self.new_manager(store.clone(), with_full_audit(Settings::default()));
        self.follow(&manager).await;
        (manager, store)
    }

    /// Another manager, which does not follow the change log.
    pub fn new_manager(&self, store: Store, settings: Settings) -> MaintenanceManager {
        let manager = MaintenanceManager::new(
            store,
            self.shared_clock(),
            Arc::clone(&self.authority),
            Arc::clone(&self.ca),
            with_credentials(settings),
        );
        manager.expect("valid settings")
    }
}
