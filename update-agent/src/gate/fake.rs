//! For tests: a runner that answers as it was told, and files as the owner would make them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;

use crate::runner::{Command, Output, RunError, Runner};

/// Answers by the name of the program. Programs that it was told nothing about do not exist; those that were told to
/// hang reach their deadline.
#[derive(Debug, Default)]
pub struct Fake {
    answers: BTreeMap<String, Output>,
    hanging: Option<String>,
    asked: Mutex<Vec<String>>,
}

impl Fake {
    /// The program ends with this status, having said this.
    pub fn says(mut self, program: &str, status: i32, stdout: &str) -> Self {
        let output = Output {
            status: Some(status),
            stdout: stdout.to_owned(),
            stderr: String::new(),
        };
        self.answers.insert(program.to_owned(), output);
        self
    }

    /// The program does not end.
    pub fn hangs(mut self, program: &str) -> Self {
        self.hanging = Some(program.to_owned());
        self
    }

    /// The command lines so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait::async_trait]
impl Runner for Fake {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.asked.lock().unwrap().push(command.to_string());
        let program = command.program.clone();
        if self.hanging.as_ref() == Some(&program) {
            return Err(RunError::Deadline {
                program,
                after: command.deadline,
                said: "thinking\n".to_owned(),
            });
        }
        let answer = self.answers.get(&program).cloned();
        answer.ok_or_else(|| RunError::Start {
            program,
            source: std::io::ErrorKind::NotFound.into(),
        })
    }
}

/// Makes a folder that only its owner may write to.
pub fn folder(root: &Path, path: &str) {
    let mut folder = root.to_owned();
    for part in path.split('/') {
        folder.push(part);
        if !folder.is_dir() {
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

/// Writes a file with a mode.
pub fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Puts a hook into a root; its name for the runner.
pub fn hook(root: &Path, name: &str) -> String {
    folder(root, "etc/evenkeel/hooks/before-update.d");
    let path = format!("/etc/evenkeel/hooks/before-update.d/{name}");
    write(
        &root.join(path.trim_start_matches('/')),
        "#!/bin/sh\n",
        0o755,
    );
    path
}
