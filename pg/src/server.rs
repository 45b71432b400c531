//! Starts and stops a private Postgres.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::account::Account;
use crate::error::{on, to};
use crate::keeper::Keeper;
use crate::runner::{LastWord, Runner};
use crate::{Error, Options, binaries, cluster, leftovers, socket};

/// How long a stop may flush before Postgres is told to end at once.
const FLUSH: Duration = Duration::from_secs(30);

/// How long a drop waits for Postgres to be gone.
const FAREWELL: Duration = Duration::from_secs(5);

/// A running Postgres of our own. It ends with this value, and with this process.
#[derive(Debug)]
pub struct PrivatePostgres {
    keeper: Keeper,
    socket: PathBuf,
    durable: bool,
    /// Removed after the end.
    throwaway: Option<PathBuf>,
    /// Declared last: released when Postgres is gone.
    _lock: Lock,
}

impl PrivatePostgres {
    /// Starts the Postgres of `options`, making it first if there is none, and answers when it takes connections.
    ///
    /// What an earlier one left behind after a crash is tidied up. If another process keeps it, that is an error.
    pub async fn start(options: Options) -> Result<Self, Error> {
        apart("postgres-start", move || {
            let lock = lock(&options.dir)?;
            launch(options, lock)
        })
        .await
    }

    pub(crate) fn start_throwaway(options: Options, lock: Lock) -> Result<Self, Error> {
        let dir = options.dir.clone();
        let mut postgres = launch(options, lock)?;
        postgres.throwaway = Some(dir);
        Ok(postgres)
    }

    /// Where to connect to the Postgres in `dir` that another process keeps; None if nobody keeps one there.
    pub fn kept_elsewhere(dir: &Path) -> Result<Option<String>, Error> {
        let path = dir.join("lock");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(on("open", path)(error)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => {
                let dir = fs::canonicalize(dir).map_err(on("find", dir))?;
                let running =
                    socket::known(&dir).map(|folder| url_of(&folder, "evenkeel", "evenkeel"));
                Ok(running)
            }
            Err(TryLockError::Error(error)) => Err(on("lock", path)(error)),
        }
    }

    /// Where to connect as the role `evenkeel` to the database `evenkeel`. The same from start to start.
    #[must_use]
    pub fn url(&self) -> String {
        url_of(&self.socket, "evenkeel", "evenkeel")
    }

    /// Where to connect as the superuser to the database `postgres`. Row-level security does not bind this role: it is
    /// for mending, never for work.
    #[must_use]
    pub fn admin_url(&self) -> String {
        url_of(&self.socket, "postgres", "postgres")
    }

    /// The process id of Postgres.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.keeper.pid
    }

    /// Comes back when Postgres has ended, asked or not. It does not borrow, so it can become a task.
    pub fn ended(&self) -> impl Future<Output = Option<ExitStatus>> + use<> {
        self.keeper.ended()
    }

    /// What Postgres wrote to its log last.
    #[must_use]
    pub fn last_words(&self) -> String {
        self.keeper.said()
    }

    /// Stops Postgres: it ends all sessions, flushes and is gone when this comes back.
    pub async fn stop(self) {
        // What fails here, ends on another thread all the same when the value is dropped.
        let _ = apart("postgres-stop", move || {
            let gentle = if self.durable {
                Signal::INT
            } else {
                Signal::QUIT
            };
            self.keeper.signal(gentle);
            if !self.keeper.wait(FLUSH) {
                tracing::warn!(patience = ?FLUSH, "Postgres does not stop, ending it at once");
            }
            drop(self);
            Ok(())
        })
        .await;
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        self.keeper.signal(Signal::QUIT);
        if !self.keeper.wait(FAREWELL) {
            tracing::warn!(pid = self.keeper.pid, "Postgres has not ended yet");
            return;
        }
        if let Some(dir) = &self.throwaway {
            // The socket's folder may lie in the directory or apart from it.
            fs::remove_dir_all(&self.socket).ok();
            if let Err(error) = fs::remove_dir_all(dir) {
                tracing::warn!(%error, dir = %dir.display(), "cannot remove a throw-away Postgres");
            }
        }
    }
}

/// The folder needs no quoting: `socket` takes no other.
fn url_of(socket: &Path, role: &str, database: &str) -> String {
    format!(
        "postgres:///{database}?host={}&user={role}",
        socket.display()
    )
}

/// Runs something slow on a thread of its own, so that the caller's runtime goes on.
pub(crate) async fn apart<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (say, heard) = tokio::sync::oneshot::channel();
    let thread = thread::Builder::new().name(name.to_owned());
    // If nobody waits any more, the result is dropped, and a Postgres in it ends.
    let run = move || _ = say.send(work());
    thread.spawn(run).map_err(to("start a thread"))?;
    heard.await.unwrap_or_else(|_| {
        Err(Error::Ended {
            said: "its starter is gone".to_owned(),
        })
    })
}

/// A lock on a file, until this is dropped. To close the file would not be enough: a process that is just being started has
/// a copy of it until it runs a program of its own, and a lock lasts as long as any copy (flock(2)).
#[derive(Debug)]
pub(crate) struct Lock(pub(crate) File);

impl Drop for Lock {
    fn drop(&mut self) {
        // What cannot be unlocked is closed next.
        let _ = self.0.unlock();
    }
}

/// Makes the directory if it is not there, and takes it for this process.
pub(crate) fn lock(dir: &Path) -> Result<Lock, Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(dir)
        .map_err(on("make", dir))?;
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(on("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder)
                .map_err(on("read", &path))?;
            return Err(Error::InUse {
                dir: dir.to_owned(),
                holder,
            });
        }
        Err(TryLockError::Error(error)) => return Err(on("lock", path)(error)),
    }
    let note = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    let mut lock = Lock(file);
    note(&mut lock.0).map_err(on("write", &path))?;
    Ok(lock)
}

fn launch(mut options: Options, lock: Lock) -> Result<PrivatePostgres, Error> {
    options.dir = fs::canonicalize(&options.dir).map_err(on("find", &options.dir))?;
    let account = Account::choose()?;
    let bin = binaries::find(&options.binaries, &options.dir.join("data"))?;
    let data = cluster::make(&options, &account, &bin)?;
    let runner = Runner::new(account.clone(), bin, data.clone())?;
    let socket = socket::folder(&options.dir, &account, &runner)?;
    leftovers::clear(&data, &socket)?;
    cluster::write_logins(&account, &runner)?;

    let last_word = if options.durable {
        LastWord::Fast
    } else {
        LastWord::Immediate
    };
    let settings = options.command_line(&socket.to_string_lossy());
    let postgres = PrivatePostgres {
        keeper: Keeper::start(runner, settings, last_word)?,
        socket,
        durable: options.durable,
        throwaway: None,
        _lock: lock,
    };
    wait_until_ready(&postgres.keeper, &data, options.patience)?;
    tracing::info!(
        pid = postgres.pid(),
        user = account.name,
        data = %data.display(),
        socket = %postgres.socket.display(),
        "a private Postgres is running"
    );
    Ok(postgres)
}

fn wait_until_ready(keeper: &Keeper, data: &Path, patience: Duration) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        if leftovers::recorded(data) == Some((keeper.pid, "ready".to_owned())) {
            return Ok(());
        }
        if keeper.has_ended() {
            // Its last lines may still be on their way.
            thread::sleep(Duration::from_millis(50));
            return Err(Error::Ended {
                said: keeper.said(),
            });
        }
        if begun.elapsed() > patience {
            return Err(Error::NotReady {
                waited: patience,
                said: keeper.said(),
            });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_let_go_is_free_also_while_a_copy_of_the_file_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        let copy = held.0.try_clone().unwrap();
        assert!(matches!(lock(dir.path()), Err(Error::InUse { .. })));
        drop(held);
        lock(dir.path()).unwrap();
        drop(copy);
    }
}
