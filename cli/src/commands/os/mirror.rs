//! `evenkeel os mirror`: copies operating systems from one registry to another.

use std::path::PathBuf;

use clap::Args;
use evenkeel_registry::{
    Address, CopyOptions, CopySummary, ManifestRef, Registry, Repository, RevisionSelector, Tag,
    copy,
};
use serde::Serialize;

use super::progress::{format_size, with_progress};
use super::registry_options::{
    ExternalFiles, ProfileSelection, RegistryOptions, TargetRegistryOptions, parse_revisions,
    read_signing_key, registry_failure, resolve_profiles,
};
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::{Ending, Failure};

/// Default folder for partial downloads.
const DEFAULT_WORK_DIR: &str = ".evenkeel-work";

/// Copy operating systems from one registry to another, with images, package lists, vulnerability
/// documents and signatures.
///
/// Existing contents are not copied again; repeat the same command to continue an interrupted
/// mirror. Exits with status 3 if something was left out.
#[derive(Debug, Args)]
pub struct Mirror {
    /// Source: `https://HOST`, `http://HOST`, or `oci:FOLDER` for an OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    from: Address,
    /// Target: `https://HOST`, `http://HOST`, or `oci:FOLDER` for an OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    to: Address,
    /// Revisions to copy: one such as `0.3.1`, or `~0.3.1` for it and later patches of 0.3.
    #[arg(long, value_parser = parse_revisions)]
    revision: RevisionSelector,
    /// Sign the copies with this private key, in addition to existing signatures.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Folder for partial downloads. Use the same one to continue an interrupted mirror.
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_WORK_DIR)]
    work: PathBuf,
    /// Show what would be copied, without copying.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    selection: ProfileSelection,
    #[command(flatten)]
    external_files: ExternalFiles,
    #[command(flatten)]
    registry_options: RegistryOptions,
    #[command(flatten)]
    target: TargetRegistryOptions,
}

impl Mirror {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let access = self.registry_options.access(&self.from)?;
        let from = self.registry_options.open(&self.from)?;
        let to = RegistryOptions::from(self.target.clone()).open(&self.to)?;
        let profiles = resolve_profiles(&self.selection, &self.from).await?;
        if self.dry_run {
            let tags = self.selected_tags(&profiles, &*from).await?;
            let comparison = Comparison { from: (&*from, &self.from), to: (&*to, &self.to) };
            return comparison.compare(tags, printer).await;
        }
        let web = self.external_files.web_client(&access)?;
        let upstream = self.external_files.upstream(&*from, &web, &self.selection);
        let selection = CopyOptions {
            profiles,
            revision_filter: self.revision.clone(),
            with_images: !self.selection.no_images,
            work_dir: self.work.clone(),
            key: read_signing_key(self.key.as_deref())?,
        };
        let copied = with_progress(printer, async |progress| {
            copy(&upstream, &*to, &selection, progress).await
        });
        let copied = copied.await?.map_err(|source| Failure::Transfer {
            action: format!("copy {} to {}", self.from, self.to),
            source: Box::new(source),
        })?;
        // Removes the folder only if it is empty; other processes may share it.
        let _ = std::fs::remove_dir(&self.work);
        print_copied(&copied, &self.to, printer)
    }

    /// The tags that would be copied.
    async fn selected_tags(
        &self,
        profiles: &[String],
        from: &dyn Registry,
    ) -> Result<Vec<(Repository, Tag)>, Failure> {
        let mut all = Vec::new();
        for name in profiles {
            let repository = format!("{}{name}", self.selection.prefix_option.prefix);
            let repository: Repository =
                repository.parse().map_err(registry_failure(&self.from))?;
            let tags = from.tags(&repository).await.map_err(registry_failure(&self.from))?;
            let tags = tags.into_iter();
            let tags = tags.filter(|tag| self.revision.admits(tag.as_str()));
            all.extend(tags.map(|tag| (repository.clone(), tag)));
        }
        Ok(all)
    }
}

/// Compares a source and a target registry.
pub struct Comparison<'a> {
    /// Source.
    pub from: (&'a dyn Registry, &'a Address),
    /// Target.
    pub to: (&'a dyn Registry, &'a Address),
}

/// JSON form of the planned copy of a tag.
#[derive(Debug, Serialize)]
struct PlannedCopy {
    repository: String,
    tag: String,
    state: &'static str,
}

impl Comparison<'_> {
    /// Prints what would be copied, and changes nothing.
    pub async fn compare(
        &self,
        tags: Vec<(Repository, Tag)>,
        printer: &mut Printer<'_>,
    ) -> Result<Ending, Failure> {
        let mut planned = Vec::new();
        let is_signature = |tag: &Tag| tag.as_str().starts_with("sha256-");
        for (repository, tag) in tags.into_iter().filter(|(_, tag)| !is_signature(tag)) {
            let at = ManifestRef::Tag(tag.clone());
            let (from, to) = (self.from, self.to);
            let source = from.0.manifest(&repository, &at).await;
            let source = source.map_err(registry_failure(from.1))?;
            let target = to.0.manifest(&repository, &at).await;
            let target = target.map_err(registry_failure(to.1))?;
            let digests = (source.map(|m| m.digest), target.map(|m| m.digest));
            planned.push(PlannedCopy {
                repository: repository.to_string(),
                tag: tag.to_string(),
                state: match digests {
                    (_, None) => "new",
                    (source, target) if source == target => "present",
                    _ => "differs; would be replaced",
                },
            });
        }
        let row = |one: &PlannedCopy| -> Vec<Cell> { cells![&one.repository, &one.tag, one.state] };
        let names: Vec<&str> = planned.iter().map(|one| one.repository.as_str()).collect();
        let rows = planned.iter().map(row);
        printer.print_rows(&planned, &names, &["REPOSITORY", "TAG", "STATE"], rows)?;
        printer.print_line("nothing was copied")?;
        Ok(Ending::Done)
    }
}

/// JSON form of the result of a copy.
#[derive(Debug, Serialize)]
struct CopyReport<'a> {
    registry: String,
    revisions: u64,
    blobs: u64,
    bytes: u64,
    present: u64,
    findings: Vec<CopyFinding<'a>>,
}

/// JSON form of a finding.
#[derive(Debug, Serialize)]
struct CopyFinding<'a> {
    artefact: &'a str,
    kind: &'static str,
    field: Option<&'a str>,
    message: &'a str,
}

/// Prints the result of a copy.
pub fn print_copied(
    copied: &CopySummary,
    to: &Address,
    printer: &mut Printer<'_>,
) -> Result<Ending, Failure> {
    let findings = copied.findings.iter();
    let findings = findings.map(|(artefact, finding)| CopyFinding {
        artefact,
        kind: finding.kind.name(),
        field: finding.field.as_deref(),
        message: &finding.message,
    });
    let report = CopyReport {
        registry: to.to_string(),
        revisions: copied.revisions,
        blobs: copied.blobs,
        bytes: copied.bytes,
        present: copied.present,
        findings: findings.collect(),
    };
    let row = |(artefact, finding): &(String, evenkeel_registry::Finding)| -> Vec<Cell> {
        cells![artefact, finding.kind.name(), finding.to_string()]
    };
    let copied_blobs = format!("{} objects, {}", copied.blobs, format_size(copied.bytes));
    let mut page = DetailPage::default();
    page.field("registry", &report.registry)
        .field("revisions", copied.revisions.to_string())
        .field("copied", copied_blobs)
        .field("skipped", format!("{} objects", copied.present))
        .table("Findings:", &["ARTEFACT", "FINDING", "MESSAGE"], copied.findings.iter().map(row));
    printer.print_page(&report, &copied.revisions.to_string(), &page)?;
    Ok(Ending::from_checks(copied.findings.is_empty()))
}
