//! The commands of the command line.

mod completion;
mod configuration;
pub mod doctor;
mod enroll;
mod history;
mod probe;
mod restore_updaters;
mod run;
#[cfg(test)]
mod signal_tests;
mod status;

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use evenkeel_kit::Lifecycle;
use rustix::io::Errno;
use rustix::process::geteuid;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{AgentCommand, Cli, PathArgs};
use crate::config::Config;
use crate::configuration::{DocumentError, EXIT_UNREADABLE, SecretFileError};
use crate::modules::MODULES;
use crate::paths::AgentPaths;
use crate::probes::ProbeError;

/// Runs the command and prints its error.
pub fn run_cli(cli: Cli) -> ExitCode {
    let mut out = CommandOutput { stream: io::stdout(), is_closed: false };
    match dispatch(cli.command, &mut out) {
        Ok(code) => code,
        // The reader of the output, such as `head`, needs no more lines.
        Err(_) if out.is_closed => ExitCode::FAILURE,
        Err(error) => {
            let text = describe_error(geteuid().is_root(), &error);
            // There is no way to report that the error stream is closed.
            writeln!(io::stderr(), "evenkeel-agent: {text}").ok();
            exit_status(&error)
        }
    }
}

/// The exit status of a command that fails.
fn exit_status(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<DocumentError>() {
        Some(document) => document.exit_status().into(),
        None if error.is::<SecretFileError>() => EXIT_UNREADABLE.into(),
        None => ExitCode::FAILURE,
    }
}

/// The error with its causes, and the advice to run the command as root if another user lacks a
/// permission. Some errors, such as those of the configuration file, contain their cause only as
/// text.
fn describe_error(is_root: bool, error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let lacks_permission =
        [Errno::ACCESS, Errno::PERM].iter().any(|errno| text.contains(&os_error_suffix(*errno)));
    // The text then contains output of a script, which may be about anything.
    let is_of_script = error.downcast_ref::<ProbeError>().is_some_and(ProbeError::has_output);
    if is_root || !lacks_permission || is_of_script {
        return text;
    }
    format!("{text}; run this command as root")
}

/// The end of the text of an [`io::Error`].
fn os_error_suffix(errno: Errno) -> String {
    format!("(os error {})", errno.raw_os_error())
}

/// Output of a command. It records whether its reader has closed the pipe.
struct CommandOutput<W> {
    stream: W,
    is_closed: bool,
}

impl<W> CommandOutput<W> {
    fn record<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        let is_broken_pipe = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        self.is_closed |= result.as_ref().is_err_and(is_broken_pipe);
        result
    }
}

impl<W: Write> Write for CommandOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.stream.write(bytes);
        self.record(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.stream.flush();
        self.record(flushed)
    }
}

fn dispatch(command: AgentCommand, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    match command {
        AgentCommand::Enroll(arguments) => enroll::enroll(&arguments),
        AgentCommand::Run(arguments) => run::run_agent(&arguments),
        AgentCommand::Status(arguments) => status::print_status(&arguments, out),
        AgentCommand::History(arguments) => history::print_history(&arguments, out),
        AgentCommand::Doctor(arguments) => doctor::run_doctor(&arguments, out),
        AgentCommand::Configuration(arguments) => configuration::run_configuration(&arguments, out),
        AgentCommand::RestoreUpdaters(arguments) => {
            restore_updaters::restore_updaters(&arguments, out)
        }
        AgentCommand::Probe(arguments) => {
            probe::run_probe_command(&arguments, out, &mut io::stderr())
        }
        AgentCommand::Completion(arguments) => completion::print_completion(&arguments, out),
        #[cfg(feature = "halt-points")]
        AgentCommand::Steps => run::print_steps(out),
        own_command => {
            let mut kinds = MODULES.iter();
            let end = kinds.find_map(|kind| (kind.run_command)(&own_command, &mut *out));
            end.context("no module has this command")?
        }
    }
}

/// Loads the configuration and the paths. Options on the command line take precedence.
pub(crate) fn load_config(args: &PathArgs) -> anyhow::Result<(Config, AgentPaths)> {
    let config = Config::load(args.config.as_deref()).context("cannot read the configuration")?;
    let root = args.root.as_ref().unwrap_or(&config.root);
    let root = std::fs::canonicalize(root)
        .with_context(|| format!("cannot find the root {}", root.display()))?;
    let state = args.state_dir.as_ref().or(config.state_dir.as_ref());
    let state =
        state.map(std::path::absolute).transpose().context("cannot find the state directory")?;
    let paths = AgentPaths::new(root, state);
    Ok((config, paths))
}

pub(crate) fn build_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")
}

/// Runs work that changes nothing. A signal aborts the work, and with it the programs that it waits
/// for: if the signal killed the process instead, they would continue without a time limit.
pub(crate) fn run_until_signal<T>(
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let runtime = build_runtime()?;
    let done = runtime.block_on(async {
        let life = Lifecycle::new();
        let stop = life.stopping();
        life.stop_on_signals().context("listen to signals")?;
        let terminal_signal = wait_for_terminal_signal().context("listen to signals")?;
        tokio::select! {
            done = work => done,
            () = stop.cancelled() => Err(anyhow!("stopped on request")),
            () = terminal_signal => Err(anyhow!("stopped on request")),
        }
    });
    // A disk that hangs must not keep the process from ending.
    runtime.shutdown_background();
    done
}

/// Waits for a signal of the terminal that is not ignored: its end, or its key to quit. The signals
/// are not lost from now on.
fn wait_for_terminal_signal() -> io::Result<impl Future<Output = ()>> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut hangup = signal(SignalKind::hangup())?;
    let mut quit = signal(SignalKind::quit())?;
    // nohup(1) ignores the signal.
    let ignores_hangup = is_ignored(&status, SignalKind::hangup());
    Ok(async move {
        tokio::select! {
            _ = hangup.recv(), if !ignores_hangup => {}
            _ = quit.recv() => {}
        }
    })
}

/// Whether a process ignores a signal, by its `/proc/PID/status`.
fn is_ignored(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::FileError;
    use crate::node::NodeError;

    #[test]
    fn a_command_without_a_permission_must_run_as_root() {
        let denied = |errno: Errno| {
            let source = io::Error::from_raw_os_error(errno.raw_os_error());
            let error = FileError::while_doing("read", "/var/lib/evenkeel-agent/node.json")(source);
            anyhow::Error::from(NodeError::from(error))
        };
        let text = describe_error(false, &denied(Errno::ACCESS));
        let expected = "cannot read /var/lib/evenkeel-agent/node.json: \
                        Permission denied (os error 13); run this command as root";
        assert_eq!(text, expected);
        let text = describe_error(false, &denied(Errno::PERM));
        assert!(text.ends_with("(os error 1); run this command as root"), "{text}");
        for (is_root, errno) in [(true, Errno::ACCESS), (false, Errno::NOSPC), (false, Errno::IO)] {
            let text = describe_error(is_root, &denied(errno));
            assert!(!text.contains("as root"), "{text}");
        }
        // The error of the configuration file has no source.
        let text = "/etc/evenkeel/agent.toml: Permission denied (os error 13)";
        let config = anyhow::anyhow!(text).context("read the configuration");
        assert!(describe_error(false, &config).ends_with("13); run this command as root"));
        let status = "ended with status 1: open x: Permission denied (os error 13)".to_owned();
        let probe = ProbeError::Failed { probe: "/probe".to_owned(), status };
        assert!(describe_error(false, &probe.into()).ends_with("(os error 13)"));
    }

    #[test]
    fn signals_that_nohup_ignores_are_read_from_the_status() {
        let hangup = SignalKind::hangup();
        assert!(is_ignored("Name:\ta\nSigIgn:\t0000000000000001\n", hangup));
        assert!(!is_ignored("Name:\ta\nSigIgn:\t0000000000001004\n", hangup));
        assert!(is_ignored("SigIgn:\t0000000000001004\n", SignalKind::quit()));
        assert!(!is_ignored("", hangup));
    }

    struct FailingStream(io::ErrorKind);

    impl Write for FailingStream {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_a_closed_pipe_ends_the_output_silently() {
        for (kind, is_closed) in
            [(io::ErrorKind::BrokenPipe, true), (io::ErrorKind::StorageFull, false)]
        {
            let mut out = CommandOutput { stream: FailingStream(kind), is_closed: false };
            writeln!(out, "a line").unwrap_err();
            assert_eq!(out.is_closed, is_closed, "{kind:?}");
        }
    }
}
