//! What the trial asks of the boot control, in bounded time and never two changes at once.

use std::sync::Arc;

use evenkeel_kit::Lifecycle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::model::{Failure, FailureKind};
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{Seen, Slot};

type Task = JoinHandle<Result<(), Failure>>;

/// A change of the slot on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It starts from now on.
    Bless,
    /// Nothing starts it any more.
    Withdraw,
}

impl Change {
    fn verb(self) -> &'static str {
        match self {
            Self::Bless => "bless",
            Self::Withdraw => "withdraw",
        }
    }
}

/// Changes a slot.
///
/// A change that takes longer than the boot control asks for is not waited for any longer, and not ended either: half
/// of it may be done. It goes on beside, and nothing else is begun before it is over.
pub(super) struct Changes {
    boot: Arc<dyn BootControl>,
    slot: Slot,
    running: Mutex<Option<(Change, Task)>>,
}

impl Changes {
    pub fn new(boot: &Arc<dyn BootControl>, slot: Slot) -> Self {
        Self {
            boot: Arc::clone(boot),
            slot,
            running: Mutex::new(None),
        }
    }

    /// Makes a change, or waits for the same one if it was begun before.
    pub async fn make(&self, change: Change) -> Result<(), Failure> {
        let mut running = self.running.lock().await;
        if let Some((earlier, task)) = running.as_mut() {
            let earlier = *earlier;
            let done = self.wait_for(earlier, task).await?;
            *running = None;
            if earlier == change && done.is_ok() {
                return done;
            }
        }
        let (_, task) = running.insert((change, self.begin(change)));
        let done = self.wait_for(change, task).await?;
        *running = None;
        done
    }

    fn begin(&self, change: Change) -> Task {
        let (boot, slot) = (Arc::clone(&self.boot), self.slot);
        Lifecycle::detach(async move {
            match change {
                Change::Bless => boot.bless(slot).await,
                Change::Withdraw => boot.withdraw(slot).await,
            }
        })
    }

    /// What became of a change; fails if it is not over yet.
    async fn wait_for(
        &self,
        change: Change,
        task: &mut Task,
    ) -> Result<Result<(), Failure>, Failure> {
        match timeout(self.boot.patience(), task).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                let verb = change.verb();
                let reason = format!("the boot control did not {verb}: {error}");
                Ok(Err(Failure::new(FailureKind::Apply, reason)))
            }
            Err(_) => Err(late(self.boot.as_ref(), change.verb())),
        }
    }
}

/// Looks at what runs, but not for ever.
pub(crate) async fn look(boot: &dyn BootControl) -> Result<Seen, Failure> {
    let looked = timeout(boot.patience(), boot.look()).await;
    looked.unwrap_or_else(|_| Err(late(boot, "look")))
}

fn late(boot: &dyn BootControl, verb: &str) -> Failure {
    let patience = boot.patience().as_secs();
    let reason = format!("the boot control did not {verb} within {patience} s");
    Failure::new(FailureKind::Apply, reason)
}
