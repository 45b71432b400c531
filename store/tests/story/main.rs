//! The store, told as stories on a real Postgres.

mod assignments;
mod brake;
mod day_zero;
mod deletion;
mod fill;
mod hosts;
mod house;
mod housekeeping;
mod instances;
mod listing;
mod listing_model;
mod listing_oracle;
mod listing_pages;
mod listing_property;
mod listing_world;
mod node_tokens;
mod orders;
mod places;
mod related;
mod runs;
mod stops;
mod tallies;
mod tenants;
mod versions;
mod walls;
mod worlds;
