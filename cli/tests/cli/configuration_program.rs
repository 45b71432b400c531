//! Exit statuses and streams of `evenkeel configuration`, as a process.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use crate::configuration::{GARDENER, WEB};

/// Runs the real program.
#[expect(clippy::disallowed_methods, reason = "the exit status is that of a process")]
fn run_program(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // The program may end before it has read everything.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("the program ends")
}

#[test]
fn the_exit_status_is_that_of_the_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (web, new, bad) = (path("web.yaml"), path("new.yaml"), path("bad.yaml"));
    fs::write(&web, WEB).expect("written");
    fs::write(&new, WEB.replace("8080", "8081")).expect("written");
    fs::write(&bad, WEB.replace("\"0644\"", "\"9999\"")).expect("written");
    let missing = path("missing.yaml");
    let statuses: &[(&[&str], i32)] = &[
        (&["validate", &web], 0),
        (&["validate", &bad], 1),
        (&["validate", &missing], 1),
        (&["validate", &web, "--colour"], 2),
        (&["export", &web, "--format", "bcfg2"], 0),
        (&["export", &bad, "--format", "bcfg2"], 1),
        (&["render", &bad, "--format", "script"], 1),
        (&["diff", &web, &web], 0),
        (&["diff", &web, &new], 1),
        (&["diff", &web, &bad], 2),
        (&["diff", &web, &missing], 2),
        (&["diff", &web], 2),
        (&["schema"], 0),
    ];
    for (arguments, status) in statuses {
        let line: Vec<&str> = ["configuration"].iter().chain(*arguments).copied().collect();
        let output = run_program(&line, b"");
        assert_eq!(output.status.code(), Some(*status), "{line:?}: {output:?}");
    }
}

#[test]
fn errors_and_warnings_are_not_on_standard_output() {
    let line = ["configuration", "export", "-", "--format", "native"];
    let osc = GARDENER.replace("  purpose: reconcile\n", "");
    let output = run_program(&line, osc.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (out, notes) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        notes.starts_with("warning: standard input: ") && !out.contains("warning"),
        "{output:?}"
    );
    for bad in [&b"bundles: [\xff]\n"[..], b"<Configuration", b"{", b"\x1b[31m: ["] {
        let output = run_program(&line, bad);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let notes = String::from_utf8_lossy(&output.stderr);
        assert!(output.stdout.is_empty() && notes.starts_with("error: "), "{output:?}");
        assert!(notes.contains("\nhint: ") && !notes.contains('\x1b'), "{output:?}");
    }
}

#[test]
fn a_long_standard_input_is_read_up_to_the_limit() {
    let output =
        run_program(&["configuration", "validate", "-"], "#".repeat((16 << 20) + 1).as_bytes());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(
        notes.starts_with("error: cannot read standard input: it is larger than 16 MiB\n"),
        "{notes}"
    );
}
