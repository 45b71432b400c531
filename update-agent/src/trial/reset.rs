//! Resetting the machine at once, without asking anything that may hang.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::system::RebootCommand;
use tokio::sync::oneshot;

/// The kernel's door to its emergency commands. Root may use it whatever `kernel.sysrq` says (the kernel's admin guide,
/// "Linux Magic System Request Key Hacks").
const TRIGGER: &str = "/proc/sysrq-trigger";

/// A disk that does not answer does not keep the machine from being reset: each way to flush it may take so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Resets the machine.
#[async_trait::async_trait]
pub trait Reset: Send + Sync {
    /// Flushes what can be flushed and resets. It returns only if that is not possible.
    async fn now(&self);
}

/// Resets by the kernel's emergency commands: what has been written is flushed, file systems are made read-only, and
/// the machine starts anew. No service is stopped: one that hangs may be what is wrong.
#[derive(Clone, Debug)]
pub struct SysRq {
    trigger: PathBuf,
    patience: Duration,
    /// For a kernel without emergency commands.
    otherwise: fn() -> io::Result<()>,
}

impl Default for SysRq {
    fn default() -> Self {
        Self {
            trigger: PathBuf::from(TRIGGER),
            patience: PATIENCE,
            otherwise: || Ok(rustix::system::reboot(RebootCommand::Restart)?),
        }
    }
}

impl SysRq {
    /// Blocks for as long as the disks do, within bounds.
    fn reset(&self) {
        flush(self.patience);
        let by_trigger = self.by_trigger();
        tracing::error!(
            ?by_trigger,
            "the kernel's emergency command did not reset the machine"
        );
        let otherwise = (self.otherwise)();
        tracing::error!(?otherwise, "the kernel does not restart the machine");
    }

    fn by_trigger(&self) -> io::Result<()> {
        // Opened once: it must not depend on files that can be read later.
        let mut trigger = OpenOptions::new().write(true).open(&self.trigger)?;
        // Both are only begun by this, so they get some time. That they fail changes nothing.
        for command in [b"s", b"u"] {
            trigger.write_all(command).ok();
            thread::sleep(self.patience / 5);
        }
        trigger.write_all(b"b")
    }
}

#[async_trait::async_trait]
impl Reset for SysRq {
    /// In a thread of its own: whoever feeds a watchdog or tells the manager that the agent lives goes on meanwhile,
    /// and work that hangs on a disk takes no room from it.
    async fn now(&self) {
        let (done, is_done) = oneshot::channel();
        let owned = self.clone();
        let resetting = thread::Builder::new().spawn(move || {
            owned.reset();
            // Nobody may be waiting any more.
            done.send(()).ok();
        });
        match resetting {
            Ok(_) => {
                is_done.await.ok();
            }
            Err(_) => self.reset(),
        }
    }
}

/// Flushes everything, but does not wait for it longer than `patience`.
fn flush(patience: Duration) {
    let (done, is_done) = mpsc::channel();
    let flushing = thread::Builder::new().spawn(move || {
        rustix::fs::sync();
        // Nobody may be waiting any more.
        done.send(()).ok();
    });
    if flushing.is_ok() && is_done.recv_timeout(patience).is_err() {
        tracing::error!("the disks do not answer");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Condvar, Mutex};

    use super::*;

    static RESTARTED: AtomicU32 = AtomicU32::new(0);

    /// Whether others went on while the machine was being reset; none before that is known.
    static GONE_ON: Mutex<Option<bool>> = Mutex::new(None);
    static GOES_ON: Condvar = Condvar::new();

    #[tokio::test]
    async fn others_go_on_while_the_machine_is_being_reset() {
        let folder = tempfile::tempdir().unwrap();
        let slow = SysRq {
            trigger: folder.path().join("missing"),
            patience: Duration::from_millis(5),
            otherwise: || {
                let gone_on = GONE_ON.lock().expect("the lock");
                let deadline = Duration::from_secs(20);
                let (mut gone_on, _) = GOES_ON
                    .wait_timeout_while(gone_on, deadline, |gone_on| gone_on.is_none())
                    .expect("the lock");
                // Too late: whoever comes now had to wait.
                gone_on.get_or_insert(false);
                Ok(())
            },
        };
        let others = async {
            GONE_ON.lock().unwrap().get_or_insert(true);
            GOES_ON.notify_all();
        };
        tokio::join!(slow.now(), others);
        assert_eq!(*GONE_ON.lock().unwrap(), Some(true));
    }

    fn reset(trigger: PathBuf) -> SysRq {
        SysRq {
            trigger,
            patience: Duration::from_millis(5),
            otherwise: || {
                RESTARTED.fetch_add(1, Ordering::Relaxed);
                Ok(())
            },
        }
    }

    #[tokio::test]
    async fn the_kernel_is_asked_to_flush_to_make_read_only_and_to_reset_and_else_to_restart() {
        let folder = tempfile::tempdir().unwrap();
        let trigger = folder.path().join("sysrq-trigger");
        std::fs::write(&trigger, "").unwrap();
        reset(trigger.clone()).now().await;
        assert_eq!(std::fs::read_to_string(&trigger).unwrap(), "sub");
        assert_eq!(
            RESTARTED.load(Ordering::Relaxed),
            1,
            "a file resets nothing"
        );

        reset(folder.path().join("missing")).now().await;
        assert_eq!(RESTARTED.load(Ordering::Relaxed), 2);
        assert!(!folder.path().join("missing").exists());
    }
}
