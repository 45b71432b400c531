//! The REST API against a real Postgres.

mod bad_input;
mod changes;
mod day_zero;
mod document;
mod hosts;
mod house;
mod images;
mod input;
mod instances;
mod isolation;
mod layers;
mod lists;
mod nulls;
mod operating_systems;
mod os_sync;
mod places;
mod projects;
mod schedules;
mod statements;
mod statuses;
mod story;
mod things;
mod wanted;
