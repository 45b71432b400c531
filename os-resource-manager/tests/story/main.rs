//! Tests of the OS resource manager on a real Postgres with an in-memory registry.

mod bad_input;
mod files;
mod project_changes;
mod replicas;
mod sync;
mod test_server;
