//! The REST API for operators. Paths, JSON and statuses are those of EIM; one file per resource.
//!
//! A handler opens a transaction in the caller's project (`call.rs`), calls the store and the
//! domain, commits its changes and responds. Requests are checked in EIM's order: the form of the
//! request (400), the token (401), the role (403), the rules of the domain (400), the store (404,
//! 400).
//!
//! The router and the OpenAPI document come from one list of routes.

mod absent;
mod access_log;
mod app;
mod assignments;
mod authentication_hook;
mod call;
mod change_feed;
mod changes;
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
mod location_tree;
mod locations;
mod notification_targets;
mod notifications;
mod openapi;
mod operating_systems;
mod operator_tokens;
mod orchestrator;
mod orders;
mod os_sync;
mod own_password;
mod password_checker;
mod paths;
mod pauses;
mod policies;
mod problem;
mod projects;
mod providers;
mod refusals;
mod regions;
mod reserved_names;
mod role_names;
mod routes;
mod runs;
mod schedules;
mod settings;
mod shape;
mod sites;
mod users;
mod whoami;

pub use app::{Inventory, OsDefaults, Settings};
pub use authentication_hook::{AuthenticationHook, ConnectionLimit};
pub use layers::RequestId;
pub use password_checker::{PasswordAttempt, PasswordCheck, PasswordChecker};
pub use problem::forbidden_response;
pub use reserved_names::ReservedNames;
pub use routes::{document, router};
