//! Changes this machine to its configuration document.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use evenkeel_configuration::document::{ActionSpec, Desired, FileState};
use evenkeel_configuration::{Document, Entry};
use evenkeel_reconcile::change::{PackageFailure, PackageInstaller, PackageRequest};
use evenkeel_reconcile::files::NoFaults;
use evenkeel_reconcile::machine::Machine;
use evenkeel_reconcile::run::{Run, RunContext, RunError, RunOutcome, RunReport};
use evenkeel_reconcile::scope::EntryScope;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::progress::ProgressJournal;
use super::store::{ConfigurationStore, InterruptedRun};
use super::trusted_paths::check_trusted_paths;
use super::{Downloads, OperatorContents, SecretValues, run_with_programs};
use crate::agent::PlanningLock;
use crate::journal::FileJournal;
use crate::model::PackageRequirement;
use crate::module_registry::ModuleRegistry;
use crate::modules::image::FileDownloader;
use crate::modules::packages::{NamedPackageChanger, NamedPackages};
use crate::owner::{Owner, OwnerLimits};
use crate::paths::AgentPaths;
use crate::runner::Runner;

/// A change of this machine to a document. While it exists, the agent begins no update.
#[derive(Debug)]
pub struct DocumentChange {
    document: Document,
    scope: EntryScope,
    secrets: SecretValues,
    downloader: Option<FileDownloader>,
    limits: OwnerLimits,
    store: ConfigurationStore,
    packages: NamedPackageChanger,
    _planning: PlanningLock,
}

impl DocumentChange {
    /// Prepares the change. Nothing has changed yet.
    ///
    /// # Errors
    /// An update is in progress, the limits of the machine's owner cannot be used, they do not allow
    /// a package source, or the document would change what they trust.
    pub fn prepare(
        registry: &ModuleRegistry<'_>,
        (document, scope): (Document, EntryScope),
        secrets: SecretValues,
    ) -> anyhow::Result<Self> {
        let paths = registry.paths;
        let planning = PlanningLock::acquire(paths)?;
        let planning = planning.context(
            "the agent is planning or beginning an update, or applies a document; try again later",
        )?;
        check_no_update(paths)?;
        check_kernel_settings(paths, &document, &scope)?;
        let limits = registry.owner.limits()?;
        let entries = (&document, &scope);
        check_trusted_paths(paths.root(), paths.state(), &limits.configuration, entries)?;
        check_sources(&registry.owner, &document, &scope)?;
        let owner = Arc::clone(&registry.owner);
        let downloader = has_downloads(&document, &scope).then(|| FileDownloader::new(registry));
        let downloader = downloader.transpose().map_err(|failure| anyhow!(failure.reason))?;
        Ok(Self {
            document,
            scope,
            secrets,
            downloader,
            limits,
            store: ConfigurationStore::open(paths)?,
            packages: NamedPackageChanger::new(
                registry.package_tools(),
                paths.clone(),
                owner,
                (Arc::clone(&registry.clock), registry.config.refresh_interval),
            ),
            _planning: planning,
        })
    }

    /// Runs the change. At a stop, it ends after the current step; the next run continues.
    ///
    /// # Errors
    /// The change has stopped before its end.
    pub async fn run(
        self,
        runner: &dyn Runner,
        root: &Path,
        output: impl Write + Send + 'static,
        stop: CancellationToken,
    ) -> anyhow::Result<RunReport> {
        let (root, handle) = (root.to_owned(), Handle::current());
        run_with_programs(runner, move |programs| {
            let machine = Machine { root, programs };
            self.run_blocking(&machine, &handle, (output, stop))
        })
        .await?
    }

    fn run_blocking(
        &self,
        machine: &Machine,
        handle: &Handle,
        (output, stop): (impl Write, CancellationToken),
    ) -> anyhow::Result<RunReport> {
        let packages = BlockingPackages { handle, changer: &self.packages };
        let configuration = &self.limits.configuration;
        let actions = |_: &str, action: &ActionSpec| {
            configuration.check_action(&machine.root, &action.command)
        };
        let contents = OperatorContents {
            secrets: &self.secrets,
            downloads: self.downloader.as_ref().map(|downloader| Downloads {
                downloader,
                folder: self.store.download_folder(),
                handle,
            }),
        };
        let saved_folder = self.store.saved_folder();
        let context = RunContext {
            document: &self.document,
            machine,
            scope: &self.scope,
            contents: &contents,
            packages: &packages,
            actions: &actions,
            saved_folder: &saved_folder,
            faults: &NoFaults,
        };
        let mut journal = ProgressJournal::new(self.store.journal(&self.document), output, stop);
        let mut run = self.open_run(context, &mut journal)?;
        let report = match run.execute(&mut journal) {
            Err(RunError::Journal(_)) if journal.should_stop() => {
                bail!("stopped on request; run the command again to continue")
            }
            ended => ended.context("the run has stopped; run the command again to continue")?,
        };
        if report.state != self.store.load_state()? {
            self.store.store_state(&report.state)?;
        }
        match run.discard_saved() {
            // The next run attempts the reversal again.
            Err(_) if report.outcome == RunOutcome::ReversalFailed => return Ok(report),
            discarded => discarded?,
        }
        self.store.remove_run()?;
        Ok(report)
    }

    /// Continues the interrupted run of this document, or begins a run. The interrupted run of
    /// another document is given up: the node keeps what it has created.
    fn open_run<'a, W: Write>(
        &self,
        context: RunContext<'a>,
        journal: &mut ProgressJournal<'_, W>,
    ) -> anyhow::Result<Run<'a>> {
        let state = match self.store.load_run()? {
            Some(InterruptedRun { stored, document })
                if document == self.document && stored.pass.scope == self.scope =>
            {
                journal.resume(&stored);
                return Ok(Run::resume(context, stored)?);
            }
            Some(InterruptedRun { stored, document }) => {
                let scope = stored.pass.scope.clone();
                let context = RunContext { document: &document, scope: &scope, ..context };
                let state = Run::resume(context, stored)?.give_up()?;
                self.store.store_state(&state)?;
                self.store.remove_run()?;
                state
            }
            None => self.store.load_state()?,
        };
        Ok(Run::new(context, &Uuid::new_v4().simple().to_string(), state))
    }
}

/// Checks that no update has begun to change the machine. One that waits for its window begins
/// only with the planning lock, and is planned again if the document changes its packages.
fn check_no_update(paths: &AgentPaths) -> anyhow::Result<()> {
    let path = paths.journal();
    if !path.exists() {
        return Ok(());
    }
    // Without the journal of this version, it is unknown whether the update has begun.
    let phase = match FileJournal::peek(&path)? {
        Some(entry) if entry.unreadable.is_none() => {
            if !entry.has_begun() {
                return Ok(());
            }
            format!(" ({})", entry.phase.name())
        }
        _ => String::new(),
    };
    bail!(
        "an update is in progress on this machine{phase}; `evenkeel-agent status` shows it. Try \
         again when it has ended"
    )
}

/// Checks that kernel settings would not be those of the machine that this process runs on.
fn check_kernel_settings(
    paths: &AgentPaths,
    document: &Document,
    scope: &EntryScope,
) -> anyhow::Result<()> {
    let is_setting = |entry: &Entry| matches!(entry.desired, Desired::Sysctl(_));
    if !paths.is_own_system()
        && entries_in_scope(document, scope).any(is_setting)
        && paths.inside("/proc/sys/kernel").exists()
    {
        bail!(
            "nothing was changed: the image has /proc mounted, so the entries Sysctl would change \
             the kernel of this machine; unmount it"
        );
    }
    Ok(())
}

fn has_downloads(document: &Document, scope: &EntryScope) -> bool {
    entries_in_scope(document, scope).any(|entry| match &entry.desired {
        Desired::File(FileState { content: Some(content), .. }) => content.uri.is_some(),
        _ => false,
    })
}

fn entries_in_scope<'a>(
    document: &'a Document,
    scope: &'a EntryScope,
) -> impl Iterator<Item = &'a Entry> {
    let entries = document.entries();
    let in_scope = entries
        .filter(|(bundle, _)| scope.only_bundle.as_ref().is_none_or(|only| *only == bundle.name));
    in_scope.map(|(_, entry)| entry)
}

/// Checks that the owner allows all package sources: the packages of a source that is missing would
/// come from another one.
fn check_sources(owner: &Owner, document: &Document, scope: &EntryScope) -> anyhow::Result<()> {
    for entry in entries_in_scope(document, scope) {
        if let Desired::PackageSource(source) = &entry.desired {
            let checked = owner.check_document_source(source);
            checked.map_err(|why| {
                anyhow!("nothing was changed: PackageSource {}: {why}", entry.name)
            })?;
        }
    }
    Ok(())
}

/// Changes packages from the thread of a run.
#[derive(Debug)]
struct BlockingPackages<'a> {
    handle: &'a Handle,
    changer: &'a NamedPackageChanger,
}

impl PackageInstaller for BlockingPackages<'_> {
    fn apply(&self, request: &PackageRequest) -> Result<Vec<PackageFailure>, String> {
        let installs = request.install.iter().map(|package| PackageRequirement {
            name: package.name.clone(),
            version: package.version.clone(),
        });
        let packages = NamedPackages {
            update_lists: request.update_lists,
            installs: installs.collect(),
            removals: request.remove.clone(),
        };
        let refused = self.handle.block_on(self.changer.change(&packages));
        let refused = refused.map_err(|failure| failure.reason)?.into_iter();
        let failures =
            refused.map(|package| PackageFailure { name: package.name, reason: package.reason });
        Ok(failures.collect())
    }
}

#[cfg(test)]
mod tests;
