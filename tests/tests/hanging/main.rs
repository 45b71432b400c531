//! A server whose database hangs, comes back, refuses it, or is another one all at once.
//!
//! Between the server and its Postgres stands a [`door::Door`] that a test shuts, or lets nothing pass through. Nodes
//! are simulated from the outside: they say one thing at a time, over gRPC and TLS, and hear refusals as they are.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to be tested |
//!
//! Two things of this kind are told elsewhere: a change log that somebody has cut short
//! (`maintenance-manager/tests/story/stale.rs`, `store/tests/story/log.rs`), and floods and halves of handshakes
//! (`server/tests/evenkeeld/flood.rs`).

mod database;
mod door;
mod failover;
mod house;
mod node;
mod refused;
mod silent;
mod stored;
