//! `evenkeel-agent run`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::{Lifecycle, chain, telemetry};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{build_runtime, load_config};
use crate::agent::{Agent, AgentParts};
use crate::agent_lock::AgentLock;
use crate::cli::RunArgs;
use crate::config::restrict_password_file;
use crate::identity::{self, MachineMarks};
use crate::journal::{FileJournal, Journal};
use crate::kernel_history::record_running_kernel;
use crate::module_registry::ModuleRegistry;
use crate::node::Node;
use crate::notify::{ServiceManager, ServiceState, Systemd, notify_watchdog};
use crate::paths::AgentPaths;
use crate::runner::Runner;
use crate::status::StatusFile;
use crate::trial::TrialParts;
use crate::trial::startup::{self, SystemStart};

/// Exit status of an agent that must be set up first (`EX_CONFIG`). Starting it again does not
/// help.
const EXIT_CONFIG: u8 = 78;

/// How long the process waits at its end for pending disk operations.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run_agent(arguments: &RunArgs) -> anyhow::Result<ExitCode> {
    let (config, paths) = load_config(&arguments.paths)?;
    telemetry::init(&config.log)?;
    protect_password(arguments);
    let node = Node::load(&paths)?;
    paths.prepare()?;
    let _lock = AgentLock::acquire(&paths.lock())?;
    record_running_kernel(&paths);
    if let Some(mismatch) = node.identity_mismatch(&MachineMarks::detect(&paths)) {
        tracing::error!("{mismatch}");
        StatusFile::load(&paths.status()).update(|status| status.error = mismatch);
        return Ok(ExitCode::from(EXIT_CONFIG));
    }
    let registry = ModuleRegistry::new(&config, &paths);
    let runtime = build_runtime()?;
    let end = runtime.block_on(start_agent(arguments, &registry, &node));
    // A disk that hangs must not keep the process from ending.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    end
}

/// Starts the agent and runs it to its end.
async fn start_agent(
    arguments: &RunArgs,
    registry: &ModuleRegistry<'_>,
    node: &Node,
) -> anyhow::Result<ExitCode> {
    let (config, paths) = (registry.config, registry.paths);
    let life = Lifecycle::new();
    let manager: Arc<dyn ServiceManager> = Arc::new(Systemd);
    // Must run before anything else uses the slots.
    let Some(start) = startup::start_system(registry, node).await? else {
        // The reset did not happen. The next start requests it again.
        return Ok(ExitCode::FAILURE);
    };
    if !arguments.once {
        startup::watch_for_boot_partition(registry, &life);
    }
    let (trial, warnings) = match start {
        SystemStart::Usable { trial, warnings } => (trial, warnings),
        SystemStart::Untestable(_) if arguments.once => return Ok(ExitCode::FAILURE),
        SystemStart::Untestable(why) => {
            life.stop_on_signals()?;
            return Ok(startup::wait_for_reset(life, manager, (config, paths), &why).await);
        }
    };
    registry.other_updaters().apply_mode().await;
    let context = (warnings, Arc::clone(&manager));
    let agent = build_agent(arguments, registry, node, &life, context)?;
    tracing::info!(host = node.host_id, server = node.server, root = %paths.root().display(), "agent started");
    if arguments.once {
        let once = Box::pin(run_once(agent, trial, life.stopping()));
        return Box::pin(run_until_end(life, config.stop_grace_period, once)).await;
    }
    life.stop_on_signals()?;
    spawn_left_over_wait(&life, Arc::clone(&registry.runner));
    spawn_service(&life, agent, trial, manager);
    Ok(life.run_until_stopped(config.stop_grace_period).await)
}

/// Does everything that can be done now. A trial ends first.
async fn run_once(
    mut agent: Agent,
    trial: Option<Box<TrialParts>>,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    if !finish_trial_unless_stopped(trial.as_deref(), &stop).await {
        return Ok(ExitCode::FAILURE);
    }
    agent.run_once().await?;
    Ok(ExitCode::SUCCESS)
}

/// Runs work that ends by itself, and at a stop as soon as that does no harm. If a signal killed
/// the process instead, the programs that the work waits for would continue without a time limit. A
/// second signal, or the end of the grace period, ends the process in the middle of the work.
pub(super) async fn run_until_end(
    life: Lifecycle,
    grace: Duration,
    work: impl Future<Output = anyhow::Result<ExitCode>> + Send + 'static,
) -> anyhow::Result<ExitCode> {
    life.stop_on_signals()?;
    let (sender, mut result) = oneshot::channel();
    let ended = life.clone();
    life.spawn("work", async move {
        // The receiver exists until the process ends.
        sender.send(work.await).ok();
        ended.stop();
        Ok(())
    });
    let exit = life.run_until_stopped(grace).await;
    // Without a result, the work was not waited for, or it panicked, which is logged.
    result.try_recv().unwrap_or(Ok(exit))
}

/// Finishes a trial, if there is one. Returns whether the agent may continue.
async fn finish_trial_unless_stopped(trial: Option<&TrialParts>, stop: &CancellationToken) -> bool {
    tokio::select! {
        may_continue = startup::finish_trial(trial) => may_continue,
        () = stop.cancelled() => false,
    }
}

/// Starts the tasks of an agent that runs until it is asked to stop. A trial ends first.
fn spawn_service(
    life: &Lifecycle,
    mut agent: Agent,
    trial: Option<Box<TrialParts>>,
    manager: Arc<dyn ServiceManager>,
) {
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
        if finish_trial_unless_stopped(trial.as_deref(), &stop).await {
            agent.run().await;
        } else {
            stop.cancelled().await;
        }
        Ok(())
    });
}

/// Starts the task that ends a hanging change of an earlier agent at its deadline. An open attempt does the same, but its
/// journal may have been lost, and the change would hold dpkg's lock for ever.
fn spawn_left_over_wait(life: &Lifecycle, runner: Arc<dyn Runner>) {
    let stop = life.stopping();
    life.spawn_brief("left-over change", async move {
        tokio::select! {
            ended = runner.end_left_over_change() => {
                if let Err(error) = ended {
                    tracing::error!(error = %chain(&error), "a change of an earlier agent did not end");
                }
            }
            () = stop.cancelled() => {}
        }
    });
}

/// Lets only root read a configuration file with a password. The agent continues also if that is
/// impossible, because a node without its agent gets no updates. `enroll` refuses such a file, and
/// `doctor` fails.
fn protect_password(arguments: &RunArgs) {
    match restrict_password_file(arguments.paths.config.as_deref()) {
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            "other users could read the password in `proxy` of the configuration file, which has \
             the mode 0600 now: change the password"
        ),
        Err(problem) => tracing::warn!("{problem}"),
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
    let session = identity::choose_session(paths, arguments.once);
    let facts = registry.build_facts_reader(engine.module_names(), warnings);
    Ok(Agent::new(AgentParts {
        facts: facts.with_session(session),
        engine,
        link: registry.connect(node)?,
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
