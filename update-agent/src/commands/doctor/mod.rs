//! `evenkeel-agent doctor`: looks at everything that an update needs, and says what to do about what is not right. It
//! changes nothing, and it may be asked beside the agent that runs.

mod boot;
mod machine;
mod packages;
mod server;
mod setup;

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use super::workshop::Workshop;
use super::{runtime, settle, text};
use crate::cli::{self, Output};

/// How something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should be.
    Good,
    /// A person should know of it; updates work nevertheless.
    Doubtful,
    /// Updates do not work, or not as they should.
    Bad,
}

/// What a look at one thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How it is.
    pub outcome: Outcome,
    /// What was found, in words.
    pub found: String,
    /// What to do about it; empty if nothing.
    pub advice: String,
}

impl Finding {
    fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            outcome: Outcome::Good,
            found: found.into(),
            advice: String::new(),
        }
    }

    fn doubtful(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            check,
            outcome: Outcome::Doubtful,
            found: found.into(),
            advice: advice.into(),
        }
    }

    fn bad(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            check,
            outcome: Outcome::Bad,
            found: found.into(),
            advice: advice.into(),
        }
    }
}

/// Looks at everything. Ends with a failure if something is bad.
pub fn doctor(arguments: &cli::Doctor, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let findings = match settle(&arguments.place) {
        Ok((config, place)) => {
            let workshop = Workshop::new(&config, &place);
            runtime()?.block_on(examine(&workshop))
        }
        Err(error) => vec![Finding::bad(
            "configuration",
            format!("{error:#}"),
            "mend the configuration file or the EVENKEEL_AGENT_… variable that is named",
        )],
    };
    match arguments.output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &findings)?;
            writeln!(out)?;
        }
        Output::Text => print(&findings, out)?,
    }
    let is_ill = findings.iter().any(|one| one.outcome == Outcome::Bad);
    Ok(if is_ill {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Everything that was found, in the order in which it is best mended.
pub async fn examine(workshop: &Workshop<'_>) -> Vec<Finding> {
    let mut findings = setup::look(workshop);
    findings.extend(server::look(workshop).await);
    findings.extend(packages::look(workshop).await);
    findings.extend(boot::look(workshop).await);
    findings.extend(machine::look(workshop).await);
    findings
}

/// What stands before further lines of a finding.
const INDENT: &str = "                     ";

fn print(findings: &[Finding], out: &mut impl Write) -> io::Result<()> {
    for finding in findings {
        let mark = match finding.outcome {
            Outcome::Good => "ok",
            Outcome::Doubtful => "note",
            Outcome::Bad => "BAD",
        };
        let mut lines = finding.found.lines();
        let first = lines.next().unwrap_or_default();
        writeln!(out, "{mark:<6}{:<15}{first}", finding.check)?;
        for line in lines.chain(finding.advice.lines()) {
            writeln!(out, "{INDENT}{line}")?;
        }
    }
    let count = |outcome: Outcome| findings.iter().filter(|one| one.outcome == outcome).count();
    let bad = text::count(count(Outcome::Bad), "thing is", "things are");
    writeln!(out, "{bad} bad, {} to note", count(Outcome::Doubtful))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Where;

    #[test]
    fn findings_are_told_with_what_to_do_about_them() {
        let findings = [
            Finding::good("disk", "enough is free"),
            Finding::bad("dpkg", "a mess\nof packages", "mend it"),
        ];
        let mut out = Vec::new();
        print(&findings, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "ok    disk           enough is free\n\
             BAD   dpkg           a mess\n                     \
             of packages\n                     \
             mend it\n\
             1 thing is bad, 0 to note\n"
        );
    }

    #[test]
    fn a_configuration_that_is_not_understood_is_a_finding() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("agent.toml");
        std::fs::write(&config, "rot = 1").unwrap();
        let arguments = cli::Doctor {
            place: Where {
                config: Some(config),
                ..Where::default()
            },
            output: Output::Json,
        };
        let mut out = Vec::new();
        let code = doctor(&arguments, &mut out).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(json[0]["outcome"], "bad");
        assert!(json[0]["found"].as_str().unwrap().contains("rot"), "{json}");
    }
}
