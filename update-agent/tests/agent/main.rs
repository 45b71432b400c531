//! The whole agent, from the server's decision to the changed package, with one side replaced: either the system below it
//! and the server (`armed_module`, `attempts`, `doctor`, `facts`, `health`, `history`, `image_failures`, `image_hooks`, `image_steps`, `long_poll`,
//! `offline`, `plan`, `reboot`, `reboot_delay`, `resume`, `text_module`, `unused`, `waiting`, `watchdog`) or only the machine at the other end of the connection
//! (`certificates`, `image_stream`, `image_web`, `link`, `proxy`).

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod armed_module;
mod attempts;
mod certificates;
mod doctor;
mod facts;
mod health;
mod history;
mod image_failures;
mod image_hooks;
mod image_steps;
mod image_stream;
mod image_web;
mod link;
mod long_poll;
mod offline;
mod plan;
mod proxy;
mod reboot;
mod reboot_delay;
mod resume;
mod support;
mod text_module;
mod unused;
mod waiting;
mod watchdog;
