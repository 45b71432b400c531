//! When package lists are fetched.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use backon::Retryable;

use super::apt::storage_failure;
use super::broken_sources::has_errors;
use super::dpkg_lock::{self, DpkgLockError};
use super::sources::{self, AptView};
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
            .when(may_pass_soon)
            .await
    }

    /// Refreshes the lists that a view needs.
    pub(super) async fn update_lists(&self, view: AptView, pace: u64) -> Result<(), Failure> {
        self.update_lists_within(self.tools.timeouts().refresh, view, pace).await
    }

    /// Refreshes lists in a time. If a hook of apt does not end in this time, the lists are refreshed without hooks: these
    /// are for other programs, such as a software centre.
    async fn update_lists_within(
        &self,
        limit: Duration,
        view: AptView,
        pace: u64,
    ) -> Result<(), Failure> {
        let failure = match self.tools.update_lists(limit, view, pace, None).await {
            Err(failure) if ended_in_hook(&failure.log) => failure,
            ended => return ended,
        };
        tracing::warn!(
            error = %failure,
            output = failure.log,
            "a hook of apt did not end; refreshing the lists without hooks"
        );
        let settings =
            sources::write_settings_without_hooks(&self.paths).map_err(storage_failure)?;
        self.tools.update_lists(limit, view, pace, Some(settings)).await
    }
}

/// Whether a refresh may succeed if it is repeated at once. Not if apt named no error, as at the deadline: the next one would
/// not end either.
fn may_pass_soon(failure: &Failure) -> bool {
    is_transient(failure) && has_errors(&failure.log)
}

/// Whether the output of apt ends in a hook.
fn ended_in_hook(log: &str) -> bool {
    let is_progress = |line: &str| {
        ["Hit:", "Get:", "Ign:", "Err:", "Fetched ", "Reading package lists", "E: ", "W: "]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let hook = log.rsplit_once("Running external script: ");
    hook.is_some_and(|(_, after)| !after.lines().any(is_progress))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refresh_that_named_an_error_is_repeated_at_once() {
        for (log, expected) in [
            ("Ign:1 http://x stable InRelease\n", false),
            ("", false),
            ("E: Failed to fetch http://x/dists/stable/main/Packages  503\n", true),
        ] {
            let failure = Failure::with_log(FailureKind::Refresh, "why", log);
            assert_eq!(may_pass_soon(&failure), expected, "{log}");
        }
        let other = Failure::with_log(FailureKind::Signature, "why", "E: x is not signed.\n");
        assert!(!may_pass_soon(&other));
    }

    #[test]
    fn a_refresh_that_hangs_in_a_hook_is_told_from_one_that_hangs_at_a_server() {
        let before = "Running external script: 'mount /srv'\n";
        let lists = "Hit:1 http://x stable InRelease\n";
        let after = "Running external script: 'sleep 1000'\n";
        for (log, expected) in [
            (before.to_owned(), true),
            (format!("{before}waiting for the disk\n"), true),
            (format!("{before}{lists}"), false),
            (format!("{before}{lists}{after}"), true),
            (format!("{before}{lists}{after}Reading package lists...\n"), false),
            (lists.to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(ended_in_hook(&log), expected, "{log}");
        }
    }

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
