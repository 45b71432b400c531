use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::*;
use crate::runner::HostRunner;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

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
    let shown = path.display();
    for (text, expected) in [
        ("echo $0", format!("{shown}\n")),
        ("#!/bin/echo one  two\n", format!("one  two {shown}\n")),
        ("#!/bin/echo one\r\n", format!("one {shown}\n")),
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

#[tokio::test]
async fn a_probe_that_hangs_is_killed() {
    let text = "trap '' TERM; echo group:web; while :; do sleep 1000; done";
    let begun = Instant::now();
    let error = run_text(text, Duration::from_millis(300)).await.unwrap_err();
    assert!(begun.elapsed() < TEST_TIMEOUT, "it waited for the probe");
    assert!(
        error.to_string().ends_with("/probe did not end within 300ms and was killed"),
        "{error}"
    );
}

#[tokio::test]
async fn a_process_that_keeps_the_output_open_is_not_waited_for() {
    let begun = Instant::now();
    let report = run_text("sleep 1000 & echo group:web", TEST_TIMEOUT * 100).await.unwrap();
    assert!(begun.elapsed() < TEST_TIMEOUT, "it waited for the process");
    assert_eq!(report.answer.groups, ["web"]);
}

#[tokio::test]
async fn a_long_output_is_cut() {
    let text = "echo group:web; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo group:db";
    let report = run_text(text, TEST_TIMEOUT).await.unwrap();
    assert_eq!(report.answer.groups, ["web"]);
    assert_eq!(report.answer.text, "x".repeat(MAX_PROBE_OUTPUT_BYTES - "group:web\n".len()));
    assert_eq!(report.warnings, ["only the first 64 KiB of the output are used"]);

    // An output that ends in the middle of a character is cut before this character.
    let text = "printf 'x%.0s' $(seq 65535); while :; do printf '\\303\\244' || exit; done";
    let error = run_text(text, Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(error, ProbeError::Timeout { .. }), "a probe that prints for ever: {error}");
    let text = "printf 'x%.0s' $(seq 65535); printf '\\303\\244 end'";
    let report = run_text(text, TEST_TIMEOUT).await.unwrap();
    assert_eq!(report.answer.text, "x".repeat(65_535));
    assert_eq!(report.warnings, ["only the first 64 KiB of the output are used"]);
}

#[tokio::test]
async fn an_output_that_is_not_utf8_is_reported() {
    let report = run_text("printf 'group:web\\nhell\\377\\n'", TEST_TIMEOUT).await.unwrap();
    assert_eq!(report.answer.groups, ["web"]);
    assert_eq!(report.answer.text, "hell\u{fffd}\n");
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
}
