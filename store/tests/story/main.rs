//! The store, told as stories on a real Postgres.

mod house;
mod runs;
mod tenants;
