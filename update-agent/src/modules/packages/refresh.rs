//! When package lists are fetched.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use backon::Retryable;

use super::apt::storage_failure;
use super::dpkg_lock::{self, DpkgLockError};
use super::{PackagesModule, is_transient, retry_backoff};
use crate::model::{Failure, FailureKind, PackageSpec};
use crate::owner::OwnerLimits;

/// A plan uses lists that were refreshed for the facts at most this long ago.
const MAX_LIST_AGE: Duration = Duration::from_mins(1);

/// When the lists of the machine's own sources were refreshed for the facts; `None` if a plan has used them since.
#[derive(Debug, Default)]
pub struct LastRefresh(Mutex<Option<Instant>>);

impl LastRefresh {
    /// Records a refresh that succeeded now.
    pub fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether the lists were refreshed just now, so that the first plan after it need not fetch them again. A second plan
    /// fetches them.
    pub fn take_recent(&self) -> bool {
        let refreshed = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        refreshed.is_some_and(|at| at.elapsed() < MAX_LIST_AGE)
    }
}

impl PackagesModule {
    /// Refreshes the package lists, with a few retries, when no other program refreshes them. `is_fresh`: see
    /// [`LastRefresh::take_recent`].
    pub(super) async fn refresh_for(
        &self,
        spec: &PackageSpec,
        limits: &OwnerLimits,
        is_fresh: bool,
    ) -> Result<(), Failure> {
        let wait = self.tools.timeouts().lock;
        let waited = dpkg_lock::wait_for_lists(&self.paths, wait, &self.wait_state).await;
        waited.map_err(|error| match error {
            DpkgLockError::File(error) => storage_failure(error),
            timeout @ DpkgLockError::Timeout { .. } => {
                Failure::new(FailureKind::Refresh, timeout.to_string()).into_temporary()
            }
        })?;
        (|| self.refresh_lists(spec, limits, is_fresh))
            .retry(retry_backoff())
            .sleep(tokio::time::sleep)
            .when(is_transient)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_plan_uses_the_lists_of_a_recent_refresh() {
        let last = LastRefresh::default();
        assert!(!last.take_recent());
        last.set();
        assert!(last.take_recent());
        assert!(!last.take_recent(), "a second plan fetches the lists");
        *last.0.lock().unwrap() = Instant::now().checked_sub(MAX_LIST_AGE);
        assert!(!last.take_recent(), "they are too old");
    }
}
