//! dpkg's locks. The agent must not repair packages while another dpkg runs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use tokio::time::Instant;

use crate::durable::FileError;
use crate::paths::AgentPaths;

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
    #[error("another program has been holding dpkg's lock for {} s", .0.as_secs())]
    Timeout(Duration),
    /// The file could not be opened or locked.
    #[error(transparent)]
    File(#[from] FileError),
}

impl DpkgLock {
    /// Whether a front end or dpkg itself is running now.
    pub fn is_held(paths: &AgentPaths) -> Result<bool, FileError> {
        for path in ["/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock"] {
            let path = paths.inside(path);
            let file = open(&path)?;
            match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::ACCESS) => return Ok(true),
                Err(error) => return Err(FileError::while_doing("lock", &path)(error.into())),
            }
        }
        Ok(false)
    }

    /// Waits until neither a front end nor dpkg itself is running, then locks out other front ends.
    pub async fn acquire(paths: &AgentPaths, wait: Duration) -> Result<Self, DpkgLockError> {
        let until = Instant::now() + wait;
        let front_end = lock(&paths.inside("/var/lib/dpkg/lock-frontend"), wait, until).await?;
        // A dpkg whose front end was killed holds this lock. It is released at once: the dpkg that we start needs it.
        lock(&paths.inside("/var/lib/dpkg/lock"), wait, until).await?;
        Ok(Self { _front_end: front_end })
    }
}

async fn lock(path: &Path, wait: Duration, until: Instant) -> Result<File, DpkgLockError> {
    let file = open(path)?;
    loop {
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::AGAIN | Errno::ACCESS) => {}
            Err(error) => {
                return Err(FileError::while_doing("lock", path)(error.into()).into());
            }
        }
        if Instant::now() >= until {
            return Err(DpkgLockError::Timeout(wait));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
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

    #[tokio::test]
    async fn the_wait_for_the_lock_is_limited() {
        let root = tempfile::tempdir().unwrap();
        let dpkg = root.path().join("var/lib/dpkg");
        std::fs::create_dir_all(&dpkg).unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let folder = root.path().display().to_string();
        let file = dpkg.join("lock").display().to_string();
        let holder = HostRunner::new(Path::new("/"));
        let command = Command::new("perl", Duration::from_mins(1)).with_arguments([
            "-e",
            HOLDER_SCRIPT,
            &file,
            &folder,
        ]);
        let held_file = root.path().join("held");

        let ours = async {
            while !held_file.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let error = DpkgLock::acquire(&paths, Duration::from_millis(300)).await.unwrap_err();
            assert!(matches!(error, DpkgLockError::Timeout(_)), "{error}");
            assert!(DpkgLock::is_held(&paths).unwrap());
            std::fs::write(root.path().join("go"), "").unwrap();
            DpkgLock::acquire(&paths, Duration::from_secs(20)).await.unwrap();
        };
        let both = async { tokio::join!(holder.run(&command), ours) };
        let (output, ()) = tokio::time::timeout(Duration::from_mins(1), both)
            .await
            .expect("a holder and a waiter");
        assert!(output.unwrap().succeeded());
    }
}
