//! Tests with real servers and simulated nodes.

mod hanging;
mod history;
mod machine;
mod os_moving;
mod os_news;
mod os_registry;
mod race;
mod schemathesis;
mod transcript;
