//! Changes of the boot control during a trial: with a time limit, and never two at once.

use std::sync::Arc;

use evenkeel_kit::Lifecycle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::model::{Failure, FailureKind};
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{BootObservation, Slot};

type ChangeTask = JoinHandle<Result<(), Failure>>;

/// A change of the slot on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotChange {
    /// The slot boots from now on.
    Bless,
    /// The slot does not boot any more.
    Withdraw,
}

impl SlotChange {
    fn verb(self) -> &'static str {
        match self {
            Self::Bless => "bless",
            Self::Withdraw => "withdraw",
        }
    }
}

/// Changes a slot.
///
/// A change that exceeds the boot control's time limit is neither waited for nor aborted, because
/// half of it may be done. It continues in the background, and no other change starts before it has
/// finished.
pub(super) struct SlotChanger {
    boot: Arc<dyn BootControl>,
    slot: Slot,
    running: Mutex<Option<(SlotChange, ChangeTask)>>,
}

impl SlotChanger {
    pub fn new(boot: &Arc<dyn BootControl>, slot: Slot) -> Self {
        Self { boot: Arc::clone(boot), slot, running: Mutex::new(None) }
    }

    /// Applies a change, or waits for the same change if it was started before.
    pub async fn apply(&self, change: SlotChange) -> Result<(), Failure> {
        let mut running = self.running.lock().await;
        if let Some((earlier, task)) = running.as_mut() {
            let earlier = *earlier;
            let done = self.wait_for(earlier, task).await;
            let done = done.ok_or_else(|| self.timeout_failure(earlier))?;
            *running = None;
            if earlier == change && done.is_ok() {
                return done;
            }
        }
        let (_, task) = running.insert((change, self.spawn_change(change)));
        let done = self.wait_for(change, task).await;
        let done = done.ok_or_else(|| self.timeout_failure(change))?;
        *running = None;
        done
    }

    fn spawn_change(&self, change: SlotChange) -> ChangeTask {
        let (boot, slot) = (Arc::clone(&self.boot), self.slot);
        Lifecycle::detach(async move {
            match change {
                SlotChange::Bless => boot.bless(slot).await,
                SlotChange::Withdraw => boot.withdraw(slot).await,
            }
        })
    }

    /// Result of a change; `None` if the change has not finished in time.
    async fn wait_for(
        &self,
        change: SlotChange,
        task: &mut ChangeTask,
    ) -> Option<Result<(), Failure>> {
        let joined = timeout(self.boot.call_timeout(), task).await.ok()?;
        Some(joined.unwrap_or_else(|error| {
            let reason = format!("the boot control did not {}: {error}", change.verb());
            Err(Failure::new(FailureKind::Apply, reason))
        }))
    }

    fn timeout_failure(&self, change: SlotChange) -> Failure {
        timeout_failure(self.boot.as_ref(), change.verb())
    }
}

/// Reads the boot state, with a time limit.
pub(crate) async fn read_slots(boot: &dyn BootControl) -> Result<BootObservation, Failure> {
    let looked = timeout(boot.call_timeout(), boot.observe()).await;
    looked.unwrap_or_else(|_| Err(timeout_failure(boot, "look")))
}

fn timeout_failure(boot: &dyn BootControl, verb: &str) -> Failure {
    let seconds = boot.call_timeout().as_secs();
    let reason = format!("the boot control did not {verb} within {seconds} s");
    Failure::new(FailureKind::Apply, reason)
}
