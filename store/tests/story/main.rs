//! The store, told as stories on a real Postgres.

mod assignments;
mod brake;
mod house;
mod housekeeping;
mod orders;
mod places;
mod runs;
mod stops;
mod tenants;
mod versions;
mod walls;
