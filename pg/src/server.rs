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
use crate::error::{path_error, system_error};
use crate::process::PostgresProcess;
use crate::runner::{ParentDeathSignal, Runner};
use crate::{Error, Options, binaries, cluster, leftovers, socket};

/// How long a stop may flush before Postgres is ended at once.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a drop waits for the end of Postgres.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running private Postgres. It ends when this value is dropped, and when this process ends.
#[derive(Debug)]
pub struct PrivatePostgres {
    process: PostgresProcess,
    socket: PathBuf,
    durable: bool,
    /// Directory to remove after the end.
    throwaway: Option<PathBuf>,
    /// The last field, so that it is released after Postgres has ended.
    _lock: DirectoryLock,
}

impl PrivatePostgres {
    /// Starts the Postgres of `options`, and returns when it accepts connections. Creates the cluster if there is none.
    ///
    /// Cleans up after a crash first. Fails if another process runs a Postgres there.
    pub async fn start(options: Options) -> Result<Self, Error> {
        run_on_thread("postgres-start", move || {
            let lock = lock_directory(&options.dir)?;
            launch(options, lock)
        })
        .await
    }

    pub(crate) fn start_throwaway(options: Options, lock: DirectoryLock) -> Result<Self, Error> {
        let dir = options.dir.clone();
        let mut postgres = launch(options, lock)?;
        postgres.throwaway = Some(dir);
        Ok(postgres)
    }

    /// The URL of a Postgres that another process runs in `dir`; `None` if there is none.
    pub fn find_running(dir: &Path) -> Result<Option<String>, Error> {
        let path = dir.join("lock");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(path_error("open", path)(error)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => {
                let dir = fs::canonicalize(dir).map_err(path_error("find", dir))?;
                let running = socket::find_folder(&dir)
                    .map(|folder| connection_url(&folder, "evenkeel", "evenkeel"));
                Ok(running)
            }
            Err(TryLockError::Error(error)) => Err(path_error("lock", path)(error)),
        }
    }

    /// The URL for the role `evenkeel` and the database `evenkeel`. It is the same for each start.
    #[must_use]
    pub fn url(&self) -> String {
        connection_url(&self.socket, "evenkeel", "evenkeel")
    }

    /// The URL for the superuser and the database `postgres`. The superuser bypasses row-level security: use it for
    /// repairs only.
    #[must_use]
    pub fn admin_url(&self) -> String {
        connection_url(&self.socket, "postgres", "postgres")
    }

    /// The process id of Postgres.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Waits for the end of Postgres, whatever the reason. It does not borrow, so it can become a task.
    pub fn wait_for_end(&self) -> impl Future<Output = Option<ExitStatus>> + use<> {
        self.process.wait_for_end()
    }

    /// The last lines of the Postgres log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Stops Postgres: ends all sessions, flushes, and waits for its end.
    pub async fn stop(self) {
        // If no thread can be started, dropping the value ends Postgres.
        let _ = run_on_thread("postgres-stop", move || {
            let gentle = if self.durable {
                Signal::INT
            } else {
                Signal::QUIT
            };
            self.process.signal(gentle);
            if !self.process.wait_blocking(STOP_TIMEOUT) {
                tracing::warn!(timeout = ?STOP_TIMEOUT, "Postgres does not stop in time and is ended at once");
            }
            drop(self);
            Ok(())
        })
        .await;
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        self.process.signal(Signal::QUIT);
        if !self.process.wait_blocking(DROP_TIMEOUT) {
            tracing::warn!(pid = self.process.pid, "Postgres has not ended yet");
            return;
        }
        if let Some(dir) = &self.throwaway {
            // The folder of the socket may be in the directory or below `/tmp`.
            fs::remove_dir_all(&self.socket).ok();
            if let Err(error) = fs::remove_dir_all(dir) {
                tracing::warn!(%error, dir = %dir.display(), "cannot remove a throwaway Postgres");
            }
        }
    }
}

/// The path needs no escaping: the module `socket` accepts plain paths only.
fn connection_url(socket: &Path, role: &str, database: &str) -> String {
    format!("postgres:///{database}?host={}&user={role}", socket.display())
}

/// Runs blocking work on its own thread, so that the caller's runtime is not blocked.
pub(crate) async fn run_on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let thread = thread::Builder::new().name(name.to_owned());
    // If the caller is gone, the result is dropped, and a Postgres in it ends.
    let run = move || _ = sender.send(work());
    thread.spawn(run).map_err(system_error("start a thread"))?;
    receiver
        .await
        .unwrap_or_else(|_| Err(Error::Ended { log: "its starting thread is gone".to_owned() }))
}

/// A lock on a directory; released when dropped. Closing the file would not be enough: a process that is being spawned
/// has a copy of the file descriptor until its exec, and a lock lasts as long as any copy (flock(2)).
#[derive(Debug)]
pub(crate) struct DirectoryLock(pub(crate) File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // If this fails, closing the file is the next best.
        let _ = self.0.unlock();
    }
}

/// Creates the directory if it does not exist, and locks it for this process.
pub(crate) fn lock_directory(dir: &Path) -> Result<DirectoryLock, Error> {
    DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(path_error("create", dir))?;
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(path_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder).map_err(path_error("read", &path))?;
            return Err(Error::InUse { dir: dir.to_owned(), holder });
        }
        Err(TryLockError::Error(error)) => return Err(path_error("lock", path)(error)),
    }
    let note = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    let mut lock = DirectoryLock(file);
    note(&mut lock.0).map_err(path_error("write", &path))?;
    Ok(lock)
}

fn launch(mut options: Options, lock: DirectoryLock) -> Result<PrivatePostgres, Error> {
    options.dir = fs::canonicalize(&options.dir).map_err(path_error("find", &options.dir))?;
    let account = Account::choose()?;
    let bin = binaries::find_binaries(&options.binaries, &options.dir.join("data"))?;
    let data = cluster::create_cluster(&options, &account, &bin)?;
    let runner = Runner::new(account.clone(), bin, data.clone())?;
    let socket = socket::prepare_folder(&options.dir, &account, &runner)?;
    leftovers::remove_leftovers(&data, &socket)?;
    cluster::write_access_rules(&account, &runner)?;

    let parent_death_signal =
        if options.durable { ParentDeathSignal::Fast } else { ParentDeathSignal::Immediate };
    let settings = options.command_line(&socket.to_string_lossy());
    let postgres = PrivatePostgres {
        process: PostgresProcess::start(runner, settings, parent_death_signal)?,
        socket,
        durable: options.durable,
        throwaway: None,
        _lock: lock,
    };
    wait_until_ready(&postgres.process, &data, options.start_timeout)?;
    tracing::info!(
        pid = postgres.pid(),
        user = account.name,
        data = %data.display(),
        socket = %postgres.socket.display(),
        "a private Postgres is running"
    );
    Ok(postgres)
}

fn wait_until_ready(
    process: &PostgresProcess,
    data: &Path,
    timeout: Duration,
) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        if leftovers::read_pid_file(data) == Some((process.pid, "ready".to_owned())) {
            return Ok(());
        }
        if process.has_ended() {
            // The last log lines may not have arrived yet.
            thread::sleep(Duration::from_millis(50));
            return Err(Error::Ended { log: process.log_tail() });
        }
        if begun.elapsed() > timeout {
            return Err(Error::NotReady { waited: timeout, log: process.log_tail() });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_lock_is_free_even_while_a_copy_of_the_file_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let lock_held = lock_directory(dir.path()).unwrap();
        let copy = lock_held.0.try_clone().unwrap();
        assert!(matches!(lock_directory(dir.path()), Err(Error::InUse { .. })));
        drop(lock_held);
        lock_directory(dir.path()).unwrap();
        drop(copy);
    }
}
