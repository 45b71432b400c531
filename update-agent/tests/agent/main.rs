//! The whole agent, from the server's word to the package, with one of its doors replaced: the system below it
//! (`alone`, `attempts`, `doctor`, `facts`, `held`, `history`, `image_hooks`, `image_steps`, `image_stuck`, `plan`, `reboot`,
//! `resume`, `waiting`, `watchdog`) or nothing but the machine at the other end of the wire (`image_stream`, `image_web`,
//! `link`, `proxy`).

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has failed"
)]

mod alone;
mod attempts;
mod doctor;
mod facts;
mod held;
mod history;
mod image_hooks;
mod image_steps;
mod image_stream;
mod image_stuck;
mod image_web;
mod link;
mod plan;
mod proxy;
mod reboot;
mod resume;
mod support;
mod waiting;
mod watchdog;
