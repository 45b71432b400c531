//! The whole agent, from the server's word to the package, with one of its doors replaced: the system below it
//! (`alone`, `attempts`, `facts`, `resume`) or nothing but the machine at the other end of the wire (`link`).

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has failed"
)]

mod alone;
mod attempts;
mod facts;
mod link;
mod resume;
mod support;
