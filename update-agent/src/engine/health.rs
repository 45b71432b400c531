//! Compares the health of the machine after a change with that before it.

use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use super::apply::add_missing;
use crate::health::HealthFailure;
use crate::journal::JournalEntry;
use crate::model::{Failure, FailureKind};

/// How long a check may fail after a change: services may still be starting. After a boot they have the settling time.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between two runs of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Engine {
    /// The health checks that fail before a change; `None` if the change has a trial of its own, which checks the health.
    pub(super) async fn find_unhealthy(&self, entry: &JournalEntry) -> Option<Vec<String>> {
        let mut involved = self.involved_modules(entry).into_iter();
        if involved.all(|module| module.kind().applies_on_reboot) {
            return None;
        }
        let failures = self.parts.health.find_failures().await.into_iter();
        Some(failures.map(|failure| failure.name).collect())
    }

    /// The failure if a health check fails that had succeeded before the change. A check that had failed before as well
    /// is a remark.
    pub(super) async fn find_health_problem(
        &self,
        entry: &mut JournalEntry,
        has_booted: bool,
    ) -> Option<Failure> {
        let before = entry.unhealthy_before.clone()?;
        let is_old = |failure: &HealthFailure| before.contains(&failure.name);
        let timeout = if has_booted { self.settling_time } else { RECOVERY_TIMEOUT };
        let until = Instant::now() + timeout;
        let failures = loop {
            let failures = self.parts.health.find_failures().await;
            if failures.iter().all(is_old) || Instant::now() >= until {
                break failures;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        };
        let (old, new): (Vec<_>, Vec<_>) = failures.into_iter().partition(is_old);
        let remark = |failure: HealthFailure| {
            format!("not healthy before the update either: {}", failure.reason)
        };
        add_missing(&mut entry.remarks, old.into_iter().map(remark));
        if new.is_empty() {
            return None;
        }
        let reasons: Vec<_> = new.into_iter().map(|failure| failure.reason).collect();
        let reason = format!("healthy before the update, but not after it: {}", reasons.join("; "));
        Some(Failure::new(FailureKind::Verify, reason))
    }
}
