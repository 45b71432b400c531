//! `evenkeeld`: the server executable.
//!
//! `evenkeeld all` runs every service in one process; `evenkeeld inventory`, `evenkeeld maintenance-manager` and
//! `evenkeeld os-resource-manager` run one each, in any number of replicas. They share a database, a folder of keys, and nothing else. `migrate`, `openapi`,
//! `token` and `hash-password` are tools.
//!
//! | file | what it does |
//! | --- | --- |
//! | `cli` | the command line |
//! | `config` | everything the server can be told |
//! | `start` | from a command to a running process, and back |
//! | `database` | which Postgres, and whether it will do |
//! | `house` | what the services share |
//! | `services` | the services on their listeners |
//! | `first_start` | the project `default` and the first token |
//! | `listen`, `http`, `https`, `southbound`, `tls` | listeners: sockets, HTTP, gRPC, certificates |
//! | `realm` | the endpoint for tokens: people log in with a password |
//! | `unguarded` | what is still looked at when everybody is let in |
//! | `admin`, `observe` | health, readiness, metrics |
//! | `tools` | `migrate`, `openapi`, `token`, `hash-password` |

mod admin;
mod cli;
mod config;
mod data_dir;
mod database;
mod first_start;
mod house;
mod http;
mod https;
mod listen;
mod memory;
mod observe;
mod realm;
mod services;
mod southbound;
mod start;
mod tls;
mod tools;
mod unguarded;

use tikv_jemallocator::Jemalloc;

pub use cli::Cli;
pub use start::run;

/// A list of a hundred hosts is some ten thousand small pieces: a sixth of its time less than with the system's allocator.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;
