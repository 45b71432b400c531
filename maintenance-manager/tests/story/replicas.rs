//! Managers that follow the changes and remember answers: that of a house, and others beside it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_kit::Lifecycle;
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::{MaintenanceManager, Settings, ViewSettings};
use evenkeel_store::{Store, StoreOptions};

use crate::house::{House, connect};

/// The managers of a house that follow the changes. Each answer from memory is looked at again, and at the end none may
/// have been wrong.
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
        let all = self.all.lock().expect("nobody panics with it");
        let wrong: u64 = all.iter().map(MaintenanceManager::mismatches).sum();
        assert_eq!(wrong, 0, "answers from memory were wrong");
    }
}

/// Each answer from memory is looked at again before it is given.
pub fn audited(settings: Settings) -> Settings {
    let view = ViewSettings {
        audit_every: 1,
        ..settings.view
    };
    Settings { view, ..settings }
}

impl House {
    /// Lets a manager of this house follow the changes, as its loops do.
    pub async fn follow(&self, manager: &MaintenanceManager) {
        manager.start_view(&self.replicas.life);
        manager.start_rechecks(&self.replicas.life);
        let followed = async { while !manager.caught_up().await {} };
        tokio::time::timeout(Duration::from_mins(1), followed)
            .await
            .expect("the changes are followed");
        let mut all = self.replicas.all.lock().expect("nobody panics with it");
        all.push(manager.clone());
    }

    /// What was changed is known to the manager from now on.
    pub async fn caught_up(&self) {
        self.manager.caught_up().await;
    }

    /// Another replica: another process would have another pool of connections, and share everything else.
    pub async fn replica(&self) -> (MaintenanceManager, Store) {
        self.replica_on(connect(&self.url).await).await
    }

    /// One that waits for no lock.
    pub async fn impatient_replica(&self) -> (MaintenanceManager, Store) {
        let options = StoreOptions {
            lock_timeout: Duration::from_millis(100),
            ..StoreOptions::default()
        };
        let store = Store::connect(&self.url, options).await;
        self.replica_on(store.expect("the database")).await
    }

    async fn replica_on(&self, store: Store) -> (MaintenanceManager, Store) {
        let manager = self.manager_on(store.clone(), audited(Settings::default()));
        self.follow(&manager).await;
        (manager, store)
    }

    /// Another manager, which follows no changes.
    pub fn manager_on(&self, store: Store, settings: Settings) -> MaintenanceManager {
        MaintenanceManager::new(
            store,
            Arc::clone(&self.clock) as Arc<dyn Clock>,
            Arc::clone(&self.authority),
            settings,
        )
    }
}
