//! `evenkeel-agent configuration apply`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};

use anyhow::ensure;
use evenkeel_configuration::document::{ApplyMode, Document, Purpose};
use evenkeel_kit::{Lifecycle, telemetry};
use evenkeel_reconcile::finding::EntryKey;
use evenkeel_reconcile::report::Verdict;
use evenkeel_reconcile::run::{RunFailure, RunOutcome, RunReport};
use rustix::process::geteuid;

use super::{OWN_ROOT, load_document, load_secrets, print_report, print_warnings, report_status};
use crate::cli::{ConfigurationApplyArgs, PathArgs, RemovedExtras};
use crate::commands::run::run_until_end;
use crate::commands::{build_runtime, load_config};
use crate::config::Config;
use crate::configuration::{DocumentChange, DocumentError, DocumentFile, check_image_paths};
use crate::module_registry::ModuleRegistry;
use crate::paths::AgentPaths;
use crate::text::replace_controls;

/// Changes the machine, and prints its state afterwards.
pub fn apply_document(
    arguments: &ConfigurationApplyArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let DocumentFile { mut document, scope, mut warnings } = load_document(&arguments.document)?;
    if document.purpose == Purpose::Provision {
        return Err(DocumentError::ForNewMachines.into());
    }
    ensure!(geteuid().is_root(), "only root can change a machine; run this command as root");
    add_removed_extras(&mut document, &arguments.remove_extra);
    if scope.only_bundle.is_some() && !document.remove_extras.is_empty() {
        warnings.push("with --only-bundle, nothing is an extra, so no extras are removed".into());
    }
    if document.apply_mode == ApplyMode::Audit {
        warnings.push("the document has `applyMode: audit`, so nothing is changed".to_owned());
    }
    print_warnings(&warnings);
    let secrets = load_secrets(&arguments.document)?;
    let (config, paths) = load_machine(arguments)?;
    telemetry::init(&config.log)?;
    paths.prepare()?;
    let registry = ModuleRegistry::new(&config, &paths);
    let change = DocumentChange::prepare(&registry, (document, scope), secrets)?;

    let runtime = build_runtime()?;
    let life = Lifecycle::new();
    let (runner, root) = (Arc::clone(&registry.runner), paths.root().to_owned());
    let stop = life.stopping();
    let (sender, report) = mpsc::channel();
    let work = async move {
        let report = change.run(&*runner, &root, io::stderr(), stop).await?;
        // The receiver exists until the process ends.
        sender.send(report).ok();
        Ok(ExitCode::SUCCESS)
    };
    let end = runtime.block_on(run_until_end(life, config.stop_grace_period, work));
    // A disk that hangs must not keep the process from ending.
    runtime.shutdown_background();
    let exit = end?;
    // Without a report, the change was not waited for.
    let Ok(report) = report.try_recv() else { return Ok(exit) };
    print_failures(&report);
    print_report(&report.report, arguments.document.output, out)?;
    Ok(run_status(&report))
}

/// The configuration of the agent, and the paths of the machine. The state directory of the
/// configuration file belongs to the root that the agent manages, and to no other one.
fn load_machine(arguments: &ConfigurationApplyArgs) -> anyhow::Result<(Config, AgentPaths)> {
    let root = arguments.document.image_root.as_deref().unwrap_or(Path::new(OWN_ROOT));
    let (config, mut paths) = load_config(&PathArgs {
        root: Some(root.to_owned()),
        state_dir: arguments.state_dir.clone(),
        config: arguments.config.clone(),
    })?;
    let is_managed = fs::canonicalize(&config.root).is_ok_and(|managed| managed == paths.root());
    if arguments.state_dir.is_none() && !is_managed {
        paths = AgentPaths::new(paths.root(), None);
    }
    if !paths.is_own_system() {
        check_image_paths(paths.root())?;
    }
    Ok((config, paths))
}

fn add_removed_extras(document: &mut Document, requested: &[RemovedExtras]) {
    for kind in requested.iter().flat_map(|extras| extras.kinds()) {
        if !document.remove_extras.contains(kind) {
            document.remove_extras.push(*kind);
        }
    }
}

/// Prints the failures that the report does not have: those of actions, and of entries that are good
/// nevertheless.
fn print_failures(report: &RunReport) {
    let bad = report.report.entries.iter().filter(|entry| entry.verdict == Verdict::Bad);
    let bad: BTreeSet<EntryKey> =
        bad.map(|entry| EntryKey::new(entry.component, &entry.name)).collect();
    let is_reported =
        |failure: &RunFailure| failure.entry.as_ref().is_some_and(|entry| bad.contains(entry));
    let failures = report.failures.iter().filter(|failure| !is_reported(failure));
    let reverted = match report.outcome {
        RunOutcome::Reverted => {
            Some("the files and units were restored, because the change failed")
        }
        RunOutcome::ReversalFailed => Some(
            "the change failed, and not everything is as before; run the command again to repeat \
             the reversal",
        ),
        _ => None,
    };
    let reverted = reverted.map(str::to_owned);
    for line in failures.map(describe_failure).chain(reverted) {
        // There is no way to report that the error stream is closed.
        writeln!(io::stderr(), "{}", replace_controls(&line)).ok();
    }
}

/// A failure of a run as one line.
fn describe_failure(failure: &RunFailure) -> String {
    match &failure.entry {
        Some(entry) => format!("failed: {entry}: {}", failure.reason),
        None => format!("failed: {}", failure.reason),
    }
}

fn run_status(report: &RunReport) -> ExitCode {
    match report.outcome {
        RunOutcome::Audited | RunOutcome::Succeeded => report_status(&report.report),
        RunOutcome::Failed | RunOutcome::Reverted | RunOutcome::ReversalFailed => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_configuration::document::ExtraKind;

    use super::*;

    #[test]
    fn the_options_add_kinds_of_extras_to_those_of_the_document() {
        let mut document =
            Document { remove_extras: vec![ExtraKind::Users], ..Document::default() };
        add_removed_extras(&mut document, &[RemovedExtras::Users, RemovedExtras::Packages]);
        assert_eq!(document.remove_extras, [ExtraKind::Users, ExtraKind::Packages]);
        add_removed_extras(&mut document, &[RemovedExtras::All]);
        assert_eq!(document.remove_extras.len(), 3);
    }
}
