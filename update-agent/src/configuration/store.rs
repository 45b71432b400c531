//! What the node keeps about its configuration: what earlier runs have created, and the journal of
//! an open run.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use evenkeel_configuration::Document;
use evenkeel_reconcile::run::{
    BegunStep, CompletedStep, JournalError, NodeState, RunJournal, RunPass, StoredRun,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::state_binding::bind_state;
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
    #[error(
        "cannot read {}: {reason}. If you remove this file, the agent does not know any more what \
         it has created, and leaves it on the machine",
        path.display()
    )]
    UnreadableState { path: PathBuf, reason: String },
    #[error(
        "cannot continue the run that was interrupted, because {} cannot be read: {reason}. Run \
         the version of the agent that was interrupted, or remove this file to give the run up: \
         what the run has created then stays on the machine",
        path.display()
    )]
    UnreadableRun { path: PathBuf, reason: String },
    #[error(
        "the state in {} belongs to another machine; use another --state-dir for each image, or \
         none: then the state is in the image",
        folder.display()
    )]
    OfAnotherMachine { folder: PathBuf },
}

/// Version of the journal of a run. A journal with another version is not read.
const RUN_FORMAT: u32 = 1;

/// The first line of the journal. It is read before the other lines, whose form depends on it.
#[derive(Serialize, Deserialize)]
struct RunHeader {
    format: u32,
}

/// A line about a step.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum StepLine<B, C> {
    Begun(B),
    Completed(C),
}

impl ConfigurationStore {
    /// Creates the folder. Only root can read it, because it has old contents of files.
    ///
    /// # Errors
    /// The folder cannot be used, or belongs to another machine.
    pub fn open(paths: &AgentPaths) -> Result<Self, StoreError> {
        let store = Self { folder: paths.configuration() };
        durable::create_folder(&store.folder, 0o700)?;
        bind_state(paths, store.state_path().exists() || store.journal_path().exists())?;
        Ok(store)
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

    /// The journal: a line with the version, one with the pass, and one for each begin and end of a
    /// step.
    fn journal_path(&self) -> PathBuf {
        self.folder.join("run.jsonl")
    }

    /// What earlier runs have left; the default on a new node.
    pub fn load_state(&self) -> Result<NodeState, StoreError> {
        let path = self.state_path();
        let content = durable::read_file(&path)?;
        let Some(content) = content else { return Ok(NodeState::default()) };
        serde_json::from_slice(&content)
            .map_err(|error| StoreError::UnreadableState { path, reason: error.to_string() })
    }

    pub fn store_state(&self, state: &NodeState) -> Result<(), FileError> {
        let path = self.state_path();
        let content = to_line(state).map_err(FileError::while_doing("write", &path))?;
        durable::replace_file(&path, &content, 0o600)
    }

    fn document_path(&self) -> PathBuf {
        self.folder.join("document.json")
    }

    /// The run that was interrupted, and its document, if there is one. The end of a line that a
    /// power cut has left incomplete is removed: its step is repeated.
    ///
    /// # Errors
    /// The run cannot be read. The caller cannot give it up, because the changes of the run are
    /// unknown.
    pub fn load_run(&self) -> Result<Option<InterruptedRun>, StoreError> {
        let path = self.journal_path();
        let Some(mut content) = durable::read_file(&path)? else {
            // A person has given up a run whose journal could not be read.
            remove_folder(&self.saved_folder())?;
            return Ok(None);
        };
        let complete = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if complete < content.len() {
            content.truncate(complete);
            durable::replace_file(&path, &content, 0o600)?;
        }
        let unreadable = |reason: String| StoreError::UnreadableRun { path, reason };
        let document = durable::read_file(&self.document_path())?.unwrap_or_default();
        let stored = parse_run(&content).map_err(unreadable.clone())?;
        let document = serde_json::from_slice(&document)
            .map_err(|error| unreadable(format!("its document is damaged: {error}")))?;
        Ok(Some(InterruptedRun { stored, document }))
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
        remove_folder(&self.download_folder())?;
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
    fn replace(path: &Path, content: &[u8]) -> Result<(), JournalError> {
        let replaced = durable::replace_file(path, content, 0o600);
        replaced.map_err(|error| JournalError(evenkeel_kit::chain(&error).to_string()))
    }

    fn append(&self, line: StepLine<&BegunStep, &CompletedStep>) -> Result<(), JournalError> {
        let write = || {
            let mut file = OpenOptions::new().append(true).open(&self.path)?;
            file.write_all(&to_line(&line)?)?;
            file.sync_data()
        };
        let path = self.path.display();
        write().map_err(|error: io::Error| JournalError(format!("cannot write {path}: {error}")))
    }
}

impl RunJournal for FileRunJournal<'_> {
    fn begin_pass(&mut self, pass: &RunPass) -> Result<(), JournalError> {
        if let Some(document) = self.document {
            Self::replace(&self.document_path, &encode_line(document)?)?;
            self.document = None;
        }
        let mut lines = encode_line(&RunHeader { format: RUN_FORMAT })?;
        lines.extend(encode_line(pass)?);
        Self::replace(&self.path, &lines)
    }

    fn begin_step(&mut self, step: &BegunStep) -> Result<(), JournalError> {
        self.append(StepLine::Begun(step))
    }

    fn complete_step(&mut self, step: &CompletedStep) -> Result<(), JournalError> {
        self.append(StepLine::Completed(step))
    }
}

fn to_line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

fn encode_line(value: &impl Serialize) -> Result<Vec<u8>, JournalError> {
    to_line(value).map_err(|error| JournalError(error.to_string()))
}

fn parse_run(content: &[u8]) -> Result<StoredRun, String> {
    let mut lines = content.split_inclusive(|byte| *byte == b'\n');
    let RunHeader { format } = parse_line(lines.next())?;
    if format != RUN_FORMAT {
        return Err(format!("it has the version {format}, and this agent reads {RUN_FORMAT}"));
    }
    let pass = parse_line(lines.next())?;
    let (mut begun, mut completed) = (Vec::new(), Vec::new());
    for line in lines {
        match parse_line::<StepLine<BegunStep, CompletedStep>>(Some(line))? {
            StepLine::Begun(step) => begun.push(step),
            StepLine::Completed(step) => completed.push(step),
        }
    }
    Ok(StoredRun { pass, completed, begun })
}

fn parse_line<T: DeserializeOwned>(line: Option<&[u8]>) -> Result<T, String> {
    serde_json::from_slice(line.unwrap_or_default()).map_err(|error| error.to_string())
}

fn remove_folder(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::while_doing("remove", folder)(error))
        }
        _ => Ok(()),
    }
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

        fn begin_step(&mut self, step: &BegunStep) -> Result<(), JournalError> {
            self.0.begin_step(step)
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
        paths.prepare().unwrap();
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
        assert_eq!(found.stored.begun, [BegunStep { index: 0, attempt: 1 }]);
        let state = Run::resume(context, found.stored).unwrap().give_up().unwrap();
        assert_eq!(state.owned.entries.len(), 1);
        store.store_state(&state).unwrap();
        assert_eq!(store.load_state().unwrap(), state);
        store.remove_run().unwrap();
        assert!(store.load_run().unwrap().is_none());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_with_a_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().join("state")));
        let store = ConfigurationStore::open(&paths).unwrap();
        std::fs::write(store.state_path(), "{").unwrap();
        let error = store.load_state().unwrap_err().to_string();
        assert!(error.contains("state.json: ") && error.contains("If you remove"), "{error}");
        std::fs::create_dir(store.saved_folder()).unwrap();
        for (journal, reason) in [
            ("{\"format\": 2}\n", "it has the version 2, and this agent reads 1"),
            ("{\"format\": 1}\n{\"run\": 1}\n", "missing field"),
            ("", "EOF"),
            ("{\"run\": 1}\n", "missing field `format`"),
        ] {
            std::fs::write(store.journal_path(), journal).unwrap();
            let error = store.load_run().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("to give the run up"), "{error}");
        }
        std::fs::remove_file(store.journal_path()).unwrap();
        assert!(store.load_run().unwrap().is_none());
        assert!(!store.saved_folder().exists());
    }

    #[test]
    fn a_state_outside_of_an_image_belongs_to_this_image() {
        let folder = tempfile::tempdir().unwrap();
        let folder = std::fs::canonicalize(folder.path()).unwrap();
        let image = |name: &str, state: Option<&str>| {
            let state = state.map(|state| folder.join(state));
            let paths = AgentPaths::new(folder.join(name), state);
            durable::create_folder(&paths.apt_folder(), 0o711).unwrap();
            paths
        };
        let is_accepted = |paths: &AgentPaths| ConfigurationStore::open(paths).is_ok();
        assert!(is_accepted(&image("one", Some("state"))));
        assert!(is_accepted(&image("one", Some("state"))), "it is bound to this image");
        assert!(!is_accepted(&image("two", Some("state"))));
        assert!(!is_accepted(&AgentPaths::new("/", Some(folder.join("state")))));
        assert!(is_accepted(&image("two", None)) && is_accepted(&image("two", Some("two/data"))));
        // The state of the system that the agent runs on.
        let own = AgentPaths::new("/", Some(folder.join("own")));
        let store = ConfigurationStore::open(&own).unwrap();
        store.store_state(&NodeState::default()).unwrap();
        assert!(is_accepted(&own));
        assert!(!is_accepted(&image("one", Some("own"))));
    }
}
