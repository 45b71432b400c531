//! The locks of dpkg and of apt's package lists. The agent must not repair packages while another dpkg runs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use tokio::time::Instant;

use crate::durable::FileError;
use crate::paths::AgentPaths;

/// Lock of apt's package lists.
const LISTS_LOCK: &str = "/var/lib/apt/lists/lock";

/// The locks, for people.
const DPKG_LOCK_NAME: &str = "dpkg's lock";
const LISTS_LOCK_NAME: &str = "the lock of the package lists";

/// Interval between two attempts to get a lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Lock that the agent holds while it runs dpkg itself: other front ends wait.
#[derive(Debug)]
pub struct DpkgLock {
    _front_end: File,
}

/// The lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum DpkgLockError {
    /// Another program held it for the whole time.
    #[error("another program has been holding {lock} for {} s", wait.as_secs())]
    Timeout {
        /// The lock, for people.
        lock: &'static str,
        wait: Duration,
    },
    /// The file could not be opened or locked.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What the module waits for.
#[derive(Debug, Default)]
pub struct WaitState(Mutex<Option<String>>);

impl WaitState {
    /// Why the module waits, for people; `None` if it does not.
    pub fn reason(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records a wait that lasts until the returned value is dropped.
    pub fn record(&self, why: String) -> RecordedWait<'_> {
        self.set(Some(why));
        RecordedWait(self)
    }

    fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// A wait that [`WaitState`] contains until this value is dropped.
#[derive(Debug)]
pub struct RecordedWait<'a>(&'a WaitState);

impl Drop for RecordedWait<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl DpkgLock {
    /// Whether a front end or dpkg itself is running now.
    pub fn is_held(paths: &AgentPaths) -> Result<bool, FileError> {
        Ok(is_locked(&paths.inside("/var/lib/dpkg/lock-frontend"))?
            || is_locked(&paths.inside("/var/lib/dpkg/lock"))?)
    }

    /// Waits until neither a front end nor dpkg itself is running, then locks out other front ends.
    pub async fn acquire(
        paths: &AgentPaths,
        wait: Duration,
        state: &WaitState,
    ) -> Result<Self, DpkgLockError> {
        let wait = LockWait { lock: DPKG_LOCK_NAME, wait, until: Instant::now() + wait, state };
        let front_end = wait.acquire(&paths.inside("/var/lib/dpkg/lock-frontend")).await?;
        // A dpkg whose front end was killed holds this lock. It is released at once: the dpkg that we start needs it.
        wait.acquire(&paths.inside("/var/lib/dpkg/lock")).await?;
        Ok(Self { _front_end: front_end })
    }
}

/// The lock of dpkg or of the package lists that another program holds now, for people.
pub fn find_held_lock(paths: &AgentPaths) -> Result<Option<&'static str>, FileError> {
    if DpkgLock::is_held(paths)? {
        return Ok(Some(DPKG_LOCK_NAME));
    }
    let lists = paths.inside(LISTS_LOCK);
    let is_held = lists.parent().is_some_and(Path::is_dir) && is_locked(&lists)?;
    Ok(is_held.then_some(LISTS_LOCK_NAME))
}

/// Whether another process holds a lock. The lock is not taken meanwhile: apt does not wait for the lock of its lists.
fn is_locked(path: &Path) -> Result<bool, FileError> {
    let lock = Flock::from(FlockType::WriteLock);
    match fcntl_getlk(open(path)?, &lock) {
        Ok(holder) => Ok(holder.is_some()),
        Err(error) => Err(FileError::while_doing("query the lock of", path)(error.into())),
    }
}

/// Waits until no other program refreshes apt's package lists: apt itself does not wait for this lock.
pub async fn wait_for_lists(
    paths: &AgentPaths,
    wait: Duration,
    state: &WaitState,
) -> Result<(), DpkgLockError> {
    let path = paths.inside(LISTS_LOCK);
    if !path.parent().is_some_and(Path::is_dir) {
        return Ok(());
    }
    let until = Instant::now() + wait;
    let wait = LockWait { lock: LISTS_LOCK_NAME, wait, until, state };
    wait.acquire(&path).await.map(drop)
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
struct LockWait<'a> {
    lock: &'static str,
    wait: Duration,
    until: Instant,
    state: &'a WaitState,
}

impl LockWait<'_> {
    async fn acquire(self, path: &Path) -> Result<File, DpkgLockError> {
        let file = open(path)?;
        let mut recorded = None;
        loop {
            match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                Err(error) => {
                    return Err(FileError::while_doing("lock", path)(error.into()).into());
                }
            }
            if Instant::now() >= self.until {
                return Err(DpkgLockError::Timeout { lock: self.lock, wait: self.wait });
            }
            recorded.get_or_insert_with(|| {
                self.state.record(format!("another program is holding {}", self.lock))
            });
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

fn open(path: &Path) -> Result<File, FileError> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o640)
        .open(path)
        .map_err(FileError::while_doing("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::{Command, HostRunner, Runner};

    /// Locks like dpkg, creates the file `held`, and holds the lock until the file `go` exists.
    const HOLDER_SCRIPT: &str = r#"
use Fcntl;
open(my $file, "+>", $ARGV[0]) or die;
my $lock = pack("s s x4 q q l x4", F_WRLCK, 0, 0, 0, 0);
fcntl($file, F_SETLK, $lock) or die;
open(my $held, ">", "$ARGV[1]/held") or die; close($held);
select(undef, undef, undef, 0.01) until -e "$ARGV[1]/go";
"#;

    /// Holds a lock in another process until `ours` has created the file `go` in the root.
    async fn with_holder(root: &Path, lock: &str, ours: impl Future<Output = ()>) {
        let folder = root.display().to_string();
        let holder = HostRunner::new(Path::new("/"));
        let command = Command::new("perl", Duration::from_mins(1)).with_arguments([
            "-e",
            HOLDER_SCRIPT,
            lock,
            &folder,
        ]);
        let held_file = root.join("held");
        let ours = async {
            while !held_file.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ours.await;
        };
        let both = async { tokio::join!(holder.run(&command), ours) };
        let (output, ()) = tokio::time::timeout(Duration::from_mins(1), both)
            .await
            .expect("a holder and a waiter");
        assert!(output.unwrap().succeeded());
    }

    #[tokio::test]
    async fn the_wait_for_the_lock_is_limited() {
        let root = tempfile::tempdir().unwrap();
        let dpkg = root.path().join("var/lib/dpkg");
        std::fs::create_dir_all(&dpkg).unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let file = dpkg.join("lock").display().to_string();
        let state = WaitState::default();
        with_holder(root.path(), &file, async {
            let short = DpkgLock::acquire(&paths, Duration::from_millis(300), &state);
            let error = short.await.unwrap_err();
            assert!(matches!(error, DpkgLockError::Timeout { .. }), "{error}");
            assert_eq!(find_held_lock(&paths).unwrap(), Some("dpkg's lock"));
            std::fs::write(root.path().join("go"), "").unwrap();
            DpkgLock::acquire(&paths, Duration::from_secs(20), &state).await.unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn the_state_contains_the_lock_only_while_it_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let dpkg = root.path().join("var/lib/dpkg");
        std::fs::create_dir_all(&dpkg).unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let file = dpkg.join("lock-frontend").display().to_string();
        let state = WaitState::default();
        DpkgLock::acquire(&paths, Duration::ZERO, &state).await.unwrap();
        assert_eq!(state.reason(), None);
        with_holder(root.path(), &file, async {
            let reported = async {
                while state.reason().is_none() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                state.reason().unwrap()
            };
            tokio::select! {
                lock = DpkgLock::acquire(&paths, Duration::from_mins(1), &state) => panic!("{lock:?}"),
                reason = reported => assert_eq!(reason, "another program is holding dpkg's lock"),
            }
            assert_eq!(state.reason(), None, "the wait has ended");
            std::fs::write(root.path().join("go"), "").unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn the_lock_of_the_lists_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let state = WaitState::default();
        wait_for_lists(&paths, Duration::ZERO, &state).await.unwrap();
        std::fs::create_dir_all(root.path().join("var/lib/dpkg")).unwrap();
        assert_eq!(find_held_lock(&paths).unwrap(), None);
        let lists = root.path().join("var/lib/apt/lists");
        std::fs::create_dir_all(&lists).unwrap();
        let file = lists.join("lock").display().to_string();
        with_holder(root.path(), &file, async {
            let short = wait_for_lists(&paths, Duration::from_millis(300), &state);
            let error = short.await.unwrap_err();
            assert!(error.to_string().contains("the lock of the package lists"), "{error}");
            assert_eq!(find_held_lock(&paths).unwrap(), Some("the lock of the package lists"));
            std::fs::write(root.path().join("go"), "").unwrap();
            wait_for_lists(&paths, Duration::from_secs(20), &state).await.unwrap();
            assert_eq!(find_held_lock(&paths).unwrap(), None);
        })
        .await;
    }
}
