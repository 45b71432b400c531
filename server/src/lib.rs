//! `evenkeeld`: the server executable.
//!
//! `evenkeeld all` runs all services in one process. `evenkeeld inventory`, `evenkeeld
//! maintenance-manager` and `evenkeeld os-resource-manager` run one service each, in any number of
//! replicas; they share a database and a directory of keys. `check`, `support-bundle`, `migrate`,
//! `openapi`, `ca`, `token`, `audit`, `accept-keys` and `hash-password` are tools.
//!
//! | Module | Purpose |
//! | --- | --- |
//! | `cli` | command line |
//! | `config` | configuration |
//! | `start` | runs a command; starts and stops the process |
//! | `database` | opens the database, runs the private Postgres |
//! | `app_context` | what the services share |
//! | `services` | the services and their listeners |
//! | `service_manager` | notifies systemd that the server is ready and that it is stopping |
//! | `shared_keys` | the keys that all servers on one database share |
//! | `first_start` | the project `default` and the first token |
//! | `operator_tokens` | records issued tokens, and follows the revoked ones |
//! | `listen`, `http`, `southbound`, `tls` | listeners: sockets, HTTP, gRPC, certificates |
//! | `handshake_slots` | limits the TLS handshakes that run at once |
//! | `file_state` | notices changes of files that are read again |
//! | `client_certificates` | verifies the certificates of nodes in handshakes |
//! | `realm` | token endpoint: login with a password |
//! | `login_methods` | the list of the ways to log in |
//! | `loopback_guard` | checks of requests if authentication is disabled |
//! | `admin`, `observe` | health, readiness, metrics |
//! | `audit` | `audit verify`: compares the change log with its seals |
//! | `fleet_metrics` | counts of the fleet for the metrics of all replicas |
//! | `check` | checks the configuration and the files that it names |
//! | `support_bundle` | writes an archive for a report of an error, without secrets |
//! | `clock_watch` | compares the clocks of the process and of the database |
//! | `traces` | sends spans to an OpenTelemetry collector |
//! | `tools` | `migrate`, `openapi`, `ca`, `token`, `accept-keys`, `hash-password` |

mod admin;
mod app_context;
mod audit;
mod check;
mod cli;
mod client_certificates;
mod clock_watch;
mod config;
mod data_dir;
mod database;
mod file_state;
mod first_start;
mod fleet_metrics;
mod handshake_slots;
mod http;
mod listen;
mod login_methods;
mod loopback_guard;
mod memory;
mod observe;
mod operator_tokens;
mod proxy_header;
mod realm;
mod service_manager;
mod services;
mod shared_keys;
mod southbound;
mod start;
mod support_bundle;
mod tls;
mod tools;
mod traces;

use tikv_jemallocator::Jemalloc;

pub use cli::Cli;
pub use config::default_settings;
pub use observe::{
    LabelValues, METRIC_GROUPS, MetricDescription, MetricGroup, MetricKind, MetricLabel,
};
pub use start::run;

/// A list of 100 hosts needs about 10,000 small allocations. jemalloc makes such a list a sixth
/// faster than the system's allocator.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;
