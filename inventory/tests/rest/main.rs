//! The REST API against a real Postgres.

mod document;
mod house;
mod input;
mod isolation;
mod lists;
mod statuses;
mod story;
mod things;
