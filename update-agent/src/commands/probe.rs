//! `evenkeel-agent probe`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use super::run_until_signal;
use crate::cli::{ProbeArgs, ProbeCommand};
use crate::hooks::to_one_line;
use crate::probes::{ProbeScript, run_probe};
use crate::runner::HostRunner;

/// Runs a probe and prints its answer. Warnings go to another stream.
pub fn run_probe_command(
    arguments: &ProbeArgs,
    out: &mut impl Write,
    warnings: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let runner = HostRunner::new(Path::new("/"));
    let runner = runner.with_descendant_cleanup().context("become the parent of orphans")?;
    run_until_signal(run_and_print(&runner, arguments, out, warnings))
}

async fn run_and_print(
    runner: &HostRunner,
    arguments: &ProbeArgs,
    out: &mut impl Write,
    warnings: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let ProbeCommand::Run(arguments) = &arguments.command;
    let script = ProbeScript::open(&arguments.script)?;
    let report = run_probe(&script, &arguments.allow, arguments.timeout, runner).await?;
    serde_json::to_writer(&mut *out, &report.answer)?;
    writeln!(out)?;
    // Without control characters, which a terminal would obey.
    let error_lines = report.error_output.lines().map(to_one_line).filter(|line| !line.is_empty());
    let error_lines = error_lines.map(|line| format!("the probe wrote to standard error: {line}"));
    for warning in report.warnings.into_iter().chain(error_lines) {
        // There is no way to report that the error stream is closed.
        writeln!(warnings, "evenkeel-agent: warning: {warning}").ok();
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{AgentCommand, Cli};
    use crate::commands::build_runtime;

    /// The output and the warnings.
    fn run_script(text: &str) -> anyhow::Result<(String, String)> {
        let mut warnings = Vec::new();
        let out = run_script_with(text, &mut warnings)?;
        Ok((out, String::from_utf8(warnings)?))
    }

    fn run_script_with(text: &str, warnings: &mut impl Write) -> anyhow::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, text).unwrap();
        let words = ["evenkeel-agent", "probe", "run", script.to_str().unwrap(), "--allow", "web"];
        let AgentCommand::Probe(arguments) = Cli::parse_from(words).command else {
            panic!("another command");
        };
        let mut out = Vec::new();
        // Without the cleanup, which would kill the programs of other tests, and without signals,
        // which other tests send to this process.
        let runner = HostRunner::new(Path::new("/"));
        build_runtime()?.block_on(run_and_print(&runner, &arguments, &mut out, warnings))?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn the_answer_is_one_line_of_json() {
        let none = ("{\"groups\":[],\"text\":\"\"}\n".to_owned(), String::new());
        assert_eq!(run_script("").unwrap(), none);
        let (out, warnings) =
            run_script("echo group:web; echo '\"1\"'; echo group:db; echo careful >&2").unwrap();
        assert_eq!(out, "{\"groups\":[\"web\"],\"text\":\"\\\"1\\\"\\n\"}\n");
        let expected = "evenkeel-agent: warning: the group \"db\" is not allowed\n\
                        evenkeel-agent: warning: the probe wrote to standard error: careful\n";
        assert_eq!(warnings, expected);
    }

    #[test]
    fn standard_error_is_printed_without_control_characters() {
        let (_, warnings) = run_script("printf '\\033]0;a\\007b\\n\\nc\\r\\n' >&2").unwrap();
        let expected = "evenkeel-agent: warning: the probe wrote to standard error: ]0;a b\n\
                        evenkeel-agent: warning: the probe wrote to standard error: c\n";
        assert_eq!(warnings, expected);
    }

    #[test]
    fn an_answer_is_printed_also_if_the_warnings_cannot_be() {
        let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let out = run_script_with("echo group:web; echo careful >&2", &mut full).unwrap();
        assert_eq!(out, "{\"groups\":[\"web\"],\"text\":\"\"}\n");
    }

    #[test]
    fn a_probe_that_fails_prints_no_answer() {
        let error = run_script("echo group:web; exit 1").unwrap_err();
        assert!(error.to_string().ends_with("ended with status 1"), "{error}");
    }
}
