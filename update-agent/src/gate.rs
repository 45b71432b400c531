//! Checks whether the node itself lets a prepared change begin.
//!
//! The server decides when a change may begin, and the modules whether it is possible. The gate
//! checks what only the machine knows, with one file for each check. A refusal is never final: the
//! next poll repeats the checks. A reason must not contain values that differ from poll to poll, or
//! each poll would report a change.

mod disk;
mod inhibit;
mod logind_locks;
mod power;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::hooks::{self, HookPoint};
use crate::model::{SpaceNeed, UpdatePlan};
use crate::modules::Readiness;
use crate::owner::Owner;
use crate::paths::AgentPaths;
use crate::reboot::RebootObjection;
use crate::runner::Runner;

pub struct GateParts {
    /// Limits of the machine's owner.
    pub owner: Arc<Owner>,
    /// Runs hooks and calls logind, in the managed root.
    pub runner: Arc<dyn Runner>,
    /// The managed root.
    pub paths: AgentPaths,
    /// Conditions for the start of a change and for a reboot.
    pub settings: GateSettings,
}

impl fmt::Debug for GateParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateParts")
            .field("owner", &self.owner)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Conditions of the machine for the start of a change and for a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSettings {
    /// Minimum battery charge without external power, in percent.
    pub min_battery_percent: u8,
    /// Space that must be free on each file system that a change writes to, in bytes, in addition
    /// to what the change needs.
    pub min_free: u64,
    /// Time limit of each hook.
    pub hook_timeout: Duration,
    /// How long logind locks of ordinary users, or a logind that does not answer, may delay the start.
    pub max_user_lock_delay: Duration,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            min_battery_percent: 30,
            min_free: 200 << 20,
            hook_timeout: Duration::from_mins(5),
            max_user_lock_delay: Duration::from_hours(2),
        }
    }
}

/// The machine's own part in a change that has begun: whether the agent may reboot it now, and what
/// follows the change. A change takes long, and much may happen on the machine meanwhile, so it is
/// checked right before each reboot.
#[async_trait::async_trait]
pub trait MachineGate: Send + Sync {
    /// Checks the limits of the machine's owner for a reboot.
    fn check_limits(&self) -> Result<(), RebootObjection>;

    /// Checks what else delays a reboot: power, the space that must stay free where the change has
    /// written, inhibit files, locks of other programs, and hooks. The error is a reason that will
    /// pass by itself.
    async fn check_machine(&self, space: &[SpaceNeed]) -> Result<(), String>;

    /// Whether a user is logged in, who is warned before a reboot.
    fn has_logged_in_users(&self) -> bool;

    /// Runs the hooks that follow a finished update. The error is a remark.
    async fn run_after_update_hooks(&self) -> Result<(), String>;
}

/// Checks whether the machine lets a prepared change begin.
#[derive(Debug)]
pub struct Gate {
    parts: GateParts,
    /// Folder with the power supplies of the managed root.
    power_supplies: Option<PathBuf>,
}

impl Gate {
    /// Creates a gate.
    pub fn new(parts: GateParts) -> Self {
        let power_supplies = find_power_supplies(&parts.paths).map(Path::to_owned);
        Self { parts, power_supplies }
    }

    /// Runs the checks in order and stops at the first refusal. Hooks run last, because only they
    /// may have effects.
    pub async fn check_ready(&self, plan: &UpdatePlan, now: DateTime<Utc>) -> Readiness {
        match self.run_checks(plan, now).await {
            Ok(()) => Readiness::Ready,
            Err(why) => Readiness::NotYet(why),
        }
    }

    async fn run_checks(&self, plan: &UpdatePlan, now: DateTime<Utc>) -> Result<(), String> {
        let GateParts { owner, runner, paths, settings } = &self.parts;
        owner.may_begin()?;
        inhibit::check_inhibit_files(paths)?;
        // logind belongs to this machine, not to another root.
        if paths.is_own_system() {
            let lock = logind_locks::find_shutdown_lock(paths, runner.as_ref()).await;
            let max_delay = settings.max_user_lock_delay;
            logind_locks::check_start_lock(paths, lock, now, max_delay)?;
        }
        check_power(self.power_supplies.as_deref(), settings)?;
        disk::check_disk_space(paths, &plan.space, settings.min_free)?;
        let deadline = settings.hook_timeout;
        hooks::run_hooks(HookPoint::BeforeUpdate, paths, runner.as_ref(), deadline).await
    }
}

#[async_trait::async_trait]
impl MachineGate for Gate {
    fn check_limits(&self) -> Result<(), RebootObjection> {
        self.parts.owner.may_reboot()
    }

    async fn check_machine(&self, space: &[SpaceNeed]) -> Result<(), String> {
        let GateParts { runner, paths, settings, .. } = &self.parts;
        disk::check_reserved_space(paths, space, settings.min_free)?;
        let supplies = self.power_supplies.as_deref();
        check_before_reboot(paths, runner.as_ref(), settings, supplies).await
    }

    fn has_logged_in_users(&self) -> bool {
        self.parts.owner.is_user_logged_in()
    }

    async fn run_after_update_hooks(&self) -> Result<(), String> {
        let GateParts { runner, paths, settings, .. } = &self.parts;
        let deadline = settings.hook_timeout;
        hooks::run_hooks(HookPoint::AfterUpdate, paths, runner.as_ref(), deadline).await
    }
}

/// The folder with the power supplies of the managed root. They belong to this machine, not to
/// another root.
pub fn find_power_supplies(paths: &AgentPaths) -> Option<&'static Path> {
    paths.is_own_system().then_some(Path::new(power::POWER_SUPPLY_FOLDER))
}

fn check_power(supplies: Option<&Path>, settings: &GateSettings) -> Result<(), String> {
    supplies.map_or(Ok(()), |folder| power::check_power(folder, settings.min_battery_percent))
}

/// Checks right before a reboot whether the power supply, a person, a program or a hook of the
/// machine delays it. What had allowed the change may have changed while it was made.
pub async fn check_before_reboot(
    paths: &AgentPaths,
    runner: &dyn Runner,
    settings: &GateSettings,
    power_supplies: Option<&Path>,
) -> Result<(), String> {
    inhibit::check_inhibit_files(paths)?;
    // logind belongs to this machine, not to another root.
    if paths.is_own_system()
        && let Some(lock) = logind_locks::find_shutdown_lock(paths, runner).await
    {
        return Err(lock.reason);
    }
    check_power(power_supplies, settings)?;
    hooks::run_hooks(HookPoint::BeforeReboot, paths, runner, settings.hook_timeout).await
}

#[cfg(test)]
mod tests {
    use std::fs;

    use evenkeel_kit::TestClock;

    use super::*;
    use crate::hooks::fake::{self, FakeRunner};

    fn new_gate(root: &Path, runner: &Arc<FakeRunner>) -> Gate {
        let paths = AgentPaths::new(root, None);
        let clock = Arc::new(TestClock::new(DateTime::UNIX_EPOCH));
        Gate::new(GateParts {
            owner: Arc::new(Owner::new(paths.clone(), clock)),
            runner: Arc::clone(runner) as Arc<dyn Runner>,
            paths,
            settings: GateSettings { min_free: 0, ..GateSettings::default() },
        })
    }

    async fn check_gate(gate: &Gate) -> Readiness {
        gate.check_ready(&UpdatePlan::default(), DateTime::UNIX_EPOCH).await
    }

    #[tokio::test]
    async fn a_machine_without_objections_lets_a_change_begin() {
        let root = tempfile::tempdir().unwrap();
        let runner = Arc::new(FakeRunner::default());
        let gate = new_gate(root.path(), &runner);
        assert_eq!(check_gate(&gate).await, Readiness::Ready);
        assert!(runner.commands().is_empty(), "logind does not belong to another root");
    }

    #[tokio::test]
    async fn the_first_objection_is_reported_and_hooks_run_last() {
        let root = tempfile::tempdir().unwrap();
        let hook = fake::add_hook(root.path(), HookPoint::BeforeUpdate, "10-drain");
        let runner = Arc::new(FakeRunner::default().returns(&hook, 75, "pumping\n"));
        let gate = new_gate(root.path(), &runner);
        let inhibit = root.path().join("etc/evenkeel/inhibit");
        fs::write(&inhibit, "a demonstration\n").unwrap();

        let ready = check_gate(&gate).await;
        assert_eq!(ready, Readiness::NotYet("/etc/evenkeel/inhibit: a demonstration".to_owned()));
        assert!(runner.commands().is_empty());

        fs::remove_file(inhibit).unwrap();
        let ready = check_gate(&gate).await;
        assert_eq!(ready, Readiness::NotYet("the hook 10-drain is not ready: pumping".to_owned()));
    }

    #[tokio::test]
    async fn a_reboot_is_checked_again_with_hooks_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        fake::add_hook(root.path(), HookPoint::BeforeUpdate, "10-drain");
        let hook = fake::add_hook(root.path(), HookPoint::BeforeReboot, "20-backup");
        let runner = Arc::new(FakeRunner::default().returns(&hook, 75, "writing\n"));
        let gate = new_gate(root.path(), &runner);
        gate.check_limits().unwrap();
        let why = gate.check_machine(&[]).await.unwrap_err();
        assert_eq!(why, "the hook 20-backup is not ready: writing");

        let inhibit = root.path().join("etc/evenkeel/inhibit");
        fs::write(&inhibit, "a demonstration\n").unwrap();
        let why = gate.check_machine(&[]).await.unwrap_err();
        assert_eq!(why, "/etc/evenkeel/inhibit: a demonstration");
        assert_eq!(runner.commands(), [hook.as_str()], "hooks run last, and only their own");

        fs::remove_file(inhibit).unwrap();
        runner.set_result(&hook, 0, "");
        gate.check_machine(&[]).await.unwrap();
    }

    /// Each row changes a machine on which a change may begin and which may reboot.
    #[tokio::test]
    async fn a_reboot_has_the_same_conditions_as_the_start_of_a_change() {
        type Obstacle = fn(&Path, &mut Gate);
        let rows: [(Obstacle, &str); 4] = [
            (|_, _| {}, ""),
            (
                |root, _| fs::write(root.join("etc/evenkeel/inhibit"), "a demonstration").unwrap(),
                "/etc/evenkeel/inhibit: a demonstration",
            ),
            (
                |root, _| {
                    let battery = root.join("supplies/battery");
                    fs::create_dir_all(&battery).unwrap();
                    for (name, text) in [("type", "Battery"), ("capacity", "29")] {
                        fs::write(battery.join(name), text).unwrap();
                    }
                },
                "the machine runs on batteries with less than 30 % left",
            ),
            (
                |_, gate| gate.parts.settings.min_free = 1 << 60,
                "the file system of / has less than 1099511627776 MiB free",
            ),
        ];
        for (add_obstacle, why) in rows {
            let root = tempfile::tempdir().unwrap();
            fake::create_folder(root.path(), "etc/evenkeel");
            let mut gate = new_gate(root.path(), &Arc::new(FakeRunner::default()));
            gate.power_supplies = Some(root.path().join("supplies"));
            add_obstacle(root.path(), &mut gate);
            let space = vec![SpaceNeed { path: "/".into(), bytes: 0, max_free: None }];

            let reboot = gate.check_machine(&space).await;
            let plan = UpdatePlan { space, ..UpdatePlan::default() };
            let start = gate.check_ready(&plan, DateTime::UNIX_EPOCH).await;

            assert_eq!(reboot.err().unwrap_or_default(), why);
            let expected = match why {
                "" => Readiness::Ready,
                why => Readiness::NotYet(why.to_owned()),
            };
            assert_eq!(start, expected);
        }
    }

    #[tokio::test]
    async fn a_reboot_needs_no_valid_limits_file_to_be_refused() {
        let root = tempfile::tempdir().unwrap();
        fake::create_folder(root.path(), "etc/evenkeel");
        let file = root.path().join("etc/evenkeel/limits.toml");
        fake::write_file(&file, "hour = []\n", 0o644);
        let gate = new_gate(root.path(), &Arc::new(FakeRunner::default()));
        let objection = gate.check_limits().unwrap_err();
        assert!(!objection.is_temporary && objection.reason.contains("hour"), "{objection:?}");
    }

    #[tokio::test]
    async fn invalid_limits_let_nothing_begin() {
        let root = tempfile::tempdir().unwrap();
        fake::create_folder(root.path(), "etc/evenkeel");
        let file = root.path().join("etc/evenkeel/limits.toml");
        fake::write_file(&file, "hour = []\n", 0o644);
        let gate = new_gate(root.path(), &Arc::new(FakeRunner::default()));
        let Readiness::NotYet(why) = check_gate(&gate).await else { panic!("it may begin") };
        assert!(why.contains("hour"), "{why}");
    }
}
