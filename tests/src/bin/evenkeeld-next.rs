//! `evenkeeld` of the next release, for the test of a rolling upgrade.

use std::process::ExitCode;

use clap::Parser as _;
use evenkeel_server::Cli;
use evenkeel_store::testing::become_next_release;
use evenkeel_tests::next_release::NEXT_RELEASE;

#[tokio::main]
async fn main() -> ExitCode {
    become_next_release(NEXT_RELEASE);
    Box::pin(evenkeel_server::run(Cli::parse())).await
}
