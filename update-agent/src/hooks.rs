//! Programs of the machine that are asked at certain moments and may say no.
//!
//! Each moment has a folder, and each program in it is asked. Who asks says what a no means: before an update it holds
//! the update back, after one it is a remark.

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::model::tail;
use crate::owner::only_root_writes;
use crate::place::Place;
use crate::runner::{Command, RunError, Runner};

/// With this status a program says "not yet" (`EX_TEMPFAIL`). Any other than 0 means the same, and that something is
/// wrong.
const NOT_YET: i32 = 75;

/// So much of the end of what a program says is told.
const MOST_WORDS: usize = 300;

/// When hooks are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before a prepared change begins.
    BeforeUpdate,
    /// Before an image is downloaded.
    BeforeDownload,
    /// Before an image that is in its slot is made the one to boot.
    BeforeArming,
    /// Before the machine is reset into an image. Nothing is armed yet.
    BeforeReboot,
    /// After an image was kept. What is said then changes nothing.
    AfterCommit,
}

impl Moment {
    /// The folder with its hooks, as seen from inside the managed root.
    pub fn folder(self) -> &'static str {
        match self {
            Self::BeforeUpdate => "/etc/evenkeel/hooks/before-update.d",
            Self::BeforeDownload => "/etc/evenkeel/hooks/before-download.d",
            Self::BeforeArming => "/etc/evenkeel/hooks/before-arming.d",
            Self::BeforeReboot => "/etc/evenkeel/hooks/before-reboot.d",
            Self::AfterCommit => "/etc/evenkeel/hooks/after-commit.d",
        }
    }
}

/// Runs the hooks of a moment one after the other in the order of their names, until one does not say yes; then its
/// words. Each may take as long as `deadline`.
pub async fn ask(
    moment: Moment,
    place: &Place,
    runner: &dyn Runner,
    deadline: Duration,
) -> Result<(), String> {
    let hooks = Programs {
        folder: moment.folder(),
        kind: "hook",
    };
    hooks.ask(place, runner, deadline).await
}

/// A folder of programs, each of which may say no.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Programs {
    /// As seen from inside the managed root.
    pub folder: &'static str,
    /// What one of them is called, for people.
    pub kind: &'static str,
}

impl Programs {
    /// Runs them one after the other in the order of their names, until one does not say yes; then its words.
    pub async fn ask(
        self,
        place: &Place,
        runner: &dyn Runner,
        deadline: Duration,
    ) -> Result<(), String> {
        let Self { folder, kind } = self;
        for name in self.names(place)? {
            let command = Command::new(format!("{folder}/{name}"), deadline);
            let output = match runner.run(&command).await {
                Ok(output) => output,
                Err(RunError::Deadline { said, .. }) => {
                    let late = format!("the {kind} {name} did not answer in time");
                    return Err(with_words(late, &said));
                }
                Err(error) => return Err(format!("the {kind} {name} cannot be asked: {error}")),
            };
            let answer = match output.status {
                Some(0) => continue,
                Some(NOT_YET) => format!("the {kind} {name} says not yet"),
                _ => format!("the {kind} {name} {}", output.ending()),
            };
            return Err(with_words(answer, &output.words()));
        }
        Ok(())
    }

    /// The names of the programs. Fails if somebody else than root could have put one there.
    fn names(self, place: &Place) -> Result<Vec<String>, String> {
        let Self { folder, kind } = self;
        let unreadable =
            |error: io::Error| format!("the {kind}s in {folder} cannot be read: {error}");
        let path = place.inside(folder);
        let found = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found.map_err(unreadable)?,
        };
        let refuse = |why: String| format!("the {kind}s in {folder} are not run: {why}");
        only_root_writes(&found).map_err(refuse)?;
        // Who may write above it could put another folder in its place.
        for above in path.ancestors().skip(1).take(2) {
            let found = fs::metadata(above).map_err(unreadable)?;
            only_root_writes(&found).map_err(refuse)?;
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            // What has another name is a copy that an editor or dpkg left, or text for people.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if is_name(&name) && self.is_program(&entry.path(), &name)? {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether a file is to be run. One that is to be run and that others could have written is a no by itself: left
    /// out, it could not say no.
    fn is_program(self, path: &Path, name: &str) -> Result<bool, String> {
        let refuse = |why: String| format!("the {} {name} is not run: {why}", self.kind);
        let found = fs::symlink_metadata(path).map_err(|error| refuse(error.to_string()))?;
        if found.is_symlink() {
            return Err(refuse("it is a symbolic link".to_owned()));
        }
        if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
            return Ok(false);
        }
        only_root_writes(&found).map_err(refuse)?;
        Ok(true)
    }
}

fn with_words(answer: String, words: &str) -> String {
    let words = in_one_line(tail(words.trim_end(), MOST_WORDS));
    if words.is_empty() {
        return answer;
    }
    format!("{answer}: {words}")
}

/// The names that run-parts(8) takes.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

/// Words from outside in one line of at most 300 bytes: they go to the server and to people.
pub(crate) fn in_one_line(words: &str) -> String {
    const MOST: usize = 300;
    let words = words.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let mut line = words.join(" ");
    if line.len() > MOST {
        line.truncate(line.floor_char_boundary(MOST));
        line.push_str(" …");
    }
    line
}
