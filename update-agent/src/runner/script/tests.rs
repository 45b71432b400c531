use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::runner::Runner as _;

const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// Set in the process that runs [`escaped_processes_are_killed_in_this_process`].
const FOLDER_VARIABLE: &str = "EVENKEEL_TEST_SCRIPT_FOLDER";

fn script_command(script: &str, deadline: Duration) -> Command {
    Command::new("sh", deadline).with_arguments(["-c", script]).for_script(100)
}

async fn run_script(script: &str) -> Result<Output, RunError> {
    HostRunner::new(Path::new("/")).run(&script_command(script, TEST_TIMEOUT)).await
}

/// Runs a script until the file exists, and drops the wait, as a signal does.
async fn run_until_exists(runner: &HostRunner, script: &str, file: &Path) {
    let command = script_command(script, Duration::MAX);
    tokio::select! {
        output = runner.run(&command) => panic!("{output:?}"),
        () = wait_until_exists(file) => {}
    }
}

async fn wait_until_exists(file: &Path) {
    let begun = Instant::now();
    while !file.exists() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the script has not begun");
        tokio::task::yield_now().await;
    }
}

/// Runs a script, and lets its deadline pass when the file exists. The time of the runtime is paused.
async fn run_past_deadline(runner: &HostRunner, script: &str, file: &Path) -> RunError {
    let deadline = Duration::from_secs(1000);
    let command = script_command(script, deadline);
    let pass_deadline = async {
        wait_until_exists(file).await;
        tokio::time::advance(deadline).await;
    };
    tokio::join!(runner.run(&command), pass_deadline).0.unwrap_err()
}

/// Waits until the process with this ID has ended.
#[track_caller]
fn wait_for_end_of_process(id: &str) {
    let id = id.trim().parse().unwrap();
    let begun = Instant::now();
    while session::read_process_start(id).is_some() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the process is still running");
        std::thread::yield_now();
    }
}

fn read_file(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A command of a shell that creates a file with the text at once.
fn write_at_once(text: &str, path: &Path) -> String {
    let path = path.display();
    format!("echo {text} > {path}.new; mv {path}.new {path}")
}

#[tokio::test]
async fn an_output_that_is_opened_again_is_complete() {
    let script = "echo one; echo 1 >&2; echo two > /dev/stdout; echo 2 > /dev/stderr; echo three";
    let output = run_script(script).await.unwrap();
    assert_eq!((output.stdout, output.stderr), ("one\ntwo\nthree\n".into(), "1\n2\n".into()));
}

/// Commands of a shell that start a process of the session in a process group of its own.
const START_GROUP: &str = r#"id=$(perl -e '
    if (!($id = fork)) { setpgrp; open STDOUT, ">", "/dev/null"; exec "sleep", 1000 }
    print $id;')"#;

#[tokio::test]
async fn no_process_of_the_session_continues_after_the_end() {
    let output = run_script(&format!("{START_GROUP}; echo $id; exit 3")).await.unwrap();
    assert_eq!(output.status, Some(3));
    wait_for_end_of_process(&output.stdout);
}

#[tokio::test(start_paused = true)]
async fn no_process_of_the_session_continues_after_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let write = write_at_once("$id", &pid);
    let script = format!("trap '' TERM HUP; {START_GROUP}; echo why >&2; {write}; sleep 1000");
    let error = run_past_deadline(&HostRunner::new(Path::new("/")), &script, &pid).await;
    assert_eq!(error.to_string(), "sh did not end within 1000 s and was killed");
    let RunError::Deadline { output, .. } = error else { panic!("{error}") };
    assert_eq!(output, "why\n");
    wait_for_end_of_process(&read_file(&pid));
}

#[tokio::test]
async fn a_script_that_the_agent_does_not_wait_for_any_more_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = write_at_once("$$", &pid) + "; sleep 1000";
    run_until_exists(&HostRunner::new(Path::new("/")), &script, &pid).await;
    wait_for_end_of_process(&read_file(&pid));
}

#[tokio::test]
async fn a_script_has_a_session_of_its_own_and_no_input() {
    let script = "read line; echo \"input: $?\"; cut -d ' ' -f 6 /proc/$$/stat; echo $$";
    let output = run_script(script).await.unwrap().stdout;
    let [input, session, process] = output.lines().collect::<Vec<_>>()[..] else {
        panic!("{output}");
    };
    assert_eq!(input, "input: 1");
    assert_eq!(session, process);
}

#[tokio::test]
async fn standard_output_that_is_too_long_is_an_error() {
    let output = run_script("printf %0100d 0").await.unwrap();
    assert_eq!(output.stdout.len(), 100);
    for script in ["printf %0101d 0", "exec yes", "head -c 10000000 /dev/zero; exit 1"] {
        let error = run_script(script).await.unwrap_err();
        assert_eq!(error.to_string(), "sh wrote more than 100 bytes and was killed", "{script}");
    }
}

#[tokio::test]
async fn standard_error_that_is_too_long_is_cut() {
    let script = "head -c 10000000 /dev/zero | tr '\\0' x >&2; echo out; exit 3";
    let output = run_script(script).await.unwrap();
    assert_eq!((output.status, output.stdout.as_str()), (Some(3), "out\n"));
    assert_eq!(output.stderr, "x".repeat(100) + "\n[later output is discarded]\n");
}

#[tokio::test]
async fn a_script_may_close_its_output_and_continue() {
    let output = run_script("exec > /dev/null 2> /dev/null; ls /; exit 3").await.unwrap();
    assert_eq!(output, Output { status: Some(3), ..Output::default() });
}

/// A process that could not be killed may hold the pipe open.
#[tokio::test]
async fn the_rest_of_the_output_is_read_without_waiting_for_its_end() {
    let (mut writer, reader) = tokio::net::unix::pipe::pipe().unwrap();
    let mut output = OutputPipe::new(Some(reader), 4).unwrap();
    output.read_rest();
    assert_eq!(output.bytes, b"");
    tokio::io::AsyncWriteExt::write_all(&mut writer, b"abcd").await.unwrap();
    output.read_rest();
    assert_eq!((output.bytes.as_slice(), output.is_too_long), (&b"abcd"[..], false));
    tokio::io::AsyncWriteExt::write_all(&mut writer, b"e").await.unwrap();
    output.read_rest();
    assert_eq!(output.into_text(), "abcd\n[later output is discarded]\n");
}

/// The cleanup kills all descendants of the process, so this test needs a process of its own.
#[tokio::test]
async fn processes_that_left_the_session_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let program = env::current_exe().unwrap();
    let name = "runner::script::tests::escaped_processes_are_killed_in_this_process";
    let command = Command::new(program.to_string_lossy(), TEST_TIMEOUT)
        .with_arguments(["--exact", name])
        .with_variable(FOLDER_VARIABLE, &folder.path().to_string_lossy());
    let output = HostRunner::new(Path::new("/")).run(&command).await.unwrap();
    assert!(output.succeeded(), "{}", output.combined_output());
    for case in ["end", "deadline", "drop"] {
        wait_for_end_of_process(&read_file(&folder.path().join(case)));
    }
}

#[tokio::test]
async fn escaped_processes_are_killed_in_this_process() {
    #[expect(clippy::disallowed_methods, reason = "only the test above sets the variable")]
    let Some(folder) = env::var_os(FOLDER_VARIABLE) else { return };
    let folder = Path::new(&folder);
    let runner = HostRunner::new(Path::new("/")).with_descendant_cleanup().unwrap();
    // Starts a daemon, and returns when the daemon has written its ID.
    let start = |case: &str| {
        let [pid, pipe] = ["", ".pipe"].map(|end| folder.join(format!("{case}{end}")));
        let write = write_at_once("$$", &pid);
        let daemon = format!("{write}; echo > {}; exec sleep 1000", pipe.display());
        let pipe = pipe.display();
        (format!("mkfifo {pipe}; (setsid sh -c '{daemon}' &); read begun < {pipe}"), pid)
    };
    let (script, _) = start("end");
    let command = script_command(&script, Duration::MAX);
    assert!(runner.run(&command).await.unwrap().succeeded());
    tokio::time::pause();
    let (script, pid) = start("deadline");
    let error = run_past_deadline(&runner, &(script + "; exec sleep 1000"), &pid).await;
    assert!(matches!(error, RunError::Deadline { .. }), "{error}");
    tokio::time::resume();
    let (script, pid) = start("drop");
    run_until_exists(&runner, &(script + "; exec sleep 1000"), &pid).await;
}
