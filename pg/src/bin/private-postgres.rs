//! `private-postgres DIR`: runs a Postgres in DIR until it is interrupted, and prints the URL to connect to.
//! Without DIR it runs a throwaway Postgres.

use std::io::Write;
use std::process::ExitCode;

use evenkeel_pg::{Error, Options, PrivatePostgres};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                text = format!("{text}: {cause}");
            }
            writeln!(std::io::stderr(), "private-postgres: {text}").ok();
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let postgres = match std::env::args_os().nth(1) {
        Some(dir) => PrivatePostgres::start(Options::new(dir)).await?,
        None => PrivatePostgres::throwaway().await?,
    };
    let listen = |source| Error::System { action: "listen to signals", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(listen)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(listen)?;
    writeln!(std::io::stdout(), "{}", postgres.url()).ok();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = postgres.wait_for_end() => {}
    }
    postgres.stop().await;
    Ok(())
}
