//! `evenkeel`: the command line of the operator.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Environment, Failure, System, sanitize_text};
use evenkeel_kit::{Secret, SystemClock, chain};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(error) => Err(Failure::Output(error)),
    };
    result.unwrap_or_else(|failure| print_failure(&failure))
}

async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let mut out = io::stdout().lock();
    let ending = cli
        .run(&mut System {
            out: &mut out,
            notes: &mut io::stderr(),
            input: &mut io::stdin(),
            hide_input,
            open_browser: &open_browser,
            clock: &SystemClock,
            environment: environment(),
        })
        .await?;
    out.flush()?;
    Ok(ending.into())
}

/// Reads the environment.
#[expect(clippy::disallowed_methods, reason = "the environment is read only here")]
fn environment() -> Environment {
    let env_var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || env_var("HOME").map_or_else(PathBuf::new, PathBuf::from);
    let folder = env_var("XDG_CONFIG_HOME").map_or_else(|| home().join(".config"), PathBuf::from);
    let terminal = io::stdout().is_terminal();
    Environment {
        contexts: env_var("EVENKEEL_CONFIG")
            .map_or_else(|| folder.join("evenkeel/contexts.yaml"), PathBuf::from),
        token: env_var("EVENKEEL_TOKEN")
            .and_then(|token| token.into_string().ok())
            .map(Secret::new),
        width: terminal_width().filter(|_| terminal),
        colour: terminal && env_var("NO_COLOR").is_none(),
        interactive: io::stdin().is_terminal() && io::stderr().is_terminal(),
        has_display: env_var("WAYLAND_DISPLAY").or_else(|| env_var("DISPLAY")).is_some(),
    }
}

/// Width of the terminal. Some terminals report 0 because they do not know it.
fn terminal_width() -> Option<u16> {
    tcgetwinsize(io::stdout()).ok().map(|size| size.ws_col).filter(|width| *width > 0)
}

/// Hides or shows typed characters. While they are hidden, Ctrl-C does not raise a signal, because
/// the process must not end before the terminal is restored.
fn hide_input(is_hidden: bool) {
    let input = io::stdin();
    let Ok(mut modes) = tcgetattr(&input) else {
        return;
    };
    let flags = LocalModes::ECHO | LocalModes::ISIG;
    modes.local_modes.set(flags, !is_hidden);
    // If the terminal mode cannot be changed, the typed characters stay visible.
    let _ = tcsetattr(&input, OptionalActions::Flush, &modes);
}

/// Opens a web page in the browser of the user. Returns whether the program for this was started.
#[expect(clippy::disallowed_methods, reason = "the desktop chooses the browser")]
fn open_browser(address: &str) -> bool {
    // Its messages would mix with those of the command.
    let opened = Command::new("xdg-open")
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    opened.is_ok()
}

/// Prints an error and its hint.
fn print_failure(failure: &Failure) -> ExitCode {
    if failure.is_broken_pipe() {
        return ExitCode::SUCCESS;
    }
    let mut notes = io::stderr();
    // Errors of this output are ignored: there is no other way to report them.
    let message = sanitize_text(&chain(failure).to_string());
    let _ = writeln!(notes, "error: {message}");
    if let Some(hint) = failure.hint() {
        let _ = writeln!(notes, "hint: {}", sanitize_text(&hint));
    }
    failure.exit_status()
}
