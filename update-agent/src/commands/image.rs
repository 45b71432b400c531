//! `evenkeel-agent image` and `evenkeel-agent trial`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_kit::telemetry::{self, LogConfig};
use serde::Serialize;

use super::workshop::Workshop;
use super::{runtime, settle, text};
use crate::cli::{self, ImageCommand, Output, TrialCommand};
use crate::config::{Config, HealthConfig};
use crate::lock::AgentLock;
use crate::modules::image::slots::{Seen, Slot, SlotState, Slots};
use crate::place::Place;
use crate::trial::{self, Guarded, SysRq};

/// What `image show` says.
#[derive(Debug, Serialize)]
struct Report {
    /// Who starts the slots.
    boot_control: &'static str,
    /// Such as `root-a`; none if that is not known.
    booted: Option<&'static str>,
    slots: Vec<Shown>,
    /// The images that failed here, the last one last.
    bad: Vec<Bad>,
    /// The images that were tried and left without a word against them.
    undecided: Vec<Left>,
}

#[derive(Clone, Debug, Serialize)]
struct Shown {
    slot: &'static str,
    state: &'static str,
    profile: String,
    image: String,
    sha256: String,
    /// Why it was left; empty if it was not.
    why: String,
}

#[derive(Debug, Serialize)]
struct Bad {
    sha256: String,
    image: String,
    why: String,
    at: String,
}

#[derive(Debug, Serialize)]
struct Left {
    sha256: String,
    /// How often.
    times: u8,
    why: String,
}

/// Shows the slots, or forgets that an image failed.
pub fn image(arguments: &cli::Image, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        ImageCommand::Show(arguments) => show(arguments, out),
        ImageCommand::Forget(arguments) => forget(arguments, out),
    }
}

const NO_SLOTS: &str = "this system has no second slot: it is not updated by images";

fn show(arguments: &cli::ImageShow, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (config, place) = settle(&arguments.place)?;
    let workshop = Workshop::new(&config, &place);
    let Some(images) = workshop.images()? else {
        bail!(NO_SLOTS);
    };
    let seen = runtime()?.block_on(images.boot.look())?;
    let report = report(images.boot.name(), &images.slots.get(), &seen);
    match arguments.output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &report)?;
            writeln!(out)?;
        }
        Output::Text => print(&report, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn report(boot_control: &'static str, slots: &Slots, seen: &Seen) -> Report {
    let shown = |slot: Slot| {
        let state = slots.state(slot);
        let what = state.what();
        let why = match state {
            SlotState::Bad { why, .. } => why.clone(),
            _ => String::new(),
        };
        Shown {
            slot: slot.label(),
            state: state.name(),
            profile: what.map_or_else(String::new, |what| what.profile_name.clone()),
            image: what.map_or_else(String::new, |what| what.image_id.clone()),
            sha256: what.map_or_else(String::new, |what| what.file.to_string()),
            why,
        }
    };
    let bad = slots.bad.iter().map(|bad| Bad {
        sha256: bad.file.to_string(),
        image: bad.image_id.clone(),
        why: bad.why.clone(),
        at: text::instant(Some(bad.at)),
    });
    let undecided = slots.undecided.iter().map(|left| Left {
        sha256: left.file.to_string(),
        times: left.times,
        why: left.doubt.why.clone(),
    });
    Report {
        boot_control,
        booted: seen.booted.map(Slot::label),
        slots: Slot::ALL.map(shown).to_vec(),
        bad: bad.collect(),
        undecided: undecided.collect(),
    }
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "started by {}", report.boot_control)?;
    let mut rows = vec![
        ["", "SLOT", "STATE", "PROFILE", "IMAGE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for shown in &report.slots {
        let runs = if report.booted == Some(shown.slot) {
            "runs"
        } else {
            ""
        };
        rows.push(vec![
            runs.to_owned(),
            shown.slot.to_owned(),
            shown.state.to_owned(),
            shown.profile.clone(),
            shown.image.clone(),
        ]);
    }
    text::table(&rows, out)?;
    if report.booted.is_none() {
        writeln!(out, "which slot runs is not known")?;
    }
    for bad in &report.bad {
        let Bad {
            sha256,
            image,
            why,
            at,
        } = bad;
        writeln!(out, "\n{image} failed here at {at}: {why}")?;
        writeln!(
            out,
            "    `evenkeel-agent image forget {sha256}` lets it be tried again"
        )?;
    }
    for Left { sha256, times, why } in &report.undecided {
        writeln!(out, "\nleft undecided ({times}): {why}\n    {sha256}")?;
    }
    Ok(())
}

fn forget(arguments: &cli::ImageForget, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (config, place) = settle(&arguments.place)?;
    place.prepare()?;
    // An agent that runs knows the slots by heart, and would write down again what is forgotten here.
    let _lock = AgentLock::take(&place.lock())
        .context("stop the agent first, with `systemctl stop evenkeel-agent`")?;
    let workshop = Workshop::new(&config, &place);
    let Some(images) = workshop.images()? else {
        bail!(NO_SLOTS);
    };
    if !images.slots.forget_bad(&arguments.digest)? {
        bail!(
            "no image with the SHA-256 {} has failed here; `evenkeel-agent image show` shows those that have",
            arguments.digest
        );
    }
    writeln!(out, "forgotten: the image may be tried again")?;
    Ok(ExitCode::SUCCESS)
}

/// Sees to it that a trial ends.
pub fn trial(arguments: &cli::Trial) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        TrialCommand::Guard(arguments) => {
            let settled = settle(&arguments.place);
            let log = settled.as_ref().map(|(config, _)| config.log.clone());
            // Nobody is left unguarded for want of a log.
            if telemetry::init(&log.unwrap_or_default()).is_err() {
                telemetry::init(&LogConfig::default()).ok();
            }
            let (place, deadline) = guarded(settled);
            let reset = SysRq::default();
            let guarded = runtime()?.block_on(trial::guard(&place, deadline, &reset));
            Ok(match guarded {
                Guarded::NotCounted | Guarded::Over => ExitCode::SUCCESS,
                // It came back from a reset that did not come about.
                Guarded::Reset => ExitCode::FAILURE,
            })
        }
    }
}

/// What is guarded, and until when. A configuration that cannot be read may be what is wrong with the image: then it is
/// this system, and the deadline that holds unless another one is set.
fn guarded(settled: anyhow::Result<(Config, Place)>) -> (Place, Duration) {
    match settled {
        Ok((config, place)) => (place, config.image.health.deadline),
        Err(error) => {
            let deadline = HealthConfig::default().deadline;
            let error = format!("{error:#}");
            tracing::error!(error, ?deadline, "guarding this system with what is usual");
            (Place::new("/", None), deadline)
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::model::Sha256;
    use crate::modules::image::slots::{BadImage, Doubt, Entry, Undecided, What};

    #[test]
    fn a_broken_configuration_does_not_disarm_the_guard() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let given = cli::Where {
            root: Some(folder.path().to_owned()),
            state_dir: None,
            config: Some(file.clone()),
        };
        let usual = (Place::new("/", None), Duration::from_mins(10));
        assert_eq!(guarded(settle(&given)), usual, "there is none");
        std::fs::write(&file, "[image.health]\ndeadline = \"soon\"\n").unwrap();
        assert_eq!(guarded(settle(&given)), usual);

        std::fs::write(&file, "[image.health]\ndeadline = \"40s\"\n").unwrap();
        let (place, deadline) = guarded(settle(&given));
        assert_eq!(place.root(), folder.path().canonicalize().unwrap());
        assert_eq!(deadline, Duration::from_secs(40));
    }

    #[test]
    fn the_slots_are_shown_with_what_runs_and_what_failed() {
        let what = |image_id: &str| What {
            file: Sha256::of(image_id.as_bytes()),
            profile_name: "demo".into(),
            image_id: image_id.into(),
            raw: None,
        };
        let slots = Slots {
            a: SlotState::Good(what("1.0")),
            b: SlotState::Bad {
                what: what("1.1"),
                why: "it hung".into(),
                log: String::new(),
            },
            last_good: Some(Slot::A),
            bad: vec![BadImage {
                file: Sha256::of(b"1.1"),
                image_id: "1.1".into(),
                why: "it hung".into(),
                at: DateTime::UNIX_EPOCH,
            }],
            undecided: vec![Undecided {
                file: Sha256::of(b"1.2"),
                times: 1,
                doubt: Doubt {
                    why: "the server cannot be reached".into(),
                    log: String::new(),
                },
            }],
            sequence: 1,
        };
        let seen = Seen {
            booted: Some(Slot::A),
            boot_id: "b".into(),
            image: None,
            a: Entry::Plain,
            b: Entry::Absent,
            foreign: Vec::new(),
        };
        let mut out = Vec::new();
        print(&report("systemd-boot", &slots, &seen), &mut out).unwrap();
        let digest = Sha256::of(b"1.1");
        let left = Sha256::of(b"1.2");
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!(
                "started by systemd-boot\n\
                 \u{20}     SLOT    STATE  PROFILE  IMAGE\n\
                 runs  root-a  good   demo     1.0\n\
                 \u{20}     root-b  bad    demo     1.1\n\
                 \n\
                 1.1 failed here at 1970-01-01T00:00:00Z: it hung\n    \
                 `evenkeel-agent image forget {digest}` lets it be tried again\n\
                 \n\
                 left undecided (1): the server cannot be reached\n    \
                 {left}\n"
            )
        );
    }
}
