//! Benchmarks and simulated fleets. Each prints its figures as a table, or as one JSON object with `--json`.
//!
//! ```sh
//! cargo run --release -p evenkeel-bench -- poll
//! cargo run --release -p evenkeel-bench -- agent
//! cargo run --release -p evenkeel-bench -- rest
//! cargo run --release -p evenkeel-bench -- rest --hosts 10000 --requests 200 --for 2s --json
//! cargo run --release -p evenkeel-bench -- fleet --nodes 10000 --interval 20s --for 60s --tls
//! cargo run --release -p evenkeel-bench -- fleet --nodes 20000 --eim 0 --tls --held --change-policy --json
//! cargo run --release -p evenkeel-bench -- fleet --nodes 10000 --tls --faults loss,reorder,half-open,return
//! cargo run --release -p evenkeel-bench -- os
//! cargo run --release -p evenkeel-bench -- os --profiles 20 --nodes 10000 --image-mib 1024 --json
//! ```
//!
//! `rest` fills a private Postgres with 1,000 hosts and then another one with as many as `--hosts` says, asks a real server
//! over one kept connection for one thing after the other, and shows what each request takes and costs beside its target.
//! It takes some minutes and about 2 GB of disk at 100,000 hosts.
//!
//! `fleet` drives simulated nodes of both protocols, each at its own instants, over connections that they keep or share; what
//! the server answers without news it holds against a bare echo with the same messages, connections and instants. With
//! `--faults` it lets things go wrong on purpose, and shows what the others notice of it.
//!
//! `os` syncs many profiles of a registry of its own, cold and with nothing new, reads documents, fetches an image through
//! the server beside `cat`, and lets fleets be told of a newer image.

mod agent;
mod children;
mod echo;
mod fleet;
mod load;
mod measure;
mod node;
mod os;
mod poll;
mod report;
mod rest;
mod seed;
mod station;

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
    Measure(Measure),
    #[command(flatten)]
    Measured(Measured),
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
enum Measure {
    /// Polls of nodes that have nothing new to say, and beside them a bare gRPC echo with the same messages.
    Poll(poll::Args),
    /// What the agent weighs: its size, its memory at rest and during an update, and how often it wakes. Needs root.
    Agent(agent::Args),
    /// Requests to the REST API with a large fleet: what each takes, and what it costs the server and Postgres. One client,
    /// one connection; the same with 1,000 hosts beside it. Fails if a request fails or takes longer than its target.
    Rest(rest::Args),
    /// A fleet of nodes of both protocols that call at their own instants over TLS: what it costs, how fast a change reaches
    /// it, what a storm of reports, a restart and things that go wrong on purpose do to it. Fails if a call fails outside of
    /// a restart, a change does not reach a node, an attempt is lost, or a fault did not happen.
    Fleet(fleet::Args),
    /// Operating systems: a sync of many profiles, reading their documents, how soon a fleet is told of a newer image, and
    /// files as nodes fetch them. Fails if a sync is not good, or a node or a file does not become what it should.
    Os(os::Args),
}

/// What the benchmarks start.
#[derive(Debug, Subcommand)]
enum Measured {
    /// What drives the nodes of a fleet, as a process of its own. It is told what to do on its standard input.
    #[command(hide = true)]
    Drive,
    /// What the benchmarks measure, as a process of its own: the server.
    #[command(hide = true, trailing_var_arg = true)]
    Serve {
        /// The command line of `evenkeeld`.
        #[arg(allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// What the benchmarks measure, as a process of its own: the echo.
    #[command(hide = true)]
    Echo(echo::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    // A second provider that somebody installed first would do as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = Cli::parse().command;
    let mut runtime = match command {
        // It shares the machine with what is measured, and has nothing to do beside.
        Command::Measured(Measured::Drive) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(async {
        match command {
            Command::Measure(benchmark) => until_asked_to_end(Box::pin(benchmark.run())).await,
            Command::Measured(measured) => measured.run().await,
        }
    })
}

impl Measure {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Poll(args) => poll::run(&args).await,
            Self::Agent(args) => agent::run(&args).await,
            Self::Rest(args) => rest::run(&args).await,
            Self::Fleet(args) => fleet::run(&args).await,
            Self::Os(args) => os::run(&args).await,
        }
    }
}

impl Measured {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Drive => fleet::drive::run().await,
            Self::Echo(args) => echo::run(&args).await,
            Self::Serve { arguments } => {
                let line = std::iter::once("evenkeeld".to_owned()).chain(arguments);
                Ok(evenkeel_server::run(evenkeel_server::Cli::try_parse_from(line)?).await)
            }
        }
    }
}

/// What a benchmark started ends with it, also when it is asked to end before it is done.
async fn until_asked_to_end(
    benchmark: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let signal = tokio::select! {
        code = benchmark => return code,
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    // What a shell says of a program that a signal ended.
    let code = u8::try_from(128 + signal.as_raw_value())?;
    Ok(ExitCode::from(code))
}
