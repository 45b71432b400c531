//! Settings of images.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::modules::image::web::WebSettings;

/// Time after the deadline of a trial for the agent to record the reason before the guard resets the
/// machine. It must be longer than the collection of the failure log and the change of the boot
/// entry take.
pub const TRIAL_GRACE_PERIOD: Duration = Duration::from_mins(1);

/// How images are downloaded, armed and tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageConfig {
    /// Which boot control selects the slot that starts.
    pub boot_control: BootControlChoice,
    /// Mount point of the EFI system partition, as seen from inside the managed root. If not
    /// set: the first of `/efi`, `/boot/efi` and `/boot` that is one.
    pub esp: Option<PathBuf>,
    /// Program of an older system that writes and arms images, instead of the agent's own method.
    pub tool: Option<PathBuf>,
    /// How often an image on trial may be started before the machine falls back to the previous
    /// one.
    pub tries: u8,
    /// Use of the hardware watchdog while an image is on trial.
    pub watchdog: WatchdogPolicy,
    /// Where images may come from.
    pub web: WebSettings,
    /// When an image on trial is healthy.
    pub health: HealthConfig,
}

/// Which boot control selects the slot that starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootControlChoice {
    /// The program in `image.tool`, if one is set; else systemd-boot, if its boot partition and two
    /// slots exist; else none.
    #[default]
    Auto,
    /// The agent's own entries of systemd-boot.
    SystemdBoot,
    /// An installed RAUC.
    Rauc,
    /// None: the node is managed by packages.
    None,
}

/// Use of the hardware watchdog while an image is on trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchdogPolicy {
    /// Use the watchdog, if there is one, to reset a machine that hangs.
    #[default]
    Use,
    /// Use the watchdog; without one, no image is tried.
    Require,
    /// Do not use the watchdog.
    Ignore,
}

/// When an image on trial is healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// Units of systemd that must be active. They are also compared before and after a change of
    /// packages.
    pub units: Vec<String>,
    /// Whether the server must be reached, if it was reached within the hour before.
    pub server: bool,
    /// Time from boot after which an image that is not healthy fails its trial.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// How long everything must be healthy without interruption.
    #[serde(with = "humantime_serde")]
    pub stable: Duration,
}

impl Default for ImageConfig {
    fn default() -> Self {
        Self {
            boot_control: BootControlChoice::default(),
            esp: None,
            tool: None,
            tries: 3,
            watchdog: WatchdogPolicy::default(),
            web: WebSettings::default(),
            health: HealthConfig::default(),
        }
    }
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            units: Vec::new(),
            server: true,
            deadline: Duration::from_mins(10),
            stable: Duration::from_secs(30),
        }
    }
}

impl HealthConfig {
    /// Time after which the guard resets a machine on trial.
    pub fn guard_timeout(&self) -> Duration {
        self.deadline.saturating_add(TRIAL_GRACE_PERIOD)
    }
}

impl ImageConfig {
    /// Whether the agent may use systemd-boot.
    pub fn may_use_systemd_boot(&self) -> bool {
        match self.boot_control {
            BootControlChoice::Auto => self.tool.is_none(),
            BootControlChoice::SystemdBoot => true,
            BootControlChoice::Rauc | BootControlChoice::None => false,
        }
    }

    /// Checks the settings against each other. The error says what to change.
    pub fn check(&self) -> Result<(), String> {
        if self.tool.is_some() && self.boot_control != BootControlChoice::Auto {
            return Err(
                "image.tool is set, but image.boot_control chooses another boot control: remove one of them"
                    .to_owned(),
            );
        }
        if self.tries == 0 {
            return Err(
                "image.tries is 0, but an image must be started at least once; set it to 1 or more"
                    .to_owned(),
            );
        }
        if self.health.stable >= self.health.deadline {
            return Err(
                "image.health.stable is not shorter than image.health.deadline, so no image would ever be healthy"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
