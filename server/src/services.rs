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
use evenkeel_os_resource_manager::{Files, OsResourceManager, Sources};
use serde::Serialize;

use crate::config::Config;
use crate::house::House;
use crate::https::{self, Patience};
use crate::listen::{self, Listener};
use crate::realm::Realm;
use crate::{admin, http, memory, observe, southbound, unguarded};

/// Which services this process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    inventory: bool,
    maintenance_manager: bool,
    os_resource_manager: bool,
}

impl Wanted {
    const NONE: Self = Self {
        inventory: false,
        maintenance_manager: false,
        os_resource_manager: false,
    };
    pub(crate) const ALL: Self = Self {
        inventory: true,
        maintenance_manager: true,
        os_resource_manager: true,
    };
    pub(crate) const INVENTORY: Self = Self {
        inventory: true,
        ..Self::NONE
    };
    pub(crate) const MAINTENANCE_MANAGER: Self = Self {
        maintenance_manager: true,
        ..Self::NONE
    };
    pub(crate) const OS_RESOURCE_MANAGER: Self = Self {
        os_resource_manager: true,
        ..Self::NONE
    };

    /// What is wrong with the settings of these services that can be seen without a database, if anything is.
    pub(crate) fn check(self, config: &Config) -> anyhow::Result<()> {
        if self.os_resource_manager {
            let opened = Sources::open(&config.os_resource_manager.registries);
            opened.context("the configuration is not usable")?;
        }
        Ok(())
    }

    /// Whether files are served: without a registry there are none.
    fn files(self, config: &Config) -> Option<SocketAddr> {
        let has_some = !config.os_resource_manager.registries.is_empty();
        let listen = config.files.listen.filter(|_| self.os_resource_manager)?;
        if !has_some {
            tracing::warn!(
                "files.listen is set, but there is no registry that files could come from: nothing listens there"
            );
        }
        has_some.then_some(listen)
    }
}

/// Sockets that are bound but not served yet: a client waits, instead of being turned away.
#[derive(Debug)]
pub(crate) struct Listeners {
    rest: Option<Listener>,
    southbound: Option<Listener>,
    files: Option<Listener>,
    admin: Listener,
    /// Whether the catalogue of operating systems is kept.
    catalogue: bool,
}

/// Where the process listens.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Addresses {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rest: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) southbound: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<SocketAddr>,
    pub(crate) admin: SocketAddr,
}

impl Listeners {
    pub(crate) fn bind(config: &Config, wanted: Wanted) -> anyhow::Result<Self> {
        let minute = Duration::from_mins(1);
        let (rest, south) = (&config.rest, &config.southbound);
        let mut bound = Self {
            rest: None,
            southbound: None,
            files: None,
            admin: Listener::bind("admin.listen", config.admin.listen, 100, minute)?,
            catalogue: wanted.os_resource_manager,
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
        if let Some(listen) = wanted.files(config) {
            let most = config.files.max_connections;
            listen::allow_files(most.saturating_add(config.files.transfers));
            bound.files = Some(Listener::bind("files.listen", listen, most, minute)?);
        }
        Ok(bound)
    }

    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            rest: self.rest.as_ref().map(|listener| listener.address),
            southbound: self.southbound.as_ref().map(|listener| listener.address),
            files: self.files.as_ref().map(|listener| listener.address),
            admin: self.admin.address,
        }
    }

    /// Serves on all of them.
    pub(crate) fn serve(
        self,
        config: Config,
        data_dir: &Path,
        house: &House,
        life: &Lifecycle,
    ) -> anyhow::Result<()> {
        let metrics = observe::install(life)?;
        house.authority.keep_fresh(life)?;
        tell_hints(house, life);
        if self.southbound.is_some() || self.files.is_some() {
            house.certificates.keep_fresh(&house.clock, life);
        }
        if self.catalogue {
            catalogue(&config, data_dir, self.files, house, life)?;
        }
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
            let routes = manager.services();
            let (south, short) = (&config.southbound, manager.memory());
            memory::watch(south.memory_limit, short.clone(), life);
            southbound::serve(listener, routes, (house, short), south, life)?;
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

/// The catalogue of operating systems, and their files for nodes. Without a registry there is nothing to do.
fn catalogue(
    config: &Config,
    data_dir: &Path,
    listener: Option<Listener>,
    house: &House,
    life: &Lifecycle,
) -> anyhow::Result<()> {
    let (store, clock) = (house.store.clone(), Arc::clone(&house.clock));
    let settings = config.os_resource_manager.clone();
    if settings.registries.is_empty() {
        return Ok(());
    }
    let manager = OsResourceManager::new(store.clone(), Arc::clone(&clock), settings);
    let manager = manager.context("the configuration is not usable")?;
    manager.start_loops(life);
    let Some(listener) = listener else {
        return Ok(());
    };
    let settings = config.files.settings(data_dir);
    let authority = Arc::clone(&house.authority);
    let files = Files::open(store, authority, clock, settings, manager.sources());
    let files = files.context("files cannot be kept (files.dir)")?;
    files.start_loops(life);
    let patience = Patience {
        handshake: config.files.handshake_within,
        head: config.files.head_within,
        all: config.files.longest,
    };
    let secured = (house.certificates.web()?, patience);
    https::serve("files", listener, files.router(), secured, life);
    Ok(())
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
