//! Answers polls that need no write: from memory ([`cache`]), from the database in batches
//! ([`batch`]), or as soon as the answer changes ([`long_poll`]).

pub mod batch;
pub mod cache;
pub mod long_poll;
