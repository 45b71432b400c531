//! Benchmarks and simulated fleets. Each prints its figures as a table, or as JSON with `--json`.
//!
//! ```sh
//! cargo run --release -p evenkeel-bench -- poll
//! cargo run --release -p evenkeel-bench -- agent
//! cargo run --release -p evenkeel-bench -- message
//! cargo run --release -p evenkeel-bench -- rest
//! cargo run --release -p evenkeel-bench -- rest --hosts 10000 --requests 200 --duration 2s --json
//! cargo run --release -p evenkeel-bench -- fleet --nodes 10000 --interval 20s --duration 60s --tls
//! cargo run --release -p evenkeel-bench -- fleet --nodes 20000 --eim 0 --tls --long-poll --change-policy --json
//! cargo run --release -p evenkeel-bench -- fleet --nodes 10000 --tls --faults loss,reorder,half-open,return
//! cargo run --release -p evenkeel-bench -- os
//! cargo run --release -p evenkeel-bench -- os --profiles 20 --nodes 10000 --image-mib 1024 --json
//! cargo run --release -p evenkeel-bench -- fairness
//! ```
//!
//! `rest` seeds a private Postgres with 1,000 hosts, and then another one with `--hosts` hosts. It
//! sends requests of each kind to a real server over one connection, and shows their latency and
//! cost next to the target. With 100,000 hosts, it takes some minutes and about 2 GB of disk.
//!
//! `fleet` simulates nodes of both protocols. Each calls at its own instants, over a dedicated or a
//! shared connection; on a dedicated one, own nodes show a client certificate, unless
//! `--bearer-credentials` is given. The cost of unchanged polls is compared with a bare echo that has
//! the same messages, connections and instants. With `--faults`, it injects faults and measures their
//! effect on the other nodes.
//!
//! `fairness` compares polls with changes without and with 30 clients of six users that request the
//! most expensive list, requests that the client drops, silent connections and a list that is read
//! slowly.
//!
//! `os` syncs many profiles from a registry of its own, cold and without changes. It reads
//! documents, downloads an image through the server and with `cat`, and notifies fleets of a newer
//! image.

mod agent;
mod bench_harness;
mod children;
mod echo;
mod fairness;
mod fleet;
mod histogram;
mod load;
mod measure;
mod message;
mod os;
mod poll;
mod real_node;
mod report;
mod rest;
mod seed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// Measures Evenkeel on this machine. All traffic stays on the loopback address.
#[derive(Debug, Parser)]
#[command(name = "evenkeel-bench", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Benchmark(Benchmark),
    #[command(flatten)]
    Helper(HelperProcess),
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Unchanged polls, compared with a bare gRPC echo with the same messages.
    Poll(poll::PollArgs),
    /// The agent: its size, its memory while idle and during an update, and its wake-ups. Needs
    /// root.
    Agent(agent::AgentArgs),
    /// The largest report of a node: the time of settling its results, its latency, and its cost
    /// for the server and Postgres.
    Message(message::MessageArgs),
    /// Requests to the REST API with a large fleet: their latency, and their cost for the server
    /// and Postgres. One client with one connection; also with 1,000 hosts for comparison. Fails if
    /// a request fails or misses its target.
    Rest(rest::RestArgs),
    /// A fleet of nodes of both protocols that call at their own instants over TLS: its cost, the
    /// time until a change reaches it, and the effects of a storm of reports, a restart and
    /// injected faults. Fails if a call fails outside of a restart, a change does not reach a node,
    /// an attempt is lost, or a fault did not happen.
    Fleet(fleet::FleetArgs),
    /// Polls with changes, alternately without and with clients that overload the server: the ratio of the latencies.
    /// Fails if a poll fails or the ratio is too high.
    Fairness(fairness::FairnessArgs),
    /// Operating systems: the sync of many profiles, reading their documents, the time until a
    /// fleet is notified of a newer image, and downloads of files. Fails if a sync does not
    /// succeed, or a node or a file is not as expected.
    Os(os::OsArgs),
}

/// Helper processes of the benchmarks.
#[derive(Debug, Subcommand)]
enum HelperProcess {
    /// Simulates nodes of a fleet. Reads its commands from standard input.
    #[command(hide = true)]
    Drive,
    /// Runs the server that is measured.
    #[command(hide = true, trailing_var_arg = true)]
    Serve {
        /// Arguments of `evenkeeld`.
        #[arg(allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Runs the echo that is measured.
    #[command(hide = true)]
    Echo(echo::EchoArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    // Fails only if a provider is already installed, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = Cli::parse().command;
    let mut runtime = match command {
        // A driver shares the machine with the measured processes and needs only one thread.
        Command::Helper(HelperProcess::Drive) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(async {
        match command {
            Command::Benchmark(benchmark) => run_until_signal(Box::pin(benchmark.run())).await,
            Command::Helper(measured) => Box::pin(measured.run()).await,
        }
    })
}

impl Benchmark {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Poll(args) => poll::run(&args).await,
            Self::Agent(args) => agent::run(&args).await,
            Self::Message(args) => message::run(&args).await,
            Self::Rest(args) => rest::run(&args).await,
            Self::Fleet(args) => Box::pin(fleet::run(&args)).await,
            Self::Fairness(args) => fairness::run(&args).await,
            Self::Os(args) => os::run(&args).await,
        }
    }
}

impl HelperProcess {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Drive => fleet::node_driver::run().await,
            Self::Echo(args) => echo::run(&args).await,
            Self::Serve { arguments } => {
                let line = std::iter::once("evenkeeld".to_owned()).chain(arguments);
                let cli = evenkeel_server::Cli::try_parse_from(line)?;
                Ok(Box::pin(evenkeel_server::run(cli)).await)
            }
        }
    }
}

/// Runs a benchmark until it ends or a signal arrives. Dropping it ends its helper processes.
async fn run_until_signal(
    benchmark: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let signal = tokio::select! {
        code = benchmark => return code,
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    // The exit code of a program that a signal ended, as shells report it.
    let code = u8::try_from(128 + signal.as_raw_value())?;
    Ok(ExitCode::from(code))
}
