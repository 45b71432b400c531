//! Tests with real servers and simulated nodes.

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
mod schemathesis;
mod transcript;
mod upgrade;
mod watch;
