//! `evenkeel-agent doctor`: checks everything that an update needs and suggests fixes. It changes
//! nothing and may run while the agent runs.

mod machine;
mod other_updaters;
mod platform;
mod server;
mod setup;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use rustix::process::geteuid;
use serde::Serialize;

use super::{build_runtime, load_config};
use crate::cli::{self, OutputFormat};
use crate::config::check_password_file;
use crate::module_registry::ModuleRegistry;
use crate::modules::MODULES;
use crate::text;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckOutcome {
    /// Everything is in order.
    Passed,
    /// Something that Evenkeel does not update; nothing is wrong.
    Note,
    /// Updates work, but an operator should know of this.
    Warning,
    /// Updates do not work, or not correctly.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorFinding {
    /// Name of the check.
    pub check: &'static str,
    /// Result of the check.
    pub outcome: CheckOutcome,
    /// What was found, for people.
    pub result: String,
    /// Suggested fix; empty if none is needed.
    pub advice: String,
}

impl DoctorFinding {
    pub(crate) fn passed(check: &'static str, result: impl Into<String>) -> Self {
        Self { check, outcome: CheckOutcome::Passed, result: result.into(), advice: String::new() }
    }

    pub(crate) fn warning(
        check: &'static str,
        result: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { check, outcome: CheckOutcome::Warning, result: result.into(), advice: advice.into() }
    }

    pub(crate) fn failed(
        check: &'static str,
        result: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { check, outcome: CheckOutcome::Failed, result: result.into(), advice: advice.into() }
    }
}

/// Runs all checks. The exit status is 1 if one of them failed.
pub fn run_doctor(arguments: &cli::DoctorArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    check_node_as(geteuid().is_root(), arguments, out)
}

fn check_node_as(
    is_root: bool,
    arguments: &cli::DoctorArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let findings = if is_root {
        find_problems(arguments)?
    } else {
        // The other checks would fail for this reason, and advise something else.
        vec![DoctorFinding::failed("user", "only root can check this node", "run as root")]
    };
    match arguments.output {
        OutputFormat::Json => text::print_json(&findings, out)?,
        OutputFormat::Text => print_findings(&findings, out)?,
    }
    let has_failures = findings.iter().any(|one| one.outcome == CheckOutcome::Failed);
    Ok(if has_failures { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn find_problems(arguments: &cli::DoctorArgs) -> anyhow::Result<Vec<DoctorFinding>> {
    Ok(match load_config(&arguments.paths) {
        Ok((config, paths)) => {
            let registry = ModuleRegistry::new(&config, &paths);
            let mut findings = build_runtime()?.block_on(run_checks(&registry));
            findings.push(check_password(arguments.paths.config.as_deref()));
            findings
        }
        Err(error) => vec![DoctorFinding::failed(
            "configuration",
            format!("{error:#}"),
            configuration_advice(arguments.paths.config.as_deref()),
        )],
    })
}

fn configuration_advice(file: Option<&Path>) -> &'static str {
    match file {
        Some(file) if !file.exists() => "name an existing file with --config, or omit the option",
        _ => "fix the named setting in the configuration file or the EVENKEEL_AGENT_… variable",
    }
}

/// Checks that no other user can read a password in the configuration file.
fn check_password(file: Option<&Path>) -> DoctorFinding {
    match check_password_file(file) {
        Ok(()) => {
            DoctorFinding::passed("password", "other users can read no password of the agent")
        }
        Err(problem) => DoctorFinding::failed("password", problem, ""),
    }
}

/// Runs all checks and returns the findings in the order in which problems are best fixed.
pub async fn run_checks(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let mut findings = setup::check_setup(registry);
    findings.extend(server::check_server(registry).await);
    for kind in MODULES {
        findings.extend((kind.diagnose)(registry).await);
    }
    findings.extend(machine::check_machine(registry).await);
    findings.extend(other_updaters::check_other_updaters(registry).await);
    findings.extend(platform::check_platform(registry));
    findings
}

/// Indentation of the further lines of a finding.
const INDENT: &str = "                     ";

fn print_findings(findings: &[DoctorFinding], out: &mut impl Write) -> io::Result<()> {
    for finding in findings {
        let mark = match finding.outcome {
            CheckOutcome::Passed => "ok",
            CheckOutcome::Note => "note",
            CheckOutcome::Warning => "warn",
            CheckOutcome::Failed => "FAIL",
        };
        let mut lines = finding.result.lines();
        let first = lines.next().unwrap_or_default();
        writeln!(out, "{mark:<6}{:<15}{first}", finding.check)?;
        for line in lines.chain(finding.advice.lines()) {
            writeln!(out, "{INDENT}{line}")?;
        }
    }
    let count =
        |outcome: CheckOutcome| findings.iter().filter(|one| one.outcome == outcome).count();
    let bad = text::pluralize(count(CheckOutcome::Failed), "check", "checks");
    writeln!(out, "{bad} failed, warnings: {}", count(CheckOutcome::Warning))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cli::PathArgs;

    #[test]
    fn findings_are_printed_with_advice() {
        let findings = [
            DoctorFinding::passed("disk", "enough space is free"),
            DoctorFinding::failed("dpkg", "broken\npackages", "fix them"),
        ];
        let mut out = Vec::new();
        print_findings(&findings, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "ok    disk           enough space is free\n\
             FAIL  dpkg           broken\n                     \
             packages\n                     \
             fix them\n\
             1 check failed, warnings: 0\n"
        );
    }

    #[test]
    fn a_password_that_other_users_can_read_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("agent.toml");
        std::fs::write(&config, "proxy = \"http://keel:secret@proxy:3128\"").unwrap();
        let set_mode = |mode| {
            std::fs::set_permissions(&config, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o644);
        let finding = check_password(Some(&config));
        assert_eq!(finding.outcome, CheckOutcome::Failed);
        assert!(finding.result.contains("chmod 600"), "{finding:?}");
        set_mode(0o600);
        assert_eq!(check_password(Some(&config)).outcome, CheckOutcome::Passed);
    }

    #[test]
    fn a_missing_configuration_file_has_its_own_advice() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("agent.toml");
        assert!(configuration_advice(Some(&config)).contains("existing file"));
        std::fs::write(&config, "rot = 1").unwrap();
        assert!(configuration_advice(Some(&config)).contains("named setting"));
    }

    #[test]
    fn another_user_than_root_gets_one_finding_with_the_reason() {
        let arguments = cli::DoctorArgs { paths: PathArgs::default(), output: OutputFormat::Text };
        let mut out = Vec::new();
        check_node_as(false, &arguments, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("FAIL  user           only root can check this node\n"), "{text}");
        assert!(text.contains("run as root") && text.contains("1 check failed"), "{text}");
    }

    #[test]
    fn an_invalid_configuration_is_a_finding() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("agent.toml");
        std::fs::write(&config, "rot = 1").unwrap();
        let arguments = cli::DoctorArgs {
            paths: PathArgs { config: Some(config), ..PathArgs::default() },
            output: OutputFormat::Json,
        };
        let mut out = Vec::new();
        let code = check_node_as(true, &arguments, &mut out).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(json[0]["outcome"], "failed");
        assert!(json[0]["result"].as_str().unwrap().contains("rot"), "{json}");
    }
}
