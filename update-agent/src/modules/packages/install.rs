//! Installs the packages of a step.

use super::apt::tool_failure;
use super::{PackageStep, PackagesModule, apt_hooks, apt_log, apt_transaction, parse};
use crate::model::{Failure, FailureKind};
use crate::modules::TryKind;
use crate::runner::Output;

/// Why an agent that was restarted during a change waits.
const LEFT_OVER_CHANGE: &str =
    "the change that began before the restart of the agent is still running";

impl PackagesModule {
    /// Takes a step, or finishes it after an interruption. Fails if the interrupted change did not end by its deadline: it
    /// would not end the next time either.
    pub(super) async fn take_step(
        &self,
        step: &PackageStep,
        trying: TryKind,
    ) -> Result<(), Failure> {
        let start = apt_log::log_length(&self.paths);
        match trying {
            // The result of the step before is stored.
            TryKind::First => self.tools.forget_ended_change(),
            TryKind::Again => {
                if let Err(failed) = self.end_left_over_change().await {
                    return Err(self.finish_failure(failed, start).await);
                }
            }
        }
        match step {
            PackageStep::Install { .. } => self.install(step, trying).await,
            PackageStep::Configure { .. } => self.configure_packages().await,
            PackageStep::Mark { automatic, manual } => {
                self.tools.mark_manual(manual).await?;
                self.tools.mark_automatic(automatic).await
            }
            PackageStep::Remove { is_before_update: true, .. } => {
                self.remove_kernels_before_update(step, trying).await;
                Ok(())
            }
            PackageStep::Remove { .. } => self.remove_unused(step, trying).await,
        }
    }

    /// Waits for the end of a change that an earlier process of the agent has started, and ends it at its deadline. Fails if
    /// it did not end by its deadline.
    pub(super) async fn end_left_over_change(&self) -> Result<(), Failure> {
        let _wait = self.wait_state.record(LEFT_OVER_CHANGE.to_owned());
        self.tools.end_left_over_change().await
    }

    /// Takes a step: its parts one after another, or its repair after an interruption, which finishes all parts.
    pub(super) async fn install(&self, step: &PackageStep, trying: TryKind) -> Result<(), Failure> {
        if trying == TryKind::Again {
            return self.repair(step).await;
        }
        let start = apt_log::log_length(&self.paths);
        self.apply_dpkg_updates().await?;
        let mut first_failure = None;
        for part in step.transactions() {
            let Err(failed) = self.install_part(&part, start).await else { continue };
            if !matches!(self.has_planned_state(&part).await, Ok(true)) {
                // The following groups stay as they are, as with unattended-upgrades.
                return Err(failed);
            }
            // Only a hook of apt failed. The verification of the whole step decides.
            first_failure.get_or_insert(failed);
        }
        first_failure.map_or(Ok(()), Err)
    }

    /// Whether each package of a step is installed in its planned version.
    async fn has_planned_state(&self, step: &PackageStep) -> Result<bool, Failure> {
        let installed = self.list_installed().await?;
        Ok(step.items().all(|item| {
            let package = installed.get(&item.package).filter(|package| package.is_present());
            package.map(|package| &package.version) == item.change.after.as_ref()
                && package.is_none_or(|package| package.state == "installed")
        }))
    }

    /// Installs a step in one transaction. `start` is the length of apt's log before the step.
    pub(super) async fn install_part(&self, step: &PackageStep, start: u64) -> Result<(), Failure> {
        let failed = match self.run_transaction(step).await {
            Ok(output) if output.succeeded() => return Ok(()),
            Ok(output) => tool_failure(FailureKind::Apply, "apt-get install", &output),
            // apt was ended at its deadline, perhaps in the middle of many packages.
            Err(failed) => failed,
        };
        Err(self.finish_failure(failed, start).await)
    }

    /// Configures what a failed change has left unpacked, and adds the logs to the failure. `start` is the length of apt's
    /// log before the change.
    async fn finish_failure(&self, mut failed: Failure, start: u64) -> Failure {
        // After the failure of one package, others may be left unpacked that can be configured.
        if let Ok(after) = self.configure_remaining().await {
            let log = format!("{}\n{}", failed.log, parse::clean_output(&after));
            failed = Failure::with_log(failed.kind, failed.reason, &log);
        }
        apt_log::add_log(failed, &apt_log::read_since(&self.paths, start))
    }

    /// Runs a step as one apt transaction. Fails also if a hook of apt after dpkg was ended at its time limit: if the packages
    /// are as planned, the failure becomes a remark.
    pub(super) async fn run_transaction(&self, step: &PackageStep) -> Result<Output, Failure> {
        let left = self.remaining_removals(step).await?;
        let hooks = self.tools.list_hooks().await;
        let settings = hooks.write(&self.paths).unwrap_or_else(|error| {
            let error = evenkeel_kit::chain(&error);
            tracing::warn!(%error, "cannot limit the time of the hooks of apt");
            None
        });
        let mut result = self.tools.install_files(&apt_transaction(step, &left), settings).await;
        let text = match &mut result {
            Ok(output) => &mut output.stdout,
            Err(failure) => &mut failure.log,
        };
        *text = hooks.restore_commands(text);
        apt_log::append(&self.paths, text);
        let Some(reason) = apt_hooks::describe_ended(text) else { return result };
        let output = result?;
        if output.succeeded() {
            return Err(Failure::new(FailureKind::Apply, reason));
        }
        let failed = tool_failure(FailureKind::Apply, "apt-get install", &output);
        Err(Failure::with_log(failed.kind, format!("{reason}; {}", failed.reason), &failed.log))
    }

    /// Configures what a failure of apt has left unpacked, and runs pending triggers.
    pub(super) async fn configure_remaining(&self) -> Result<String, Failure> {
        let _lock = self.lock_dpkg(self.tools.timeouts().lock).await?;
        Ok(self.tools.configure_all().await?.combined_output())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use chrono::DateTime;
    use evenkeel_kit::TestClock;

    use super::*;
    use crate::modules::Module;
    use crate::modules::packages::{PackageToolTimeouts, PackageTools};
    use crate::owner::Owner;
    use crate::paths::AgentPaths;
    use crate::runner::{Command, DeadlineAction, RunError, Runner};

    /// A system on which the change of an earlier agent did not end by its deadline.
    #[derive(Default)]
    struct OverdueSystem {
        commands: Mutex<Vec<Command>>,
        waits: AtomicU32,
    }

    #[async_trait::async_trait]
    impl Runner for OverdueSystem {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            self.commands.lock().unwrap().push(command.clone());
            Ok(Output { status: Some(0), ..Output::default() })
        }

        async fn end_left_over_change(&self) -> Result<(), RunError> {
            self.waits.fetch_add(1, Ordering::Relaxed);
            Err(RunError::Deadline {
                program: "apt-get".into(),
                after: Duration::from_secs(10),
                action: DeadlineAction::EndScripts,
                output: "Setting up demo (2) ...\n".into(),
            })
        }
    }

    /// The module in a root of which only dpkg's folder exists.
    fn packages_in(root: &tempfile::TempDir, system: &Arc<OverdueSystem>) -> PackagesModule {
        let paths = AgentPaths::new(root.path(), None);
        std::fs::create_dir_all(paths.inside("/var/lib/dpkg")).unwrap();
        let minute = Duration::from_mins(1);
        let limits = PackageToolTimeouts {
            query: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        };
        let owner = Owner::new(paths.clone(), Arc::new(TestClock::new(DateTime::UNIX_EPOCH)));
        let tools = PackageTools::new(Arc::clone(system) as Arc<dyn Runner>, limits);
        PackagesModule::new(tools, paths, Arc::new(owner), false)
    }

    #[tokio::test]
    async fn a_change_of_a_lost_attempt_is_ended_before_another_one_begins() {
        let root = tempfile::tempdir().unwrap();
        let system = Arc::new(OverdueSystem::default());
        let packages = packages_in(&root, &system);
        // Whether the steps fit this empty root does not matter.
        packages.check(&[]).await.ok();
        assert_eq!(system.waits.load(Ordering::Relaxed), 1);
        assert_eq!(packages.wait_state.reason(), None);
    }

    #[tokio::test]
    async fn a_step_whose_change_did_not_end_by_its_deadline_fails_and_is_not_repeated() {
        let root = tempfile::tempdir().unwrap();
        let system = Arc::new(OverdueSystem::default());
        let packages = packages_in(&root, &system);
        let step = PackageStep::Mark { automatic: vec!["demo".into()], manual: Vec::new() };

        let failed = packages.take_step(&step, TryKind::Again).await.unwrap_err();

        assert_eq!(failed.kind, FailureKind::Apply);
        assert_eq!(failed.reason, "apt-get did not end within 10 s and was killed");
        assert!(failed.log.contains("Setting up demo"), "{}", failed.log);
        let repair = "dpkg --force-confdef --force-confold --configure -a";
        let commands = system.commands.lock().unwrap().clone();
        assert_eq!(commands.iter().map(ToString::to_string).collect::<Vec<_>>(), [repair]);
        assert!(commands.iter().all(|command| !command.needs_record), "the disk may be full");
        assert_eq!(packages.wait_state.reason(), None);

        packages.take_step(&step, TryKind::First).await.unwrap();
        assert_eq!(
            system.commands.lock().unwrap().len(),
            2,
            "a first try asks for no other change"
        );
    }
}
