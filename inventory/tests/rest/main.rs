//! The REST API against a real Postgres.

mod bad_input;
mod changes;
mod day_zero;
mod document;
mod examples;
mod fairness;
mod hosts;
mod images;
mod input;
mod instances;
mod isolation;
mod layers;
mod lists;
mod locations;
mod nulls;
mod operating_systems;
mod os_sync;
mod projects;
mod resources;
mod schedules;
mod statements;
mod statuses;
mod story;
mod test_server;
mod unreadable;
mod update_control;
