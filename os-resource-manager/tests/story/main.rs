//! The OS resource manager, told as stories on a real Postgres beside a small registry.

mod bad_input;
mod files;
mod house;
mod newcomers;
mod replicas;
mod sync;
