//! Tests of the executable: startup, errors, shutdown.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests start the executable, inspect results with system programs, and fail on any error"
)]

mod authentication;
mod files;
mod lifecycle;
mod overload;
mod shared_keys;
mod startup_errors;
mod test_server;
