//! For tests: a runner with predefined results, and files with the owner's permissions.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hooks::HookPoint;
use crate::runner::{Command, DeadlineAction, Output, RunError, Runner};

/// Result of a program.
#[derive(Clone, Debug)]
enum FakeResult {
    Ends(Output),
    /// The program reaches its deadline after this output.
    Hangs(&'static str),
}

/// Returns results by the name of the program. Other programs do not exist.
#[derive(Debug, Default)]
pub(crate) struct FakeRunner {
    results: Mutex<BTreeMap<String, FakeResult>>,
    commands: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeRunner {
    /// Sets the exit status and the output of a program.
    pub fn returns(self, program: &str, status: i32, stdout: &str) -> Self {
        self.set_result(program, status, stdout);
        self
    }

    /// Sets the exit status and the output of a program from now on.
    pub fn set_result(&self, program: &str, status: i32, stdout: &str) {
        let output =
            Output { status: Some(status), stdout: stdout.to_owned(), stderr: String::new() };
        lock(&self.results).insert(program.to_owned(), FakeResult::Ends(output));
    }

    /// The program does not end.
    pub fn hangs(self, program: &str) -> Self {
        lock(&self.results).insert(program.to_owned(), FakeResult::Hangs("thinking\n"));
        self
    }

    /// The command lines so far.
    pub fn commands(&self) -> Vec<String> {
        lock(&self.commands).clone()
    }
}

#[async_trait::async_trait]
impl Runner for FakeRunner {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        lock(&self.commands).push(command.to_string());
        let program = command.program.clone();
        let result = lock(&self.results).get(&program).cloned();
        match result {
            Some(FakeResult::Ends(output)) => Ok(output),
            Some(FakeResult::Hangs(partial_output)) => {
                tokio::time::sleep(command.deadline).await;
                Err(RunError::Deadline {
                    program,
                    after: command.deadline,
                    action: DeadlineAction::Kill,
                    output: partial_output.to_owned(),
                })
            }
            None => Err(RunError::Start { program, source: std::io::ErrorKind::NotFound.into() }),
        }
    }
}

/// Creates a folder that only its owner may write to.
pub(crate) fn create_folder(root: &Path, path: &str) {
    let mut folder = root.to_owned();
    for part in path.trim_start_matches('/').split('/') {
        folder.push(part);
        if !folder.is_dir() {
            fs::create_dir(&folder).expect("make a folder");
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("set its mode");
        }
    }
}

pub(crate) fn write_file(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("write a file");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set its mode");
}

/// Adds a program to a folder of a root, and returns its name for the runner.
pub(crate) fn add_program(root: &Path, within: &str, name: &str) -> String {
    create_folder(root, within);
    let path = format!("{within}/{name}");
    let file = root.join(path.trim_start_matches('/'));
    write_file(&file, "#!/bin/sh\n", 0o755);
    path
}

/// Adds a hook to a root, and returns its name for the runner.
pub(crate) fn add_hook(root: &Path, point: HookPoint, name: &str) -> String {
    add_program(root, point.folder(), name)
}
