//! A Postgres for the tests of one process.

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{on, to};
use crate::server::{Lock, apart, lock};
use crate::{Error, Options, PrivatePostgres, leftovers};

const PREFIX: &str = "postgres-";

impl PrivatePostgres {
    /// Starts a new Postgres for tests: fast instead of durable, with a role that may create databases, gone without a
    /// trace afterwards.
    ///
    /// One per test process is meant; keep it in a static. A static is never dropped, and a killed process drops
    /// nothing: Postgres ends with the process all the same, and its files are swept by the next such start.
    pub async fn throwaway() -> Result<Self, Error> {
        Self::thrown_away(usual_parent(), Vec::new()).await
    }

    /// Like [`PrivatePostgres::throwaway`], with settings of Postgres by name and value. Those of tests suit short lives:
    /// who works on one database for long wants its statistics kept, with an `autovacuum_naptime` of seconds.
    pub async fn throwaway_with(settings: &[(&str, &str)]) -> Result<Self, Error> {
        let settings = settings.iter();
        let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self::thrown_away(usual_parent(), settings.collect()).await
    }

    /// Like [`PrivatePostgres::throwaway`], with its files below `parent`.
    pub async fn throwaway_in(parent: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::thrown_away(parent.into(), Vec::new()).await
    }

    async fn thrown_away(parent: PathBuf, settings: Vec<(String, String)>) -> Result<Self, Error> {
        apart("postgres-start", move || {
            let (dir, lock) = claim(&parent)?;
            let options = Options::new(dir)
                .durable(false)
                .create_databases(true)
                .max_connections(200);
            let options = settings
                .into_iter()
                .fold(options, |options, (name, value)| {
                    options.setting(name, value)
                });
            Self::start_throwaway(options, lock)
        })
        .await
    }
}

fn usual_parent() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    std::env::temp_dir().join(format!("evenkeel-tests-{uid}"))
}

/// Sweeps what others left and takes a new directory. One process at a time, so that no new one is swept.
fn claim(parent: &Path) -> Result<(PathBuf, Lock), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(parent)
        .map_err(on("make", parent))?;
    let path = parent.join("lock");
    let gate = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(on("open", &path))?;
    gate.lock().map_err(on("lock", &path))?;
    let _gate = Lock(gate);
    sweep(parent)?;
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(to("get random numbers"))?;
    let dir = parent.join(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
    let lock = lock(&dir)?;
    Ok((dir, lock))
}

/// Removes the directories that no process holds.
fn sweep(parent: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(parent).map_err(on("read", parent))?.flatten() {
        let is_one = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        let dir = entry.path();
        if !is_one || !leftovers::at_work(&dir.join("data")).is_empty() {
            continue;
        }
        let Ok(_held) = lock(&dir) else { continue };
        let socket = fs::read_to_string(dir.join("socket-at")).unwrap_or_default();
        if socket.starts_with("/tmp/evenkeel-") {
            fs::remove_dir_all(socket.trim()).ok();
        }
        if let Err(error) = fs::remove_dir_all(&dir) {
            tracing::warn!(%error, dir = %dir.display(), "cannot sweep an old Postgres");
        }
    }
    Ok(())
}
