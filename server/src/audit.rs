//! `audit verify`: compares the change log with its seals, directly in the database.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context;
use chrono::{SecondsFormat, TimeDelta};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::Store;
use evenkeel_store::change_seals::{self, AuditReport, AuditRequest, ProjectAudit, Seal};

use crate::cli::VerifyArgs;
use crate::config::Config;
use crate::data_dir;
use crate::database::{Database, PrivatePostgresMode, SchemaPolicy};
use crate::tools::resolve_project;

/// Prints the result for each project. Fails if changes or seals were altered.
pub(crate) async fn verify(config: &Config, args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir::find(&config.data_dir)?;
    let database =
        Database::open(config, data_dir, PrivatePostgresMode::JoinOrStart, SchemaPolicy::Refuse)
            .await?;
    let report = Box::pin(verify_log(&database.store, config, args)).await;
    database.close().await;
    let report = report?;
    let text = describe_report(&report);
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    let is_unaltered = report.is_unaltered();
    Ok(if is_unaltered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn verify_log(
    store: &Store,
    config: &Config,
    args: &VerifyArgs,
) -> anyhow::Result<AuditReport> {
    let project = match &args.project {
        Some(project) => {
            let tx = store.fleet().await?;
            Some(resolve_project(&tx, project).await?)
        }
        None => None,
    };
    let since = match args.since {
        Some(age) => {
            let age = TimeDelta::from_std(age).context("--since is too long")?;
            let since = SystemClock.now().checked_sub_signed(age);
            Some(since.context("--since is too long")?)
        }
        None => None,
    };
    let request = AuditRequest {
        project,
        since,
        expected: args.expect.iter().copied().collect::<BTreeSet<_>>(),
        retention: config.maintenance_manager.change_retention(),
    };
    let report = change_seals::verify(store, &request).await;
    report.context("cannot read the change log")
}

fn describe_report(report: &AuditReport) -> String {
    let mut text = String::new();
    for (id, project) in &report.projects {
        let heading = if id.uuid().is_nil() {
            "outside of projects".to_owned()
        } else {
            format!("project {} {id}", project.name.as_deref().unwrap_or("(deleted)"))
        };
        describe_project(&mut text, &heading, project);
    }
    if report.projects.is_empty() {
        text.push_str("the change log is empty\n");
    }
    for digest in &report.missing {
        _ = writeln!(
            text,
            "FAULT: no seal has the expected digest {digest}: the seals were replaced, or the last of them were removed"
        );
    }
    if !report.is_unaltered() {
        text.push_str("the change log was altered\n");
    }
    text
}

fn describe_project(text: &mut String, heading: &str, project: &ProjectAudit) {
    let chain = &project.chain;
    _ = writeln!(
        text,
        "{heading}: {} changes under {} seals are unaltered",
        chain.unaltered, chain.seals
    );
    if chain.skipped > 0 {
        _ = writeln!(text, "  sealed before --since, not compared: {} changes", chain.skipped);
    }
    if let Some(removed) = chain.removed {
        _ = writeln!(text, "  removed by the retention: {removed}");
    }
    if chain.removed_seals > 0 {
        _ = writeln!(text, "  removed by the retention: {} seals", chain.removed_seals);
    }
    if let Some(unsealed) = project.unsealed {
        _ = writeln!(text, "  not sealed yet: {unsealed}");
    }
    for fault in &chain.faults {
        _ = writeln!(text, "  FAULT: {fault}");
    }
    if let Some(Seal { number, sealed_at, digest, .. }) = &chain.newest {
        let sealed_at = sealed_at.to_rfc3339_opts(SecondsFormat::Secs, true);
        _ = writeln!(text, "  newest seal: {number}, of {sealed_at}, with the digest {digest}");
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use evenkeel_store::change_seals::{ChainFault, ChainReport, ChangeSpan, SealDigest};

    use super::*;

    #[test]
    fn a_report_names_the_changes_outside_of_projects() {
        let mut report = AuditReport::default();
        let no_project = "00000000-0000-0000-0000-000000000000".parse().unwrap();
        let chain = ChainReport { seals: 1, unaltered: 2, ..ChainReport::default() };
        report.projects.insert(no_project, ProjectAudit { chain, ..ProjectAudit::default() });
        assert_eq!(
            describe_report(&report),
            "outside of projects: 2 changes under 1 seals are unaltered\n"
        );
    }

    #[test]
    fn a_report_names_faults_unsealed_changes_and_missing_digests() {
        let at = DateTime::<Utc>::UNIX_EPOCH;
        let span = ChangeSpan { count: 3, first_at: at, last_at: at + TimeDelta::seconds(1) };
        let chain = ChainReport {
            seals: 2,
            unaltered: 7,
            removed: Some(span),
            removed_seals: 5,
            faults: vec![ChainFault::AlteredSeal { seal: 2 }],
            ..ChainReport::default()
        };
        let project = ProjectAudit { name: Some("acme".into()), chain, unsealed: Some(span) };
        let id = "00000000-0000-0000-0000-000000000007".parse().unwrap();
        let mut report = AuditReport::default();
        assert_eq!(describe_report(&report), "the change log is empty\n");
        report.projects.insert(id, project);
        report.missing.insert(SealDigest::new([0xab; 32]));
        let digest = "ab".repeat(32);
        assert_eq!(
            describe_report(&report),
            format!(
                "project acme 00000000-0000-0000-0000-000000000007: 7 changes under 2 seals are unaltered\n\
                 \x20 removed by the retention: 3 changes from 1970-01-01T00:00:00.000000Z to 1970-01-01T00:00:01.000000Z\n\
                 \x20 removed by the retention: 5 seals\n\
                 \x20 not sealed yet: 3 changes from 1970-01-01T00:00:00.000000Z to 1970-01-01T00:00:01.000000Z\n\
                 \x20 FAULT: seal 2 was altered: its content does not have its digest\n\
                 FAULT: no seal has the expected digest {digest}: the seals were replaced, or the last of them were removed\n\
                 the change log was altered\n"
            )
        );
    }
}
