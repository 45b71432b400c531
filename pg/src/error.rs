//! What can go wrong with a private Postgres, said so that the reader knows what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no private Postgres.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing usable is installed.
    #[error(
        "there is no Postgres {oldest} or newer below {}: install the Debian package `postgresql`, \
         or use another database",
        searched.display()
    )]
    NoBinaries {
        /// Where the binaries were looked for.
        searched: PathBuf,
        /// The oldest version that will do.
        oldest: u32,
    },
    /// The data was made by a version that is not there.
    #[error(
        "the data in {} was made by Postgres {version}, which is not installed: \
         install the Debian package `postgresql-{version}`",
        data.display()
    )]
    OtherVersion {
        /// The data directory.
        data: PathBuf,
        /// The major version that made it.
        version: u32,
    },
    /// Postgres refuses to run as root, and there is nobody else.
    #[error(
        "Postgres does not run as root, and there is neither a user `postgres` nor a user `nobody`"
    )]
    NoUser,
    /// Postgres looks its user up by name.
    #[error("the user id {uid} has no name, and Postgres does not run without one")]
    Nameless {
        /// The user id of this process.
        uid: u32,
    },
    /// The directory belongs to somebody else.
    #[error(
        "{} belongs to the user id {owner}, but must belong to {user} (user id {wanted}): \
         mend it with `chown -R {user} {}`, or choose another directory",
        path.display(), path.display()
    )]
    WrongOwner {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose it must be, by name.
        user: String,
        /// Whose it must be, by number.
        wanted: u32,
    },
    /// Another process keeps a Postgres here.
    #[error("{} is in use: process {} keeps a Postgres there", dir.display(), holder.trim())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// What the lock file says about its holder: a process id.
        holder: String,
    },
    /// A Postgres that nobody keeps any more does not end.
    #[error("a Postgres without a keeper (process {pid}) still works in {} and does not end", data.display())]
    Leftover {
        /// The process.
        pid: i32,
        /// The data directory.
        data: PathBuf,
    },
    /// A file or folder could not be used.
    #[error("cannot {act} {}", path.display())]
    File {
        /// What was tried.
        act: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A program could not be started at all.
    #[error("cannot start `{program}`")]
    Program {
        /// The program.
        program: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("`{program}` failed: {said}")]
    Failed {
        /// The program.
        program: String,
        /// Its last words.
        said: String,
    },
    /// Postgres ended instead of starting.
    #[error("Postgres ended while it was starting: {said}")]
    Ended {
        /// Its last words.
        said: String,
    },
    /// Postgres did not take connections in time.
    #[error("Postgres was not ready after {waited:?}: {said}")]
    NotReady {
        /// How long was waited.
        waited: Duration,
        /// Its last words.
        said: String,
    },
    /// The operating system refused something that has nothing to do with Postgres.
    #[error("cannot {act}")]
    System {
        /// What was tried.
        act: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Turns a failed attempt on a path into an error that names both.
pub(crate) fn on<P: Into<PathBuf>>(act: &'static str, path: P) -> impl FnOnce(io::Error) -> Error {
    let path = path.into();
    move |source| Error::File { act, path, source }
}

/// Turns a failed attempt into an error that names it.
pub(crate) fn to<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::System {
        act,
        source: error.into(),
    }
}
