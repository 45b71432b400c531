//! Commands that get a signal. Without a handler the signal would kill the process of the test.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{fs, future};

use anyhow::anyhow;
use evenkeel_kit::Lifecycle;
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::Mutex;

use super::run::run_until_end;
use super::run_until_signal;
use crate::runner::{Command, HostRunner, Runner};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Held by a test that sends a signal, because all tests of the process get it.
static SIGNAL_LOCK: Mutex<()> = Mutex::const_new(());

/// Runs a program that does not end by itself, and sends a signal to this process while it runs.
/// `pid_file` then contains the process ID of the program. Never returns.
async fn run_program_and_send_signal(pid_file: PathBuf, signal: Signal) {
    let path = pid_file.display();
    let script = format!("echo $$ > {path}.new; mv {path}.new {path}; exec sleep 1000");
    let command = Command::new("sh", Duration::MAX).with_arguments(["-c", &script]);
    let runner = HostRunner::new(Path::new("/"));
    let send_signal = async {
        while !pid_file.exists() {
            tokio::task::yield_now().await;
        }
        kill_process(getpid(), signal).unwrap();
        future::pending::<()>().await;
    };
    tokio::select! {
        output = runner.run(&command) => panic!("{output:?}"),
        () = send_signal => {}
    }
}

#[track_caller]
fn assert_ends(pid_file: &Path) {
    let stat = format!("/proc/{}/stat", fs::read_to_string(pid_file).unwrap().trim());
    let is_gone = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    let begun = Instant::now();
    while !is_gone() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the program is still running");
        std::thread::yield_now();
    }
}

#[test]
fn a_signal_ends_the_programs_that_a_command_waits_for() {
    let _alone = SIGNAL_LOCK.blocking_lock();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let program = run_program_and_send_signal(pid_file.clone(), signal);
        let ended = run_until_signal(async {
            program.await;
            Ok(())
        });
        let error = ended.unwrap_err();
        assert_eq!(error.to_string(), "stopped on request", "{signal:?}");
        assert_ends(&pid_file);
    }
}

#[tokio::test]
async fn a_signal_ends_the_programs_that_a_single_run_waits_for() {
    let _alone = SIGNAL_LOCK.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let life = Lifecycle::new();
    let (stop, program) =
        (life.stopping(), run_program_and_send_signal(pid_file.clone(), Signal::TERM));
    let work = async move {
        let stopped: anyhow::Result<ExitCode> = tokio::select! {
            () = program => panic!("the program has ended"),
            () = stop.cancelled() => Err(anyhow!("stopped on request")),
        };
        stopped
    };
    let error = run_until_end(life, TEST_TIMEOUT, work).await.unwrap_err();
    assert_eq!(error.to_string(), "stopped on request");
    assert_ends(&pid_file);
}

#[tokio::test]
async fn a_single_run_ends_by_itself_with_the_result_of_its_work() {
    let _alone = SIGNAL_LOCK.lock().await;
    for expected in [ExitCode::SUCCESS, ExitCode::FAILURE] {
        let work = future::ready(Ok(expected));
        let exit = run_until_end(Lifecycle::new(), TEST_TIMEOUT, work).await.unwrap();
        assert_eq!(format!("{exit:?}"), format!("{expected:?}"));
    }
}
