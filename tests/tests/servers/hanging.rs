//! A server whose database hangs, returns, refuses connections, or is replaced by a standby.
//!
//! Between the server and its Postgres is a [`database_proxy::DatabaseProxy`], which refuses or
//! holds traffic on demand. The nodes are simulated: they make one call at a time, over gRPC and
//! TLS, and get refusals unchanged.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to test |
//!
//! Other tests cover related failures: a truncated change log
//! (`maintenance-manager/tests/story/stale.rs`, `store/tests/story/log.rs`), rate limits and
//! incomplete handshakes (`server/tests/evenkeeld/overload.rs`).

pub mod database;
pub mod database_proxy;
mod failover;
mod lost_answers;
mod node;
mod refused_connections;
mod silent_database;
pub mod test_server;
