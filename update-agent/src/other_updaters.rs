//! Other programs that update the machine: the agent finds them, reports them, and disables them if
//! the machine's owner has set that.

mod apt_settings;
mod take_over;
#[cfg(test)]
mod tests;
mod units;

use std::fmt;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::paths::AgentPaths;
use crate::runner::{Command, Runner};

use self::apt_settings::AptSettings;

pub use self::take_over::TakeOverError;
pub(crate) use self::units::{UnitFileState, read_unit_file_state};

/// Time limit for `apt-config`, `snap` and `systemctl`.
const TOOL_TIMEOUT: Duration = Duration::from_secs(20);

/// Timer of apt that refreshes the lists and downloads updates.
const APT_DAILY: &str = "apt-daily.timer";
/// Timer of apt that runs `unattended-upgrade`.
const APT_DAILY_UPGRADE: &str = "apt-daily-upgrade.timer";
/// Service of apt's timer that runs `unattended-upgrade`.
const APT_DAILY_UPGRADE_SERVICE: &str = "apt-daily-upgrade.service";
/// Exists while a restart or a shutdown of the machine is scheduled (shutdown(8)).
const SCHEDULED_SHUTDOWN: &str = "/run/systemd/shutdown/scheduled";
/// Unit of unattended-upgrades that installs updates when the machine shuts down, if that is set.
const UPGRADE_ON_SHUTDOWN: &str = "unattended-upgrades.service";
/// Unit of `PackageKit` that installs prepared updates at a restart.
const OFFLINE_UPDATE: &str = "packagekit-offline-update.service";
const LANDSCAPE_UNIT: &str = "landscape-client.service";
const SNAPD_UNITS: [&str; 2] = ["snapd.service", "snapd.socket"];
const UNATTENDED_UPGRADE: &str = "/usr/bin/unattended-upgrade";
const CRON_APT: &str = "/usr/sbin/cron-apt";
const CRON_APT_FILE: &str = "/etc/cron.d/cron-apt";

/// Files and folders whose change can enable or disable one of the programs, in addition to dpkg's
/// database.
pub(crate) const UPDATER_FILES: [&str; 10] = [
    "/etc/apt/apt.conf",
    "/etc/apt/apt.conf.d",
    "/etc/apt/apt.conf.d/02periodic",
    "/etc/apt/apt.conf.d/10periodic",
    "/etc/apt/apt.conf.d/20auto-upgrades",
    "/etc/apt/apt.conf.d/50unattended-upgrades",
    "/etc/systemd/system",
    "/etc/systemd/system/multi-user.target.wants",
    "/etc/systemd/system/timers.target.wants",
    CRON_APT_FILE,
];

/// What the agent does about other programs that update the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherUpdatersMode {
    /// Leave them as they are, and report them.
    Coexist,
    /// Disable apt's timers, unattended-upgrades at shutdown, offline updates of `PackageKit` and
    /// cron-apt while the agent is installed. Landscape and snapd stay as they are.
    TakeOver,
}

/// A program that updates the machine by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherUpdater {
    pub name: &'static str,
    /// What it does, as the predicate of a sentence.
    pub effect: String,
    /// How a person disables it; empty if [`OtherUpdatersMode::TakeOver`] does.
    pub advice: &'static str,
}

impl fmt::Display for OtherUpdater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.effect)
    }
}

/// Finds, disables and restores the other update programs of the managed root.
pub struct OtherUpdaters {
    runner: Arc<dyn Runner>,
    paths: AgentPaths,
    mode: Option<OtherUpdatersMode>,
    /// Whether systemd runs the managed root.
    runs_systemd: bool,
}

impl fmt::Debug for OtherUpdaters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherUpdaters").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl OtherUpdaters {
    /// Without a mode, `enroll --take-over` decides.
    pub fn new(
        runner: Arc<dyn Runner>,
        paths: AgentPaths,
        mode: Option<OtherUpdatersMode>,
        runs_systemd: bool,
    ) -> Self {
        Self { runner, paths, mode, runs_systemd }
    }

    /// The programs that update the machine now.
    pub async fn find(&self) -> Vec<OtherUpdater> {
        let mut found = self.find_apt_units().await;
        found.extend(self.find_offline_updates());
        found.extend(self.find_cron_apt());
        if self.is_enabled(LANDSCAPE_UNIT) {
            found.push(OtherUpdater {
                name: "Landscape",
                effect: "changes packages as its server orders".to_owned(),
                advice: "use Landscape without package profiles, or disable landscape-client",
            });
        }
        found.extend(self.find_snapd().await);
        found
    }

    /// What a take-over does not end, as sentences for people: work that had begun before it.
    pub async fn find_unfinished_work(&self) -> Vec<&'static str> {
        let mut found = Vec::new();
        if !self.runs_systemd {
            return found;
        }
        let command = Command::new("systemctl", TOOL_TIMEOUT).with_arguments([
            "show",
            "--property=ActiveState",
            "--value",
            APT_DAILY_UPGRADE_SERVICE,
        ]);
        let output = self.runner.run(&command).await.ok();
        // A service of the type `oneshot` is `activating` while it runs.
        if output.is_some_and(|output| output.stdout.trim() == "activating") {
            found.push("unattended-upgrades is running; it finishes, and may restart the machine");
        }
        if self.exists(UNATTENDED_UPGRADE) && self.exists(SCHEDULED_SHUTDOWN) {
            found.push(
                "a restart or shutdown is scheduled, perhaps by unattended-upgrades; `shutdown -c` cancels it",
            );
        }
        found
    }

    async fn find_apt_units(&self) -> Vec<OtherUpdater> {
        let is_installed = self.exists(UNATTENDED_UPGRADE);
        let installs = is_installed && self.is_enabled(APT_DAILY_UPGRADE);
        let may_install_on_shutdown = is_installed && self.is_enabled(UPGRADE_ON_SHUTDOWN);
        let refreshes = self.is_enabled(APT_DAILY);
        if !installs && !refreshes && !may_install_on_shutdown {
            return Vec::new();
        }
        // If apt's settings cannot be read, the timers count as active.
        let settings = self.read_apt_settings().await;
        let is_periodic =
            |name: &str| settings.as_ref().is_none_or(|settings| settings.is_periodic(name));
        let mut found = Vec::new();
        if installs && is_periodic("Unattended-Upgrade") {
            let reboots = settings.as_ref().is_some_and(AptSettings::reboots_automatically);
            let effect = match (&settings, reboots) {
                (None, _) => "may install updates by itself: apt's settings cannot be read",
                (_, true) => "installs updates by itself and may restart the machine",
                (_, false) => "installs updates by itself",
            };
            found.push(OtherUpdater {
                name: "unattended-upgrades",
                effect: effect.to_owned(),
                advice: "",
            });
        }
        if may_install_on_shutdown
            && settings.as_ref().is_some_and(AptSettings::installs_on_shutdown)
        {
            found.push(OtherUpdater {
                name: UPGRADE_ON_SHUTDOWN,
                effect: "installs updates when the machine shuts down".to_owned(),
                advice: "",
            });
        }
        let downloads = is_periodic("Download-Upgradeable-Packages");
        if refreshes && (downloads || is_periodic("Update-Package-Lists")) {
            let effect = if downloads {
                "refreshes the package lists and downloads updates"
            } else {
                "refreshes the package lists"
            };
            found.push(OtherUpdater { name: "apt-daily", effect: effect.to_owned(), advice: "" });
        }
        found
    }

    fn find_offline_updates(&self) -> Option<OtherUpdater> {
        self.is_enabled(OFFLINE_UPDATE).then(|| OtherUpdater {
            name: "PackageKit",
            effect: "installs updates that a desktop has prepared when the machine restarts"
                .to_owned(),
            advice: "",
        })
    }

    fn find_cron_apt(&self) -> Option<OtherUpdater> {
        let table = fs::read_to_string(self.paths.inside(CRON_APT_FILE)).ok()?;
        let is_entry = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
        let is_active = self.exists(CRON_APT) && table.lines().any(is_entry);
        is_active.then(|| OtherUpdater {
            name: "cron-apt",
            effect: format!("runs apt at the times in {CRON_APT_FILE}"),
            advice: "",
        })
    }

    async fn find_snapd(&self) -> Option<OtherUpdater> {
        if !SNAPD_UNITS.iter().any(|unit| self.is_enabled(unit)) {
            return None;
        }
        if self.runs_systemd {
            let command = Command::new("snap", TOOL_TIMEOUT).with_arguments([
                "get",
                "system",
                "refresh.hold",
            ]);
            let output = self.runner.run(&command).await.ok();
            if output.is_some_and(|output| output.stdout.trim() == "forever") {
                return None;
            }
        }
        Some(OtherUpdater {
            name: "snapd",
            effect: "refreshes snaps by itself".to_owned(),
            advice: "Evenkeel does not update snaps; `snap refresh --hold` stops automatic refreshes",
        })
    }

    /// apt's settings; `None` if they cannot be read.
    async fn read_apt_settings(&self) -> Option<AptSettings> {
        let command = Command::new("apt-config", TOOL_TIMEOUT).with_arguments(["dump"]);
        match self.runner.run(&command).await {
            Ok(output) if output.succeeded() => Some(AptSettings::parse(&output.stdout)),
            Ok(output) => {
                tracing::warn!(output = output.combined_output(), "cannot read apt's settings");
                None
            }
            Err(error) => {
                tracing::warn!(error = %evenkeel_kit::chain(&error), "cannot read apt's settings");
                None
            }
        }
    }

    fn exists(&self, path: &str) -> bool {
        self.paths.inside(path).exists()
    }

    fn is_enabled(&self, unit: &str) -> bool {
        read_unit_file_state(&self.paths, unit) == UnitFileState::Enabled
    }
}
