//! Tests of the executable: startup, errors, shutdown.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests start the executable, inspect results with system programs, and fail on any error"
)]

mod access_log;
mod audit;
mod authentication;
mod client_certificates;
mod files;
mod lifecycle;
mod nodes;
mod other_release;
mod overload;
mod revocation;
mod shared_keys;
mod slow_watchers;
mod startup_errors;
mod support_bundle;
mod test_server;
mod tls;
mod tls_client;
mod unauthenticated;
