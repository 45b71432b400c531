//! Health checks of the machine: required units are active, and the programs in `health.d` succeed.
//! They decide about an image on trial, and are compared before and after a change of packages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain;

use crate::hooks::{ProgramFolder, to_one_line};
use crate::paths::AgentPaths;
use crate::runner::{Command, Runner};

/// Time limit for `systemctl`. systemd answers at once or not at all.
const SYSTEMCTL_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of each program.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// The programs; the rules of hooks apply.
const HEALTH_PROGRAMS: ProgramFolder =
    ProgramFolder { folder: "/etc/evenkeel/health.d", kind: "health check" };

/// A health check that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthFailure {
    /// What was checked: a unit or a program. Stable from check to check.
    pub name: String,
    /// Reason for people.
    pub reason: String,
}

/// The health checks of a machine.
#[derive(Clone)]
pub struct HealthChecks {
    paths: AgentPaths,
    runner: Arc<dyn Runner>,
    units: Vec<String>,
}

impl fmt::Debug for HealthChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthChecks")
            .field("paths", &self.paths)
            .field("units", &self.units)
            .finish_non_exhaustive()
    }
}

impl HealthChecks {
    /// Checks these units of systemd, and the programs of a managed root.
    pub fn new(paths: AgentPaths, runner: Arc<dyn Runner>, units: Vec<String>) -> Self {
        Self { paths, runner, units }
    }

    /// Runs the checks until one fails.
    pub async fn check(&self) -> Result<(), String> {
        if let Some(failure) = self.find_unit_failures().await.into_iter().next() {
            return Err(failure.reason);
        }
        HEALTH_PROGRAMS.run_all(&self.paths, self.runner.as_ref(), HEALTH_CHECK_TIMEOUT).await
    }

    /// Runs all checks and returns those that fail.
    pub async fn find_failures(&self) -> Vec<HealthFailure> {
        let mut failures = self.find_unit_failures().await;
        let names = match HEALTH_PROGRAMS.list_programs(&self.paths) {
            Ok(names) => names,
            Err(reason) => {
                let name = HEALTH_PROGRAMS.folder.to_owned();
                failures.push(HealthFailure { name, reason });
                return failures;
            }
        };
        let runner = self.runner.as_ref();
        for name in names {
            let result = HEALTH_PROGRAMS.run_program(&name, runner, HEALTH_CHECK_TIMEOUT).await;
            failures.extend(result.err().map(|reason| HealthFailure { name, reason }));
        }
        failures
    }

    async fn find_unit_failures(&self) -> Vec<HealthFailure> {
        let units = &self.units;
        if units.is_empty() {
            return Vec::new();
        }
        // One line per unit, in order. The exit status is 0 if at least one of them is active
        // (systemctl(1)).
        let command = Command::new("systemctl", SYSTEMCTL_TIMEOUT)
            .with_arguments(["is-active", "--"])
            .with_arguments(units.iter().cloned());
        let output = match self.runner.run(&command).await {
            Ok(output) => output,
            Err(error) => {
                let reason = format!("cannot check the units: {}", chain(&error));
                return vec![HealthFailure { name: "systemctl".to_owned(), reason }];
            }
        };
        let mut states = output.stdout.lines().map(str::trim);
        let mut failures = Vec::new();
        for unit in units {
            let reason = match states.next() {
                Some("active") => continue,
                Some(state) => format!("the unit {unit} is {}", to_one_line(state)),
                None => {
                    let message = to_one_line(&output.combined_output());
                    format!("systemctl does not know the unit {unit}: {message}")
                }
            };
            failures.push(HealthFailure { name: unit.clone(), reason });
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::fake::{self, FakeRunner};

    #[tokio::test]
    async fn all_failures_are_found_or_only_the_first_one() {
        let root = tempfile::tempdir().unwrap();
        let folder = HEALTH_PROGRAMS.folder;
        let [good, bad, late] = ["10-good", "20-bad", "30-late"]
            .map(|name| fake::add_program(root.path(), folder, name));
        let runner = FakeRunner::default()
            .returns("systemctl", 3, "active\nfailed\ninactive\n")
            .returns(&good, 0, "")
            .returns(&bad, 1, "no answer\n")
            .returns(&late, 75, "");
        let units = ["a.service", "b.service", "c.service"].map(str::to_owned);
        let paths = AgentPaths::new(root.path(), None);
        let checks = HealthChecks::new(paths, Arc::new(runner), units.to_vec());
        let failures = checks.find_failures().await;
        let failures: Vec<_> =
            failures.iter().map(|failure| (&*failure.name, &*failure.reason)).collect();
        assert_eq!(
            failures,
            [
                ("b.service", "the unit b.service is failed"),
                ("c.service", "the unit c.service is inactive"),
                ("20-bad", "the health check 20-bad ended with status 1: no answer"),
                ("30-late", "the health check 30-late is not ready"),
            ]
        );
        assert_eq!(checks.check().await.unwrap_err(), "the unit b.service is failed");
    }

    #[tokio::test]
    async fn a_system_without_checks_is_healthy() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let checks = HealthChecks::new(paths, Arc::new(FakeRunner::default()), Vec::new());
        assert_eq!(checks.find_failures().await, []);
        checks.check().await.unwrap();
    }

    #[tokio::test]
    async fn units_that_cannot_be_checked_are_a_failure() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let units = vec!["a.service".to_owned()];
        let checks =
            HealthChecks::new(paths.clone(), Arc::new(FakeRunner::default()), units.clone());
        let failures = checks.find_failures().await;
        assert!(failures[0].reason.starts_with("cannot check the units"), "{failures:?}");
        let unknown = FakeRunner::default().returns("systemctl", 4, "");
        let checks = HealthChecks::new(paths, Arc::new(unknown), units);
        let why = checks.check().await.unwrap_err();
        assert!(why.starts_with("systemctl does not know the unit a.service"), "{why}");
    }
}
