//! For tests: a runner that answers as it was told, and files as the owner would make them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hooks::Moment;
use crate::runner::{Command, Output, RunError, Runner};

/// What a program does.
#[derive(Clone, Debug)]
enum Answer {
    Ends(Output),
    /// It reaches its deadline, having said this.
    Hangs(&'static str),
}

/// Answers by the name of the program. Programs that it was told nothing about do not exist.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    answers: Mutex<BTreeMap<String, Answer>>,
    asked: Mutex<Vec<String>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// The program ends with this status, having said this.
    pub fn says(self, program: &str, status: i32, stdout: &str) -> Self {
        self.now_says(program, status, stdout);
        self
    }

    /// From now on the program ends with this status, having said this.
    pub fn now_says(&self, program: &str, status: i32, stdout: &str) {
        let output = Output {
            status: Some(status),
            stdout: stdout.to_owned(),
            stderr: String::new(),
        };
        locked(&self.answers).insert(program.to_owned(), Answer::Ends(output));
    }

    /// The program does not end.
    pub fn hangs(self, program: &str) -> Self {
        locked(&self.answers).insert(program.to_owned(), Answer::Hangs("thinking\n"));
        self
    }

    /// The command lines so far.
    pub fn asked(&self) -> Vec<String> {
        locked(&self.asked).clone()
    }
}

#[async_trait::async_trait]
impl Runner for Fake {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        locked(&self.asked).push(command.to_string());
        let program = command.program.clone();
        let answer = locked(&self.answers).get(&program).cloned();
        match answer {
            Some(Answer::Ends(output)) => Ok(output),
            Some(Answer::Hangs(said)) => {
                tokio::time::sleep(command.deadline).await;
                Err(RunError::Deadline {
                    program,
                    after: command.deadline,
                    said: said.to_owned(),
                })
            }
            None => Err(RunError::Start {
                program,
                source: std::io::ErrorKind::NotFound.into(),
            }),
        }
    }
}

/// Makes a folder that only its owner may write to.
pub(crate) fn folder(root: &Path, path: &str) {
    let mut folder = root.to_owned();
    for part in path.trim_start_matches('/').split('/') {
        folder.push(part);
        if !folder.is_dir() {
            fs::create_dir(&folder).expect("make a folder");
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("set its mode");
        }
    }
}

/// Writes a file with a mode.
pub(crate) fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("write a file");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set its mode");
}

/// Puts a program into a folder of a root; its name for the runner.
pub(crate) fn program(root: &Path, within: &str, name: &str) -> String {
    folder(root, within);
    let path = format!("{within}/{name}");
    let file = root.join(path.trim_start_matches('/'));
    write(&file, "#!/bin/sh\n", 0o755);
    path
}

/// Puts a hook into a root; its name for the runner.
pub(crate) fn hook(root: &Path, moment: Moment, name: &str) -> String {
    program(root, moment.folder(), name)
}
