//! Runs other programs; no other code of the agent starts programs.
//!
//! Output goes to memory files instead of pipes: a program that outlives the agent, such as apt
//! during its work, is not stopped by a closed pipe.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

/// Maximum output of a program in bytes. More is an error, because it cannot be the expected
/// output.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// Environment variables of all programs, in addition to those of the command.
const BASE_ENVIRONMENT: [(&str, &str); 6] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("LC_ALL", "C.UTF-8"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
    // The policy decides which services are restarted. Also, needrestart would restart the agent
    // and wait for it, while the agent waits for apt.
    ("NEEDRESTART_SUSPEND", "1"),
];

/// What happens to a program that has not ended by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineAction {
    /// The program is killed with its process group.
    Kill,
    /// The program continues: killing a change of packages would leave them half installed.
    Detach,
}

/// A program to run, and how to run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Name or path, as seen from inside the managed root.
    pub program: String,
    /// Arguments, not interpreted by a shell.
    pub arguments: Vec<String>,
    /// Environment variables in addition to the base environment.
    pub variables: Vec<(String, String)>,
    /// Time limit.
    pub deadline: Duration,
    /// What happens after the time limit.
    pub at_deadline: DeadlineAction,
    /// Whether standard error is merged into standard output, as on a terminal.
    pub merged: bool,
}

impl Command {
    /// Creates a command without arguments that is killed at its deadline.
    pub fn new(program: impl Into<String>, deadline: Duration) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            deadline,
            at_deadline: DeadlineAction::Kill,
            merged: false,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn with_arguments<S: Into<String>>(
        mut self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Marks a command that changes the system: its outputs are merged in order, and it is never
    /// killed.
    #[must_use]
    pub fn for_change(mut self) -> Self {
        self.merged = true;
        self.at_deadline = DeadlineAction::Detach;
        self
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// Result of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The exit status; `None` if a signal ended the program.
    pub status: Option<i32>,
    /// Standard output; all output if the command merges.
    pub stdout: String,
    /// Standard error; empty if the command merges.
    pub stderr: String,
}

impl Output {
    /// Whether the exit status is 0.
    pub fn succeeded(&self) -> bool {
        self.status == Some(0)
    }

    /// Describes the exit status.
    pub fn describe_status(&self) -> String {
        match self.status {
            Some(status) => format!("ended with status {status}"),
            None => "was killed by a signal".to_owned(),
        }
    }

    /// Both outputs, standard error first.
    pub fn combined_output(&self) -> String {
        format!("{}{}", self.stderr, self.stdout)
    }
}

/// A program could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program was not started.
    #[error("cannot start {program}")]
    Start {
        /// Name of the program.
        program: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The program did not end in time.
    #[error("{program} did not end within {} s", after.as_secs())]
    Deadline {
        /// Name of the program.
        program: String,
        /// The time limit.
        after: Duration,
        /// Output until then.
        output: String,
    },
    /// The exit status or the output could not be read.
    #[error("cannot determine how {program} ended")]
    Lost {
        /// Name of the program.
        program: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Runs programs.
#[async_trait::async_trait]
pub trait Runner: Send + Sync {
    /// Runs a program to its end. A non-zero exit status is a result, not an error.
    async fn run(&self, command: &Command) -> Result<Output, RunError>;

    /// Starts a program that runs in the background until its input is closed: when it is dropped
    /// or ended, or when the agent is killed. Its output is discarded, and its deadline is ignored.
    /// The default implementation returns an error.
    fn start_held(&self, command: &Command) -> Result<Box<dyn HeldProgram>, RunError> {
        Err(RunError::Start {
            program: command.program.clone(),
            source: io::ErrorKind::Unsupported.into(),
        })
    }
}

/// A program that runs until its input is closed. Dropping it closes the input without waiting.
#[async_trait::async_trait]
pub trait HeldProgram: fmt::Debug + Send + Sync {
    /// Closes the input and waits for the end of the program; after `wait` it is killed.
    async fn end(&mut self, wait: Duration);
}

/// Runs programs of the managed root.
#[derive(Debug)]
pub struct HostRunner {
    root: PathBuf,
}

impl HostRunner {
    /// Creates a runner for the root; `chroot` is used for other roots than `/`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the only place that starts programs")]
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
            .envs(BASE_ENVIRONMENT)
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
        let start = |source| RunError::Start { program: program(), source };
        let lost = |source| RunError::Lost { program: program(), source };
        tracing::debug!(%command, "running");
        let files = OutputFiles::new(command.merged).map_err(start)?;
        let mut process = self.process(command);
        files.attach_to(&mut process).map_err(start)?;
        let mut child = process.spawn().map_err(start)?;
        let mut group = ProcessGroup::new(&child, command.at_deadline);
        let Ok(ended) = tokio::time::timeout(command.deadline, child.wait()).await else {
            if command.at_deadline == DeadlineAction::Kill {
                group.kill();
                child.wait().await.map_err(lost)?;
            }
            group.release();
            return Err(RunError::Deadline {
                program: program(),
                after: command.deadline,
                output: read_output(&files.out).map_err(lost)?,
            });
        };
        group.release();
        Ok(Output {
            status: ended.map_err(lost)?.code(),
            stdout: read_output(&files.out).map_err(lost)?,
            stderr: match &files.err {
                Some(err) => read_output(err).map_err(lost)?,
                None => String::new(),
            },
        })
    }

    fn start_held(&self, command: &Command) -> Result<Box<dyn HeldProgram>, RunError> {
        tracing::debug!(%command, "holding");
        let mut process = self.process(command);
        process.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = process
            .spawn()
            .map_err(|source| RunError::Start { program: command.program.clone(), source })?;
        Ok(Box::new(HeldChild { child }))
    }
}

/// A child process with the write end of its input.
#[derive(Debug)]
struct HeldChild {
    child: tokio::process::Child,
}

#[async_trait::async_trait]
impl HeldProgram for HeldChild {
    async fn end(&mut self, wait: Duration) {
        let mut group = ProcessGroup::new(&self.child, DeadlineAction::Kill);
        // Waiting closes the input first.
        if tokio::time::timeout(wait, self.child.wait()).await.is_err() {
            group.kill();
            // The program is killed, so this wait is short; its result does not matter.
            self.child.wait().await.ok();
        }
        group.release();
    }
}

/// Memory files for the output of a program.
struct OutputFiles {
    out: File,
    err: Option<File>,
}

impl OutputFiles {
    fn new(merged: bool) -> io::Result<Self> {
        let file = |name: &str| -> io::Result<File> {
            Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
        };
        Ok(Self { out: file("stdout")?, err: if merged { None } else { Some(file("stderr")?) } })
    }

    fn attach_to(&self, process: &mut tokio::process::Command) -> io::Result<()> {
        process.stdout(self.out.try_clone()?);
        process.stderr(self.err.as_ref().unwrap_or(&self.out).try_clone()?);
        Ok(())
    }
}

fn read_output(file: &File) -> io::Result<String> {
    let length = file.metadata()?.len();
    if length > MAX_OUTPUT_BYTES {
        return Err(io::Error::other("the output is too long"));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Process group of a program. It is killed when the wait is aborted, unless the program must
/// continue.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn new(child: &tokio::process::Child, at_deadline: DeadlineAction) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(match at_deadline {
            DeadlineAction::Kill => id.and_then(Pid::from_raw),
            DeadlineAction::Detach => None,
        })
    }

    fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            // The group may just have ended.
            kill_process_group(group, Signal::KILL).ok();
        }
    }

    fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    async fn run_script(script: &str, deadline: Duration) -> Result<Output, RunError> {
        let runner = HostRunner::new(Path::new("/"));
        runner.run(&Command::new("sh", deadline).with_arguments(["-c", script])).await
    }

    #[tokio::test]
    async fn output_errors_and_status_are_separate() {
        let output = run_script("echo out; echo err >&2; exit 7", TEST_TIMEOUT).await.unwrap();
        assert_eq!(
            output,
            Output { status: Some(7), stdout: "out\n".into(), stderr: "err\n".into() }
        );
        assert_eq!(output.describe_status(), "ended with status 7");
    }

    #[tokio::test]
    async fn a_change_has_its_output_in_order() {
        let runner = HostRunner::new(Path::new("/"));
        let command = Command::new("sh", TEST_TIMEOUT)
            .with_arguments(["-c", "echo one; echo two >&2; echo three"])
            .for_change();
        assert_eq!(runner.run(&command).await.unwrap().stdout, "one\ntwo\nthree\n");
    }

    #[tokio::test]
    async fn a_program_is_killed_at_its_deadline_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("echo begun; sleep 1000 & echo $! > {}; wait", pid.display());
        let error = run_script(&script, Duration::from_millis(300)).await.unwrap_err();
        let RunError::Deadline { output, .. } = error else { panic!("{error}") };
        assert_eq!(output, "begun\n");
        let sleeper = std::fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", sleeper.trim());
        let is_gone = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        let begun = std::time::Instant::now();
        while !is_gone() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "the sleeper is still running");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_change_keeps_running_at_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        let done = folder.path().join("done");
        let script =
            format!("until [ -e {} ]; do sleep 0.01; done; : > {}", gate.display(), done.display());
        let runner = HostRunner::new(Path::new("/"));
        let command = Command::new("sh", Duration::from_millis(100))
            .with_arguments(["-c", &script])
            .for_change();
        runner.run(&command).await.unwrap_err();

        std::fs::write(gate, "").unwrap();
        let begun = std::time::Instant::now();
        while !done.exists() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "it was stopped");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_program_gets_the_base_environment_only() {
        let output =
            run_script("env | sed 's/=.*//' | sort | tr '\\n' ' '", TEST_TIMEOUT).await.unwrap();
        for name in output.stdout.split_whitespace() {
            let usual = BASE_ENVIRONMENT.iter().any(|(usual, _)| *usual == name);
            assert!(usual || ["PWD", "SHLVL", "_", "OLDPWD"].contains(&name), "{name}");
        }
    }

    /// A held program that creates the file `done` when it ends by itself.
    fn start_cat(folder: &Path) -> (Box<dyn HeldProgram>, PathBuf) {
        let done = folder.join("done");
        let script = format!("cat; : > {}", done.display());
        let command = Command::new("sh", TEST_TIMEOUT).with_arguments(["-c", &script]);
        let program = HostRunner::new(Path::new("/")).start_held(&command).unwrap();
        (program, done)
    }

    #[tokio::test]
    async fn a_held_program_ends_when_its_input_closes() {
        let folder = tempfile::tempdir().unwrap();
        let (mut program, done) = start_cat(folder.path());
        assert!(!done.exists());
        program.end(TEST_TIMEOUT).await;
        assert!(done.exists());
        program.end(TEST_TIMEOUT).await;
    }

    #[tokio::test]
    async fn a_held_program_that_is_dropped_ends_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (program, done) = start_cat(folder.path());
        drop(program);
        let begun = std::time::Instant::now();
        while !done.exists() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "the program is still running");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_held_program_that_does_not_end_is_killed() {
        let command = Command::new("sleep", TEST_TIMEOUT).with_arguments(["1000"]);
        let mut program = HostRunner::new(Path::new("/")).start_held(&command).unwrap();
        let begun = std::time::Instant::now();
        program.end(Duration::from_millis(50)).await;
        assert!(begun.elapsed() < TEST_TIMEOUT);
    }

    #[tokio::test]
    async fn a_program_that_does_not_exist_is_named() {
        let runner = HostRunner::new(Path::new("/"));
        let error = runner.run(&Command::new("no-such-program", TEST_TIMEOUT)).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot start no-such-program");
    }
}
