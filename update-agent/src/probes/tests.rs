use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::*;
use crate::runner::{Command, HostRunner, Output};

const TEST_TIMEOUT: Duration = Duration::from_mins(1);

fn write_script(folder: &Path, text: &[u8]) -> PathBuf {
    let path = folder.join("probe");
    fs::write(&path, text).unwrap();
    path
}

async fn run_file(path: &Path, timeout: Duration) -> Result<ProbeReport, ProbeError> {
    let script = ProbeScript::open(path).unwrap();
    let allowed = "web|db".parse().unwrap();
    run_probe(&script, &allowed, timeout, &HostRunner::new(Path::new("/"))).await
}

async fn run_text(text: &str, timeout: Duration) -> Result<ProbeReport, ProbeError> {
    let folder = tempfile::tempdir().unwrap();
    run_file(&write_script(folder.path(), text.as_bytes()), timeout).await
}

#[tokio::test]
async fn a_probe_reports_groups_and_text() {
    let text = "echo group:web; echo hello; echo group:admin; echo careful >&2";
    let report = run_text(text, TEST_TIMEOUT).await.unwrap();
    let expected = ProbeReport {
        answer: ProbeAnswer { groups: vec!["web".to_owned()], text: "hello\n".to_owned() },
        warnings: vec!["the group \"admin\" is not allowed".to_owned()],
        error_output: "careful\n".to_owned(),
    };
    assert_eq!(report, expected);
}

/// Bcfg2 copies a script before it runs it, so that the mode of the file does not matter.
#[tokio::test]
async fn the_first_line_chooses_the_interpreter_whether_or_not_the_file_is_executable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("probe");
    let path_text = path.display();
    for (text, expected) in [
        ("echo $0", format!("{path_text}\n")),
        ("#!/bin/echo one  two\n", format!("one  two {path_text}\n")),
        ("#!/bin/echo one\r\n", format!("one {path_text}\n")),
        ("", String::new()),
    ] {
        for mode in [0o644, 0o755] {
            write_script(folder.path(), text.as_bytes());
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let report = run_file(&path, TEST_TIMEOUT).await.unwrap();
            assert_eq!(report.answer.text, expected, "{text:?} {mode:o}");
        }
    }
}

#[tokio::test]
async fn a_probe_that_fails_has_no_answer() {
    let error =
        run_text("echo group:web; echo no disk >&2; exit 1", TEST_TIMEOUT).await.unwrap_err();
    assert!(error.to_string().ends_with("/probe ended with status 1: no disk"), "{error}");
    let error = run_text("kill -9 $$", TEST_TIMEOUT).await.unwrap_err();
    assert!(error.to_string().ends_with("/probe was killed by a signal"), "{error}");
}

/// A runner whose programs do not end by their deadline.
struct DeadlineRunner;

#[async_trait::async_trait]
impl Runner for DeadlineRunner {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        Err(RunError::Deadline {
            program: command.program.clone(),
            after: command.deadline,
            action: command.at_deadline,
            output: "no answer\nfrom the disk\n".to_owned(),
        })
    }
}

#[tokio::test]
async fn a_probe_that_does_not_end_has_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let script = ProbeScript::open(&write_script(folder.path(), b"")).unwrap();
    let allowed = "web".parse().unwrap();
    let timeout = Duration::from_millis(300);
    let error = run_probe(&script, &allowed, timeout, &DeadlineRunner).await.unwrap_err();
    let end = "/probe did not end within 300ms and was killed: no answer from the disk";
    assert!(error.to_string().ends_with(end), "{error}");
}

/// The server's answer for the node would lack the groups that follow.
#[tokio::test]
async fn a_probe_with_a_long_output_has_no_answer() {
    let text = "echo group:web; head -c 65526 /dev/zero";
    let report = run_text(text, TEST_TIMEOUT).await.unwrap();
    assert_eq!(report.answer.groups, ["web"]);
    assert_eq!(report.answer.text, "\0".repeat(65_526));
    for text in [format!("{text}; echo; echo group:db"), "exec yes".to_owned()] {
        let error = run_text(&text, TEST_TIMEOUT).await.unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("the output of the probe /"), "{error}");
        assert!(error.ends_with("/probe is longer than 64 KiB"), "{error}");
    }
}

/// Each of these bytes becomes three bytes of text.
#[tokio::test]
async fn the_limit_counts_the_bytes_of_the_probe() {
    let text = "head -c 65000 /dev/zero | tr '\\0' '\\377'; echo; echo group:web";
    let report = run_text(text, TEST_TIMEOUT).await.unwrap();
    assert_eq!(report.answer.groups, ["web"]);
    assert_eq!(report.answer.text, "\u{fffd}".repeat(65_000) + "\n");
}

#[tokio::test]
async fn a_process_that_keeps_the_output_open_is_not_waited_for() {
    let begun = Instant::now();
    let report = run_text("sleep 1000 & echo group:web", TEST_TIMEOUT * 100).await.unwrap();
    assert!(begun.elapsed() < TEST_TIMEOUT, "it waited for the process");
    assert_eq!(report.answer.groups, ["web"]);
}

#[tokio::test]
async fn a_probe_that_opens_its_output_again_erases_nothing() {
    let text = "echo one; echo group:web; echo careful >&2; echo two > /dev/stdout; echo three; \
                echo group:db > /dev/stdout; echo late > /dev/stderr";
    let report = run_text(text, TEST_TIMEOUT).await.unwrap();
    assert_eq!(report.answer.groups, ["web", "db"]);
    assert_eq!(report.answer.text, "one\ntwo\nthree\n");
    assert_eq!(report.error_output, "careful\nlate\n");
}

#[tokio::test]
async fn an_output_that_is_not_utf8_is_reported() {
    let report = run_text("printf 'group:web\\nhell\\377\\n'", TEST_TIMEOUT).await.unwrap();
    assert_eq!(report.answer.groups, ["web"]);
    assert_eq!(report.answer.text, "hell\u{fffd}\n");
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
}
