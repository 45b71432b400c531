//! `evenkeel-agent run`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use evenkeel_kit::{Lifecycle, telemetry};

use super::workshop::Workshop;
use super::{runtime, settle};
use crate::agent::{Agent, Parts};
use crate::cli::Run;
use crate::facts::FactsReader;
use crate::identity::Marks;
use crate::journal::{FileJournal, Journal};
use crate::link::{GrpcLink, Link, Trust};
use crate::lock::AgentLock;
use crate::node::{self, Node};
use crate::notify::{Manager, Systemd, keep_telling};
use crate::place::Place;
use crate::status::StatusFile;

/// The exit status of an agent that a person has to set up first; to start it again is of no use.
const NOT_SET_UP: u8 = 78;

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
    runtime()?.block_on(async {
        let life = Lifecycle::new();
        let manager: Arc<dyn Manager> = Arc::new(Systemd);
        let mut agent = agent(arguments, &workshop, &node, &life, Arc::clone(&manager))?;
        tracing::info!(host = node.host_id, server = node.server, root = %place.root().display(), "agent started");
        if arguments.once {
            agent.run_once().await?;
            return Ok(ExitCode::SUCCESS);
        }
        let stop = life.stopping();
        life.spawn("manager", async move {
            keep_telling(manager, Systemd::beat(), stop).await;
            Ok(())
        });
        life.spawn("agent", async move {
            agent.run().await;
            Ok(())
        });
        Ok(life.run_until_stopped(config.stop_grace).await)
    })
}

fn agent(
    arguments: &Run,
    workshop: &Workshop<'_>,
    node: &Node,
    life: &Lifecycle,
    manager: Arc<dyn Manager>,
) -> anyhow::Result<Agent> {
    let place = workshop.place;
    let engine = workshop.engine(journal(arguments, place)?);
    let facts = FactsReader::new(
        workshop.tools(),
        place.clone(),
        engine.module_names(),
        Arc::clone(&workshop.owner),
    );
    Ok(Agent::new(Parts {
        engine,
        link: link(workshop, node)?,
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
    let link = GrpcLink::new(&node.server, &trust, proxy.as_ref(), deadline)?;
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
