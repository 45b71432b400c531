//! Resets the machine at once, without calling anything that may hang.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::system::RebootCommand;
use tokio::sync::oneshot;

/// The kernel's interface for emergency commands. Root may use it regardless of `kernel.sysrq` (the
/// kernel's admin guide, "Linux Magic System Request Key Hacks").
const SYSRQ_TRIGGER: &str = "/proc/sysrq-trigger";

/// Time limit for each way to flush the disks. A disk that hangs must not prevent the reset.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Resets the machine.
#[async_trait::async_trait]
pub trait Reset: Send + Sync {
    /// Flushes what can be flushed and resets. Returns only if the reset failed.
    async fn reset_machine(&self);
}

/// Resets with the kernel's emergency commands: flush, remount read-only, reset. No service is
/// stopped: a service that hangs may be the reason for the reset.
#[derive(Clone, Debug)]
pub struct SysRq {
    trigger: PathBuf,
    flush_timeout: Duration,
    /// Used if the kernel has no emergency commands.
    fallback: fn() -> io::Result<()>,
}

impl Default for SysRq {
    fn default() -> Self {
        Self {
            trigger: PathBuf::from(SYSRQ_TRIGGER),
            flush_timeout: FLUSH_TIMEOUT,
            fallback: || Ok(rustix::system::reboot(RebootCommand::Restart)?),
        }
    }
}

impl SysRq {
    /// Resets the machine. Blocks for as long as the disks do, within limits.
    fn reset_blocking(&self) {
        flush_disks(self.flush_timeout);
        let by_trigger = self.by_trigger();
        tracing::error!(?by_trigger, "the kernel's emergency command did not reset the machine");
        let fallback = (self.fallback)();
        tracing::error!(?fallback, "the kernel did not restart the machine");
    }

    fn by_trigger(&self) -> io::Result<()> {
        // Opened once, because later opens may fail when the disks hang.
        let mut trigger = OpenOptions::new().write(true).open(&self.trigger)?;
        // Both commands only start their work, so they get some time. Their errors are ignored.
        for command in [b"s", b"u"] {
            trigger.write_all(command).ok();
            thread::sleep(self.flush_timeout / 5);
        }
        trigger.write_all(b"b")
    }
}

#[async_trait::async_trait]
impl Reset for SysRq {
    /// Uses a thread of its own: meanwhile the watchdog is fed and the service manager notified,
    /// even if a disk hangs.
    async fn reset_machine(&self) {
        let (done, is_done) = oneshot::channel();
        let owned = self.clone();
        let resetting = thread::Builder::new().spawn(move || {
            owned.reset_blocking();
            // The receiver may be gone.
            done.send(()).ok();
        });
        match resetting {
            Ok(_) => {
                is_done.await.ok();
            }
            Err(_) => self.reset_blocking(),
        }
    }
}

/// Flushes all disks, but waits no longer than `timeout`.
fn flush_disks(timeout: Duration) {
    let (done, is_done) = mpsc::channel();
    let flushing = thread::Builder::new().spawn(move || {
        rustix::fs::sync();
        // The receiver may be gone.
        done.send(()).ok();
    });
    if flushing.is_ok() && is_done.recv_timeout(timeout).is_err() {
        tracing::error!("the disks do not respond");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Condvar, Mutex};

    use super::*;

    static RESTARTED: AtomicU32 = AtomicU32::new(0);

    /// Whether other tasks continued during the reset; `None` until this is known.
    static OTHERS_CONTINUED: Mutex<Option<bool>> = Mutex::new(None);
    static CONTINUED: Condvar = Condvar::new();

    #[tokio::test]
    async fn other_tasks_continue_while_the_machine_is_being_reset() {
        let folder = tempfile::tempdir().unwrap();
        let slow = SysRq {
            trigger: folder.path().join("missing"),
            flush_timeout: Duration::from_millis(5),
            fallback: || {
                let continued = OTHERS_CONTINUED.lock().expect("the lock");
                let deadline = Duration::from_secs(20);
                let (mut continued, _) = CONTINUED
                    .wait_timeout_while(continued, deadline, |continued| continued.is_none())
                    .expect("the lock");
                // Too late: the other task had to wait.
                continued.get_or_insert(false);
                Ok(())
            },
        };
        let others = async {
            OTHERS_CONTINUED.lock().unwrap().get_or_insert(true);
            CONTINUED.notify_all();
        };
        tokio::join!(slow.reset_machine(), others);
        assert_eq!(*OTHERS_CONTINUED.lock().unwrap(), Some(true));
    }

    fn test_reset(trigger: PathBuf) -> SysRq {
        SysRq {
            trigger,
            flush_timeout: Duration::from_millis(5),
            fallback: || {
                RESTARTED.fetch_add(1, Ordering::Relaxed);
                Ok(())
            },
        }
    }

    #[tokio::test]
    async fn the_kernel_flushes_remounts_and_resets_or_else_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let trigger = folder.path().join("sysrq-trigger");
        std::fs::write(&trigger, "").unwrap();
        test_reset(trigger.clone()).reset_machine().await;
        assert_eq!(std::fs::read_to_string(&trigger).unwrap(), "sub");
        assert_eq!(RESTARTED.load(Ordering::Relaxed), 1, "a regular file resets nothing");

        test_reset(folder.path().join("missing")).reset_machine().await;
        assert_eq!(RESTARTED.load(Ordering::Relaxed), 2);
        assert!(!folder.path().join("missing").exists());
    }
}
