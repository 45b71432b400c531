//! The routes of the API. The router and the OpenAPI document are built from one list.

use std::sync::Arc;

use axum::Router;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, AppState, Inventory};
use crate::changes::fleet;
use crate::hosts::{summary, transitions};
use crate::schedules::{repeated, single};
use crate::{
    absent, assignments, changes, custom_configs, decisions, docs, hosts, instances, join_tokens,
    layers, local_accounts, locations, notification_targets, notifications, openapi,
    operating_systems, operator_tokens, orchestrator, orders, os_sync, own_password, paths, pauses,
    policies, problem, projects, providers, regions, runs, schedules, settings, sites, users,
    whoami,
};

/// All routes. The router and the OpenAPI document are built from this list.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base_document())
        .routes(routes!(orchestrator::get_orchestrator))
        .routes(routes!(projects::list_projects))
        .routes(routes!(projects::get_project, projects::put_project, projects::delete_project))
        .merge(host_routes())
        .merge(update_routes())
        .merge(location_routes())
        .merge(schedule_routes())
        .merge(provisioning_routes())
        .merge(absent_routes())
        .merge(notification_routes())
        .routes(routes!(join_tokens::list_join_tokens, join_tokens::create_join_token))
        .routes(routes!(join_tokens::get_join_token))
        .routes(routes!(join_tokens::revoke_join_token))
        .routes(routes!(operator_tokens::list_operator_tokens))
        .routes(routes!(operator_tokens::create_operator_token))
        .routes(routes!(operator_tokens::revoke_operator_token))
        .routes(routes!(operator_tokens::revoke_operator_subject))
        .merge(user_routes())
}

/// Routes of webhooks and of the deliveries to them.
fn notification_routes() -> OpenApiRouter<App> {
    use notification_targets as targets;
    OpenApiRouter::new()
        .routes(routes!(targets::list_notification_targets, targets::create_notification_target))
        .routes(routes!(targets::get_notification_target, targets::delete_notification_target))
        .routes(routes!(targets::enable_notification_target))
        .routes(routes!(targets::disable_notification_target))
        .routes(routes!(targets::rotate_notification_secret))
        .routes(routes!(targets::test_notification_target))
        .routes(routes!(targets::replay_notifications))
        .routes(routes!(notifications::list_notifications))
}

/// Routes of users, and of the caller.
fn user_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(users::list_users, users::create_user))
        .routes(routes!(users::delete_user))
        .routes(routes!(users::set_user_password))
        .routes(routes!(users::set_user_roles))
        .routes(routes!(users::disable_user))
        .routes(routes!(users::enable_user))
        .routes(routes!(whoami::get_whoami))
        .routes(routes!(own_password::set_own_password))
        .routes(routes!(whoami::log_out))
}

/// Routes of hosts and instances.
fn host_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(hosts::list_hosts, hosts::create_host))
        .routes(routes!(summary::summarize_hosts))
        .routes(routes!(hosts::register_host))
        .routes(routes!(hosts::get_host, hosts::put_host, hosts::patch_host, hosts::delete_host))
        .routes(routes!(transitions::reregister_host))
        .routes(routes!(transitions::onboard_host))
        .routes(routes!(transitions::invalidate_host))
        .routes(routes!(instances::list_instances, instances::create_instance))
        .routes(routes!(
            instances::get_instance,
            instances::put_instance,
            instances::patch_instance,
            instances::delete_instance
        ))
        .routes(routes!(instances::invalidate_instance))
        .routes(routes!(decisions::get_decision))
        .routes(routes!(orders::get_order, orders::put_order, orders::delete_order))
}

/// Routes of operating systems, update policies, update runs and changes.
fn update_routes() -> OpenApiRouter<App> {
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
        .routes(routes!(policies::list_update_policies, policies::create_update_policy))
        .routes(routes!(policies::get_update_policy, policies::delete_update_policy))
        .routes(routes!(runs::list_update_runs))
        .routes(routes!(runs::get_update_run, runs::delete_update_run))
        .routes(routes!(changes::list_changes))
        .routes(routes!(changes::get_change))
        .routes(routes!(fleet::list_fleet_changes))
        .routes(routes!(fleet::get_fleet_change))
}

/// Routes of regions and sites.
fn location_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(regions::list_regions, regions::create_region))
        .routes(routes!(
            regions::get_region,
            regions::put_region,
            regions::patch_region,
            regions::delete_region
        ))
        .routes(routes!(sites::list_sites, sites::create_site))
        .routes(routes!(sites::get_site, sites::put_site, sites::patch_site, sites::delete_site))
        .routes(routes!(locations::find_locations))
}

/// Routes for the provisioning of machines.
fn provisioning_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(providers::list_providers, providers::create_provider))
        .routes(routes!(providers::get_provider, providers::delete_provider))
        .routes(routes!(custom_configs::list_custom_configs, custom_configs::create_custom_config))
        .routes(routes!(custom_configs::get_custom_config, custom_configs::delete_custom_config))
        .routes(routes!(local_accounts::list_local_accounts, local_accounts::create_local_account))
        .routes(routes!(local_accounts::get_local_account, local_accounts::delete_local_account))
}

/// Routes of EIM features that Evenkeel does not have: empty lists.
fn absent_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(absent::list_workloads))
        .routes(routes!(absent::list_workload_members))
        .routes(routes!(absent::list_log_groups))
        .routes(routes!(absent::list_metric_groups))
        .routes(routes!(absent::list_log_profiles))
        .routes(routes!(absent::list_metric_profiles))
}

/// Routes of schedules, assignments, pauses and settings.
fn schedule_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(schedules::list_schedules))
        .routes(routes!(single::list_single_schedules, single::create_single_schedule))
        .routes(routes!(
            single::get_single_schedule,
            single::put_single_schedule,
            single::patch_single_schedule,
            single::delete_single_schedule
        ))
        .routes(routes!(repeated::list_repeated_schedules, repeated::create_repeated_schedule))
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
        .routes(routes!(pauses::get_pause, pauses::put_pause, pauses::delete_pause))
        .routes(routes!(settings::get_settings, settings::put_settings, settings::patch_settings))
}

/// The OpenAPI document of the whole API.
#[must_use]
pub fn document() -> OpenApi {
    let (_, document) = routes().split_for_parts();
    openapi::complete(document)
}

/// The router of the API, with its document and the page for browsers.
pub fn router(inventory: Inventory) -> Router {
    let app = Arc::new(AppState::new(inventory));
    let (router, _) = routes().split_for_parts();
    let router = router
        .merge(docs::routes(document))
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .with_state(Arc::clone(&app));
    layers::add_security_headers(paths::with_canonical_paths(layers::add_layers(
        router,
        &app.settings,
    )))
}
