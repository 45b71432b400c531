//! Runs other programs; no other code of the agent starts programs.
//!
//! Output goes to files in memory instead of pipes: a program that outlives the agent, such as apt
//! during its work, is not stopped by a closed or a full pipe. The agent limits their size while it
//! waits, and the file system that contains them is small. Scripts have pipes; see `script.rs`.

mod change_record;
mod command;
mod output;
mod script;
mod session;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process_group, set_child_subreaper};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use tokio::sync::Mutex;

use self::change_record::{ChangeRecord, ChangeRecordFile};
use self::output::OutputFiles;

pub use self::command::{Command, DeadlineAction};

/// Interval between two checks of the size of a program's output.
const OUTPUT_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Interval between two checks whether a change of an earlier process of the agent has ended.
const LEFT_OVER_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Starts a recorded change when the agent has written the record. If the agent is killed before
/// that, the script ends without a change.
const START_AFTER_RECORD: &str = r#"read -r recorded && exec "$@" < /dev/null"#;

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
    /// The standard output of a script is too long.
    #[error("{program} wrote more than {max_bytes} bytes and was killed")]
    OutputTooLong {
        /// Name of the program.
        program: String,
        /// The limit.
        max_bytes: usize,
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
        /// Output until then: standard error of a script, standard output of another program.
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

    /// Waits for the end of a change that an earlier process of the agent has started, and ends it
    /// at its deadline. Fails if the last change did not end by its deadline, until another change
    /// that needs a record is started or [`Runner::forget_ended_change`] is called. The default
    /// implementation knows no earlier process.
    async fn end_left_over_change(&self) -> Result<(), RunError> {
        Ok(())
    }

    /// Forgets that a change did not end by its deadline.
    fn forget_ended_change(&self) {}

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
    record_file: Option<ChangeRecordFile>,
    /// Held while a change of an earlier process is waited for: two waits would both remove the
    /// record, and the second one perhaps that of a newer change.
    left_over_wait: Mutex<()>,
    /// Whether all descendants of this process are killed when a script has ended.
    kills_descendants: bool,
}

impl HostRunner {
    /// Creates a runner for the root; `chroot` is used for other roots than `/`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            record_file: None,
            left_over_wait: Mutex::new(()),
            kills_descendants: false,
        }
    }

    /// Also kills processes that left the session of a script, such as daemons. This kills all
    /// descendants of this process: use it only in a process that runs nothing but one script.
    ///
    /// # Errors
    /// This process cannot become the parent of orphans.
    pub fn with_descendant_cleanup(self) -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self { kills_descendants: true, ..self })
    }

    /// Records each running change that has a deadline in the file, so that the next process of the
    /// agent can end it.
    #[must_use]
    pub fn with_change_record(self, file: PathBuf) -> Self {
        Self { record_file: Some(ChangeRecordFile::new(file)), ..self }
    }

    /// The file for the record of a command; `None` if the command is not recorded.
    fn record_file_for(&self, command: &Command) -> Option<&ChangeRecordFile> {
        let is_recorded = command.at_deadline == DeadlineAction::EndScripts;
        self.record_file.as_ref().filter(|_| is_recorded)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the only place that starts programs")]
    fn process(&self, command: &Command) -> tokio::process::Command {
        let has_own_session =
            command.at_deadline != DeadlineAction::Kill || command.max_output_bytes.is_some();
        let is_recorded = self.record_file_for(command).is_some();
        let mut words: Vec<&OsStr> = Vec::new();
        if has_own_session {
            words.push(OsStr::new("setsid"));
        }
        if is_recorded {
            words.extend(["sh", "-c", START_AFTER_RECORD, "sh"].map(OsStr::new));
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
            .stdin(if is_recorded { Stdio::piped() } else { Stdio::null() });
        process
    }

    /// Records a change whose process waits for that, and lets it begin.
    async fn begin_recorded(&self, child: &mut Child, command: &Command) -> io::Result<()> {
        let Some(file) = self.record_file_for(command) else { return Ok(()) };
        // When this is dropped, the process begins, or ends without a change.
        let mut start = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let leader = process_id(child).ok_or(io::ErrorKind::NotFound)?;
        let mut record = ChangeRecord::new(command, leader)?;
        let overdue = file.load().filter(|earlier| earlier.is_overdue && !command.needs_record);
        if let Some(earlier) = &overdue {
            record = record.after_overdue(earlier);
        }
        match file.store(&record) {
            Ok(()) => {}
            Err(error) if command.needs_record => return Err(io::Error::other(error)),
            Err(error) => {
                tracing::warn!(%error, program = command.program, "cannot record a change");
                // The next process of the agent would take the result of the earlier change for
                // that of this one.
                if overdue.is_none() {
                    file.remove();
                }
            }
        }
        start.write_all(b"\n").await
    }

    /// Waits for the end of a program; `None` if it has not ended by its deadline.
    async fn wait_until_deadline(
        &self,
        child: &mut Child,
        files: &mut OutputFiles,
        command: &Command,
    ) -> io::Result<Option<ExitStatus>> {
        let leader = process_id(child);
        let mut group = ProcessGroup::new(child, command.at_deadline);
        let record_file = self.record_file_for(command);
        let mut end = Box::pin(wait_for_end(child, files));
        if let Ok(ended) = tokio::time::timeout(command.deadline, &mut end).await {
            // If the output is too long, the group is killed when it is dropped.
            let status = ended?;
            group.release();
            if let Some(file) = record_file {
                file.remove_unless_overdue();
            }
            return Ok(Some(status));
        }
        match (command.at_deadline, leader) {
            (DeadlineAction::Kill, _) => {
                drop(end);
                group.kill();
                child.wait().await?;
            }
            (DeadlineAction::EndScripts, Some(leader)) => {
                if let Some(file) = record_file {
                    file.mark_overdue();
                }
                end_change(leader, &mut end).await?;
            }
            (DeadlineAction::EndScripts, None) | (DeadlineAction::KeepRunning, _) => {}
        }
        group.release();
        Ok(None)
    }
}

#[async_trait::async_trait]
impl Runner for HostRunner {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let program = || command.program.clone();
        let start = |source| RunError::Start { program: program(), source };
        let lost = |source| RunError::Lost { program: program(), source };
        tracing::debug!(%command, "running");
        if let Some(max_bytes) = command.max_output_bytes {
            return self.run_script(command, max_bytes).await;
        }
        let mut files = OutputFiles::new(command.merged).map_err(start)?;
        let mut process = self.process(command);
        files.attach_to(&mut process).map_err(start)?;
        let mut child = process.spawn().map_err(start)?;
        if let Err(error) = self.begin_recorded(&mut child, command).await {
            // The process ends without a change, and its status does not matter.
            child.wait().await.ok();
            return Err(start(error));
        }
        let ended =
            self.wait_until_deadline(&mut child, &mut files, command).await.map_err(lost)?;
        let Some(status) = ended else {
            return Err(RunError::Deadline {
                program: program(),
                after: command.deadline,
                action: command.at_deadline,
                output: files.read_stdout().map_err(lost)?,
            });
        };
        Ok(Output {
            status: status.code(),
            stdout: files.read_stdout().map_err(lost)?,
            stderr: files.read_stderr().map_err(lost)?,
        })
    }

    async fn end_left_over_change(&self) -> Result<(), RunError> {
        let Some(file) = &self.record_file else { return Ok(()) };
        let _only = self.left_over_wait.lock().await;
        let Some(record) = file.load() else { return Ok(()) };
        let mut output = String::new();
        let mut is_overdue = record.is_overdue;
        if let Some(leader) = record.running_leader() {
            tracing::warn!(program = record.program, "waiting for a change of an earlier agent");
            let mut files = OutputFiles::open_of_change(leader).ok();
            let mut end = Box::pin(wait_for_left_over(&record, files.as_mut()));
            if tokio::time::timeout(record.time_left(), &mut end).await.is_err() {
                tracing::warn!(program = record.program, "the change did not end; ending it");
                file.mark_overdue();
                is_overdue = true;
                end_change(leader, &mut end).await;
            }
            drop(end);
            output = files.and_then(|files| files.read_stdout().ok()).unwrap_or_default();
        }
        if is_overdue {
            return Err(RunError::Deadline {
                program: record.program,
                after: record.time_limit,
                action: DeadlineAction::EndScripts,
                output,
            });
        }
        file.remove();
        Ok(())
    }

    fn forget_ended_change(&self) {
        if let Some(file) = &self.record_file
            && file.load().is_some_and(|record| record.running_leader().is_none())
        {
            file.remove();
        }
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

/// Waits for the end of a change that another process of the agent has started, and limits the size
/// of its output.
async fn wait_for_left_over(record: &ChangeRecord, mut files: Option<&mut OutputFiles>) {
    while record.running_leader().is_some() {
        if let Some(files) = files.as_deref_mut()
            && let Err(error) = files.limit()
        {
            tracing::debug!(%error, "cannot limit the output of the change");
        }
        tokio::time::sleep(LEFT_OVER_CHECK_INTERVAL).await;
    }
}

/// Ends a change after its deadline: first its scripts, then all of it. `end` completes when the
/// change has ended.
async fn end_change<F: Future + Unpin>(leader: Pid, end: &mut F) -> F::Output {
    session::kill_scripts(leader);
    if let Ok(ended) = tokio::time::timeout(END_TIMEOUT, &mut *end).await {
        return ended;
    }
    session::kill_session(leader);
    end.await
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
