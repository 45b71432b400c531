//! The services and their listeners.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::{Extension, Router};
use evenkeel_inventory::Inventory;
use evenkeel_kit::{Lifecycle, Secret};
use evenkeel_maintenance_manager::MaintenanceManager;
use evenkeel_os_resource_manager::{FileServer, OsResourceManager};
use serde::Serialize;

use crate::app_context::AppContext;
use crate::config::{Config, HttpTlsSettings};
use crate::fleet_metrics::FleetMetrics;
use crate::http::{self, HttpSettings, HttpTimeouts};
use crate::listen::{self, Listener, UnauthenticatedLimits};
use crate::login_methods::LoginMethods;
use crate::proxy_header::TrustedProxies;
use crate::realm::Realm;
use crate::{
    admin, clock_watch, loopback_guard, memory, observe, operator_tokens, southbound, tls, traces,
};

/// Maximum wait for open transfers of files on shutdown. Clients resume interrupted downloads.
const FILES_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time to receive the header of a request to the admin listener.
const ADMIN_HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Services that this process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceSelection {
    inventory: bool,
    maintenance_manager: bool,
    os_resource_manager: bool,
}

impl ServiceSelection {
    const NONE: Self =
        Self { inventory: false, maintenance_manager: false, os_resource_manager: false };
    pub(crate) const ALL: Self =
        Self { inventory: true, maintenance_manager: true, os_resource_manager: true };
    pub(crate) const INVENTORY: Self = Self { inventory: true, ..Self::NONE };
    pub(crate) const MAINTENANCE_MANAGER: Self = Self { maintenance_manager: true, ..Self::NONE };
    pub(crate) const OS_RESOURCE_MANAGER: Self = Self { os_resource_manager: true, ..Self::NONE };

    /// Checks the settings of these services that can be checked without a database.
    pub(crate) fn check(self, config: &Config) -> anyhow::Result<()> {
        if self.maintenance_manager {
            let checked = config.maintenance_manager.check();
            checked.context("the configuration is invalid")?;
        }
        if self.os_resource_manager {
            let checked = config.os_resource_manager.check();
            checked.context("the configuration is invalid")?;
        }
        Ok(())
    }

    /// Returns the address of the listener for files; `None` if no files are served. Without a
    /// registry there are no files.
    fn files_address(self, config: &Config) -> Option<SocketAddr> {
        let has_some = !config.os_resource_manager.registries.is_empty();
        let listen = config.files.listen.filter(|_| self.os_resource_manager)?;
        if !has_some {
            tracing::warn!("files.listen is set, but there is no registry: no files are served");
        }
        has_some.then_some(listen)
    }
}

/// Bound sockets that are not served yet. Clients wait instead of being refused.
#[derive(Debug)]
pub(crate) struct Listeners {
    rest: Option<Listener>,
    southbound: Option<Listener>,
    files: Option<Listener>,
    admin: Listener,
    /// Whether this process synchronizes the catalogue of operating systems.
    catalogue: bool,
}

/// Listen addresses of the process.
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
    pub(crate) fn bind(config: &Config, selection: ServiceSelection) -> anyhow::Result<Self> {
        let minute = Duration::from_mins(1);
        let (rest, south) = (&config.rest, &config.southbound);
        let mut bound = Self {
            rest: None,
            southbound: None,
            files: None,
            admin: Listener::bind("admin.listen", config.admin.listen, 100, minute)?,
            catalogue: selection.os_resource_manager,
        };
        if selection.inventory {
            let listener =
                Listener::bind("rest.listen", rest.listen, rest.max_connections, minute)?;
            let login = config.auth.login.as_ref();
            let proxies = login.map(|login| login.trusted_proxies.as_slice()).unwrap_or_default();
            let limits = UnauthenticatedLimits {
                total: rest.max_unauthenticated_connections,
                per_address: rest.max_unauthenticated_per_address,
            };
            let listener = listener.limit_unauthenticated(limits);
            let listener = listener.limit_authenticated(rest.authenticated_limits());
            let listener = listener.exempt_proxies(proxies);
            bound.rest = Some(listener.with_naming_proxies(&rest.trusted_proxies));
        }
        if selection.maintenance_manager {
            let (most, keep_alive) = (south.max_connections, south.tcp_keepalive_idle);
            listen::raise_file_limit(most);
            let listener = Listener::bind("southbound.listen", south.listen, most, keep_alive);
            bound.southbound = Some(listener?.limit_unauthenticated(UnauthenticatedLimits {
                total: south.max_unauthenticated_connections,
                per_address: south.max_unauthenticated_per_address,
            }));
        }
        if let Some(listen) = selection.files_address(config) {
            let most = config.files.max_connections;
            listen::raise_file_limit(most.saturating_add(config.files.max_transfers));
            let listener = Listener::bind("files.listen", listen, most, minute)?;
            bound.files = Some(listener.limit_unauthenticated(UnauthenticatedLimits {
                total: config.files.max_unauthenticated_connections,
                per_address: config.files.max_unauthenticated_per_address,
            }));
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

    pub(crate) fn serve(
        self,
        config: Config,
        data_dir: &Path,
        context: &AppContext,
        life: &Lifecycle,
    ) -> anyhow::Result<()> {
        let metrics = observe::install(life)?;
        traces::start(&config.tracing, life)?;
        context.authority.spawn_key_refresh(life)?;
        operator_tokens::spawn_revocation_watch(context, life);
        operator_tokens::spawn_project_names_watch(context, life);
        operator_tokens::spawn_use_recorder(context, life);
        spawn_hint_sender(context, life);
        clock_watch::spawn(context, life);
        let fleet = FleetMetrics::default();
        fleet.spawn_counting(&context.store, config.admin.fleet_count_interval, life);
        if self.southbound.is_some() || self.files.is_some() {
            context.certificates.spawn_renewal("southbound", &context.clock, life);
        }
        let database_url = config.database.url.as_ref().map(Secret::reveal);
        let database = (context.store.clone(), Arc::clone(&context.clock));
        tls::spawn_expiry_watch(&context.ca, database_url, database, life);
        let admin = http_settings(&config.admin_tls(), ADMIN_HEADER_TIMEOUT, context, life)?;
        if self.catalogue {
            start_catalogue(&config, data_dir, self.files, context, life)?;
        }
        if let Some(listener) = self.rest {
            let timeout = config.rest.header_timeout;
            let proxies = TrustedProxies::new(&config.rest.trusted_proxies);
            let settings = http_settings(&config.rest_tls(), timeout, context, life)?;
            let settings = HttpSettings { proxies, ..settings };
            let router = observe::count_http_requests(rest_router(&config, context, life)?);
            http::serve("rest", listener, router, settings, life);
        }
        if let Some(listener) = self.southbound {
            let manager = MaintenanceManager::new(
                context.store.clone(),
                Arc::clone(&context.clock),
                Arc::clone(&context.authority),
                Arc::clone(&context.ca),
                config.maintenance_manager,
            );
            let manager = manager.context("the configuration is invalid")?;
            manager.start_tasks(life);
            let routes = manager.services();
            let (south, short) = (&config.southbound, manager.memory());
            memory::spawn_memory_watch(south.memory_limit, short.clone(), life);
            southbound::serve(listener, routes, (context, short), south, life)?;
        }
        let clocks = (context.store.clone(), Arc::clone(&context.clock));
        let router = admin::router(clocks, (metrics, fleet), life.stopping());
        http::serve("admin", self.admin, router, admin, life);
        Ok(())
    }
}

/// Settings of a listener for HTTP. Opens its certificates, and renews them from now on.
fn http_settings(
    settings: &HttpTlsSettings<'_>,
    header_timeout: Duration,
    context: &AppContext,
    life: &Lifecycle,
) -> anyhow::Result<HttpSettings> {
    let tls = match context.open_http_certificates(settings)? {
        None => None,
        Some(certificates) => {
            certificates.spawn_renewal(settings.section, &context.clock, life);
            Some(certificates.http_config(None)?)
        }
    };
    Ok(HttpSettings::new(tls, header_timeout))
}

/// Notifies followers of the change log immediately about writes of this process.
fn spawn_hint_sender(context: &AppContext, life: &Lifecycle) {
    let (store, stopping) = (context.store.clone(), life.stopping());
    life.spawn("hints", async move {
        store.send_hints(stopping).await;
        Ok(())
    });
}

/// Router of the REST API, with the other endpoints on its listener.
fn rest_router(config: &Config, context: &AppContext, life: &Lifecycle) -> anyhow::Result<Router> {
    let login = config.auth.login.as_ref();
    let realm =
        login.map(|login| Realm::open(login, &context.store, &context.authority, &context.clock));
    let realm = realm.transpose()?.map(|realm| realm.with_tls(config.rest_tls().is_tls()));
    let mut router = evenkeel_inventory::router(Inventory {
        store: context.store.clone(),
        clock: Arc::clone(&context.clock),
        authority: Arc::clone(&context.rest_authenticator),
        ca_digest: context.certificates.digest(),
        reserved_names: realm.as_ref().map(Realm::names_in_file).unwrap_or_default(),
        password_checker: realm.as_ref().map(Realm::password_checker).unwrap_or_default(),
        settings: config.inventory_settings()?,
    });
    // Streams of changes end when the process stops.
    router = router.layer(Extension(life.clone()));
    if let Some(realm) = realm {
        router = realm.into_router(router);
    }
    router = LoginMethods::new(&config.auth).into_router(router);
    if config.auth.disabled {
        router = loopback_guard::only_from_loopback(router, &config.rest.cors_origins);
    }
    Ok(router)
}

/// Starts the catalogue of operating systems and the service for files. Without a registry, nothing
/// is started.
fn start_catalogue(
    config: &Config,
    data_dir: &Path,
    listener: Option<Listener>,
    context: &AppContext,
    life: &Lifecycle,
) -> anyhow::Result<()> {
    let (store, clock) = (context.store.clone(), Arc::clone(&context.clock));
    let settings = config.os_resource_manager.clone();
    if settings.registries.is_empty() {
        return Ok(());
    }
    let manager = OsResourceManager::new(store.clone(), Arc::clone(&clock), settings);
    let manager = manager.context("the configuration is invalid")?;
    manager.start_loops(life);
    let Some(listener) = listener else {
        return Ok(());
    };
    let settings = config.file_settings(data_dir);
    let authority = Arc::clone(&context.authority);
    let files = FileServer::open(store, authority, clock, settings, manager.sources());
    let files = files.context("cannot open the directory of files (files.dir)")?;
    files.start_loops(life);
    let timeouts = HttpTimeouts {
        handshake: config.files.handshake_timeout,
        header: config.files.header_timeout,
        max_connection_age: Some(config.files.max_connection_age),
        drain: Some(FILES_DRAIN_TIMEOUT),
    };
    let settings = HttpSettings {
        tls: Some(context.certificates.http_config(Some(&context.ca))?),
        timeouts,
        proxies: TrustedProxies::new(&config.files.trusted_proxies),
    };
    let router = http::authenticate_by_success(files.router());
    http::serve("files", listener, router, settings, life);
    Ok(())
}

impl Addresses {
    /// Writes the ready file, which signals that all services are ready. The file is written
    /// atomically.
    pub(crate) fn write_ready_file(&self, path: &Path) -> anyhow::Result<()> {
        let temporary = path.with_extension("new");
        let write = || -> io::Result<()> {
            fs::write(&temporary, serde_json::to_vec(self)?)?;
            fs::rename(&temporary, path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}
