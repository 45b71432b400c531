//! The REST API against a real Postgres.

mod changes;
mod document;
mod house;
mod input;
mod isolation;
mod lists;
mod places;
mod statuses;
mod story;
mod things;
mod wanted;
