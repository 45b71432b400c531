//! Runs other programs; no other code of the agent starts programs.
//!
//! Output goes to memory files instead of pipes: a program that outlives the agent, such as apt
//! during its work, is not stopped by a closed pipe. The agent limits their size while it waits.

mod output;
mod session;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use self::output::OutputFiles;

/// Interval between two checks of the size of a program's output.
const OUTPUT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long a change may take to end after its scripts were killed.
const END_TIMEOUT: Duration = Duration::from_mins(1);

/// Environment variables of all programs, in addition to those of the command. Hooks of apt that
/// would ask a person are disabled.
const BASE_ENVIRONMENT: [(&str, &str); 7] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("LC_ALL", "C.UTF-8"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
    ("APT_LISTBUGS_FRONTEND", "none"),
    // The policy decides which services are restarted. Also, needrestart would restart the agent
    // and wait for it, while the agent waits for apt.
    ("NEEDRESTART_SUSPEND", "1"),
];

/// What happens to a program that has not ended by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineAction {
    /// The program is killed with its process group.
    Kill,
    /// The scripts of packages are killed, so that apt and dpkg can end in an orderly way: killing
    /// them would leave packages half installed. If they do not end in a minute, they are killed.
    EndScripts,
    /// The program continues, because killing it at any time could damage the system.
    KeepRunning,
}

impl fmt::Display for DeadlineAction {
    /// What happened to the program, as the end of a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill | Self::EndScripts => "was killed",
            Self::KeepRunning => "is still running",
        })
    }
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

    /// Marks a command that changes the system: its outputs are merged in order, only the end of a
    /// long output is retained, it is not killed while it may still end by itself, and it has no
    /// terminal that a script could wait for.
    #[must_use]
    pub fn for_change(mut self) -> Self {
        self.merged = true;
        self.at_deadline = DeadlineAction::EndScripts;
        self
    }

    /// Marks a command that changes the system and is never killed.
    #[must_use]
    pub fn for_uninterruptible_change(self) -> Self {
        Self { at_deadline: DeadlineAction::KeepRunning, ..self.for_change() }
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
    #[error("{program} did not end within {} s and {action}", after.as_secs())]
    Deadline {
        /// Name of the program.
        program: String,
        /// The time limit.
        after: Duration,
        /// What happened to the program.
        action: DeadlineAction,
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
        let has_own_session = command.at_deadline != DeadlineAction::Kill;
        let mut words: Vec<&OsStr> = Vec::new();
        if has_own_session {
            words.push(OsStr::new("setsid"));
        }
        if self.root != Path::new("/") {
            words.extend([OsStr::new("chroot"), self.root.as_os_str()]);
        }
        words.push(OsStr::new(&command.program));
        let mut process = tokio::process::Command::new(words.remove(0));
        if !has_own_session {
            process.process_group(0);
        }
        process
            .args(words)
            .args(&command.arguments)
            .env_clear()
            .envs(BASE_ENVIRONMENT)
            .envs(command.variables.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
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
        let mut files = OutputFiles::new(command.merged).map_err(start)?;
        let mut process = self.process(command);
        files.attach_to(&mut process).map_err(start)?;
        let mut child = process.spawn().map_err(start)?;
        let mut group = ProcessGroup::new(&child, command.at_deadline);
        let wait = wait_for_end(&mut child, &mut files);
        let Ok(ended) = tokio::time::timeout(command.deadline, wait).await else {
            match command.at_deadline {
                DeadlineAction::Kill => {
                    group.kill();
                    child.wait().await.map_err(lost)?;
                }
                DeadlineAction::EndScripts => {
                    end_change(&mut child, &mut files).await.map_err(lost)?;
                }
                DeadlineAction::KeepRunning => {}
            }
            group.release();
            return Err(RunError::Deadline {
                program: program(),
                after: command.deadline,
                action: command.at_deadline,
                output: files.read_stdout().map_err(lost)?,
            });
        };
        // If the output is too long, the group is killed when it is dropped.
        let status = ended.map_err(lost)?.code();
        group.release();
        Ok(Output {
            status,
            stdout: files.read_stdout().map_err(lost)?,
            stderr: files.read_stderr().map_err(lost)?,
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

/// Waits for the end of a program and limits the size of its output. Fails if the output is too
/// long.
async fn wait_for_end(child: &mut Child, files: &mut OutputFiles) -> io::Result<ExitStatus> {
    loop {
        tokio::select! {
            ended = child.wait() => return ended,
            () = tokio::time::sleep(OUTPUT_CHECK_INTERVAL) => files.limit()?,
        }
    }
}

/// Ends a change after its deadline: first its scripts, then all of it.
async fn end_change(child: &mut Child, files: &mut OutputFiles) -> io::Result<()> {
    let Some(leader) = process_id(child) else {
        return Ok(());
    };
    session::kill_scripts(leader);
    if tokio::time::timeout(END_TIMEOUT, wait_for_end(child, files)).await.is_err() {
        session::kill_session(leader);
        child.wait().await?;
    }
    Ok(())
}

/// The process ID of a child that was not waited for.
fn process_id(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}

/// A child process with the write end of its input.
#[derive(Debug)]
struct HeldChild {
    child: Child,
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

/// Process group of a program. It is killed when the wait is aborted, unless the program must
/// continue.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn new(child: &Child, at_deadline: DeadlineAction) -> Self {
        Self(match at_deadline {
            DeadlineAction::Kill => process_id(child),
            DeadlineAction::EndScripts | DeadlineAction::KeepRunning => None,
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
mod tests;
