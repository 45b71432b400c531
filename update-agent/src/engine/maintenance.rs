//! Calls of the modules outside of an attempt.

use evenkeel_kit::Secret;

use super::Engine;
use crate::model::{Failure, ModuleParts};
use crate::modules::DownloadRetention;

impl Engine {
    /// Cancels changes that an attempt has prepared and that the next reset would apply. Call it only if no attempt is
    /// open; its journal may have been lost. A failure is logged, and the next round tries again.
    pub async fn cancel_pending_changes(&self) {
        for module in &self.parts.modules {
            if let Err(failure) = module.cancel_pending_change().await {
                tracing::error!(module = module.kind().name, error = %failure, "cannot cancel a prepared change that belongs to no attempt");
            }
        }
    }

    /// Removes files that ended attempts have left behind, except those that are kept. Call it only
    /// if no attempt is open.
    pub async fn clean_up(&self, keep: DownloadRetention<&ModuleParts>) {
        for module in &self.parts.modules {
            let name = module.kind().name;
            let own = match keep {
                DownloadRetention::LongRunning => DownloadRetention::LongRunning,
                DownloadRetention::NeededBy(spec) => {
                    DownloadRetention::NeededBy(spec.and_then(|spec| spec.get(name)))
                }
            };
            if let Err(failure) = module.clean_up(own).await {
                tracing::warn!(module = name, error = %failure, "cannot clean up; the files stay for now");
            }
        }
    }

    /// Passes the node's new credential to the modules.
    pub fn set_credential(&self, credential: &Secret) {
        for module in &self.parts.modules {
            module.set_credential(credential);
        }
    }

    /// Refreshes what the modules know about the outside, without an update.
    pub async fn refresh(&self) -> Result<(), Failure> {
        for module in &self.parts.modules {
            module.refresh().await?;
        }
        Ok(())
    }
}
