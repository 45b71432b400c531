//! The only door to other programs.
//!
//! Output goes to memory files, not to pipes: a program that outlives the agent, such as apt in the middle of its work,
//! is not stopped by a pipe that nobody reads.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

/// More output than this is an error, because it cannot be what was asked for.
const MOST_OUTPUT: u64 = 64 << 20;

/// What a program sees beside what its command names.
const VARIABLES: [(&str, &str); 6] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/root"),
    ("LC_ALL", "C.UTF-8"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
    // Which services are restarted is the policy's word. And apt would wait here for a restart of the agent, which waits
    // for apt.
    ("NEEDRESTART_SUSPEND", "1"),
];

/// What becomes of a program that is not done at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// It is killed, with its process group.
    Kill,
    /// It is left alone: to kill what changes packages would leave them half done.
    Leave,
}

/// A program to run and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Name or path, as seen from inside the managed root.
    pub program: String,
    /// Given as they are; no shell reads them.
    pub arguments: Vec<String>,
    /// Environment variables beside the usual ones.
    pub variables: Vec<(String, String)>,
    /// How long it may take.
    pub deadline: Duration,
    /// What becomes of it then.
    pub at_deadline: AtDeadline,
    /// Whether errors are put between the other output, as a terminal would show them.
    pub merged: bool,
}

impl Command {
    /// A command without arguments, which is killed at its deadline.
    pub fn new(program: impl Into<String>, deadline: Duration) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            deadline,
            at_deadline: AtDeadline::Kill,
            merged: false,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn with<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Marks it as something that changes the system: its output is kept in order, and it is never killed.
    #[must_use]
    pub fn that_changes(mut self) -> Self {
        self.merged = true;
        self.at_deadline = AtDeadline::Leave;
        self
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.arguments
            .iter()
            .try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// What a program left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// Standard output; everything if the command merges.
    pub stdout: String,
    /// Standard error; empty if the command merges.
    pub stderr: String,
}

impl Output {
    /// Whether the exit status is 0.
    pub fn succeeded(&self) -> bool {
        self.status == Some(0)
    }

    /// The exit status in words.
    pub fn ending(&self) -> String {
        match self.status {
            Some(status) => format!("ended with status {status}"),
            None => "was ended by a signal".to_owned(),
        }
    }

    /// Both outputs, first the errors.
    pub fn words(&self) -> String {
        format!("{}{}", self.stderr, self.stdout)
    }
}

/// A program could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was not started.
    #[error("cannot start {program}")]
    Start {
        /// Its name.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It did not end in time.
    #[error("{program} did not end within {} s", after.as_secs())]
    Deadline {
        /// Its name.
        program: String,
        /// How long it was given.
        after: Duration,
        /// What it had said.
        said: String,
    },
    /// Its end or its output could not be learnt.
    #[error("cannot learn how {program} ended")]
    Lost {
        /// Its name.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Starts programs.
#[async_trait::async_trait]
pub trait Runner: Send + Sync {
    /// Runs a program to its end. An exit status other than 0 is an answer, not an error.
    async fn run(&self, command: &Command) -> Result<Output, RunError>;

    /// Starts a program that lives beside other work and ends when its input does: when it is dropped or ended, or when
    /// the agent is killed. What it says is thrown away, and its deadline does not count. A runner that cannot do this
    /// says so.
    fn hold(&self, command: &Command) -> Result<Box<dyn HeldProgram>, RunError> {
        Err(RunError::Start {
            program: command.program.clone(),
            source: io::ErrorKind::Unsupported.into(),
        })
    }
}

/// A program that lives until it is let go. To drop it closes its input and waits for nothing.
#[async_trait::async_trait]
pub trait HeldProgram: fmt::Debug + Send + Sync {
    /// Closes its input and waits for its end; after `wait` it is killed.
    async fn end(&mut self, wait: Duration);
}

/// Runs programs of the managed root.
#[derive(Debug)]
pub struct HostRunner {
    root: PathBuf,
}

impl HostRunner {
    /// A runner for the root; other roots than `/` are entered with `chroot`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the door to other programs"
    )]
    fn process(&self, command: &Command) -> tokio::process::Command {
        let mut process = if self.root == Path::new("/") {
            tokio::process::Command::new(&command.program)
        } else {
            let mut chroot = tokio::process::Command::new("chroot");
            chroot.arg(&self.root).arg(&command.program);
            chroot
        };
        process
            .args(&command.arguments)
            .env_clear()
            .envs(VARIABLES)
            .envs(command.variables.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null());
        process
    }
}

#[async_trait::async_trait]
impl Runner for HostRunner {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let program = || command.program.clone();
        let start = |source| RunError::Start {
            program: program(),
            source,
        };
        let lost = |source| RunError::Lost {
            program: program(),
            source,
        };
        tracing::debug!(%command, "running");
        let pages = Pages::new(command.merged).map_err(start)?;
        let mut process = self.process(command);
        pages.give_to(&mut process).map_err(start)?;
        let mut child = process.spawn().map_err(start)?;
        let mut group = Group::of(&child, command.at_deadline);
        let Ok(ended) = tokio::time::timeout(command.deadline, child.wait()).await else {
            if command.at_deadline == AtDeadline::Kill {
                group.kill();
                child.wait().await.map_err(lost)?;
            }
            group.release();
            return Err(RunError::Deadline {
                program: program(),
                after: command.deadline,
                said: read(&pages.out).map_err(lost)?,
            });
        };
        group.release();
        Ok(Output {
            status: ended.map_err(lost)?.code(),
            stdout: read(&pages.out).map_err(lost)?,
            stderr: match &pages.err {
                Some(err) => read(err).map_err(lost)?,
                None => String::new(),
            },
        })
    }

    fn hold(&self, command: &Command) -> Result<Box<dyn HeldProgram>, RunError> {
        tracing::debug!(%command, "holding");
        let mut process = self.process(command);
        process
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = process.spawn().map_err(|source| RunError::Start {
            program: command.program.clone(),
            source,
        })?;
        Ok(Box::new(HeldChild { child }))
    }
}

/// A child with the writing end of its input.
#[derive(Debug)]
struct HeldChild {
    child: tokio::process::Child,
}

#[async_trait::async_trait]
impl HeldProgram for HeldChild {
    async fn end(&mut self, wait: Duration) {
        let mut group = Group::of(&self.child, AtDeadline::Kill);
        // To wait for it closes its input first.
        if tokio::time::timeout(wait, self.child.wait()).await.is_err() {
            group.kill();
            // It has been killed: this wait is short, and nothing can be done with what it says.
            self.child.wait().await.ok();
        }
        group.release();
    }
}

/// Where a program writes.
struct Pages {
    out: File,
    err: Option<File>,
}

impl Pages {
    fn new(merged: bool) -> io::Result<Self> {
        let page = |name: &str| -> io::Result<File> {
            Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
        };
        Ok(Self {
            out: page("stdout")?,
            err: if merged { None } else { Some(page("stderr")?) },
        })
    }

    fn give_to(&self, process: &mut tokio::process::Command) -> io::Result<()> {
        process.stdout(self.out.try_clone()?);
        process.stderr(self.err.as_ref().unwrap_or(&self.out).try_clone()?);
        Ok(())
    }
}

fn read(page: &File) -> io::Result<String> {
    let length = page.metadata()?.len();
    if length > MOST_OUTPUT {
        return Err(io::Error::other("it said more than can be read"));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    page.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The process group of a program. It goes when the wait for it is given up, unless it is to be left alone.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &tokio::process::Child, at_deadline: AtDeadline) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(match at_deadline {
            AtDeadline::Kill => id.and_then(Pid::from_raw),
            AtDeadline::Leave => None,
        })
    }

    fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            // It may have ended just now: then there is nobody to kill.
            kill_process_group(group, Signal::KILL).ok();
        }
    }

    fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    async fn sh(script: &str, deadline: Duration) -> Result<Output, RunError> {
        let runner = HostRunner::new(Path::new("/"));
        runner
            .run(&Command::new("sh", deadline).with(["-c", script]))
            .await
    }

    #[tokio::test]
    async fn what_a_program_says_and_how_it_ends_is_kept_apart() {
        let output = sh("echo out; echo err >&2; exit 7", SOON).await.unwrap();
        assert_eq!(
            output,
            Output {
                status: Some(7),
                stdout: "out\n".into(),
                stderr: "err\n".into()
            }
        );
        assert_eq!(output.ending(), "ended with status 7");
    }

    #[tokio::test]
    async fn a_program_that_changes_things_is_heard_in_order() {
        let runner = HostRunner::new(Path::new("/"));
        let command = Command::new("sh", SOON)
            .with(["-c", "echo one; echo two >&2; echo three"])
            .that_changes();
        assert_eq!(
            runner.run(&command).await.unwrap().stdout,
            "one\ntwo\nthree\n"
        );
    }

    #[tokio::test]
    async fn a_program_is_killed_at_its_deadline_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("echo begun; sleep 1000 & echo $! > {}; wait", pid.display());
        let error = sh(&script, Duration::from_millis(300)).await.unwrap_err();
        let RunError::Deadline { said, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(said, "begun\n");
        let sleeper = std::fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", sleeper.trim());
        let gone = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        let begun = std::time::Instant::now();
        while !gone() {
            assert!(begun.elapsed() < SOON, "the sleeper is still there");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_program_that_changes_things_is_left_alone_at_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        let done = folder.path().join("done");
        let script = format!(
            "until [ -e {} ]; do sleep 0.01; done; : > {}",
            gate.display(),
            done.display()
        );
        let runner = HostRunner::new(Path::new("/"));
        let command = Command::new("sh", Duration::from_millis(100))
            .with(["-c", &script])
            .that_changes();
        runner.run(&command).await.unwrap_err();

        std::fs::write(gate, "").unwrap();
        let begun = std::time::Instant::now();
        while !done.exists() {
            assert!(begun.elapsed() < SOON, "it was stopped");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_program_sees_no_variables_but_the_usual_ones() {
        let output = sh("env | sed 's/=.*//' | sort | tr '\\n' ' '", SOON)
            .await
            .unwrap();
        for name in output.stdout.split_whitespace() {
            let usual = VARIABLES.iter().any(|(usual, _)| *usual == name);
            assert!(
                usual || ["PWD", "SHLVL", "_", "OLDPWD"].contains(&name),
                "{name}"
            );
        }
    }

    /// A held program of which `done` is there as soon as it has ended by itself.
    fn held(folder: &Path) -> (Box<dyn HeldProgram>, PathBuf) {
        let done = folder.join("done");
        let script = format!("cat; : > {}", done.display());
        let command = Command::new("sh", SOON).with(["-c", &script]);
        let program = HostRunner::new(Path::new("/")).hold(&command).unwrap();
        (program, done)
    }

    #[tokio::test]
    async fn a_held_program_ends_when_it_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let (mut program, done) = held(folder.path());
        assert!(!done.exists());
        program.end(SOON).await;
        assert!(done.exists());
        program.end(SOON).await;
    }

    #[tokio::test]
    async fn a_held_program_that_is_dropped_ends_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (program, done) = held(folder.path());
        drop(program);
        let begun = std::time::Instant::now();
        while !done.exists() {
            assert!(begun.elapsed() < SOON, "it is still there");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_held_program_that_does_not_let_go_is_killed() {
        let command = Command::new("sleep", SOON).with(["1000"]);
        let mut program = HostRunner::new(Path::new("/")).hold(&command).unwrap();
        let begun = std::time::Instant::now();
        program.end(Duration::from_millis(50)).await;
        assert!(begun.elapsed() < SOON);
    }

    #[tokio::test]
    async fn a_program_that_does_not_exist_is_named() {
        let runner = HostRunner::new(Path::new("/"));
        let error = runner
            .run(&Command::new("no-such-program", SOON))
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "cannot start no-such-program");
    }
}
