//! The files that the steps of a pass write and remove.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{Desired, PackageSourceState};

use super::document_index::DocumentIndex;
use super::pass::{CompletedStep, PassFiles};
use super::plan::{EntryChange, PlannedStep, RunPlan, Step};
use super::progress::RunFailure;
use crate::change::render_settings;
use crate::check::render_source;
use crate::files::{
    ChangeReport, ContentSource, DesiredContent, FileContext, FileError, FileObject, FileSpec,
    ManagedPaths, RefusedFile, RootFolder, plan as plan_files, plan_stale_removals, split_parent,
};
use crate::finding::{Difference, EntryKey};
use crate::names::{
    SYSCTL_FILE, TEXT_MODE, drop_in_path, source_key_path, source_path, unit_file_path,
};
use crate::scope::EntryScope;

/// The specs of a pass, each with the entries that it belongs to.
#[derive(Debug, Default)]
pub(super) struct PassSpecs<'a> {
    pub specs: Vec<FileSpec<'a>>,
    /// What each spec corrects, by index of the spec.
    entries: Vec<Vec<(EntryKey, Difference)>>,
    /// Entries without a spec.
    pub failures: Vec<RunFailure>,
}

impl<'a> PassSpecs<'a> {
    /// The specs of a step. `settings` is the text of the file of kernel settings.
    pub fn from_changes(
        changes: &[EntryChange],
        index: &DocumentIndex<'a>,
        settings: Option<&'a str>,
    ) -> Self {
        let mut specs = Self::default();
        for change in changes {
            match change.entry.component {
                Component::File => specs.add_file(change, index),
                Component::Unit => specs.add_unit(change, index),
                Component::PackageSource => specs.add_source(change, index),
                _ => {}
            }
        }
        let settings_keys = changes.iter().map(|change| &change.entry);
        let settings_keys = settings_keys.filter(|key| key.component == Component::Sysctl);
        let settings_keys: Vec<(EntryKey, Difference)> =
            settings_keys.map(|key| (key.clone(), Difference::Content)).collect();
        if !settings_keys.is_empty() {
            let spec = match settings {
                Some(text) => FileSpec::root_file(SYSCTL_FILE, TEXT_MODE, text),
                None => FileSpec::absent(SYSCTL_FILE),
            };
            specs.specs.push(spec);
            specs.entries.push(settings_keys);
        }
        specs
    }

    fn add(&mut self, key: &EntryKey, difference: &Difference, spec: FileSpec<'a>) {
        self.specs.push(spec);
        self.entries.push(vec![(key.clone(), difference.clone())]);
    }

    fn add_file(&mut self, change: &EntryChange, index: &DocumentIndex<'a>) {
        let Some((_, entry)) = index.find(&change.entry) else { return };
        let Desired::File(state) = &entry.desired else { return };
        match FileSpec::from_entry(&entry.name, state) {
            Ok(spec) => self.add(&change.entry, &Difference::Content, spec),
            Err(error) => {
                self.failures.push(RunFailure::of_entry(change.entry.clone(), error.to_string()));
            }
        }
    }

    fn add_unit(&mut self, change: &EntryChange, index: &DocumentIndex<'a>) {
        let key = &change.entry;
        let state = index.find_unit(&key.name).map(|(_, state)| state);
        for difference in &change.differences {
            match difference {
                Difference::Existence | Difference::Content => {
                    let path = unit_file_path(&key.name);
                    match state.map(|state| &state.content) {
                        Some(Some(text)) => {
                            self.add(key, difference, FileSpec::root_file(path, TEXT_MODE, text));
                        }
                        Some(None) => {}
                        None => self.add(key, difference, FileSpec::absent(path)),
                    }
                }
                Difference::DropIn { name, .. } => {
                    let path = drop_in_path(&key.name, name);
                    let spec = match state.and_then(|state| state.drop_ins.get(name)) {
                        Some(text) => FileSpec::root_file(path, TEXT_MODE, text),
                        None => FileSpec::absent(path),
                    };
                    self.add(key, difference, spec);
                }
                _ => {}
            }
        }
    }

    fn add_source(&mut self, change: &EntryChange, index: &DocumentIndex<'a>) {
        let key = &change.entry;
        let (source, source_key) = (source_path(&key.name), source_key_path(&key.name));
        let desired = index.find(key).map(|(_, entry)| &entry.desired);
        let Some(Desired::PackageSource(state)) = desired else {
            self.add(key, &Difference::Content, FileSpec::absent(source));
            self.add(key, &Difference::Content, FileSpec::absent(source_key));
            return;
        };
        // The node owns the source as soon as it has created one of the two files.
        let existence = Difference::Existence;
        let difference = if change.has(&existence) { existence } else { Difference::Content };
        if let Some(text) = &state.key {
            self.add(key, &difference, FileSpec::root_file(source_key, TEXT_MODE, text));
        }
        self.add(key, &difference, source_spec(source, &key.name, state));
    }

    /// Adds the failures in the reports of a step and those of refused files to its result, and
    /// what has changed of the entries that have failed.
    pub fn add_failures(
        &self,
        root: &RootFolder,
        refused: &[RefusedFile],
        reports: &[ChangeReport],
        result: &mut CompletedStep,
    ) {
        let failed = reports.iter().flat_map(|report| &report.failed);
        let failed = failed.map(|error| (error.path.as_str(), error.to_string()));
        let refused = refused.iter().map(|file| (file.path.as_str(), file.reason.clone()));
        let failed: Vec<(&str, String)> = refused.chain(failed).collect();
        if failed.is_empty() {
            return;
        }
        let mut indices: HashMap<String, usize> = HashMap::new();
        for (index, spec) in self.specs.iter().enumerate() {
            indices.insert(root.real_path(&spec.path), index);
            indices.insert(spec.path.clone().into_owned(), index);
        }
        let mut failed_specs = BTreeSet::new();
        for (path, reason) in failed {
            // A name in a directory with `prune` belongs to the directory.
            let mut paths = std::iter::successors(Some(path), |path| Some(split_parent(path)?.0));
            let Some(index) = paths.find_map(|path| indices.get(path)) else {
                result.failures.push(RunFailure::of_run(reason));
                continue;
            };
            failed_specs.insert(*index);
            let keys = self.entries[*index].iter();
            let failures = keys.map(|(key, _)| RunFailure::of_entry(key.clone(), reason.as_str()));
            result.failures.extend(failures);
        }
        self.add_partial_changes(&failed_specs, result);
    }

    fn add_partial_changes(&self, failed_specs: &BTreeSet<usize>, result: &mut CompletedStep) {
        let failed = failed_specs.iter().flat_map(|index| &self.entries[*index]);
        let failed: BTreeSet<&EntryKey> = failed.map(|(key, _)| key).collect();
        let mut changes: BTreeMap<&EntryKey, Vec<Difference>> = BTreeMap::new();
        for (index, entries) in self.entries.iter().enumerate() {
            let is_partial = |key: &EntryKey| {
                matches!(key.component, Component::Unit | Component::PackageSource)
                    && failed.contains(key)
            };
            if !failed_specs.contains(&index) {
                for (key, difference) in entries.iter().filter(|(key, _)| is_partial(key)) {
                    changes.entry(key).or_default().push(difference.clone());
                }
            }
        }
        let changes = changes.into_iter();
        let changes = changes.map(|(key, differences)| EntryChange::new(key.clone(), differences));
        result.partial_changes = changes.collect();
    }
}

fn source_spec<'a>(path: String, id: &str, state: &PackageSourceState) -> FileSpec<'a> {
    let mut spec = FileSpec::root_file(path, TEXT_MODE, "");
    let content = DesiredContent::Text(Cow::Owned(render_source(id, state)));
    spec.object = FileObject::File { content };
    spec
}

/// What is needed to plan the files of a pass.
pub(super) struct FilePlanning<'a, 'd> {
    pub root: &'a RootFolder,
    pub contents: &'a dyn ContentSource,
    pub index: &'a DocumentIndex<'d>,
    pub scope: &'a EntryScope,
    pub run_id: &'a str,
}

impl FilePlanning<'_, '_> {
    /// Plans the files of the steps of a pass. Reads the machine and changes nothing.
    pub fn plan(&self, plan: &RunPlan) -> Result<PassFiles, FileError> {
        // A reversal restores files also if accounts cannot be read any more.
        let is_planned = |planned: &PlannedStep| {
            matches!(planned.step, Step::WriteSources | Step::WriteFiles | Step::RemoveStaleFiles)
        };
        if !plan.steps.iter().any(is_planned) {
            return Ok(PassFiles::default());
        }
        let mut managed = ManagedPaths::from_document(self.index.document);
        managed.insert_failed_entries(&self.scope.failed_entries);
        let context = FileContext::new(self.root, self.contents, &managed)?;
        let mut files = PassFiles::default();
        for planned in &plan.steps {
            match planned.step {
                Step::WriteSources | Step::WriteFiles => {
                    files.settings = self.render_settings(&planned.changes)?;
                    let settings = files.settings.as_deref();
                    let specs = PassSpecs::from_changes(&planned.changes, self.index, settings);
                    files.plan = plan_files(&context, &specs.specs, self.run_id)?;
                }
                Step::RemoveStaleFiles => {
                    let paths = planned.changes.iter().map(|change| change.entry.name.as_str());
                    files.stale = plan_stale_removals(&context, paths, self.run_id);
                }
                _ => {}
            }
        }
        Ok(files)
    }

    fn render_settings(&self, changes: &[EntryChange]) -> Result<Option<String>, FileError> {
        let keys: Vec<&str> = changes
            .iter()
            .filter(|change| change.entry.component == Component::Sysctl)
            .map(|change| change.entry.name.as_str())
            .collect();
        if keys.is_empty() {
            return Ok(None);
        }
        let is_covered = |key: &str| keys.contains(&key);
        let failed = &self.scope.failed_entries;
        render_settings(self.root, self.index.document, failed, is_covered)
            .map_err(|reason| FileError::new("read", SYSCTL_FILE, reason))
    }
}
