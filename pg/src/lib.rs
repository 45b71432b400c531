//! A private Postgres: the system's binaries, its own data directory, a Unix socket only, never as root.
//!
//! [`PrivatePostgres::start`] creates the cluster if there is none, starts it, and returns when it accepts connections.
//! It lives exactly as long as the process that started it. That holds even if the process is killed, because the kernel
//! then signals Postgres. A start after a crash cleans up first.
//!
//! There are one role and one database for use, both named `evenkeel`. The role is neither superuser nor exempt from
//! row-level security. Only the user who started Postgres, and root, can connect: the socket is in a folder of mode
//! 0700, and the authentication method is `peer`.
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
//! For tests use [`PrivatePostgres::throwaway`].
//!
//! | file of the directory | content |
//! | --- | --- |
//! | `data/` | the cluster; belongs to the user that Postgres runs as |
//! | `socket/` | the socket, if its path is short and plain, and the user can reach it |
//! | `socket-at` | otherwise the path of the socket's folder below `/tmp`; the same for each start |
//! | `lock` | locked by the process that runs this Postgres; contains its process id |

mod account;
mod binaries;
mod cluster;
mod error;
mod leftovers;
mod options;
mod process;
mod runner;
mod server;
mod socket;
mod throwaway;

pub use error::Error;
pub use options::Options;
pub use server::PrivatePostgres;
