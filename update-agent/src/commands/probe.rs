//! `evenkeel-agent probe`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use super::run_until_signal;
use crate::cli::{ProbeArgs, ProbeCommand};
use crate::probes::{ProbeScript, run_probe};
use crate::runner::HostRunner;

/// Runs a probe and prints its answer. Warnings go to another stream.
pub fn run_probe_command(
    arguments: &ProbeArgs,
    out: &mut impl Write,
    warnings: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let ProbeCommand::Run(arguments) = &arguments.command;
    let script = ProbeScript::open(&arguments.script)?;
    let runner = HostRunner::new(Path::new("/"));
    let report = run_until_signal(async {
        Ok(run_probe(&script, &arguments.allow, arguments.timeout, &runner).await?)
    })?;
    let error_lines = report.error_output.lines();
    let error_lines = error_lines.map(|line| format!("the probe wrote to standard error: {line}"));
    for warning in report.warnings.into_iter().chain(error_lines) {
        writeln!(warnings, "evenkeel-agent: warning: {warning}")?;
    }
    serde_json::to_writer(&mut *out, &report.answer)?;
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{AgentCommand, Cli};

    /// The output and the warnings.
    fn run_script(text: &str) -> anyhow::Result<(String, String)> {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, text).unwrap();
        let words = ["evenkeel-agent", "probe", "run", script.to_str().unwrap(), "--allow", "web"];
        let AgentCommand::Probe(arguments) = Cli::parse_from(words).command else {
            panic!("another command");
        };
        let (mut out, mut warnings) = (Vec::new(), Vec::new());
        run_probe_command(&arguments, &mut out, &mut warnings)?;
        Ok((String::from_utf8(out)?, String::from_utf8(warnings)?))
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
    fn a_probe_that_fails_prints_no_answer() {
        let error = run_script("echo group:web; exit 1").unwrap_err();
        assert!(error.to_string().ends_with("ended with status 1"), "{error}");
    }
}
