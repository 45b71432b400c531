//! The REST API for operators: paths, JSON and statuses of the ancestor, one file per resource.
//!
//! A handler opens a scoped transaction (`call.rs` says who asks and where), asks the store and the domain, commits and
//! answers. Requests are judged in the ancestor's order: the form of the request (400), the token (401), the role (403),
//! the rules of the domain (400), the store (404, 400).
//!
//! The router and the OpenAPI document come from one list of routes.

mod assignments;
mod call;
mod decisions;
mod effective;
mod extract;
mod hosts;
mod instances;
mod join_tokens;
mod layers;
mod listing;
mod openapi;
mod operating_systems;
mod orchestrator;
mod orders;
mod paths;
mod pauses;
mod places;
mod policies;
mod problem;
mod projects;
mod regions;
mod runs;
mod schedules;
mod settings;
mod shape;
mod sites;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_auth::Authority;
use evenkeel_kit::Clock;
use evenkeel_store::Store;
use evenkeel_store::decisions::Horizon;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::schedules::{repeated, single};

pub use layers::RequestId;
pub use openapi::document;

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
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_limit: 1024 * 1024,
            request_timeout: Duration::from_secs(15),
            horizon: Horizon::default(),
        }
    }
}

/// What handlers share.
type App = Arc<Inventory>;

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
        .routes(routes!(hosts::list_hosts))
        .routes(routes!(hosts::register_host))
        .routes(routes!(
            hosts::get_host,
            hosts::put_host,
            hosts::patch_host,
            hosts::delete_host
        ))
        .routes(routes!(
            instances::list_instances,
            instances::create_instance
        ))
        .routes(routes!(
            instances::get_instance,
            instances::patch_instance,
            instances::delete_instance
        ))
        .routes(routes!(decisions::get_decision))
        .routes(routes!(
            orders::get_order,
            orders::put_order,
            orders::delete_order
        ))
        .merge(places())
        .merge(plans())
        .routes(routes!(
            operating_systems::list_operating_systems,
            operating_systems::create_operating_system
        ))
        .routes(routes!(
            operating_systems::get_operating_system,
            operating_systems::delete_operating_system
        ))
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
        .routes(routes!(
            join_tokens::list_join_tokens,
            join_tokens::create_join_token
        ))
        .routes(routes!(join_tokens::get_join_token))
        .routes(routes!(join_tokens::revoke_join_token))
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

/// The API, ready to be served.
pub fn router(inventory: Inventory) -> axum::Router {
    let app = Arc::new(inventory);
    let (router, _) = routes().split_for_parts();
    let router = router
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .with_state(Arc::clone(&app));
    paths::one_form(layers::around(router, &app.settings))
}
