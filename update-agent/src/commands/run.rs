//! `evenkeel-agent run`.

use std::process::ExitCode;
use std::sync::Arc;

use evenkeel_kit::{Lifecycle, SystemClock, telemetry};

use super::{runtime, settle};
use crate::agent::{Agent, Parts};
use crate::cli::Run;
use crate::config::Config;
use crate::engine::Engine;
use crate::facts::FactsReader;
use crate::journal::{FileJournal, Journal};
use crate::link::{GrpcLink, Link, Trust};
use crate::lock::AgentLock;
use crate::modules::packages::{Limits, Packages, Tools};
use crate::modules::{AnyModule, Plugged};
use crate::node::{self, Node};
use crate::os;
use crate::place::Place;
use crate::runner::{HostRunner, Runner};

/// Polls and does what the server decides.
pub fn run(arguments: &Run) -> anyhow::Result<ExitCode> {
    let (config, place) = settle(&arguments.place)?;
    telemetry::init(&config.log)?;
    let node = Node::load(&place)?;
    place.prepare()?;
    let _lock = AgentLock::take(&place.lock())?;
    runtime()?.block_on(async {
        let life = Lifecycle::new();
        let mut agent = agent(arguments, &config, &place, &node, &life)?;
        tracing::info!(host = node.host_id, server = node.server, root = %place.root().display(), "agent started");
        if arguments.once {
            agent.run_once().await?;
            return Ok(ExitCode::SUCCESS);
        }
        life.spawn("agent", async move {
            agent.run().await;
            Ok(())
        });
        Ok(life.run_until_stopped(config.stop_grace).await)
    })
}

fn agent(
    arguments: &Run,
    config: &Config,
    place: &Place,
    node: &Node,
    life: &Lifecycle,
) -> anyhow::Result<Agent> {
    let trust = node::load_ca(place)?.map_or(Trust::System, Trust::Ca);
    let link = GrpcLink::new(&node.server, &trust, config.call_timeout)?;
    link.renew(&node::load_credential(place)?)?;
    let runner: Arc<dyn Runner> = Arc::new(HostRunner::new(place.root()));
    let clock = Arc::new(SystemClock);
    let modules = modules(&runner, config.limits(), place);
    let engine = Engine::new(
        modules,
        journal(arguments, place)?,
        clock.clone(),
        os::boot_id(),
    );
    let tools = Tools::new(runner, config.limits());
    let facts = FactsReader::new(tools, place.clone(), engine.module_names());
    Ok(Agent::new(Parts {
        engine,
        link,
        facts,
        clock,
        place: place.clone(),
        pace: config.pace(),
        stop: life.stopping(),
    }))
}

/// Every module that this agent has.
fn modules(runner: &Arc<dyn Runner>, limits: Limits, place: &Place) -> Vec<Box<dyn AnyModule>> {
    let tools = Tools::new(Arc::clone(runner), limits);
    vec![Box::new(Plugged {
        module: Packages::new(tools, place.clone()),
        wanted: Packages::wanted,
    })]
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
    let runner: Arc<dyn Runner> = Arc::new(HostRunner::new(place.root()));
    let modules = modules(&runner, Config::default().limits(), &place);
    let journal = Box::new(FileJournal::at(place.journal()));
    Engine::new(modules, journal, Arc::new(SystemClock), String::new()).points()
}
