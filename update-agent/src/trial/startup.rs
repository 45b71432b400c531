//! The start of the agent on a system with image slots: what must happen before the agent's loop.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Lifecycle;
use tokio::time::timeout;

use super::{SysRq, TrialOutcome, TrialParts, reconcile_slots, run_trial};
use crate::config::{Config, ImageConfig};
use crate::journal::{FileJournal, JournalEntry};
use crate::link::ServerLink;
use crate::model::EventKind;
use crate::module_registry::ModuleRegistry;
use crate::modules::image::boot_control;
use crate::node::Node;
use crate::notify::{ServiceManager, ServiceState, Systemd, notify_watchdog};
use crate::paths::AgentPaths;

/// Why an image cannot be tried on a system without usable slots.
const NO_SLOTS_FOUND: &str =
    "no boot partition and no second slot found; check that the boot partition is mounted";

/// If the server was reached within this time before the trial, the new image must reach it as
/// well.
const MAX_CONTACT_AGE: TimeDelta = TimeDelta::hours(1);

/// How long to wait for a boot partition that is not mounted yet.
const BOOT_PARTITION_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the images at the start of the agent.
#[derive(Debug)]
pub enum SystemStart {
    /// The agent's loop may start, after the trial if there is one.
    Usable {
        /// The trial to run first; `None` if there are no slots.
        trial: Option<Box<TrialParts>>,
        /// Warnings that apply until the agent restarts.
        warnings: Vec<String>,
    },
    /// The boot loader counted this boot, but the health of the image cannot be determined, for the
    /// given reason. The agent changes and reports nothing: a report would make the image look
    /// committed.
    Untestable(String),
}

/// Runs the guard until the machine is reset or the agent is stopped.
pub async fn wait_for_reset(
    life: Lifecycle,
    manager: Arc<dyn ServiceManager>,
    (config, paths): (&Config, &AgentPaths),
    why: &str,
) -> ExitCode {
    manager.notify(ServiceState::Ready);
    manager.notify(ServiceState::Status(&format!(
        "waiting for a reset because the running image cannot be tried: {why}"
    )));
    let stop = life.stopping();
    life.spawn("manager", async move {
        notify_watchdog(manager, Systemd::watchdog_interval(), stop).await;
        Ok(())
    });
    let stop = life.stopping();
    let (paths, deadline) = (paths.clone(), config.image.health.deadline);
    life.spawn("guard", async move {
        let reset = SysRq::default();
        tokio::select! {
            // The guard service, which does the same, may be missing. If the reset fails, the next
            // start tries again.
            guarded = super::run_guard(&paths, deadline, &reset) => {
                tracing::error!(?guarded, "the machine was not reset");
            }
            () = stop.cancelled() => {}
        }
        Ok(())
    });
    life.run_until_stopped(config.stop_grace_period).await
}

/// Ends the agent as soon as a boot partition that was missing at its start appears. The service
/// manager then restarts the agent, which uses the partition.
pub fn watch_for_boot_partition(registry: &ModuleRegistry<'_>, life: &Lifecycle) {
    let is_missing = match registry.images() {
        Ok(images) => images.is_none(),
        // systemd-boot was chosen and is not found.
        Err(failure) => failure.is_temporary,
    };
    let config = &registry.config.image;
    if !is_missing || !config.may_use_systemd_boot() || !boot_control::has_slots(registry.paths) {
        return;
    }
    let coming = boot_control::wait_for_esp(registry.paths, config);
    let stop = life.stopping();
    life.spawn("boot partition", async move {
        tokio::select! {
            () = coming => anyhow::bail!("the boot partition has appeared, restarting the agent to use it"),
            () = stop.cancelled() => Ok(()),
        }
    });
}

/// Waits a short time for a boot partition that [may be late](boot_control::esp_may_be_late).
pub async fn wait_for_boot_partition(paths: &AgentPaths, config: &ImageConfig) {
    timeout(BOOT_PARTITION_TIMEOUT, boot_control::wait_for_esp(paths, config)).await.ok();
}

/// How the agent starts without usable images. `why` is the reason if there are slots.
fn start_without_images(paths: &AgentPaths, why: Option<String>) -> SystemStart {
    if super::is_watched(paths) {
        let why = why.unwrap_or_else(|| NO_SLOTS_FOUND.to_owned());
        tracing::error!(
            why,
            "the boot loader counted this boot, but the running image cannot be tried"
        );
        return SystemStart::Untestable(why);
    }
    SystemStart::Usable { trial: None, warnings: why.into_iter().collect() }
}

/// Reconciles the slots with the boot state and determines whether an image is on trial. A node
/// with unusable slots still runs and reports a warning, unless the boot loader says that an image
/// is on trial. Returns `None` if the running image is bad and the machine did not reset: then
/// nothing more may be done.
pub async fn start_system(
    registry: &ModuleRegistry<'_>,
    node: &Node,
) -> anyhow::Result<Option<SystemStart>> {
    if boot_control::esp_may_be_late(registry.paths, &registry.config.image) {
        wait_for_boot_partition(registry.paths, &registry.config.image).await;
    }
    let images = match registry.images() {
        Ok(Some(images)) => images,
        Ok(None) => return Ok(Some(start_without_images(registry.paths, None))),
        Err(failure) => {
            return Ok(Some(start_without_images(registry.paths, Some(failure.reason))));
        }
    };
    let reset = Arc::new(SysRq::default());
    match reconcile_slots(images.boot.as_ref(), &images.slots, reset.as_ref()).await {
        Ok(None) => return Ok(None),
        Ok(Some(_)) => {}
        Err(failure) => tracing::error!(%failure, "cannot determine the state of the slots"),
    }
    let last_contact = registry.time_floor().last_contact();
    let attempt = FileJournal::peek(&registry.paths.journal()).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the journal");
        None
    });
    let config = &registry.config.image;
    let link = registry.connect(node).map(|link| Arc::new(link) as Arc<dyn ServerLink>);
    let trial = TrialParts {
        boot: Arc::clone(&images.boot),
        slots: Arc::clone(&images.slots),
        link: link.map_err(|error| format!("{error:#}")),
        runner: Arc::clone(&registry.runner),
        paths: registry.paths.clone(),
        reset,
        health: config.health.clone(),
        requires_server: requires_server(last_contact, attempt.as_ref(), registry.clock.now()),
        watchdog: config.watchdog,
    };
    if let Err(why) = &trial.link {
        // Without a link the agent cannot run, but the trial must still be decided and its result
        // recorded.
        finish_trial(Some(&trial)).await;
        anyhow::bail!("{why}");
    }
    Ok(Some(SystemStart::Usable { trial: Some(Box::new(trial)), warnings: Vec::new() }))
}

/// Whether a new image must reach the server: the old image did, shortly before its reboot. The
/// open attempt has the time of that reboot, because the machine may have been off since then.
/// Without an attempt, the current time is used.
fn requires_server(
    last_contact: Option<DateTime<Utc>>,
    attempt: Option<&JournalEntry>,
    now: DateTime<Utc>,
) -> bool {
    let left = attempt.and_then(|attempt| {
        let is_end = |kind: &EventKind| matches!(kind, EventKind::Began | EventKind::RebootBegun);
        let mut events = attempt.events.iter().rev();
        events.find(|event| is_end(&event.kind))
    });
    let left = left.map_or(now, |event| event.at);
    // A clock that was turned back does not relax the rule.
    last_contact.is_some_and(|last| left.signed_duration_since(last) <= MAX_CONTACT_AGE)
}

/// Finishes a trial, if there is one. Returns whether the agent may continue: after a fallback it
/// must not.
pub async fn finish_trial(trial: Option<&TrialParts>) -> bool {
    let Some(trial) = trial else { return true };
    match run_trial(trial).await {
        Ok(TrialOutcome::NotOnTrial | TrialOutcome::Committed { .. }) => true,
        Ok(TrialOutcome::FellBack { reason }) => {
            tracing::error!(reason, "the image failed its trial; waiting for the reset");
            false
        }
        // The image is neither committed nor rejected. A reset would not help; the next start
        // continues the trial.
        Err(failure) => {
            tracing::error!(%failure, "the trial of the image cannot be ended");
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::{AttemptEvent, ModuleParts, UpdateTarget};

    #[test]
    fn without_usable_images_the_loop_starts_only_if_the_loader_did_not_count_this_boot() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        for why in [None, Some("it is broken".to_owned())] {
            let SystemStart::Usable { trial, warnings } = start_without_images(&paths, why.clone())
            else {
                panic!("nothing is on trial")
            };
            assert!(trial.is_none());
            assert_eq!(warnings, Vec::from_iter(why));
        }
        let variable =
            "/sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
        let variable = paths.inside(variable);
        fs::create_dir_all(variable.parent().unwrap()).unwrap();
        fs::write(variable, "").unwrap();
        for why in [None, Some("it is broken".to_owned())] {
            let SystemStart::Untestable(reason) = start_without_images(&paths, why.clone()) else {
                panic!("an image on trial would be reported")
            };
            assert!(why.is_none_or(|why| reason == why));
        }
    }

    #[test]
    fn a_server_reached_within_the_last_hour_is_required() {
        assert!(!requires_server(None, None, at(0)));
        assert!(requires_server(Some(at(0)), None, at(60)));
        assert!(!requires_server(Some(at(0)), None, at(61)));
        assert!(requires_server(Some(at(100)), None, at(0)));
    }

    #[test]
    fn time_without_power_does_not_relax_the_server_check() {
        let target = UpdateTarget { digest: String::new(), spec: ModuleParts::default() };
        let mut attempt = JournalEntry::new(uuid::Uuid::from_u128(1), target);
        let last = Some(at(0));
        let next_week = at(7 * 24 * 60);
        assert!(!requires_server(last, Some(&attempt), next_week));
        for (kind, minutes, is_demanded) in [
            (EventKind::Downloaded, 2, false),
            (EventKind::Began, 5, true),
            (EventKind::RebootBegun, 50, true),
            (EventKind::RebootBegun, 70, false),
        ] {
            attempt.events.push(AttemptEvent {
                sequence: attempt.last_sequence() + 1,
                at: at(minutes),
                boot_id: String::new(),
                kind,
                report: None,
                interruptions: Vec::new(),
            });
            let demands = requires_server(last, Some(&attempt), next_week);
            assert_eq!(demands, is_demanded, "{minutes}");
        }
    }

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }
}
