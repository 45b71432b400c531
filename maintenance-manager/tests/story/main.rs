//! The maintenance manager, told as stories on a real Postgres.

mod agent;
mod eim;
mod house;
mod wire;
