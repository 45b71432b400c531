//! A Postgres for the tests of one process.

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{path_error, system_error};
use crate::server::{DirectoryLock, lock_directory, run_on_thread};
use crate::{Error, Options, PrivatePostgres, leftovers};

const DIRECTORY_PREFIX: &str = "postgres-";

impl PrivatePostgres {
    /// Starts a new Postgres for tests: fast instead of durable, with a role that may create databases. Its files are
    /// removed afterwards.
    ///
    /// Start one per test process and keep it in a static. Statics and killed processes drop nothing, but Postgres ends
    /// with its process all the same, and the next throwaway start removes the files.
    pub async fn throwaway() -> Result<Self, Error> {
        Self::start_in(default_parent(), Vec::new()).await
    }

    /// Like [`PrivatePostgres::throwaway`], with additional Postgres settings. The defaults suit short tests: a long test
    /// needs current statistics, so set `autovacuum_naptime` to some seconds.
    pub async fn throwaway_with(settings: &[(&str, &str)]) -> Result<Self, Error> {
        let settings = settings.iter();
        let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self::start_in(default_parent(), settings.collect()).await
    }

    /// Like [`PrivatePostgres::throwaway`], with its files below `parent`.
    pub async fn throwaway_in(parent: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::start_in(parent.into(), Vec::new()).await
    }

    async fn start_in(parent: PathBuf, settings: Vec<(String, String)>) -> Result<Self, Error> {
        run_on_thread("postgres-start", move || {
            let (dir, lock) = claim_directory(&parent)?;
            let options = Options::for_tests(dir).create_databases(true).max_connections(200);
            let options = settings
                .into_iter()
                .fold(options, |options, (name, value)| options.setting(name, value));
            Self::start_throwaway(options, lock)
        })
        .await
    }
}

fn default_parent() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    std::env::temp_dir().join(format!("evenkeel-tests-{uid}"))
}

/// Removes abandoned directories, and claims a new one. A lock serialises this, so that no new directory is removed.
fn claim_directory(parent: &Path) -> Result<(PathBuf, DirectoryLock), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(parent)
        .map_err(path_error("create", parent))?;
    let path = parent.join("lock");
    let gate = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(path_error("open", &path))?;
    gate.lock().map_err(path_error("lock", &path))?;
    let _gate = DirectoryLock(gate);
    remove_abandoned(parent)?;
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(system_error("get random numbers"))?;
    let dir = parent.join(format!("{DIRECTORY_PREFIX}{:016x}", u64::from_ne_bytes(random)));
    let lock = lock_directory(&dir)?;
    Ok((dir, lock))
}

/// Removes the directories that no process has locked.
fn remove_abandoned(parent: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(parent).map_err(path_error("read", parent))?.flatten() {
        let is_one =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(DIRECTORY_PREFIX));
        let dir = entry.path();
        if !is_one || !leftovers::running_processes(&dir.join("data")).is_empty() {
            continue;
        }
        let Ok(_lock) = lock_directory(&dir) else {
            continue;
        };
        let socket = fs::read_to_string(dir.join("socket-at")).unwrap_or_default();
        if socket.starts_with("/tmp/evenkeel-") {
            fs::remove_dir_all(socket.trim()).ok();
        }
        if let Err(error) = fs::remove_dir_all(&dir) {
            tracing::warn!(%error, dir = %dir.display(), "cannot remove an abandoned Postgres");
        }
    }
    Ok(())
}
