//! What the node keeps about its configuration: what earlier runs have created, and the journal of
//! an open run.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use evenkeel_configuration::Document;
use evenkeel_reconcile::run::{
    CompletedStep, JournalError, NodeState, RunJournal, RunPass, StoredRun,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::durable::{self, FileError};
use crate::paths::AgentPaths;

/// The folder with the state of the configuration.
#[derive(Clone, Debug)]
pub struct ConfigurationStore {
    folder: PathBuf,
}

/// The state of the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
}

impl ConfigurationStore {
    /// Creates the folder. Only root can read it, because it has old contents of files.
    pub fn open(paths: &AgentPaths) -> Result<Self, FileError> {
        let folder = paths.configuration();
        durable::create_folder(&folder, 0o700)?;
        Ok(Self { folder })
    }

    /// Folder of the open run for the old contents of files.
    pub fn saved_folder(&self) -> PathBuf {
        self.folder.join("saved")
    }

    /// Folder of the open run for downloads.
    pub fn download_folder(&self) -> PathBuf {
        self.folder.join("downloads")
    }

    fn state_path(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    /// The journal: the pass in the first line, and a line for each complete step.
    fn journal_path(&self) -> PathBuf {
        self.folder.join("run.jsonl")
    }

    /// What earlier runs have left; the default on a new node.
    pub fn load_state(&self) -> Result<NodeState, StoreError> {
        let path = self.state_path();
        let content = durable::read_file(&path)?;
        content.map_or(Ok(NodeState::default()), |content| parse_line(&path, &content))
    }

    pub fn store_state(&self, state: &NodeState) -> Result<(), FileError> {
        let path = self.state_path();
        let content = to_line(state).map_err(FileError::while_doing("write", &path))?;
        durable::replace_file(&path, &content, 0o600)
    }

    fn document_path(&self) -> PathBuf {
        self.folder.join("document.json")
    }

    /// The run that was interrupted, and its document, if there is one. The end of a line that a power cut has left
    /// incomplete is removed: its step is repeated.
    pub fn load_run(&self) -> Result<Option<InterruptedRun>, StoreError> {
        let path = self.journal_path();
        let Some(mut content) = durable::read_file(&path)? else { return Ok(None) };
        let complete = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if complete < content.len() {
            content.truncate(complete);
            durable::replace_file(&path, &content, 0o600)?;
        }
        let mut lines = content.split_inclusive(|byte| *byte == b'\n');
        let Some(first) = lines.next() else { return Ok(None) };
        let pass = parse_line(&path, first)?;
        let completed = lines.map(|line| parse_line(&path, line)).collect::<Result<_, _>>()?;
        let path = self.document_path();
        let document = durable::read_file(&path)?.unwrap_or_default();
        let document = parse_line(&path, &document)?;
        Ok(Some(InterruptedRun { stored: StoredRun { pass, completed }, document }))
    }

    /// The journal of a run of this document.
    pub fn journal<'a>(&self, document: &'a Document) -> FileRunJournal<'a> {
        FileRunJournal {
            path: self.journal_path(),
            document_path: self.document_path(),
            document: Some(document),
        }
    }

    /// Ends the run.
    pub fn remove_run(&self) -> Result<(), FileError> {
        let downloads = self.download_folder();
        match fs::remove_dir_all(&downloads) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(FileError::while_doing("remove", downloads)(error));
            }
            _ => {}
        }
        durable::remove_file(&self.journal_path())?;
        durable::remove_file(&self.document_path())
    }
}

/// A run that was interrupted.
#[derive(Debug)]
pub struct InterruptedRun {
    pub stored: StoredRun,
    pub document: Document,
}

/// The journal of a run in a file.
#[derive(Debug)]
pub struct FileRunJournal<'a> {
    path: PathBuf,
    document_path: PathBuf,
    /// The document, until it is stored.
    document: Option<&'a Document>,
}

impl FileRunJournal<'_> {
    fn replace(path: &Path, value: &impl Serialize) -> Result<(), JournalError> {
        let line = to_line(value).map_err(|error| JournalError(error.to_string()))?;
        let replaced = durable::replace_file(path, &line, 0o600);
        replaced.map_err(|error| JournalError(evenkeel_kit::chain(&error).to_string()))
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(&self.path)?;
        file.write_all(line)?;
        file.sync_data()
    }
}

impl RunJournal for FileRunJournal<'_> {
    fn begin_pass(&mut self, pass: &RunPass) -> Result<(), JournalError> {
        if let Some(document) = self.document {
            Self::replace(&self.document_path, document)?;
            self.document = None;
        }
        Self::replace(&self.path, pass)
    }

    fn complete_step(&mut self, step: &CompletedStep) -> Result<(), JournalError> {
        let path = self.path.display();
        let appended = to_line(step).and_then(|line| self.append(&line));
        appended.map_err(|error| JournalError(format!("cannot write {path}: {error}")))
    }
}

fn to_line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

fn parse_line<T: DeserializeOwned>(path: &Path, line: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(line)
        .map_err(|error| StoreError::Damaged { path: path.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use evenkeel_configuration::native;
    use evenkeel_reconcile::change::{NoActions, NoPackages};
    use evenkeel_reconcile::files::{EmptyContentSource, NoFaults};
    use evenkeel_reconcile::machine::{
        Machine, Program, ProgramError, ProgramOutput, ProgramRunner,
    };
    use evenkeel_reconcile::run::{Run, RunContext};
    use evenkeel_reconcile::scope::EntryScope;

    use super::*;

    struct NoPrograms;

    impl ProgramRunner for NoPrograms {
        fn run(&self, program: &Program) -> Result<ProgramOutput, ProgramError> {
            let (program, reason) = (program.name.clone(), "no program".to_owned());
            Err(ProgramError::NotStarted { program, reason })
        }
    }

    /// A journal that fails at its first step.
    struct FirstPassOnly<'a>(FileRunJournal<'a>);

    impl RunJournal for FirstPassOnly<'_> {
        fn begin_pass(&mut self, pass: &RunPass) -> Result<(), JournalError> {
            self.0.begin_pass(pass)
        }

        fn complete_step(&mut self, step: &CompletedStep) -> Result<(), JournalError> {
            self.0.complete_step(step)?;
            Err(JournalError("stopped".to_owned()))
        }
    }

    #[test]
    fn an_interrupted_run_is_read_with_its_document() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        let paths = AgentPaths::new(&root, Some(folder.path().join("state")));
        let store = ConfigurationStore::open(&paths).unwrap();
        assert!(store.load_run().unwrap().is_none());
        assert_eq!(store.load_state().unwrap(), NodeState::default());
        let text = "bundles: [{name: a, entries: [{component: File, name: /etc/motd}]}]";
        let document = native::read(text).unwrap();
        let machine = Machine { root, programs: Box::new(NoPrograms) };
        let (scope, saved) = (EntryScope::default(), store.saved_folder());
        let context = RunContext {
            document: &document,
            machine: &machine,
            scope: &scope,
            contents: &EmptyContentSource,
            packages: &NoPackages,
            actions: &NoActions,
            saved_folder: &saved,
            faults: &NoFaults,
        };
        let mut journal = FirstPassOnly(store.journal(&document));
        Run::new(context, "run", NodeState::default()).execute(&mut journal).unwrap_err();

        // A power cut has left a part of a line.
        let mut lines = std::fs::read(store.journal_path()).unwrap();
        lines.extend(b"{\"index\": 1");
        std::fs::write(store.journal_path(), &lines).unwrap();
        let found = store.load_run().unwrap().unwrap();
        assert_eq!((found.document, found.stored.completed.len()), (document.clone(), 1));
        let state = Run::resume(context, found.stored).unwrap().into_state();
        assert_eq!(state.owned.entries.len(), 1);
        store.store_state(&state).unwrap();
        assert_eq!(store.load_state().unwrap(), state);
        store.remove_run().unwrap();
        assert!(store.load_run().unwrap().is_none());
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().join("state")));
        let store = ConfigurationStore::open(&paths).unwrap();
        std::fs::write(store.state_path(), "{").unwrap();
        let error = store.load_state().unwrap_err().to_string();
        assert!(error.contains("state.json is damaged: "), "{error}");
        std::fs::write(store.journal_path(), "{}\n").unwrap();
        assert!(store.load_run().is_err());
    }
}
