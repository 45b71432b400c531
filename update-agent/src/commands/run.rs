//! `evenkeel-agent run`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_kit::{Lifecycle, telemetry};

use super::images::{SharedLink, reconcile_slots, requires_server, wait_for_boot_partition};
use super::module_registry::ModuleRegistry;
use super::{build_runtime, load_config};
use crate::agent::{Agent, AgentParts};
use crate::agent_lock::AgentLock;
use crate::cli::RunArgs;
use crate::config::Config;
use crate::facts::FactsReader;
use crate::identity::MachineMarks;
use crate::journal::{FileJournal, Journal};
use crate::link::{GrpcLink, ServerLink, Trust};
use crate::modules::image::boot_control;
use crate::node::{self, Node};
use crate::notify::{ServiceManager, ServiceState, Systemd, notify_watchdog};
use crate::paths::AgentPaths;
use crate::status::StatusFile;
use crate::trial::{self, SysRq, TrialOutcome, TrialParts};

/// Exit status of an agent that must be set up first (`EX_CONFIG`). Starting it again does not
/// help.
const EXIT_CONFIG: u8 = 78;

/// How long the process waits at its end for pending disk operations.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an image cannot be tried on a system without usable slots.
const NO_SLOTS_FOUND: &str =
    "no boot partition and no second slot found; check that the boot partition is mounted";

/// Runs the agent.
pub fn run_agent(arguments: &RunArgs) -> anyhow::Result<ExitCode> {
    let (config, paths) = load_config(&arguments.paths)?;
    telemetry::init(&config.log)?;
    let node = Node::load(&paths)?;
    paths.prepare()?;
    let _lock = AgentLock::acquire(&paths.lock())?;
    if let Some(mismatch) = node.identity_mismatch(&MachineMarks::detect(&paths)) {
        tracing::error!("{mismatch}");
        StatusFile::load(&paths.status()).update(|status| status.error = mismatch);
        return Ok(ExitCode::from(EXIT_CONFIG));
    }
    let registry = ModuleRegistry::new(&config, &paths);
    let runtime = build_runtime()?;
    let end: anyhow::Result<ExitCode> = runtime.block_on(async {
        let life = Lifecycle::new();
        let manager: Arc<dyn ServiceManager> = Arc::new(Systemd);
        // Must run before anything else uses the slots.
        let Some(image_start) = start_images(&registry, &node).await? else {
            // The reset did not happen. The next start requests it again.
            return Ok(ExitCode::FAILURE);
        };
        if !arguments.once {
            watch_for_boot_partition(&registry, &life);
        }
        let (trial, warnings) = match image_start {
            ImageStart::Usable { trial, warnings } => (trial, warnings),
            ImageStart::Untestable(_) if arguments.once => return Ok(ExitCode::FAILURE),
            ImageStart::Untestable(why) => {
                return Ok(run_guard(life, manager, (&config, &paths), &why).await);
            }
        };
        let context = (warnings, Arc::clone(&manager));
        let mut agent = build_agent(arguments, &registry, &node, &life, context)?;
        tracing::info!(host = node.host_id, server = node.server, root = %paths.root().display(), "agent started");
        if arguments.once {
            if !finish_trial(trial.as_deref()).await {
                return Ok(ExitCode::FAILURE);
            }
            agent.run_once().await?;
            return Ok(ExitCode::SUCCESS);
        }
        let (stop, service_manager) = (life.stopping(), Arc::clone(&manager));
        life.spawn("manager", async move {
            notify_watchdog(service_manager, Systemd::watchdog_interval(), stop).await;
            Ok(())
        });
        let stop = life.stopping();
        life.spawn("agent", async move {
            // A trial takes longer than the manager's start timeout, and the manager would kill the
            // agent during it.
            if trial.is_some() {
                manager.notify(ServiceState::Ready);
            }
            let settled = tokio::select! {
                settled = finish_trial(trial.as_deref()) => settled,
                () = stop.cancelled() => false,
            };
            if settled {
                agent.run().await;
            } else {
                stop.cancelled().await;
            }
            Ok(())
        });
        Ok(life.run_until_stopped(config.stop_grace_period).await)
    });
    // A disk that hangs must not keep the process from ending.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    end
}

/// State of the images at the start of the agent.
enum ImageStart {
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
async fn run_guard(
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
            guarded = trial::run_guard(&paths, deadline, &reset) => {
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
fn watch_for_boot_partition(registry: &ModuleRegistry<'_>, life: &Lifecycle) {
    let is_missing = matches!(registry.images(), Ok(None));
    if !is_missing || !boot_control::has_slots(registry.paths) {
        return;
    }
    let coming = boot_control::wait_for_esp(registry.paths, &registry.config.image);
    let stop = life.stopping();
    life.spawn("boot partition", async move {
        tokio::select! {
            () = coming => anyhow::bail!("the boot partition has appeared, restarting the agent to use it"),
            () = stop.cancelled() => Ok(()),
        }
    });
}

/// How the agent starts without usable images. `why` is the reason if there are slots.
fn start_without_images(paths: &AgentPaths, why: Option<String>) -> ImageStart {
    if trial::is_watched(paths) {
        let why = why.unwrap_or_else(|| NO_SLOTS_FOUND.to_owned());
        tracing::error!(
            why,
            "the boot loader counted this boot, but the running image cannot be tried"
        );
        return ImageStart::Untestable(why);
    }
    ImageStart::Usable { trial: None, warnings: why.into_iter().collect() }
}

/// Reconciles the slots with the boot state and determines whether an image is on trial. A node
/// with unusable slots still runs and reports a warning, unless the boot loader says that an image
/// is on trial. Returns `None` if the running image is bad and the machine did not reset: then
/// nothing more may be done.
async fn start_images(
    registry: &ModuleRegistry<'_>,
    node: &Node,
) -> anyhow::Result<Option<ImageStart>> {
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
    let link = connect(registry, node).map(|link| Arc::new(link) as Arc<dyn ServerLink>);
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
    Ok(Some(ImageStart::Usable { trial: Some(Box::new(trial)), warnings: Vec::new() }))
}

/// Finishes a trial, if there is one. Returns whether the agent may continue: after a fallback it
/// must not.
async fn finish_trial(trial: Option<&TrialParts>) -> bool {
    let Some(trial) = trial else { return true };
    match trial::run_trial(trial).await {
        Ok(TrialOutcome::NotOnTrial | TrialOutcome::Committed { .. }) => true,
        Ok(TrialOutcome::FellBack { why }) => {
            tracing::error!(why, "the image was given up; waiting for the reset");
            false
        }
        // The image is neither committed nor given up. A reset would not help; the next start
        // continues the trial.
        Err(failure) => {
            tracing::error!(%failure, "the trial of the image cannot be ended");
            true
        }
    }
}

fn build_agent(
    arguments: &RunArgs,
    registry: &ModuleRegistry<'_>,
    node: &Node,
    life: &Lifecycle,
    (warnings, manager): (Vec<String>, Arc<dyn ServiceManager>),
) -> anyhow::Result<Agent> {
    let paths = registry.paths;
    let engine = registry.build_engine(open_journal(arguments, paths)?);
    let images = registry.images().ok().flatten();
    let facts = FactsReader::new(
        registry.package_tools(),
        paths.clone(),
        engine.module_names(),
        Arc::clone(&registry.owner),
    )
    .with_images(images.map(|images| Arc::clone(&images.slots)), warnings)
    .with_boot_control(images.map(|images| Arc::clone(&images.boot)));
    let web = images.map(|images| images.web.clone());
    Ok(Agent::new(AgentParts {
        engine,
        link: SharedLink::new(connect(registry, node)?, web),
        facts,
        clock: Arc::clone(&registry.clock),
        paths: paths.clone(),
        intervals: registry.config.intervals(),
        stop: life.stopping(),
        gate: registry.build_gate(),
        owner: Arc::clone(&registry.owner),
        guard: Arc::new(registry.shutdown_guard()),
        manager,
    }))
}

/// Creates the link to the node's server, with the node's credential.
pub(super) fn connect(registry: &ModuleRegistry<'_>, node: &Node) -> anyhow::Result<GrpcLink> {
    let trust = node::load_ca(registry.paths)?.map_or(Trust::System, Trust::Ca);
    let proxy = registry.config.proxy().context("read the configuration")?;
    let deadline = registry.config.call_timeout;
    let floor = registry.time_floor();
    let link = GrpcLink::with_floor(floor, &node.server, &trust, proxy.as_ref(), deadline)?;
    link.set_credential(&node::load_credential(registry.paths)?)?;
    Ok(link)
}

#[cfg(not(feature = "halt-points"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature halt-points a name can be wrong")]
fn open_journal(_arguments: &RunArgs, paths: &AgentPaths) -> anyhow::Result<Box<dyn Journal>> {
    Ok(Box::new(FileJournal::new(paths.journal())))
}

#[cfg(feature = "halt-points")]
fn open_journal(arguments: &RunArgs, paths: &AgentPaths) -> anyhow::Result<Box<dyn Journal>> {
    if arguments.early_entry {
        crate::halt::arm_early();
    }
    let journal = Box::new(FileJournal::new(paths.journal()));
    let Some(point) = &arguments.halt_after else {
        return Ok(journal);
    };
    anyhow::ensure!(
        journal_points().iter().any(|candidate| candidate.name() == point),
        "unknown point {point}; `evenkeel-agent steps` lists all points"
    );
    Ok(Box::new(crate::halt::HaltingJournal::new(journal, point.clone())))
}

/// Prints the points at which `--halt-after` can stop.
#[cfg(feature = "halt-points")]
pub fn print_steps(out: &mut impl std::io::Write) -> anyhow::Result<ExitCode> {
    for point in journal_points() {
        writeln!(out, "{point}")?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "halt-points")]
fn journal_points() -> Vec<crate::journal::JournalPoint> {
    let paths = AgentPaths::new("/", None);
    let config = crate::config::Config::default();
    let journal = Box::new(FileJournal::new(paths.journal()));
    ModuleRegistry::new(&config, &paths).build_engine(journal).journal_points()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn without_usable_images_the_loop_starts_only_if_the_loader_did_not_count_this_boot() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        for why in [None, Some("it is broken".to_owned())] {
            let ImageStart::Usable { trial, warnings } = start_without_images(&paths, why.clone())
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
            let ImageStart::Untestable(reason) = start_without_images(&paths, why.clone()) else {
                panic!("an image on trial would be reported")
            };
            assert!(why.is_none_or(|why| reason == why));
        }
    }
}
