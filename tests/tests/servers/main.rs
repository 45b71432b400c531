//! Tests with real servers and simulated nodes.

mod call_log;
mod containers;
mod hanging;
mod history;
mod machine;
mod monitoring;
mod new_images;
mod oidc;
mod os_moving;
mod os_registry;
mod race;
mod rest_tls;
mod rolling;
mod schemathesis;
mod traces;
mod transcript;
mod upgrade;
mod watch;
