//! The services on their listeners.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use evenkeel_inventory::Inventory;
use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::MaintenanceManager;
use serde::Serialize;

use crate::config::Config;
use crate::house::House;
use crate::listen::{self, Listener};
use crate::realm::Realm;
use crate::{admin, http, observe, southbound, unguarded};

/// Which services this process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    inventory: bool,
    maintenance_manager: bool,
}

impl Wanted {
    pub(crate) const ALL: Self = Self {
        inventory: true,
        maintenance_manager: true,
    };
    pub(crate) const INVENTORY: Self = Self {
        inventory: true,
        maintenance_manager: false,
    };
    pub(crate) const MAINTENANCE_MANAGER: Self = Self {
        inventory: false,
        maintenance_manager: true,
    };
}

/// Sockets that are bound but not served yet: a client waits, instead of being turned away.
#[derive(Debug)]
pub(crate) struct Listeners {
    rest: Option<Listener>,
    southbound: Option<Listener>,
    admin: Listener,
}

/// Where the process listens.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Addresses {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rest: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) southbound: Option<SocketAddr>,
    pub(crate) admin: SocketAddr,
}

impl Listeners {
    pub(crate) fn bind(config: &Config, wanted: Wanted) -> anyhow::Result<Self> {
        let minute = Duration::from_mins(1);
        let (rest, south) = (&config.rest, &config.southbound);
        let mut bound = Self {
            rest: None,
            southbound: None,
            admin: Listener::bind("admin.listen", config.admin.listen, 100, minute)?,
        };
        if wanted.inventory {
            let listener = Listener::bind("rest.listen", rest.listen, rest.max_connections, minute);
            bound.rest = Some(listener?);
        }
        if wanted.maintenance_manager {
            let (most, keep_alive) = (south.max_connections, south.keep_alive);
            listen::allow_files(most);
            let listener = Listener::bind("southbound.listen", south.listen, most, keep_alive);
            bound.southbound = Some(listener?);
        }
        Ok(bound)
    }

    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            rest: self.rest.as_ref().map(|listener| listener.address),
            southbound: self.southbound.as_ref().map(|listener| listener.address),
            admin: self.admin.address,
        }
    }

    /// Serves on all of them.
    pub(crate) fn serve(
        self,
        config: Config,
        house: &House,
        life: &Lifecycle,
    ) -> anyhow::Result<()> {
        let metrics = observe::install()?;
        house.authority.keep_fresh(life)?;
        tell_hints(house, life);
        if let Some(listener) = self.rest {
            let router = observe::http(rest(&config, house)?);
            http::serve("rest", listener, router, config.rest.head_within, life);
        }
        if let Some(listener) = self.southbound {
            let manager = MaintenanceManager::new(
                house.store.clone(),
                Arc::clone(&house.clock),
                Arc::clone(&house.authority),
                config.maintenance_manager,
            );
            manager.start_loops(life);
            let routes = observe::grpc(manager.services().into_axum_router()).into();
            southbound::serve(listener, routes, house, &config.southbound, life)?;
            house.certificates.keep_fresh(&house.clock, life);
        }
        let router = admin::router(house.store.clone(), metrics, life.stopping());
        http::serve("admin", self.admin, router, Duration::from_secs(10), life);
        Ok(())
    }
}

/// Whatever this process writes, those who follow the change log hear of at once.
fn tell_hints(house: &House, life: &Lifecycle) {
    let (store, stopping) = (house.store.clone(), life.stopping());
    life.spawn("hints", async move {
        store.tell_hints(stopping).await;
        Ok(())
    });
}

/// The REST API, and beside it what else is on its listener.
fn rest(config: &Config, house: &House) -> anyhow::Result<Router> {
    let mut router = evenkeel_inventory::router(Inventory {
        store: house.store.clone(),
        clock: Arc::clone(&house.clock),
        authority: Arc::clone(&house.doorkeeper),
        ca_digest: house.certificates.digest(),
        settings: config.inventory()?,
    });
    if let Some(login) = &config.auth.login {
        router = Realm::open(login, &house.authority, &house.clock)?.beside(router);
    }
    if config.auth.disabled {
        router = unguarded::only_from_here(router, &config.rest.cors_origins);
    }
    Ok(router)
}

impl Addresses {
    /// Tells whoever waits for it that everything is up. The file appears complete or not at all.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let beside = path.with_extension("new");
        let write = || -> io::Result<()> {
            fs::write(&beside, serde_json::to_vec(self)?)?;
            fs::rename(&beside, path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}
