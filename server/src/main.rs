//! `evenkeeld`: the server executable.

use std::process::ExitCode;

use clap::Parser;
use evenkeel_server::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    Box::pin(evenkeel_server::run(Cli::parse())).await
}
