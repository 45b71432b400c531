//! Errors of a private Postgres. Each text says what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a private Postgres cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No usable version is installed.
    #[error(
        "there is no Postgres {oldest} or newer below {}: install the Debian package `postgresql`, \
         or use another database",
        searched.display()
    )]
    NoBinaries {
        /// Folder that was searched.
        searched: PathBuf,
        /// The oldest supported version.
        oldest: u32,
    },
    /// The data was created by a version that is not installed.
    #[error(
        "the data in {} was created by Postgres {version}, which is not installed: \
         install the Debian package `postgresql-{version}`",
        data.display()
    )]
    OtherVersion {
        /// The data directory.
        data: PathBuf,
        /// The major version that created it.
        version: u32,
    },
    /// Postgres refuses to run as root, and there is no other user for it.
    #[error(
        "Postgres does not run as root, and there is neither a user `postgres` nor a user `nobody`"
    )]
    NoUser,
    /// Postgres needs a user with a name.
    #[error("the user id {uid} has no name, and Postgres does not run without one")]
    UnnamedUser {
        /// The user id of this process.
        uid: u32,
    },
    /// The directory belongs to another user.
    #[error(
        "{} belongs to the user id {owner}, but must belong to {user} (user id {expected}): \
         fix it with `chown -R {user} {}`, or choose another directory",
        path.display(), path.display()
    )]
    WrongOwner {
        /// The directory.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// The required owner, by name.
        user: String,
        /// The required owner, by user id.
        expected: u32,
    },
    /// Another process runs a Postgres in the directory.
    #[error("{} is in use: process {} runs a Postgres there; stop its server, or choose another data directory", dir.display(), holder.trim())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Content of the lock file: a process id.
        holder: String,
    },
    /// An orphaned Postgres does not end.
    #[error("an orphaned Postgres (process {pid}) still runs in {} and does not end: stop it by hand", data.display())]
    OrphanedPostgres {
        /// The process.
        pid: i32,
        /// The data directory.
        data: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation.
        action: &'static str,
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start `{program}`")]
    Program {
        program: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("`{program}` failed: {output}")]
    Failed {
        program: String,
        /// The end of its error output.
        output: String,
    },
    /// Postgres ended during its start.
    #[error("Postgres ended while it was starting: {log}")]
    Ended {
        /// The last lines of its log.
        log: String,
    },
    /// Postgres did not accept connections in time.
    #[error("Postgres was not ready after {waited:?}: {log}")]
    NotReady {
        /// How long the start was given.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// A system call failed.
    #[error("cannot {action}")]
    System {
        /// The operation.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Converts an I/O error into an error that names the operation and the path.
pub(crate) fn path_error<P: Into<PathBuf>>(
    action: &'static str,
    path: P,
) -> impl FnOnce(io::Error) -> Error {
    let path = path.into();
    move |source| Error::File { action, path, source }
}

/// Converts an I/O error into an error that names the operation.
pub(crate) fn system_error<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::System { action, source: error.into() }
}
