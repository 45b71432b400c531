//! `evenkeel-agent configuration`: checks this machine against a configuration document, and changes
//! it as the document describes.

mod apply;
mod report_table;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use evenkeel_reconcile::check::{CheckOptions, check_machine};
use evenkeel_reconcile::machine::Machine;
use evenkeel_reconcile::report::{ComplianceState, Report};

use super::run_until_signal;
use crate::cli::{ConfigurationArgs, ConfigurationCommand, DocumentArgs, OutputFormat};
use crate::configuration::{
    DocumentFile, DocumentSource, OperatorContents, SecretValues, run_with_programs,
};
use crate::runner::HostRunner;
use crate::text;

use report_table::print_report_table;

/// The root of the system that the agent runs on.
const OWN_ROOT: &str = "/";

pub fn run_configuration(
    arguments: &ConfigurationArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        ConfigurationCommand::Check(check) => check_document(&check.document, out),
        ConfigurationCommand::Apply(apply) => apply::apply_document(apply, out),
    }
}

/// Prints how the machine differs from the document.
fn check_document(arguments: &DocumentArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let DocumentFile { document, scope, warnings } = load_document(arguments)?;
    print_warnings(&warnings);
    let secrets = load_secrets(arguments)?;
    let root = arguments.image_root.as_deref().unwrap_or(Path::new(OWN_ROOT));
    let root = std::fs::canonicalize(root)
        .with_context(|| format!("cannot find the root {}", root.display()))?;
    let runner = HostRunner::new(&root);
    let check = run_until_signal(run_with_programs(&runner, move |programs| {
        let contents = OperatorContents { secrets: &secrets, downloads: None };
        let options = CheckOptions { contents: &contents, scope: &scope };
        check_machine(&document, &Machine { root, programs }, &options)
    }))?;
    let report = Report::from(check.context("cannot check the machine")?);
    print_report(&report, arguments.output, out)?;
    Ok(report_status(&report))
}

fn load_document(arguments: &DocumentArgs) -> anyhow::Result<DocumentFile> {
    let source = DocumentSource {
        path: arguments.file.clone(),
        format: arguments.format.map(Into::into),
        only_bundle: arguments.only_bundle.clone(),
    };
    Ok(source.load(&mut io::stdin().lock())?)
}

fn load_secrets(arguments: &DocumentArgs) -> anyhow::Result<SecretValues> {
    match &arguments.secrets {
        Some(path) => Ok(SecretValues::load(path)?),
        None => Ok(SecretValues::default()),
    }
}

fn print_warnings(warnings: &[String]) {
    for warning in warnings {
        // There is no way to report that the error stream is closed.
        writeln!(io::stderr(), "warning: {warning}").ok();
    }
}

fn print_report(report: &Report, format: OutputFormat, out: &mut impl Write) -> io::Result<()> {
    match format {
        OutputFormat::Json => text::print_json(report, out),
        OutputFormat::Text => print_report_table(report, out),
    }
}

fn report_status(report: &Report) -> ExitCode {
    match report.state {
        ComplianceState::Clean => ExitCode::SUCCESS,
        ComplianceState::Dirty => ExitCode::FAILURE,
    }
}
