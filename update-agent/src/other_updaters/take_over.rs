//! Disables other update programs and restores them.
//!
//! A record in the state directory lists what is disabled. Each entry is written before the change,
//! so that a restore after a crash finds everything. Units are masked: the links that enable them
//! stay, and after the restore they are enabled or disabled as before.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::units::{UnitFileState, read_unit_file_state};
use super::{
    APT_DAILY, APT_DAILY_UPGRADE, CRON_APT_FILE, OFFLINE_UPDATE, OtherUpdaters, OtherUpdatersMode,
    TOOL_TIMEOUT, UPGRADE_ON_SHUTDOWN,
};
use crate::durable::{self, FileError};
use crate::hooks::to_one_line;
use crate::runner::Command;

/// The units that are masked, and whether they are also stopped. An update that has begun must not
/// be interrupted.
const DISABLED_UNITS: [(&str, bool); 4] = [
    (APT_DAILY, true),
    (APT_DAILY_UPGRADE, true),
    (UPGRADE_ON_SHUTDOWN, false),
    (OFFLINE_UPDATE, false),
];

/// cron ignores files in `/etc/cron.d` whose names contain a dot.
const DISABLED_SUFFIX: &str = ".disabled-by-evenkeel";

/// What is disabled. While the file exists, the other programs stay disabled, unless the
/// configuration says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TakeOverRecord {
    pub(super) units: Vec<DisabledUnit>,
    /// Tables of cron, as seen from inside the managed root.
    pub(super) cron_files: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DisabledUnit {
    pub(super) name: String,
    /// Whether the unit ran before.
    pub(super) was_active: bool,
}

/// Another update program could not be disabled or restored.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    #[error(transparent)]
    File(#[from] FileError),
    /// It is unknown what is disabled.
    #[error(
        "cannot read {}: run `systemctl unmask` for the timers of apt by hand, then remove the file",
        path.display()
    )]
    Record {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("`{command}` failed: {output}; run it by hand to find the cause")]
    Command { command: String, output: String },
}

impl OtherUpdaters {
    /// Disables or restores the other programs as the configuration says. A failure is only logged:
    /// updates work without this, and the facts and `doctor` show the programs that are active.
    pub async fn apply_mode(&self) {
        let result = match self.mode {
            Some(OtherUpdatersMode::Coexist) => self.restore().await,
            _ if self.is_take_over() => self.take_over().await,
            _ => Ok(()),
        };
        if let Err(error) = result {
            let error = evenkeel_kit::chain(&error);
            tracing::error!(%error, "cannot disable or restore other update programs");
        }
    }

    /// Whether the other programs are to be disabled, by the configuration or by
    /// `enroll --take-over`.
    pub fn is_take_over(&self) -> bool {
        match self.mode {
            Some(mode) => mode == OtherUpdatersMode::TakeOver,
            None => self.paths.other_updaters().exists(),
        }
    }

    /// Disables the programs that can be disabled. Repeating it after a crash is safe.
    pub async fn take_over(&self) -> Result<(), TakeOverError> {
        let mut record = self.read_record()?.unwrap_or_default();
        // The existence of the file is what `enroll --take-over` stores.
        self.write_record(&record)?;
        for (unit, is_stopped) in DISABLED_UNITS {
            self.disable_unit(unit, is_stopped, &mut record).await?;
        }
        self.disable_cron_file(CRON_APT_FILE, &mut record)
    }

    /// Restores everything that was disabled, and removes the record.
    pub async fn restore(&self) -> Result<(), TakeOverError> {
        let Some(mut record) = self.read_record()? else {
            return Ok(());
        };
        while let Some(unit) = record.units.last().cloned() {
            self.restore_unit(&unit).await?;
            record.units.pop();
            self.write_record(&record)?;
        }
        for file in &record.cron_files {
            self.restore_cron_file(file)?;
        }
        Ok(durable::remove_file(&self.paths.other_updaters())?)
    }

    async fn disable_unit(
        &self,
        unit: &str,
        is_stopped: bool,
        record: &mut TakeOverRecord,
    ) -> Result<(), TakeOverError> {
        let state = read_unit_file_state(&self.paths, unit);
        let is_recorded = record.units.iter().any(|one| one.name == unit);
        // A unit that somebody else masked stays masked after the restore.
        if state == UnitFileState::Missing || (state == UnitFileState::Masked && !is_recorded) {
            return Ok(());
        }
        let was_active = is_stopped && self.is_active(unit).await;
        if !is_recorded {
            record.units.push(DisabledUnit { name: unit.to_owned(), was_active });
            self.write_record(record)?;
        }
        // A masked unit that is stopped afterwards counts as failed, and with it the system.
        if was_active {
            self.run_systemctl(&["stop", unit]).await?;
        }
        if state != UnitFileState::Masked {
            self.run_systemctl(&["mask", unit]).await?;
        }
        Ok(())
    }

    async fn restore_unit(&self, unit: &DisabledUnit) -> Result<(), TakeOverError> {
        if read_unit_file_state(&self.paths, &unit.name) == UnitFileState::Masked {
            self.run_systemctl(&["unmask", &unit.name]).await?;
        }
        let exists = read_unit_file_state(&self.paths, &unit.name) != UnitFileState::Missing;
        if exists && unit.was_active && self.runs_systemd {
            self.run_systemctl(&["start", &unit.name]).await?;
        }
        Ok(())
    }

    fn disable_cron_file(
        &self,
        file: &str,
        record: &mut TakeOverRecord,
    ) -> Result<(), TakeOverError> {
        let path = self.paths.inside(file);
        if !path.exists() {
            return Ok(());
        }
        if !record.cron_files.iter().any(|one| one == file) {
            record.cron_files.push(file.to_owned());
            self.write_record(record)?;
        }
        let disabled = self.paths.inside(&format!("{file}{DISABLED_SUFFIX}"));
        fs::rename(&path, disabled).map_err(FileError::while_doing("rename", &path))?;
        Ok(durable::flush_folder(&path)?)
    }

    fn restore_cron_file(&self, file: &str) -> Result<(), TakeOverError> {
        let path = self.paths.inside(file);
        let disabled = self.paths.inside(&format!("{file}{DISABLED_SUFFIX}"));
        // A file that the package or a person has installed since then is newer.
        if path.exists() || !disabled.exists() {
            return Ok(());
        }
        fs::rename(&disabled, &path).map_err(FileError::while_doing("rename", &disabled))?;
        Ok(durable::flush_folder(&path)?)
    }

    async fn is_active(&self, unit: &str) -> bool {
        let command =
            Command::new("systemctl", TOOL_TIMEOUT).with_arguments(["is-active", "--quiet", unit]);
        self.runs_systemd && self.runner.run(&command).await.is_ok_and(|output| output.succeeded())
    }

    async fn run_systemctl(&self, arguments: &[&str]) -> Result<(), TakeOverError> {
        let command =
            Command::new("systemctl", TOOL_TIMEOUT).with_arguments(arguments.iter().copied());
        let failure =
            |output: String| TakeOverError::Command { command: command.to_string(), output };
        match self.runner.run(&command).await {
            Ok(output) if output.succeeded() => Ok(()),
            Ok(output) => Err(failure(to_one_line(&output.combined_output()))),
            Err(error) => Err(failure(evenkeel_kit::chain(&error).to_string())),
        }
    }

    pub(super) fn read_record(&self) -> Result<Option<TakeOverRecord>, TakeOverError> {
        let path = self.paths.other_updaters();
        let Some(content) = durable::read_file(&path)? else {
            return Ok(None);
        };
        let record = serde_json::from_slice(&content);
        record.map(Some).map_err(|source| TakeOverError::Record { path, source })
    }

    fn write_record(&self, record: &TakeOverRecord) -> Result<(), TakeOverError> {
        let path = self.paths.other_updaters();
        match serde_json::to_vec_pretty(record) {
            Ok(content) => Ok(durable::replace_file(&path, &content, 0o600)?),
            Err(source) => Err(TakeOverError::Record { path, source }),
        }
    }
}
