//! `evenkeel-agent image` and `evenkeel-agent trial`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_kit::telemetry::{self, LogConfig};
use serde::Serialize;

use super::slots::{BootObservation, Slot, SlotState, Slots};
use crate::agent_lock::AgentLock;
use crate::cli::{self, ImageCommand, OutputFormat, TrialCommand};
use crate::commands::{build_runtime, load_config};
use crate::config::{Config, HealthConfig};
use crate::module_registry::ModuleRegistry;
use crate::paths::AgentPaths;
use crate::text;
use crate::trial::{self, GuardOutcome, SysRq};

/// Output of `image show`.
#[derive(Debug, Serialize)]
struct SlotsReport {
    /// The boot control, such as `systemd-boot`.
    boot_control: &'static str,
    /// The running slot, such as `root-a`; `None` if it is unknown.
    booted: Option<&'static str>,
    slots: Vec<SlotEntry>,
    /// Failed images, latest last.
    bad: Vec<BadImageEntry>,
    /// Images whose latest trial ended undecided.
    undecided: Vec<UndecidedEntry>,
}

#[derive(Clone, Debug, Serialize)]
struct SlotEntry {
    slot: &'static str,
    state: &'static str,
    profile: String,
    image: String,
    sha256: String,
    /// Why the image failed; empty if it did not.
    reason: String,
}

#[derive(Debug, Serialize)]
struct BadImageEntry {
    sha256: String,
    image: String,
    reason: String,
    at: String,
}

#[derive(Debug, Serialize)]
struct UndecidedEntry {
    sha256: String,
    /// Number of undecided trials.
    times: u8,
    reason: String,
}

/// Shows the slots, or forgets that an image failed.
pub fn run_image_command(
    arguments: &cli::ImageArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        ImageCommand::Show(arguments) => show_slots(arguments, out),
        ImageCommand::Forget(arguments) => forget_image(arguments, out),
    }
}

const NO_SLOTS: &str = "no slots for images were found, so this node is managed by packages; if it is to run images, check that \
                        its boot partition is mounted, that its disk has the partitions root-a and root-b, and what \
                        image.boot_control chooses";

fn show_slots(arguments: &cli::ImageShowArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (config, paths) = load_config(&arguments.paths)?;
    let registry = ModuleRegistry::new(&config, &paths);
    let Some(images) = registry.images()? else {
        bail!(NO_SLOTS);
    };
    let seen = build_runtime()?.block_on(images.boot.observe())?;
    let report = build_report(images.boot.name(), &images.slots.get(), &seen);
    match arguments.output {
        OutputFormat::Json => text::print_json(&report, out)?,
        OutputFormat::Text => print_report(&report, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn build_report(boot_control: &'static str, slots: &Slots, seen: &BootObservation) -> SlotsReport {
    let slot_entry = |slot: Slot| {
        let state = slots.state(slot);
        let image = state.image();
        let reason = match state {
            SlotState::Bad { reason, .. } => reason.clone(),
            _ => String::new(),
        };
        SlotEntry {
            slot: slot.label(),
            state: state.name(),
            profile: image.map_or_else(String::new, |image| image.profile_name.clone()),
            image: image.map_or_else(String::new, |image| image.image_id.clone()),
            sha256: image.map_or_else(String::new, |image| image.file.to_string()),
            reason,
        }
    };
    let bad = slots.bad.iter().map(|bad| BadImageEntry {
        sha256: bad.file.to_string(),
        image: bad.image_id.clone(),
        reason: bad.reason.clone(),
        at: text::format_instant(Some(bad.at)),
    });
    let undecided = slots.undecided.iter().map(|undecided| UndecidedEntry {
        sha256: undecided.file.to_string(),
        times: undecided.times,
        reason: undecided.latest_end.reason.clone(),
    });
    SlotsReport {
        boot_control,
        booted: seen.booted.map(Slot::label),
        slots: Slot::ALL.map(slot_entry).to_vec(),
        bad: bad.collect(),
        undecided: undecided.collect(),
    }
}

fn print_report(report: &SlotsReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "boot control: {}", report.boot_control)?;
    let mut rows = vec![["", "SLOT", "STATE", "PROFILE", "IMAGE"].map(str::to_owned).to_vec()];
    for entry in &report.slots {
        let runs = if report.booted == Some(entry.slot) { "runs" } else { "" };
        rows.push(vec![
            runs.to_owned(),
            entry.slot.to_owned(),
            entry.state.to_owned(),
            entry.profile.clone(),
            entry.image.clone(),
        ]);
    }
    text::print_table(&rows, out)?;
    if report.booted.is_none() {
        writeln!(out, "the running slot is unknown")?;
    }
    for bad in &report.bad {
        let BadImageEntry { sha256, image, reason, at } = bad;
        writeln!(out, "\n{image} failed here at {at}: {reason}")?;
        writeln!(out, "    run `evenkeel-agent image forget {sha256}` to allow another try")?;
    }
    for UndecidedEntry { sha256, times, reason } in &report.undecided {
        writeln!(out, "\nundecided trials: {times}; last reason: {reason}\n    {sha256}")?;
    }
    Ok(())
}

fn forget_image(
    arguments: &cli::ImageForgetArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let (config, paths) = load_config(&arguments.paths)?;
    paths.prepare()?;
    // A running agent has the slots in memory and would write the failed image again.
    let _lock = AgentLock::acquire(&paths.lock())
        .context("stop the agent first, with `systemctl stop evenkeel-agent`")?;
    let registry = ModuleRegistry::new(&config, &paths);
    let Some(images) = registry.images()? else {
        bail!(NO_SLOTS);
    };
    if !images.slots.forget_bad(&arguments.digest)? {
        bail!(
            "no image with the SHA-256 {} has failed on this machine; `evenkeel-agent image show` lists the failed images",
            arguments.digest
        );
    }
    writeln!(out, "removed from the failed images; the image can be tried again")?;
    Ok(ExitCode::SUCCESS)
}

/// Supervises the trial of an image.
pub fn run_trial_command(arguments: &cli::TrialArgs) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        TrialCommand::Guard(arguments) => {
            let loaded = load_config(&arguments.paths);
            let log = loaded.as_ref().map(|(config, _)| config.log.clone());
            // The guard must run even if the log cannot be set up.
            if telemetry::init(&log.unwrap_or_default()).is_err() {
                telemetry::init(&LogConfig::default()).ok();
            }
            let (paths, deadline) = guard_settings(loaded);
            let reset = SysRq::default();
            let guarded = build_runtime()?.block_on(trial::run_guard(&paths, deadline, &reset));
            Ok(match guarded {
                GuardOutcome::NotCounted | GuardOutcome::TrialEnded => ExitCode::SUCCESS,
                // The guard requested a reset, but the machine still runs.
                GuardOutcome::Reset => ExitCode::FAILURE,
            })
        }
    }
}

/// Paths and deadline for the guard. An unreadable configuration may be the fault of the new image:
/// then the guard uses this system and the default deadline.
fn guard_settings(loaded: anyhow::Result<(Config, AgentPaths)>) -> (AgentPaths, Duration) {
    match loaded {
        Ok((config, paths)) => (paths, config.image.health.deadline),
        Err(error) => {
            let deadline = HealthConfig::default().deadline;
            let error = format!("{error:#}");
            tracing::error!(
                error,
                ?deadline,
                "cannot read the configuration; guarding this system with the default deadline"
            );
            (AgentPaths::new("/", None), deadline)
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::model::Sha256;
    use crate::modules::image::slots::{BadImage, BootEntry, SlotImage, TrialEnd, UndecidedImage};

    #[test]
    fn an_invalid_configuration_does_not_disable_the_guard() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let args = cli::PathArgs {
            root: Some(folder.path().to_owned()),
            state_dir: None,
            config: Some(file.clone()),
        };
        let usual = (AgentPaths::new("/", None), Duration::from_mins(10));
        assert_eq!(guard_settings(load_config(&args)), usual, "the file is missing");
        std::fs::write(&file, "[image.health]\ndeadline = \"soon\"\n").unwrap();
        assert_eq!(guard_settings(load_config(&args)), usual);

        std::fs::write(&file, "[image.health]\ndeadline = \"40s\"\n").unwrap();
        let (paths, deadline) = guard_settings(load_config(&args));
        assert_eq!(paths.root(), folder.path().canonicalize().unwrap());
        assert_eq!(deadline, Duration::from_secs(40));
    }

    #[test]
    fn the_slots_are_shown_with_what_runs_and_what_failed() {
        let image = |image_id: &str| SlotImage {
            file: Sha256::hash(image_id.as_bytes()),
            profile_name: "demo".into(),
            image_id: image_id.into(),
            raw: None,
        };
        let slots = Slots {
            a: SlotState::Good(image("1.0")),
            b: SlotState::Bad { image: image("1.1"), reason: "it hung".into(), log: String::new() },
            last_good: Some(Slot::A),
            bad: vec![BadImage {
                file: Sha256::hash(b"1.1"),
                image_id: "1.1".into(),
                reason: "it hung".into(),
                at: DateTime::UNIX_EPOCH,
            }],
            undecided: vec![UndecidedImage {
                file: Sha256::hash(b"1.2"),
                times: 1,
                latest_end: TrialEnd {
                    reason: "the server cannot be reached".into(),
                    log: String::new(),
                },
            }],
            version_floors: Vec::new(),
            sequence: 1,
        };
        let seen = BootObservation {
            booted: Some(Slot::A),
            boot_id: "b".into(),
            image: None,
            a: BootEntry::Plain,
            b: BootEntry::Absent,
            foreign: Vec::new(),
        };
        let mut out = Vec::new();
        print_report(&build_report("systemd-boot", &slots, &seen), &mut out).unwrap();
        let digest = Sha256::hash(b"1.1");
        let undecided = Sha256::hash(b"1.2");
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!(
                "boot control: systemd-boot\n\
                 \u{20}     SLOT    STATE  PROFILE  IMAGE\n\
                 runs  root-a  good   demo     1.0\n\
                 \u{20}     root-b  bad    demo     1.1\n\
                 \n\
                 1.1 failed here at 1970-01-01T00:00:00Z: it hung\n    \
                 run `evenkeel-agent image forget {digest}` to allow another try\n\
                 \n\
                 undecided trials: 1; last reason: the server cannot be reached\n    \
                 {undecided}\n"
            )
        );
    }
}
