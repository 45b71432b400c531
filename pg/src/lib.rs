//! A private Postgres: the system's binaries, a data directory of its own, a Unix socket only, never as root.
//!
//! [`PrivatePostgres::start`] makes the cluster if there is none, starts it and answers when it takes connections. It
//! lives exactly as long as the process that started it: also when that process is killed, because the kernel then
//! tells Postgres. A start after any kind of death tidies up first.
//!
//! There are one role and one database of use, both named `evenkeel`. The role is neither superuser nor exempt from
//! row-level security. Only the user who started Postgres, and root, can connect: the socket lies in a folder of mode
//! 0700 and the login is by peer.
//!
//! ```no_run
//! # async fn example() -> Result<(), evenkeel_pg::Error> {
//! use evenkeel_pg::{Options, PrivatePostgres};
//!
//! let postgres = PrivatePostgres::start(Options::new("/var/lib/evenkeel/postgres")).await?;
//! println!("{}", postgres.url());
//! postgres.stop().await;
//! # Ok(()) }
//! ```
//!
//! For tests there is [`PrivatePostgres::throwaway`].
//!
//! | file of the directory | what it is |
//! | --- | --- |
//! | `data/` | the cluster; belongs to the user that Postgres runs as |
//! | `socket/` | the socket, if its path is short and plain and the user can get there |
//! | `socket-at` | where the socket is otherwise: a folder below `/tmp`, kept from start to start |
//! | `lock` | held by the process that keeps this Postgres; says its id |

mod account;
mod binaries;
mod cluster;
mod error;
mod keeper;
mod leftovers;
mod options;
mod runner;
mod server;
mod socket;
mod throwaway;

pub use error::Error;
pub use options::Options;
pub use server::PrivatePostgres;
