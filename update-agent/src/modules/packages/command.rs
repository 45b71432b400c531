//! `evenkeel-agent plan`: shows what an update would change now. Plans exactly as the agent does,
//! but keeps nothing.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Utc};
use evenkeel_kit::telemetry;
use serde::Serialize;

use super::broken_sources::is_error_line;
use super::report::describe_causes;
use super::{PackageReport, PackagesModule};
use crate::agent::PlanningLock;
use crate::cli::{self, OutputFormat};
use crate::commands::{load_config, run_until_signal};
use crate::journal::FileJournal;
use crate::model::{
    Failure, HeldBackCause, HeldBackPackage, ModuleParts, PackageChange, PackageMode,
    PackageRequirement, PackageSpec, UpdatePlan, UpdateTarget,
};
use crate::module_registry::ModuleRegistry;
use crate::modules::{DownloadRetention, Module as _};
use crate::paths::AgentPaths;
use crate::received_target::{ReceivedTarget, read_target};
use crate::text;

/// A plan for packages. Output of `plan`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PackagePlan {
    /// Totals of the change.
    #[serde(flatten)]
    pub plan: UpdatePlan,
    /// The changes, and the packages that are held back.
    #[serde(flatten)]
    pub report: PackageReport,
    /// Problems that did not stop the plan, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Since when the server requests this update; `None` if the plan does not follow a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_received: Option<DateTime<Utc>>,
}

/// Prints what an update would change now.
pub fn print_plan(arguments: &cli::PlanArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (config, paths) = load_config(&arguments.paths)?;
    telemetry::init(&config.log)?;
    paths.prepare()?;
    let policy =
        if arguments.all || !arguments.packages.is_empty() { None } else { policy_spec(&paths)? };
    let (spec, policy_received) = match policy {
        Some((spec, received)) => (spec, Some(received)),
        None => (parse_packages(&arguments.packages)?, None),
    };
    let registry = ModuleRegistry::new(&config, &paths);
    let plan = run_until_signal(plan_packages(&registry, spec))?;
    let plan = PackagePlan { policy_received, ..plan };
    match arguments.output {
        OutputFormat::Json => text::print_json(&plan, out)?,
        OutputFormat::Text => write_plan(&plan, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The package update that the server requested last, and when it requested it for the first time; `None` if it has
/// requested no update yet. Fails if it requested another kind of update.
pub fn policy_spec(paths: &AgentPaths) -> anyhow::Result<Option<(PackageSpec, DateTime<Utc>)>> {
    let Some(ReceivedTarget { received, target }) = read_target(&paths.target()) else {
        return Ok(None);
    };
    let spec: Option<PackageSpec> = target.spec.read(PackagesModule::NAME);
    let spec = spec.context(
        "the policy of this node updates no packages; `evenkeel-agent plan --all` shows the available updates",
    )?;
    Ok(Some((spec, received)))
}

/// The update spec of the command line: each package as `NAME` or `NAME=VERSION`; all packages if
/// there is none.
pub fn parse_packages(packages: &[String]) -> anyhow::Result<PackageSpec> {
    if packages.is_empty() {
        return Ok(PackageSpec::new(PackageMode::Latest));
    }
    let requirements = packages.iter().map(|package| {
        let (name, version) = match package.split_once('=') {
            None => (package.as_str(), None),
            Some((name, version)) => (name, Some(version.to_owned())),
        };
        let is_one = !name.is_empty() && version.as_ref().is_none_or(|text| !text.is_empty());
        ensure!(is_one, "{package:?} is neither NAME nor NAME=VERSION");
        Ok(PackageRequirement { name: name.to_owned(), version })
    });
    let requirements: anyhow::Result<Vec<_>> = requirements.collect();
    Ok(PackageSpec::new(PackageMode::Exactly(requirements?)))
}

/// Plans a spec and discards the plan. Fails while an update is open or the agent is planning.
pub async fn plan_packages(
    registry: &ModuleRegistry<'_>,
    spec: PackageSpec,
) -> anyhow::Result<PackagePlan> {
    let paths = registry.paths;
    let planning = PlanningLock::acquire(paths)?;
    let _planning = planning
        .context("the agent is planning an update, or applies a document; try again in a minute")?;
    // An open attempt uses the same folders, and its changes would change the result.
    let journal = paths.journal();
    ensure!(
        !journal.exists(),
        "an update is in progress on this node; `evenkeel-agent status` shows it"
    );
    if let Err(failure) = registry.owner.check_spec(&spec) {
        bail!(failure_text(&failure));
    }
    let spec = ModuleParts::of(PackagesModule::NAME, &spec)?;
    let target = UpdateTarget { digest: String::new(), spec };
    let engine = registry.build_engine(Box::new(FileJournal::new(journal)));
    let planned = engine.plan(&target).await;
    engine.clean_up(DownloadRetention::LongRunning).await;
    match planned {
        Ok(draft) => Ok(PackagePlan {
            plan: draft.plan,
            report: draft.report.read(PackagesModule::NAME).unwrap_or_default(),
            remarks: draft.remarks,
            policy_received: None,
        }),
        Err(failure) => bail!(failure_text(&failure)),
    }
}

/// The reason of a failure, and what else its log contains. Of a log with errors these are the errors that the reason does not
/// contain; otherwise apt's progress shows how far it came.
fn failure_text(failure: &Failure) -> String {
    let errors = || failure.log.lines().map(str::trim_end).filter(|line| is_error_line(line));
    let log = if errors().next().is_some() {
        let further = errors().filter(|line| !failure.reason.contains(*line));
        further.collect::<Vec<_>>().join("\n")
    } else {
        failure.log.trim_end().to_owned()
    };
    let colon = if log.is_empty() { "" } else { ":\n" };
    format!("{}{colon}{log}", failure.reason)
}

fn write_plan(planned: &PackagePlan, out: &mut impl Write) -> io::Result<()> {
    let PackageReport { changes, held_back, .. } = &planned.report;
    match planned.policy_received {
        Some(received) => {
            let received = text::format_instant(Some(received));
            writeln!(out, "the update that the server has requested since {received}:")?;
        }
        None => writeln!(out, "without the rules of a policy:")?,
    }
    if changes.is_empty() {
        writeln!(out, "nothing to change")?;
    } else {
        let heading = ["", "PACKAGE", "INSTALLED", "NEW", "SUITE", "DOWNLOAD"].map(str::to_owned);
        let rows = changes.iter().map(|change| change_row(change).to_vec());
        let rows: Vec<_> = std::iter::once(heading.to_vec()).chain(rows).collect();
        text::print_table(&rows, out)?;
        writeln!(out, "{}", plan_summary(&planned.plan, changes.len()))?;
    }
    if !held_back.is_empty() {
        writeln!(out, "\nheld back, {}:", describe_causes(held_back))?;
        let rows = held_back.iter().map(|package| held_back_row(package).to_vec());
        text::print_table(&rows.collect::<Vec<_>>(), out)?;
    }
    planned.remarks.iter().try_for_each(|remark| writeln!(out, "\nremark: {remark}"))
}

fn change_row(change: &PackageChange) -> [String; 6] {
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "-".to_owned());
    let what = match (&change.before, &change.after) {
        (None, _) => "install",
        (_, None) => "remove",
        (before, after) if before == after => "repair",
        _ => "update",
    };
    let fetch = match change.download_bytes {
        0 => String::new(),
        bytes => text::format_bytes(bytes),
    };
    [
        what.to_owned(),
        format!("{}:{}", change.name, change.architecture),
        version(&change.before),
        version(&change.after),
        change.suite.clone(),
        fetch,
    ]
}

fn plan_summary(plan: &UpdatePlan, packages: usize) -> String {
    let changed = text::pluralize(packages, "package", "packages");
    let fetched = text::format_bytes(plan.download_bytes);
    let disk = text::format_bytes(plan.disk_bytes.unsigned_abs());
    let disk = match plan.disk_bytes {
        0 => "disk usage unchanged".to_owned(),
        1.. => format!("{disk} more disk space used"),
        _ => format!("{disk} disk space freed"),
    };
    let reboot = if plan.reboot_expected { ", reboot likely" } else { "" };
    format!("{changed}, {fetched} to download, {disk}{reboot}")
}

fn held_back_row(package: &HeldBackPackage) -> [String; 4] {
    let why = match package.cause {
        HeldBackCause::Hold => "marked as held",
        HeldBackCause::Dependencies => "its dependencies cannot be met",
        HeldBackCause::Phased => "phased update, not yet offered to this machine",
        HeldBackCause::Pinned => "pinned by the preferences of this machine",
        HeldBackCause::Limits => "not allowed by the machine's owner",
        HeldBackCause::Excluded => "excluded by the policy",
        HeldBackCause::Suite => "its suite is not allowed by the policy",
        HeldBackCause::TooYoung => "younger than the policy allows",
        HeldBackCause::Policy => "not possible with the rules of the policy",
        HeldBackCause::Space => "too little space in /boot, or /boot is read-only",
        HeldBackCause::BootLoader => "the disk of the boot loader does not exist, see doctor",
    };
    [
        format!("{}:{}", package.name, package.architecture),
        package.installed.clone(),
        format!("({})", package.available),
        why.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FailureKind;

    fn package_change(name: &str, before: Option<&str>, after: Option<&str>) -> PackageChange {
        PackageChange {
            name: name.into(),
            architecture: "all".into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            suite: "stable".into(),
            download_bytes: 1_500,
            ..PackageChange::default()
        }
    }

    #[test]
    fn the_plan_is_a_table_with_sizes_and_held_back_packages() {
        let plan = PackagePlan {
            plan: UpdatePlan {
                download_bytes: 3_000,
                disk_bytes: -2_000,
                reboot_expected: true,
                ..UpdatePlan::default()
            },
            report: PackageReport {
                changes: vec![
                    package_change("app", Some("1"), Some("2")),
                    package_change("lib", None, Some("1")),
                    package_change("old", Some("1"), None),
                ],
                held_back: vec![HeldBackPackage {
                    name: "x".into(),
                    architecture: "all".into(),
                    installed: "1".into(),
                    available: "2".into(),
                    cause: HeldBackCause::Hold,
                }],
                ..PackageReport::default()
            },
            remarks: vec!["a source is broken".into()],
            policy_received: DateTime::from_timestamp(0, 0),
        };
        let mut out = Vec::new();
        write_plan(&plan, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "the update that the server has requested since 1970-01-01T00:00:00Z:\n         PACKAGE  INSTALLED  NEW  SUITE   DOWNLOAD\n\
             update   app:all  1          2    stable  1.5 kB\n\
             install  lib:all  -          1    stable  1.5 kB\n\
             remove   old:all  1          -    stable  1.5 kB\n\
             3 packages, 3.0 kB to download, 2.0 kB disk space freed, reboot likely\n\
             \n\
             held back, on hold 1:\n\
             x:all  1  (2)  marked as held\n\
             \n\
             remark: a source is broken\n"
        );
        let mut out = Vec::new();
        write_plan(&PackagePlan::default(), &mut out).unwrap();
        assert_eq!(out, b"without the rules of a policy:\nnothing to change\n");
    }

    #[test]
    fn each_error_of_apt_is_printed_once() {
        let error = "E: The repository 'http://x a Release' does not have a Release file.";
        let reason = format!("apt-get update ended with status 100: {error}");
        let text = |reason: &str, log: &str| {
            failure_text(&Failure::with_log(FailureKind::Refresh, reason, log))
        };
        let log = format!("Err:1 http://x a Release\n  404  Not Found\n{error}\n");
        assert_eq!(text(&reason, &log), reason);
        // A long reason does not contain all errors.
        let further = "E: The repository 'http://y b Release' is not signed.";
        let long_log = format!("{log}{further}\n");
        assert_eq!(text(&reason, &long_log), format!("{reason}:\n{further}"));
        let progress = text("apt-get did not end", "Get:1 http://x a InRelease\n");
        assert_eq!(progress, "apt-get did not end:\nGet:1 http://x a InRelease");
    }

    #[test]
    fn packages_are_parsed_with_and_without_a_version() {
        let names = ["app".to_owned(), "lib=1:2-3".to_owned()];
        let PackageMode::Exactly(requirements) = parse_packages(&names).unwrap().mode else {
            panic!("these packages")
        };
        assert_eq!(requirements[0].version, None);
        assert_eq!(requirements[1].name, "lib");
        assert_eq!(requirements[1].version.as_deref(), Some("1:2-3"));
        assert_eq!(parse_packages(&[]).unwrap().mode, PackageMode::Latest);
        for bad in ["", "=1", "app="] {
            parse_packages(&[bad.to_owned()]).unwrap_err();
        }
    }
}
