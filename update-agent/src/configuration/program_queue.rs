//! Runs the programs that a check or a change of the configuration needs.
//!
//! The crate `reconcile` blocks, and the runner does not. So the work has a thread of its own, and the
//! programs run in the task that waits for the work: if that task is dropped, the runner ends the
//! program. The work then stops where it is until the process ends: an error would be recorded as
//! the failure of its step, and the step would not be repeated.

use anyhow::Context;
use evenkeel_reconcile::machine::{Program, ProgramError, ProgramOutput, ProgramRunner};
use tokio::sync::{mpsc, oneshot};

use crate::runner::{Command, Output, RunError, Runner};

/// Runs blocking work that starts programs of the machine through the runner.
pub async fn run_with_programs<T: Send + 'static>(
    runner: &dyn Runner,
    work: impl FnOnce(Box<dyn ProgramRunner>) -> T + Send + 'static,
) -> anyhow::Result<T> {
    let (requests, mut queue) = mpsc::channel::<ProgramRequest>(1);
    let queued = QueuedPrograms { requests };
    let mut work = tokio::task::spawn_blocking(move || work(Box::new(queued)));
    loop {
        tokio::select! {
            result = &mut work => return result.context("the check or the change has panicked"),
            Some(ProgramRequest { program, reply }) = queue.recv() => {
                // The work waits for the reply, unless it has panicked.
                reply.send(run_program(runner, &program).await).ok();
            }
        }
    }
}

/// The status of a program that a signal has ended: the runner does not know the signal.
const STATUS_OF_SIGNAL: i32 = 128;

/// A program that the work waits for.
struct ProgramRequest {
    program: Program,
    reply: oneshot::Sender<Result<ProgramOutput, ProgramError>>,
}

struct QueuedPrograms {
    requests: mpsc::Sender<ProgramRequest>,
}

impl ProgramRunner for QueuedPrograms {
    fn run(&self, program: &Program) -> Result<ProgramOutput, ProgramError> {
        let (reply, result) = oneshot::channel();
        let request = ProgramRequest { program: program.clone(), reply };
        if self.requests.blocking_send(request).is_ok()
            && let Ok(result) = result.blocking_recv()
        {
            return result;
        }
        loop {
            // The process ends.
            std::thread::park();
        }
    }
}

async fn run_program(
    runner: &dyn Runner,
    program: &Program,
) -> Result<ProgramOutput, ProgramError> {
    let command = Command::new(&program.name, program.timeout).with_arguments(&program.arguments);
    let Output { status, stdout, stderr } = match runner.run(&command).await {
        Ok(output) => output,
        Err(RunError::Deadline { .. }) => {
            let (program, timeout) = (program.name.clone(), program.timeout);
            return Err(ProgramError::TimedOut { program, timeout });
        }
        Err(RunError::Start { source, .. } | RunError::Lost { source, .. }) => {
            return Err(not_started(program, &source.to_string()));
        }
        Err(error @ RunError::OutputTooLong { .. }) => {
            return Err(not_started(program, &error.to_string()));
        }
    };
    let mut stderr = stderr.into_bytes();
    if status.is_none() {
        stderr.extend(b"a signal has ended the program");
    }
    // A shell has this status as well if a signal ends a program.
    let status = status.unwrap_or(STATUS_OF_SIGNAL);
    Ok(ProgramOutput { status, stdout: stdout.into_bytes(), stderr })
}

fn not_started(program: &Program, reason: &str) -> ProgramError {
    ProgramError::NotStarted { program: program.name.clone(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::runner::HostRunner;

    fn shell(script: &str) -> Program {
        let arguments = ["-c", script].map(str::to_owned).to_vec();
        Program { name: "sh".to_owned(), arguments, timeout: Duration::from_mins(1) }
    }

    #[tokio::test]
    async fn programs_run_while_the_work_waits_for_them() {
        let runner = HostRunner::new(Path::new("/"));
        let outputs = run_with_programs(&runner, |programs| {
            let missing = Program { name: "/no/program".into(), ..shell("") };
            let slow =
                Program { timeout: Duration::from_millis(1), ..shell("while :; do :; done") };
            ["echo one; echo two >&2; exit 3", "kill -9 $$"]
                .map(shell)
                .into_iter()
                .chain([missing, slow])
                .map(|program| programs.run(&program))
                .collect::<Vec<_>>()
        });
        let outputs = outputs.await.unwrap();
        let (stdout, stderr) = (b"one\n".to_vec(), b"two\n".to_vec());
        assert_eq!(outputs[0], Ok(ProgramOutput { status: 3, stdout, stderr }));
        let killed = outputs[1].clone().unwrap();
        assert_eq!(
            (killed.status, killed.stderr),
            (128, b"a signal has ended the program".to_vec())
        );
        let errors = outputs[2..].iter().map(|output| output.clone().unwrap_err().to_string());
        assert_eq!(
            errors.collect::<Vec<_>>(),
            [
                "cannot run /no/program: No such file or directory (os error 2)",
                "sh has not ended after 0 s and was killed",
            ]
        );
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        let runner = HostRunner::new(Path::new("/"));
        let failed = run_with_programs(&runner, |_| panic!("on purpose")).await;
        let failed: anyhow::Result<()> = failed;
        assert!(failed.is_err());
    }
}
