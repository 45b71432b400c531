//! Benchmarks and simulated fleets. Each prints its figures as a table, or as one JSON object with `--json`.
//!
//! ```sh
//! cargo run --release -p evenkeel-bench -- poll
//! cargo run --release -p evenkeel-bench -- agent
//! cargo run --release -p evenkeel-bench -- rest
//! cargo run --release -p evenkeel-bench -- rest --hosts 10000 --requests 200 --for 2s --json
//! ```
//!
//! `rest` fills a private Postgres with 1,000 hosts and then another one with as many as `--hosts` says, asks a real server
//! over one kept connection for one thing after the other, and shows what each request takes and costs beside its target.
//! It takes some minutes and about 2 GB of disk at 100,000 hosts.

mod agent;
mod children;
mod echo;
mod fleet;
mod load;
mod measure;
mod node;
mod poll;
mod report;
mod rest;
mod station;

use clap::{Parser, Subcommand};

/// Measures Evenkeel on this machine. All traffic stays on the loopback address.
#[derive(Debug, Parser)]
#[command(name = "evenkeel-bench", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Polls of nodes that have nothing new to say, and beside them a bare gRPC echo with the same messages.
    Poll(poll::Args),
    /// What the agent weighs: its size, its memory at rest and during an update, and how often it wakes. Needs root.
    Agent(agent::Args),
    /// Requests to the REST API with a large fleet: what each takes, and what it costs the server and Postgres. One client,
    /// one connection; the same with 1,000 hosts beside it. Fails if a request fails or takes longer than its target.
    Rest(rest::Args),
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

fn main() -> anyhow::Result<std::process::ExitCode> {
    // A second provider that somebody installed first would do as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match Cli::parse().command {
            Command::Poll(args) => poll::run(&args).await,
            Command::Agent(args) => agent::run(&args).await,
            Command::Rest(args) => rest::run(&args).await,
            Command::Echo(args) => echo::run(&args).await,
            Command::Serve { arguments } => {
                let line = std::iter::once("evenkeeld".to_owned()).chain(arguments);
                Ok(evenkeel_server::run(evenkeel_server::Cli::try_parse_from(line)?).await)
            }
        }
    })
}
