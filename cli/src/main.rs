//! `evenkeel`: the operator's command line.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Environment, Failure, World, harmless};
use evenkeel_kit::{Secret, SystemClock, chain};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(error) => Err(Failure::Output(error)),
    };
    result.unwrap_or_else(|failure| explain(&failure))
}

async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let mut out = io::stdout().lock();
    let ending = cli
        .run(&mut World {
            out: &mut out,
            notes: &mut io::stderr(),
            input: &mut io::stdin(),
            hide,
            clock: &SystemClock,
            environment: environment(),
        })
        .await?;
    out.flush()?;
    Ok(ending.into())
}

/// Reads the environment, once.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the environment is read"
)]
fn environment() -> Environment {
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || given("HOME").map_or_else(PathBuf::new, PathBuf::from);
    let folder = given("XDG_CONFIG_HOME").map_or_else(|| home().join(".config"), PathBuf::from);
    let terminal = io::stdout().is_terminal();
    Environment {
        contexts: given("EVENKEEL_CONFIG")
            .map_or_else(|| folder.join("evenkeel/contexts.yaml"), PathBuf::from),
        token: given("EVENKEEL_TOKEN")
            .and_then(|token| token.into_string().ok())
            .map(Secret::new),
        terminal,
        colour: terminal && given("NO_COLOR").is_none(),
        interactive: io::stdin().is_terminal() && io::stderr().is_terminal(),
    }
}

/// Keeps what is typed from being seen, or shows it again. Meanwhile Ctrl-C is a letter like others: nothing must end this
/// process before the letters are shown again.
fn hide(is_hidden: bool) {
    let input = io::stdin();
    let Ok(mut modes) = tcgetattr(&input) else {
        return;
    };
    let shown = LocalModes::ECHO | LocalModes::ISIG;
    modes.local_modes.set(shown, !is_hidden);
    // A terminal that does not obey shows what is typed; there is nothing else to be done.
    let _ = tcsetattr(&input, OptionalActions::Flush, &modes);
}

/// Says what went wrong and what to do about it.
fn explain(failure: &Failure) -> ExitCode {
    if failure.is_broken_pipe() {
        return ExitCode::SUCCESS;
    }
    let mut notes = io::stderr();
    // If even this cannot be written, there is nobody to tell.
    let said = harmless(&chain(failure).to_string());
    let _ = writeln!(notes, "error: {said}");
    if let Some(hint) = failure.hint() {
        let _ = writeln!(notes, "hint: {}", harmless(&hint));
    }
    ExitCode::FAILURE
}
