//! Benchmarks and simulated fleets. Each prints its figures as a table, or as one JSON object with `--json`.
//!
//! ```sh
//! cargo run --release -p evenkeel-bench -- poll
//! cargo run --release -p evenkeel-bench -- agent
//! ```

mod agent;
mod children;
mod echo;
mod fleet;
mod load;
mod measure;
mod node;
mod poll;
mod report;
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
            Command::Echo(args) => echo::run(&args).await,
            Command::Serve { arguments } => {
                let line = std::iter::once("evenkeeld".to_owned()).chain(arguments);
                Ok(evenkeel_server::run(evenkeel_server::Cli::try_parse_from(line)?).await)
            }
        }
    })
}
