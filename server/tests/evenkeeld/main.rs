//! The real executable: how it starts, what it refuses, how it stops.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test starts the executable, looks at the outcome with the system's own programs, and fails when it cannot"
)]

mod files;
mod flood;
mod house;
mod letting_in;
mod refusing;
mod serving;
