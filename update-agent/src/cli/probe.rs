//! Arguments of `evenkeel-agent probe`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::probes::GroupAllowList;

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Command to run.
    #[command(subcommand)]
    pub command: ProbeCommand,
}

/// Commands of `evenkeel-agent probe`.
#[derive(Debug, Subcommand)]
pub enum ProbeCommand {
    /// Run a script as a probe, and print the groups and the text that it reports as JSON.
    ///
    /// The script runs as the user who calls this command, in the folder `/`, without input and without
    /// a terminal. Its environment has only the variables that the agent sets for all programs, and
    /// the user's HOME, USER and LOGNAME. The limits file of the machine's owner does not apply. The
    /// command needs no server. Servers do not run probes yet.
    ///
    /// A line `group:NAME` of the output names a group, all other lines are text. The status is 1 if
    /// the script cannot be started, fails, prints more than 64 KiB, or does not end in time, and 2 if
    /// an argument is invalid.
    #[command(after_help = "Examples:\n  \
        evenkeel-agent probe run ./has-gpu --allow 'gpu-.*'\n  \
        evenkeel-agent probe run ./has-gpu --allow 'gpu|no-gpu' --timeout 5s")]
    Run(ProbeRunArgs),
}

/// Arguments of `probe run`.
#[derive(Debug, Args)]
pub struct ProbeRunArgs {
    /// File of the script. Its `#!` line names its interpreter; without this line, /bin/sh runs it.
    /// The file need not be executable.
    pub script: PathBuf,
    /// Regular expression for the names of the groups that the script may report. It must match a
    /// whole name. Other groups are ignored with a warning.
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true)]
    pub allow: GroupAllowList,
    /// Time after which the script is killed, from 1s to 24h, such as `90s` or `2m`; a number without a
    /// unit is seconds.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_timeout)]
    pub timeout: Duration,
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().map(Duration::from_secs).ok();
    let timeout = parsed.or_else(|| humantime::parse_duration(text).ok());
    let timeout = timeout.ok_or("not a duration such as `90s` or `2m`")?;
    if !(Duration::from_secs(1)..=Duration::from_hours(24)).contains(&timeout) {
        return Err("must be from 1s to 24h".to_owned());
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{AgentCommand, Cli};

    fn parse(options: &[&str]) -> Result<ProbeRunArgs, clap::Error> {
        let words = ["evenkeel-agent", "probe", "run", "script"].iter().chain(options);
        let AgentCommand::Probe(ProbeArgs { command }) = Cli::try_parse_from(words)?.command else {
            panic!("another command");
        };
        let ProbeCommand::Run(arguments) = command;
        Ok(arguments)
    }

    #[test]
    fn the_timeout_is_a_duration_or_seconds() {
        for (options, expected) in [
            (&["--allow", "a"][..], Duration::from_mins(1)),
            (&["--allow", "a", "--timeout", "2"], Duration::from_secs(2)),
            (&["--allow", "a", "--timeout", "1500ms"], Duration::from_millis(1500)),
            (&["--allow", "a", "--timeout", "2m"], Duration::from_mins(2)),
        ] {
            assert_eq!(parse(options).unwrap().timeout, expected, "{options:?}");
        }
    }

    #[test]
    fn the_regular_expression_may_begin_with_a_hyphen() {
        parse(&["--allow", "-a|b"]).unwrap();
    }

    #[test]
    fn an_invalid_argument_is_an_error_with_status_2() {
        for options in [
            &["--allow", "["][..],
            &["--allow", "a)|(?:b"],
            &[],
            &["--allow", "a", "--timeout", "soon"],
            &["--allow", "a", "--timeout", "0"],
            &["--allow", "a", "--timeout", "999ms"],
            &["--allow", "a", "--timeout", "86401"],
            &["--allow", "a", "--timeout", "18446744073709551615"],
            &["--allow", "a", "--timeout", "-1"],
        ] {
            assert_eq!(parse(options).unwrap_err().exit_code(), 2, "{options:?}");
        }
        let text = parse(&["--allow", "["]).unwrap_err().to_string();
        assert!(text.contains("--allow <REGEX>") && text.contains("unclosed"), "{text}");
    }
}
