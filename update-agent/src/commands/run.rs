//! `evenkeel-agent run`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_kit::{Lifecycle, telemetry};

use super::images::{SharedLink, await_late, demands_server, reconcile};
use super::workshop::Workshop;
use super::{runtime, settle};
use crate::agent::{Agent, Parts};
use crate::cli::Run;
use crate::config::Config;
use crate::facts::FactsReader;
use crate::identity::Marks;
use crate::journal::{FileJournal, Journal};
use crate::link::{GrpcLink, Link, Trust};
use crate::lock::AgentLock;
use crate::modules::image::boot_control;
use crate::node::{self, Node};
use crate::notify::{Manager, Sign, Systemd, keep_telling};
use crate::place::Place;
use crate::status::StatusFile;
use crate::trial::{self, Over, SysRq, TrialParts};

/// The exit status of an agent that a person has to set up first; to start it again is of no use.
const NOT_SET_UP: u8 = 78;

/// So long an end waits for work on disks that is not done.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// Why an image cannot be tried on a system that seems to have no slots.
const NO_IMAGES: &str =
    "no boot partition and no second slot is found; see that the boot partition is mounted";

/// Polls and does what the server decides.
pub fn run(arguments: &Run) -> anyhow::Result<ExitCode> {
    let (config, place) = settle(&arguments.place)?;
    telemetry::init(&config.log)?;
    let node = Node::load(&place)?;
    place.prepare()?;
    let _lock = AgentLock::take(&place.lock())?;
    if let Some(stranger) = node.stranger(&Marks::of(&place)) {
        tracing::error!("{stranger}");
        StatusFile::open(&place.status()).change(|status| status.trouble = stranger);
        return Ok(ExitCode::from(NOT_SET_UP));
    }
    let workshop = Workshop::new(&config, &place);
    let runtime = runtime()?;
    let end: anyhow::Result<ExitCode> = runtime.block_on(async {
        let life = Lifecycle::new();
        let manager: Arc<dyn Manager> = Arc::new(Systemd);
        // Before anything else is made of the slots.
        let Some(found) = start_images(&workshop, &node).await? else {
            // The reset did not come about: the next start asks for it again.
            return Ok(ExitCode::FAILURE);
        };
        if !arguments.once {
            await_boot_partition(&workshop, &life);
        }
        let (trial, troubles) = match found {
            Found::Ready { trial, troubles } => (trial, troubles),
            Found::Unjudged(_) if arguments.once => return Ok(ExitCode::FAILURE),
            Found::Unjudged(why) => {
                return Ok(wait_for_guard(life, manager, (&config, &place), &why).await);
            }
        };
        let told = (troubles, Arc::clone(&manager));
        let mut agent = agent(arguments, &workshop, &node, &life, told)?;
        tracing::info!(host = node.host_id, server = node.server, root = %place.root().display(), "agent started");
        if arguments.once {
            if !has_settled(trial.as_deref()).await {
                return Ok(ExitCode::FAILURE);
            }
            agent.run_once().await?;
            return Ok(ExitCode::SUCCESS);
        }
        let (stop, told) = (life.stopping(), Arc::clone(&manager));
        life.spawn("manager", async move {
            keep_telling(told, Systemd::beat(), stop).await;
            Ok(())
        });
        let stop = life.stopping();
        life.spawn("agent", async move {
            // A trial takes longer than the manager waits for a start, and it would end the agent in the middle of it.
            if trial.is_some() {
                manager.tell(Sign::Ready);
            }
            let settled = tokio::select! {
                settled = has_settled(trial.as_deref()) => settled,
                () = stop.cancelled() => false,
            };
            if settled {
                agent.run().await;
            } else {
                stop.cancelled().await;
            }
            Ok(())
        });
        Ok(life.run_until_stopped(config.stop_grace).await)
    });
    // A disk that hangs keeps no process from ending.
    runtime.shutdown_timeout(LAST_PATIENCE);
    end
}

/// What this start found of images.
enum Found {
    /// The loop may begin, if only after a trial.
    Ready {
        /// What is seen through before; none if there are no slots.
        trial: Option<Box<TrialParts>>,
        /// What a person should know of it, and what does not change while the agent runs.
        troubles: Vec<String>,
    },
    /// The loader counted this boot, and why it cannot be told whether what runs is healthy. Nothing is done on it, and
    /// nothing told of it: it would be taken for an image that is kept.
    Unjudged(String),
}

/// Waits for the end of a boot that comes to nothing: its reset, or a stop.
async fn wait_for_guard(
    life: Lifecycle,
    manager: Arc<dyn Manager>,
    (config, place): (&Config, &Place),
    why: &str,
) -> ExitCode {
    manager.tell(Sign::Ready);
    manager.tell(Sign::Status(&format!(
        "waiting for a reset, because the image that runs cannot be tried: {why}"
    )));
    let stop = life.stopping();
    life.spawn("manager", async move {
        keep_telling(manager, Systemd::beat(), stop).await;
        Ok(())
    });
    let stop = life.stopping();
    let (place, deadline) = (place.clone(), config.image.health.deadline);
    life.spawn("guard", async move {
        let reset = SysRq::default();
        tokio::select! {
            // Here as well: the service that does the same may be missing. If it comes back, the next start looks again.
            guarded = trial::guard(&place, deadline, &reset) => {
                tracing::error!(?guarded, "the machine was not reset");
            }
            () = stop.cancelled() => {}
        }
        Ok(())
    });
    life.run_until_stopped(config.stop_grace).await
}

/// Ends the agent when the boot partition comes that it did not find at its start: the service manager starts it anew,
/// and then it does.
fn await_boot_partition(workshop: &Workshop<'_>, life: &Lifecycle) {
    let is_missing = matches!(workshop.images(), Ok(None));
    if !is_missing || !boot_control::has_slots(workshop.place) {
        return;
    }
    let coming = boot_control::has_come(workshop.place, &workshop.config.image);
    let stop = life.stopping();
    life.spawn("boot partition", async move {
        tokio::select! {
            () = coming => anyhow::bail!("there is a boot partition now, and the agent starts anew with it"),
            () = stop.cancelled() => Ok(()),
        }
    });
}

/// What is done without usable images, and why they are not usable if there are any.
fn without_images(place: &Place, why: Option<String>) -> Found {
    if trial::is_watched(place) {
        let why = why.unwrap_or_else(|| NO_IMAGES.to_owned());
        tracing::error!(
            why,
            "the boot loader counted this boot, and the image that runs cannot be tried"
        );
        return Found::Unjudged(why);
    }
    Found::Ready {
        trial: None,
        troubles: why.into_iter().collect(),
    }
}

/// Makes the record of the slots fit what runs, and learns whether that is on trial. A node whose slots cannot be used is
/// heard all the same, and says so, unless an image is on trial as far as the loader knows. None if what runs is to be
/// left: then nothing more is to be done.
async fn start_images(workshop: &Workshop<'_>, node: &Node) -> anyhow::Result<Option<Found>> {
    if boot_control::may_be_late(workshop.place, &workshop.config.image) {
        await_late(workshop.place, &workshop.config.image).await;
    }
    let images = match workshop.images() {
        Ok(Some(images)) => images,
        Ok(None) => return Ok(Some(without_images(workshop.place, None))),
        Err(failure) => return Ok(Some(without_images(workshop.place, Some(failure.reason)))),
    };
    let reset = Arc::new(SysRq::default());
    match reconcile(images.boot.as_ref(), &images.slots, reset.as_ref()).await {
        Ok(None) => return Ok(None),
        Ok(Some(_)) => {}
        Err(failure) => tracing::error!(%failure, "what is in the slots cannot be learnt"),
    }
    let last_contact = workshop.floor().last_contact();
    let attempt = FileJournal::look(&workshop.place.journal()).unwrap_or_else(|error| {
        tracing::warn!(%error, "the journal cannot be read");
        None
    });
    let config = &workshop.config.image;
    let link = link(workshop, node).map(|link| Arc::new(link) as Arc<dyn Link>);
    let trial = TrialParts {
        boot: Arc::clone(&images.boot),
        slots: Arc::clone(&images.slots),
        link: link.map_err(|error| format!("{error:#}")),
        runner: Arc::clone(&workshop.runner),
        place: workshop.place.clone(),
        reset,
        health: config.health.clone(),
        server: demands_server(last_contact, attempt.as_ref(), workshop.clock.now()),
        watchdog: config.watchdog,
    };
    if let Err(why) = &trial.link {
        // An agent that cannot speak is of no use. Whether its image stays is to be decided all the same, and told.
        has_settled(Some(&trial)).await;
        anyhow::bail!("{why}");
    }
    Ok(Some(Found::Ready {
        trial: Some(Box::new(trial)),
        troubles: Vec::new(),
    }))
}

/// Sees a trial through, if there is one. Whether the agent goes on: one that was given up has nothing left to do.
async fn has_settled(trial: Option<&TrialParts>) -> bool {
    let Some(trial) = trial else { return true };
    match trial::see_through(trial).await {
        Ok(Over::NotOnTrial | Over::Committed { .. }) => true,
        Ok(Over::FellBack { why }) => {
            tracing::error!(why, "the image was left; waiting for the reset");
            false
        }
        // Neither kept nor given up: a reset would not change that, and the next start goes on with it.
        Err(failure) => {
            tracing::error!(%failure, "the trial of the image cannot be ended");
            true
        }
    }
}

fn agent(
    arguments: &Run,
    workshop: &Workshop<'_>,
    node: &Node,
    life: &Lifecycle,
    (troubles, manager): (Vec<String>, Arc<dyn Manager>),
) -> anyhow::Result<Agent> {
    let place = workshop.place;
    let engine = workshop.engine(journal(arguments, place)?);
    let images = workshop.images().ok().flatten();
    let facts = FactsReader::new(
        workshop.tools(),
        place.clone(),
        engine.module_names(),
        Arc::clone(&workshop.owner),
    )
    .with_images(images.map(|images| Arc::clone(&images.slots)), troubles)
    .with_boot_control(images.map(|images| Arc::clone(&images.boot)));
    let web = images.map(|images| images.web.clone());
    Ok(Agent::new(Parts {
        engine,
        link: SharedLink::new(link(workshop, node)?, web),
        facts,
        clock: Arc::clone(&workshop.clock),
        place: place.clone(),
        pace: workshop.config.pace(),
        stop: life.stopping(),
        gate: workshop.gate(),
        owner: Arc::clone(&workshop.owner),
        guard: Arc::new(workshop.guard()),
        manager,
    }))
}

/// The way to the node's server, with the node's credential.
pub(super) fn link(workshop: &Workshop<'_>, node: &Node) -> anyhow::Result<GrpcLink> {
    let trust = node::load_ca(workshop.place)?.map_or(Trust::System, Trust::Ca);
    let proxy = workshop.config.proxy().context("read the configuration")?;
    let deadline = workshop.config.call_timeout;
    let floor = workshop.floor();
    let link = GrpcLink::above(floor, &node.server, &trust, proxy.as_ref(), deadline)?;
    link.renew(&node::load_credential(workshop.place)?)?;
    Ok(link)
}

#[cfg(not(feature = "halt-points"))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "with the feature halt-points a name can be wrong"
)]
fn journal(_arguments: &Run, place: &Place) -> anyhow::Result<Box<dyn Journal>> {
    Ok(Box::new(FileJournal::at(place.journal())))
}

#[cfg(feature = "halt-points")]
fn journal(arguments: &Run, place: &Place) -> anyhow::Result<Box<dyn Journal>> {
    if arguments.early_entry {
        crate::halt::arm_early();
    }
    let journal = Box::new(FileJournal::at(place.journal()));
    let Some(point) = &arguments.halt_after else {
        return Ok(journal);
    };
    anyhow::ensure!(
        points().iter().any(|known| known.name() == point),
        "there is no point {point}; `evenkeel-agent steps` prints them"
    );
    Ok(Box::new(crate::halt::HaltingJournal::new(
        journal,
        point.clone(),
    )))
}

/// Prints the points at which `--halt-after` can stop.
#[cfg(feature = "halt-points")]
pub fn steps(out: &mut impl std::io::Write) -> anyhow::Result<ExitCode> {
    for point in points() {
        writeln!(out, "{point}")?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "halt-points")]
fn points() -> Vec<crate::journal::Point> {
    let place = Place::new("/", None);
    let config = crate::config::Config::default();
    let journal = Box::new(FileJournal::at(place.journal()));
    Workshop::new(&config, &place).engine(journal).points()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn without_usable_images_the_loop_begins_only_if_the_loader_did_not_count_this_boot() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        for why in [None, Some("it is broken".to_owned())] {
            let Found::Ready { trial, troubles } = without_images(&place, why.clone()) else {
                panic!("nothing is on trial")
            };
            assert!(trial.is_none());
            assert_eq!(troubles, Vec::from_iter(why));
        }
        let variable =
            "/sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
        let variable = place.inside(variable);
        fs::create_dir_all(variable.parent().unwrap()).unwrap();
        fs::write(variable, "").unwrap();
        for why in [None, Some("it is broken".to_owned())] {
            let Found::Unjudged(said) = without_images(&place, why.clone()) else {
                panic!("an image would be named that is on trial")
            };
            assert!(why.is_none_or(|why| said == why));
        }
    }
}
