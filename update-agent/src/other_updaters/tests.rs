use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::runner::{Output, RunError};

/// Settings of a Debian with unattended-upgrades as its package sets it.
const ACTIVE_SETTINGS: &str = "APT::Periodic \"\";\n\
    APT::Periodic::Update-Package-Lists \"1\";\n\
    APT::Periodic::Unattended-Upgrade \"1\";\n\
    Unattended-Upgrade::Automatic-Reboot \"false\";\n";

/// `apt-config`, `snap` and `systemctl` of a root.
#[derive(Debug, Default)]
struct FakeTools {
    state: Mutex<ToolState>,
}

#[derive(Debug, Default)]
struct ToolState {
    /// Output of `apt-config dump`; `None` if it fails.
    settings: Option<String>,
    /// Value of snapd's `refresh.hold`.
    hold: String,
    root: PathBuf,
    active: BTreeSet<String>,
    calls: Vec<String>,
    /// The call with this number and all later ones fail.
    failing_from: Option<usize>,
}

fn output(status: i32, stdout: &str) -> Output {
    Output { status: Some(status), stdout: stdout.to_owned(), stderr: String::new() }
}

impl FakeTools {
    fn state(&self) -> MutexGuard<'_, ToolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToolState {
    fn run_systemctl(&mut self, arguments: &[String]) -> Output {
        let (verb, unit) = (arguments[0].as_str(), arguments[arguments.len() - 1].as_str());
        let mask = self.root.join("etc/systemd/system").join(unit);
        match verb {
            "show" if self.active.contains(unit) => return output(0, "activating\n"),
            "show" => return output(0, "inactive\n"),
            "is-active" => return output(if self.active.contains(unit) { 0 } else { 3 }, ""),
            "mask" => symlink("/dev/null", mask).unwrap(),
            "unmask" => fs::remove_file(mask).unwrap(),
            "start" => {
                self.active.insert(unit.to_owned());
            }
            "stop" => {
                self.active.remove(unit);
            }
            other => panic!("unknown verb {other}"),
        }
        output(0, "")
    }
}

#[async_trait::async_trait]
impl Runner for FakeTools {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let mut state = self.state();
        state.calls.push(command.to_string());
        if state.failing_from.is_some_and(|first| state.calls.len() >= first) {
            return Ok(output(1, "no bus"));
        }
        Ok(match command.program.as_str() {
            "apt-config" => match &state.settings {
                Some(settings) => output(0, settings),
                None => output(100, "E: Syntax error"),
            },
            "snap" => output(0, &state.hold),
            "systemctl" => state.run_systemctl(&command.arguments),
            other => panic!("unknown program {other}"),
        })
    }
}

/// A root with fake tools.
struct TestRoot {
    folder: tempfile::TempDir,
    tools: Arc<FakeTools>,
}

impl TestRoot {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tools = Arc::new(FakeTools::default());
        tools.state().root = folder.path().to_owned();
        let root = Self { folder, tools };
        root.paths().prepare().unwrap();
        fs::create_dir_all(root.folder.path().join("etc/systemd/system")).unwrap();
        root
    }

    /// A root with apt's timers, which run, unattended-upgrades and cron-apt.
    fn with_updaters() -> Self {
        let root = Self::new();
        root.tools.state().settings = Some(ACTIVE_SETTINGS.to_owned());
        for timer in [APT_DAILY, APT_DAILY_UPGRADE] {
            root.add_unit(timer, "timers.target.wants");
            root.tools.state().active.insert(timer.to_owned());
        }
        root.add_unit(UPGRADE_ON_SHUTDOWN, "multi-user.target.wants");
        root.add_file(UNATTENDED_UPGRADE, "");
        root.add_file(CRON_APT, "");
        root.add_file(CRON_APT_FILE, "# cron-apt\n0 4 * * * root /usr/sbin/cron-apt\n");
        root
    }

    fn paths(&self) -> AgentPaths {
        AgentPaths::new(self.folder.path(), None)
    }

    fn add_file(&self, path: &str, text: &str) {
        let file = self.paths().inside(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn add_unit(&self, unit: &str, dependency_folder: &str) {
        let file = format!("/usr/lib/systemd/system/{unit}");
        self.add_file(&file, "[Unit]\n");
        let folder = self.paths().inside("/etc/systemd/system").join(dependency_folder);
        fs::create_dir_all(&folder).unwrap();
        symlink(file, folder.join(unit)).unwrap();
    }

    fn updaters(&self, mode: Option<OtherUpdatersMode>) -> OtherUpdaters {
        OtherUpdaters::new(self.tools.clone(), self.paths(), mode, true)
    }

    async fn found(&self) -> Vec<String> {
        let found = self.updaters(None).find().await;
        found.iter().map(ToString::to_string).collect()
    }

    /// What a take-over changes: masks, tables of cron, running units.
    fn state(&self) -> (Vec<UnitFileState>, bool, BTreeSet<String>) {
        let units = [APT_DAILY, APT_DAILY_UPGRADE, UPGRADE_ON_SHUTDOWN, OFFLINE_UPDATE];
        let units = units.map(|unit| units::read_unit_file_state(&self.paths(), unit));
        let has_table = self.paths().inside(CRON_APT_FILE).exists();
        (units.to_vec(), has_table, self.tools.state().active.clone())
    }
}

#[tokio::test]
async fn a_machine_without_other_update_programs_has_none_and_runs_no_tool() {
    let root = TestRoot::new();
    assert!(root.found().await.is_empty());
    assert!(root.tools.state().calls.is_empty());
}

#[tokio::test]
async fn apts_timers_count_only_with_the_settings_that_give_them_work() {
    let list = "APT::Periodic::Update-Package-Lists";
    let upgrade = "APT::Periodic::Unattended-Upgrade";
    let lists = "apt-daily refreshes the package lists";
    let installs = "unattended-upgrades installs updates by itself";
    let reboots = "unattended-upgrades installs updates by itself and may restart the machine";
    let cases: [(String, &[&str]); 9] = [
        (String::new(), &[]),
        (format!("{list} \"0\";\n{upgrade} \"0\";\n"), &[]),
        (format!("{list} \"0d\";\n{upgrade} \"\";\n"), &[]),
        (format!("{list} \"1\";\n"), &[lists]),
        (format!("{list} \"always\";\n"), &[lists]),
        (format!("{upgrade} \"12h\";\n"), &[installs]),
        (format!("apt::periodic::unattended-upgrade \"1\";\n{list} \"7\";\n"), &[installs, lists]),
        (format!("{upgrade} \"1\";\nAPT::Periodic::Enable \"0\";\n"), &[]),
        (format!("{upgrade} \"1\";\nUnattended-Upgrade::Automatic-Reboot \"true\";\n"), &[reboots]),
    ];
    let root = TestRoot::with_updaters();
    fs::remove_file(root.paths().inside(CRON_APT_FILE)).unwrap();
    for (settings, expected) in cases {
        root.tools.state().settings = Some(settings.clone());
        assert_eq!(root.found().await, expected, "{settings}");
    }
    root.tools.state().settings = None;
    let unreadable = root.found().await;
    assert!(unreadable[0].contains("apt's settings cannot be read"), "{unreadable:?}");
}

#[tokio::test]
async fn unattended_upgrades_counts_if_it_installs_updates_at_shutdown() {
    let on_shutdown = "unattended-upgrades.service installs updates when the machine shuts down";
    let root = TestRoot::new();
    root.add_unit(UPGRADE_ON_SHUTDOWN, "multi-user.target.wants");
    root.tools.state().settings =
        Some("Unattended-Upgrade::InstallOnShutdown \"true\";\n".to_owned());
    assert!(root.found().await.is_empty(), "it is removed, and not purged");
    root.add_file(UNATTENDED_UPGRADE, "");
    assert_eq!(root.found().await, [on_shutdown]);
    let updaters = root.updaters(None);
    updaters.take_over().await.unwrap();
    assert!(root.found().await.is_empty());
    updaters.restore().await.unwrap();
    assert_eq!(root.found().await, [on_shutdown]);
    root.tools.state().settings =
        Some("Unattended-Upgrade::InstallOnShutdown \"false\";\n".to_owned());
    assert!(root.found().await.is_empty());
}

#[tokio::test]
async fn work_that_had_begun_before_a_take_over_is_found() {
    let root = TestRoot::with_updaters();
    let updaters = root.updaters(None);
    updaters.take_over().await.unwrap();
    assert!(updaters.find_unfinished_work().await.is_empty());
    root.tools.state().active.insert(APT_DAILY_UPGRADE_SERVICE.to_owned());
    root.add_file(SCHEDULED_SHUTDOWN, "MODE=reboot\n");
    let found = updaters.find_unfinished_work().await;
    assert!(found.len() == 2 && found[0].contains("is running"), "{found:?}");
    assert!(found[1].contains("shutdown is scheduled"), "{found:?}");
}

#[tokio::test]
async fn a_program_counts_only_while_something_starts_it() {
    let cases = [
        (OFFLINE_UPDATE, "system-update.target.wants", "PackageKit"),
        (LANDSCAPE_UNIT, "multi-user.target.wants", "Landscape"),
        ("snapd.service", "multi-user.target.wants", "snapd"),
    ];
    for (unit, folder, name) in cases {
        let root = TestRoot::new();
        root.add_file(&format!("/usr/lib/systemd/system/{unit}"), "[Unit]\n");
        assert!(root.found().await.is_empty(), "{unit} is disabled");
        root.add_unit(unit, folder);
        let found = root.found().await;
        assert!(found.len() == 1 && found[0].starts_with(name), "{found:?}");
        symlink("/dev/null", root.paths().inside("/etc/systemd/system").join(unit)).unwrap();
        assert!(root.found().await.is_empty(), "{unit} is masked");
    }
    let root = TestRoot::new();
    root.add_unit("snapd.service", "multi-user.target.wants");
    root.tools.state().hold = "forever\n".to_owned();
    assert!(root.found().await.is_empty(), "refreshes are on hold");

    let root = TestRoot::new();
    root.add_file(CRON_APT, "");
    root.add_file(CRON_APT_FILE, "# only a comment\n\n");
    assert!(root.found().await.is_empty());
    root.add_file(CRON_APT_FILE, "0 4 * * * root cron-apt\n");
    assert_eq!(root.found().await, ["cron-apt runs apt at the times in /etc/cron.d/cron-apt"]);
}

#[tokio::test]
async fn a_take_over_disables_the_programs_and_a_restore_brings_the_state_before() {
    let root = TestRoot::with_updaters();
    let before = root.state();
    assert_eq!(root.found().await.len(), 3);

    let updaters = root.updaters(None);
    updaters.take_over().await.unwrap();
    updaters.take_over().await.unwrap();
    assert!(root.found().await.is_empty());
    assert!(updaters.is_take_over(), "it is stored");
    assert!(root.tools.state().active.is_empty(), "the timers are stopped");

    updaters.restore().await.unwrap();
    assert_eq!(root.state(), before);
    assert!(!updaters.is_take_over());
    assert!(!root.paths().other_updaters().exists());
    let calls = root.tools.state().calls.len();
    updaters.restore().await.unwrap();
    assert_eq!(root.tools.state().calls.len(), calls, "nothing is left to do");
}

#[tokio::test]
async fn what_was_off_before_stays_off_after_the_restore() {
    let root = TestRoot::with_updaters();
    root.tools.state().active.remove(APT_DAILY);
    let masked = root.paths().inside("/etc/systemd/system").join(APT_DAILY_UPGRADE);
    symlink("/dev/null", &masked).unwrap();
    root.add_file(&format!("/usr/lib/systemd/system/{OFFLINE_UPDATE}"), "[Unit]\n");
    let before = root.state();
    let [enabled, masked, disabled] =
        [UnitFileState::Enabled, UnitFileState::Masked, UnitFileState::Disabled];
    assert_eq!(before.0, [enabled, masked, enabled, disabled]);
    let updaters = root.updaters(Some(OtherUpdatersMode::TakeOver));
    updaters.apply_mode().await;
    updaters.restore().await.unwrap();
    assert_eq!(root.state(), before);
}

#[tokio::test]
async fn an_interrupted_take_over_or_restore_can_be_finished() {
    for failing in 1..14 {
        let root = TestRoot::with_updaters();
        let before = root.state();
        let updaters = root.updaters(Some(OtherUpdatersMode::Coexist));
        root.tools.state().failing_from = Some(failing);
        updaters.take_over().await.ok();
        updaters.restore().await.ok();
        root.tools.state().failing_from = None;
        // The mode of the configuration restores at the next start.
        updaters.apply_mode().await;
        assert_eq!(root.state(), before, "the call {failing} failed");
    }
}

#[tokio::test]
async fn the_configuration_takes_precedence_over_the_enrolment() {
    let root = TestRoot::with_updaters();
    root.updaters(None).apply_mode().await;
    assert_eq!(root.found().await.len(), 3, "by default nothing is disabled");

    root.updaters(None).take_over().await.unwrap();
    root.tools.state().active.insert(APT_DAILY.to_owned());
    root.updaters(None).apply_mode().await;
    assert!(root.tools.state().active.is_empty(), "a unit of an interrupted stop is stopped");

    root.updaters(Some(OtherUpdatersMode::Coexist)).apply_mode().await;
    assert_eq!(root.found().await.len(), 3);
}

#[tokio::test]
async fn a_damaged_record_is_an_error_with_advice() {
    let root = TestRoot::with_updaters();
    fs::write(root.paths().other_updaters(), "half of it").unwrap();
    let error = root.updaters(None).restore().await.unwrap_err().to_string();
    assert!(error.contains("systemctl unmask"), "{error}");
}

#[test]
fn a_unit_file_of_the_administrator_takes_precedence() {
    let root = TestRoot::new();
    let state = || units::read_unit_file_state(&root.paths(), "x.timer");
    assert_eq!(state(), UnitFileState::Missing);
    root.add_file("/lib/systemd/system/x.timer", "[Timer]\n");
    assert_eq!(state(), UnitFileState::Disabled);
    root.add_file("/etc/systemd/system/x.timer", "");
    assert_eq!(state(), UnitFileState::Masked, "an empty file masks, too");
}
