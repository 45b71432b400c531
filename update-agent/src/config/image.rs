//! What the agent can be told of images.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::modules::image::web::WebSettings;

/// How images are fetched, armed and tried.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageConfig {
    /// Where the EFI system partition is mounted, as seen from inside the managed root; looked for unless given.
    pub esp: Option<PathBuf>,
    /// The program of an earlier system that writes and arms images here, in place of the agent's own way; none unless
    /// given.
    pub tool: Option<PathBuf>,
    /// So often an image on trial may start before the one before it is taken again.
    pub tries: u8,
    /// What the hardware's watchdog does while an image is on trial.
    pub watchdog: Watchdog,
    /// How long a hook may put off the reset into an image that is ready; then the update goes back.
    #[serde(with = "humantime_serde")]
    pub reboot_patience: Duration,
    /// Where images may come from.
    pub web: WebSettings,
    /// When an image on trial is healthy.
    pub health: HealthConfig,
}

/// What the hardware's watchdog does while an image is on trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Watchdog {
    /// It resets a machine that hangs, if there is one.
    #[default]
    Use,
    /// The same, and without one no image is tried.
    Require,
    /// Nothing.
    Ignore,
}

/// When an image on trial is healthy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// Units of systemd that must be active.
    pub units: Vec<String>,
    /// Whether the server must be reached, if it was reached shortly before.
    pub server: bool,
    /// An image that is not healthy so long after its boot is left again.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// For how long everything must hold without a break.
    #[serde(with = "humantime_serde")]
    pub stable: Duration,
}

impl Default for ImageConfig {
    fn default() -> Self {
        Self {
            esp: None,
            tool: None,
            tries: 3,
            watchdog: Watchdog::default(),
            reboot_patience: Duration::from_mins(30),
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

impl ImageConfig {
    /// Whether what was told can be kept to; else what cannot, and what to do about it.
    pub fn check(&self) -> Result<(), String> {
        if self.tries == 0 {
            return Err(
                "image.tries is 0: an image must start once at least; set it to 1 or more"
                    .to_owned(),
            );
        }
        if self.health.stable >= self.health.deadline {
            return Err(
                "image.health.stable is not shorter than image.health.deadline: no image would ever be healthy"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
