//! The REST API for operators: paths, JSON and statuses of the ancestor, one file per resource.
//!
//! A handler opens a scoped transaction (`call.rs` says who asks and where), asks the store and the domain, commits what
//! it changed and answers. Requests are judged in the ancestor's order: the form of the request (400), the token (401), the role (403),
//! the rules of the domain (400), the store (404, 400).
//!
//! The router and the OpenAPI document come from one list of routes.

mod absent;
mod assignments;
mod call;
mod custom_configs;
mod decisions;
mod docs;
mod effective;
mod extract;
mod hosts;
mod instances;
mod join_tokens;
mod layers;
mod listing;
mod local_accounts;
mod locations;
mod openapi;
mod operating_systems;
mod orchestrator;
mod orders;
mod os_sync;
mod paths;
mod pauses;
mod places;
mod policies;
mod problem;
mod projects;
mod providers;
mod regions;
mod runs;
mod schedules;
mod settings;
mod shape;
mod sites;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse;
use evenkeel_auth::Authority;
use evenkeel_kit::Clock;
use evenkeel_store::Store;
use evenkeel_store::decisions::Horizon;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::hosts::{summary, transitions};
use crate::schedules::{repeated, single};

pub use layers::RequestId;
pub use openapi::document;
pub use os_sync::OsDefaults;

/// What the API needs to answer.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// Where everything is kept.
    pub store: Store,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Whose tokens count.
    pub authority: Arc<Authority>,
    /// The SHA-256 of the certificate authority's certificate, which join tokens carry to nodes; none if nodes know the
    /// authority otherwise.
    pub ca_digest: Option<String>,
    /// Limits and horizons.
    pub settings: Settings,
}

/// Limits and horizons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The largest body, in bytes.
    pub body_limit: usize,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// What decisions depend on; must be the maintenance manager's.
    pub horizon: Horizon,
    /// Whose pages in a browser may ask: origins such as `https://ui.example.org`, or `*` for anybody's.
    pub cors_origins: Vec<String>,
    /// How many long lists are told at the same time. Each holds a connection to the database while its client reads.
    pub streams: usize,
    /// What projects take of registries of operating systems; by default nothing.
    pub os: OsDefaults,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_limit: 1024 * 1024,
            request_timeout: Duration::from_secs(15),
            horizon: Horizon::default(),
            cors_origins: Vec::new(),
            streams: 8,
            os: OsDefaults::default(),
        }
    }
}

/// What handlers share.
type App = Arc<Shared>;

/// The API and what it is doing.
#[derive(Debug)]
struct Shared {
    inventory: Inventory,
    /// Leave to tell a long list.
    streams: Arc<Semaphore>,
}

impl Deref for Shared {
    type Target = Inventory;

    fn deref(&self) -> &Inventory {
        &self.inventory
    }
}

/// Every route there is. The router and the document come from this list.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(orchestrator::get_orchestrator))
        .routes(routes!(projects::list_projects))
        .routes(routes!(
            projects::get_project,
            projects::put_project,
            projects::delete_project
        ))
        .merge(machines())
        .merge(wishes())
        .merge(places())
        .merge(plans())
        .merge(first_day())
        .merge(elsewhere())
        .routes(routes!(
            join_tokens::list_join_tokens,
            join_tokens::create_join_token
        ))
        .routes(routes!(join_tokens::get_join_token))
        .routes(routes!(join_tokens::revoke_join_token))
}

/// The routes of hosts and of what runs on them.
fn machines() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(hosts::list_hosts, hosts::create_host))
        .routes(routes!(summary::summarize_hosts))
        .routes(routes!(hosts::register_host))
        .routes(routes!(
            hosts::get_host,
            hosts::put_host,
            hosts::patch_host,
            hosts::delete_host
        ))
        .routes(routes!(transitions::reregister_host))
        .routes(routes!(transitions::onboard_host))
        .routes(routes!(transitions::invalidate_host))
        .routes(routes!(
            instances::list_instances,
            instances::create_instance
        ))
        .routes(routes!(
            instances::get_instance,
            instances::put_instance,
            instances::patch_instance,
            instances::delete_instance
        ))
        .routes(routes!(instances::invalidate_instance))
        .routes(routes!(decisions::get_decision))
        .routes(routes!(
            orders::get_order,
            orders::put_order,
            orders::delete_order
        ))
}

/// The routes of what should run, and of what happened.
fn wishes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(
            operating_systems::list_operating_systems,
            operating_systems::create_operating_system
        ))
        .routes(routes!(
            operating_systems::get_operating_system,
            operating_systems::put_operating_system,
            operating_systems::patch_operating_system,
            operating_systems::delete_operating_system
        ))
        .routes(routes!(
            os_sync::get_os_settings,
            os_sync::put_os_settings,
            os_sync::patch_os_settings
        ))
        .routes(routes!(os_sync::get_os_sync, os_sync::request_os_sync))
        .routes(routes!(os_sync::get_os_sync_report))
        .routes(routes!(
            policies::list_update_policies,
            policies::create_update_policy
        ))
        .routes(routes!(
            policies::get_update_policy,
            policies::delete_update_policy
        ))
        .routes(routes!(runs::list_update_runs))
        .routes(routes!(runs::get_update_run, runs::delete_update_run))
}

/// The routes of where hosts stand.
fn places() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(regions::list_regions, regions::create_region))
        .routes(routes!(
            regions::get_region,
            regions::put_region,
            regions::patch_region,
            regions::delete_region
        ))
        .routes(routes!(sites::list_sites, sites::create_site))
        .routes(routes!(
            sites::get_site,
            sites::put_site,
            sites::patch_site,
            sites::delete_site
        ))
        .routes(routes!(locations::find_locations))
}

/// The routes of what the first start of a machine takes.
fn first_day() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(
            providers::list_providers,
            providers::create_provider
        ))
        .routes(routes!(providers::get_provider, providers::delete_provider))
        .routes(routes!(
            custom_configs::list_custom_configs,
            custom_configs::create_custom_config
        ))
        .routes(routes!(
            custom_configs::get_custom_config,
            custom_configs::delete_custom_config
        ))
        .routes(routes!(
            local_accounts::list_local_accounts,
            local_accounts::create_local_account
        ))
        .routes(routes!(
            local_accounts::get_local_account,
            local_accounts::delete_local_account
        ))
}

/// The routes of what the ancestor's clients ask for and other programs do: lists without anything in them.
fn elsewhere() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(absent::list_workloads))
        .routes(routes!(absent::list_workload_members))
        .routes(routes!(absent::list_log_groups))
        .routes(routes!(absent::list_metric_groups))
        .routes(routes!(absent::list_log_profiles))
        .routes(routes!(absent::list_metric_profiles))
}

/// The routes of what should happen when, where and how fast.
fn plans() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(schedules::list_schedules))
        .routes(routes!(
            single::list_single_schedules,
            single::create_single_schedule
        ))
        .routes(routes!(
            single::get_single_schedule,
            single::put_single_schedule,
            single::patch_single_schedule,
            single::delete_single_schedule
        ))
        .routes(routes!(
            repeated::list_repeated_schedules,
            repeated::create_repeated_schedule
        ))
        .routes(routes!(
            repeated::get_repeated_schedule,
            repeated::put_repeated_schedule,
            repeated::patch_repeated_schedule,
            repeated::delete_repeated_schedule
        ))
        .routes(routes!(assignments::list_assignments))
        .routes(routes!(
            assignments::get_assignment,
            assignments::put_assignment,
            assignments::patch_assignment,
            assignments::delete_assignment
        ))
        .routes(routes!(assignments::resume_assignment))
        .routes(routes!(pauses::list_pauses))
        .routes(routes!(
            pauses::get_pause,
            pauses::put_pause,
            pauses::delete_pause
        ))
        .routes(routes!(
            settings::get_settings,
            settings::put_settings,
            settings::patch_settings
        ))
}

/// The answer of the API to a request that is not taken at all, for whoever stands before it.
pub fn refusal(why: &str) -> axum::response::Response {
    problem::Problem::forbidden(why).into_response()
}

/// The API, ready to be served, with its document and a page to read and try it.
pub fn router(inventory: Inventory) -> axum::Router {
    let app = Arc::new(Shared {
        streams: Arc::new(Semaphore::new(
            inventory.settings.streams.min(Semaphore::MAX_PERMITS),
        )),
        inventory,
    });
    let (router, _) = routes().split_for_parts();
    let router = router
        .merge(docs::routes())
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .with_state(Arc::clone(&app));
    layers::security(paths::one_form(layers::around(router, &app.settings)))
}
