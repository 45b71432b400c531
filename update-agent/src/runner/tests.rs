use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

async fn run_script(script: &str, deadline: Duration) -> Result<Output, RunError> {
    let runner = HostRunner::new(Path::new("/"));
    runner.run(&Command::new("sh", deadline).with_arguments(["-c", script])).await
}

#[tokio::test]
async fn output_errors_and_status_are_separate() {
    let output = run_script("echo out; echo err >&2; exit 7", TEST_TIMEOUT).await.unwrap();
    assert_eq!(output, Output { status: Some(7), stdout: "out\n".into(), stderr: "err\n".into() });
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

/// The script ends when the programs that it waits for have ended, as apt does.
#[tokio::test]
async fn a_change_ends_by_itself_after_its_scripts_are_killed_at_its_deadline() {
    let runner = HostRunner::new(Path::new("/"));
    let command = Command::new("sh", Duration::from_secs(1))
        .with_arguments(["-c", "echo begun; sleep 1000; echo ended"])
        .for_change();
    let begun = std::time::Instant::now();
    let error = runner.run(&command).await.unwrap_err();
    assert!(begun.elapsed() < TEST_TIMEOUT, "it waited for the program");
    let RunError::Deadline { output, .. } = error else { panic!("{error}") };
    assert!(output.starts_with("begun\n"), "{output}");
    assert!(output.ends_with("ended\n"), "{output}");
}

#[tokio::test]
async fn a_script_with_a_name_that_is_not_utf8_is_killed_at_the_deadline() {
    let runner = HostRunner::new(Path::new("/"));
    let script = r#"echo begun; perl -e '$0 = "\xff"; sleep 1000'; echo ended"#;
    let command =
        Command::new("sh", Duration::from_secs(1)).with_arguments(["-c", script]).for_change();
    let begun = std::time::Instant::now();
    let error = runner.run(&command).await.unwrap_err();
    assert!(begun.elapsed() < TEST_TIMEOUT, "it waited for the program");
    let RunError::Deadline { output, .. } = error else { panic!("{error}") };
    assert!(output.ends_with("ended\n"), "{output}");
}

#[tokio::test]
async fn an_uninterruptible_change_continues_after_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let [gate, done] = ["gate", "done"].map(|name| folder.path().join(name));
    let script =
        format!("until [ -e {} ]; do sleep 0.01; done; : > {}", gate.display(), done.display());
    let command = Command::new("sh", Duration::from_millis(50))
        .with_arguments(["-c", &script])
        .for_uninterruptible_change();
    let error = HostRunner::new(Path::new("/")).run(&command).await.unwrap_err();
    assert_eq!(error.to_string(), "sh did not end within 0 s and is still running");

    std::fs::write(gate, "").unwrap();
    let begun = std::time::Instant::now();
    while !done.exists() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "it was stopped");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_change_has_no_terminal_and_no_input() {
    let runner = HostRunner::new(Path::new("/"));
    let script =
        "read line; echo \"input: $?\"; (: < /dev/tty) 2> /dev/null; echo \"terminal: $?\"";
    let command = Command::new("sh", TEST_TIMEOUT).with_arguments(["-c", script]).for_change();
    let output = runner.run(&command).await.unwrap().stdout;
    assert!(output.starts_with("input: 1\nterminal: "), "{output}");
    assert!(!output.contains("terminal: 0"), "{output}");
}

#[tokio::test]
async fn a_change_continues_when_the_agent_does_not_wait_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let [gate, done, begun] = ["gate", "done", "begun"].map(|name| folder.path().join(name));
    let script = format!(
        ": > {}; until [ -e {} ]; do sleep 0.01; done; echo x; : > {}",
        begun.display(),
        gate.display(),
        done.display()
    );
    let runner = HostRunner::new(Path::new("/"));
    let command = Command::new("sh", TEST_TIMEOUT).with_arguments(["-c", &script]).for_change();
    let has_begun = async {
        while !begun.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        output = runner.run(&command) => panic!("{output:?}"),
        () = has_begun => {}
    }

    std::fs::write(gate, "").unwrap();
    let begun = std::time::Instant::now();
    while !done.exists() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "it was stopped");
        tokio::task::yield_now().await;
    }
}

/// Starts a change that says `begun`, never ends by itself, and says `ended` when its script is
/// killed. Returns when it has begun and the agent does not wait any more.
async fn start_unattended_change(folder: &Path, deadline: Duration) {
    let begun = folder.join("begun");
    let script = format!("echo begun; : > {}; sleep 1000; echo ended", begun.display());
    let command = Command::new("sh", deadline).with_arguments(["-c", &script]).for_change();
    let runner = recording_runner(folder);
    let has_begun = async {
        while !begun.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        output = runner.run(&command) => panic!("{output:?}"),
        () = has_begun => {}
    }
}

/// Each call is like another process of the agent.
fn recording_runner(folder: &Path) -> HostRunner {
    HostRunner::new(Path::new("/")).with_change_record(folder.join("change.json"))
}

fn change_record(folder: &Path) -> ChangeRecord {
    ChangeRecordFile::new(folder.join("change.json")).load().expect("a record")
}

#[tokio::test]
async fn a_change_of_an_earlier_agent_is_ended_at_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    start_unattended_change(folder.path(), Duration::from_secs(2)).await;
    let begun = std::time::Instant::now();
    let error = recording_runner(folder.path()).end_left_over_change().await.unwrap_err();
    assert!(begun.elapsed() < TEST_TIMEOUT, "it waited for the program");
    assert_eq!(error.to_string(), "sh did not end within 2 s and was killed");
    let RunError::Deadline { output, .. } = error else { panic!("{error}") };
    assert!(output.starts_with("begun\n"), "{output}");
    assert!(output.ends_with("ended\n"), "{output}");
    assert_eq!(change_record(folder.path()).running_leader(), None);

    // An agent that is killed before it has stored the result learns it again.
    let runner = recording_runner(folder.path());
    let error = runner.end_left_over_change().await.unwrap_err();
    assert_eq!(error.to_string(), "sh did not end within 2 s and was killed");
    runner.forget_ended_change();
    runner.end_left_over_change().await.unwrap();
}

#[tokio::test]
async fn a_change_of_an_earlier_agent_that_ends_in_time_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    start_unattended_change(folder.path(), TEST_TIMEOUT * 100).await;
    let leader = change_record(folder.path()).running_leader().expect("it is running");
    let runner = recording_runner(folder.path());
    runner.forget_ended_change();
    tokio::select! {
        biased;
        ended = runner.end_left_over_change() => panic!("{ended:?}"),
        () = std::future::ready(()) => {}
    }
    session::kill_scripts(leader);
    tokio::time::timeout(TEST_TIMEOUT, runner.end_left_over_change()).await.unwrap().unwrap();
    assert!(!folder.path().join("change.json").exists(), "the record is removed");
}

#[tokio::test]
async fn a_process_that_got_the_id_of_an_ended_change_is_not_killed() {
    let folder = tempfile::tempdir().unwrap();
    start_unattended_change(folder.path(), TEST_TIMEOUT * 100).await;
    let record = change_record(folder.path());
    let leader = record.running_leader().expect("it is running");
    let file = ChangeRecordFile::new(folder.path().join("change.json"));
    let deadline = Duration::ZERO;
    let process_start = record.process_start + 1;
    file.store(&ChangeRecord { process_start, deadline, ..record.clone() }).unwrap();
    recording_runner(folder.path()).end_left_over_change().await.unwrap();
    assert_eq!(record.running_leader(), Some(leader), "it is still running");
    session::kill_session(leader);
}

#[tokio::test]
async fn a_change_without_a_record_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done");
    let script = format!(": > {}", done.display());
    let command = Command::new("sh", TEST_TIMEOUT).with_arguments(["-c", &script]).for_change();
    let runner = HostRunner::new(Path::new("/")).with_change_record("/proc/nowhere/record".into());
    let error = runner.run(&command).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot start sh");
    assert!(!done.exists(), "nothing was changed");
}

#[tokio::test]
async fn a_change_with_an_optional_record_begins_also_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("change.json");
    std::fs::write(&record, "of an earlier change").unwrap();
    // The record cannot be replaced.
    std::fs::create_dir(folder.path().join("change.json.new")).unwrap();
    let script = format!("! test -e {}", record.display());
    let command = Command::new("sh", TEST_TIMEOUT).with_arguments(["-c", &script]).for_change();
    let runner = recording_runner(folder.path());
    assert!(matches!(runner.run(&command).await, Err(RunError::Start { .. })));

    let output = runner.run(&command.with_optional_record()).await.unwrap();
    assert!(output.succeeded(), "the record of the earlier change is still there");
}

/// The agent may be killed before it has stored that the first change did not end.
#[tokio::test]
async fn a_change_that_follows_an_overdue_one_does_not_hide_it() {
    let folder = tempfile::tempdir().unwrap();
    start_unattended_change(folder.path(), Duration::from_secs(1)).await;
    let runner = recording_runner(folder.path());
    runner.end_left_over_change().await.unwrap_err();
    let record = folder.path().join("change.json");
    let show_record = Command::new("cat", TEST_TIMEOUT).with_arguments([record.to_string_lossy()]);
    let output =
        runner.run(&show_record.clone().for_change().with_optional_record()).await.unwrap();
    assert!(output.stdout.contains("\"is_overdue\":true"), "while it runs: {}", output.stdout);
    let error = recording_runner(folder.path()).end_left_over_change().await.unwrap_err();
    assert_eq!(error.to_string(), "sh did not end within 1 s and was killed");

    runner.run(&show_record.for_change()).await.unwrap();
    runner.end_left_over_change().await.unwrap();
    assert!(!record.exists(), "a change that follows no other one has its own record");
}

#[tokio::test]
async fn two_waits_for_a_change_of_an_earlier_agent_have_the_same_result() {
    let folder = tempfile::tempdir().unwrap();
    start_unattended_change(folder.path(), Duration::from_secs(1)).await;
    let runner = recording_runner(folder.path());
    let (one, other) = tokio::join!(runner.end_left_over_change(), runner.end_left_over_change());
    for ended in [one, other] {
        assert_eq!(ended.unwrap_err().to_string(), "sh did not end within 1 s and was killed");
    }
}

#[tokio::test]
async fn a_change_that_has_ended_leaves_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("cat; cat {}/change.json", folder.path().display());
    let command = Command::new("sh", TEST_TIMEOUT).with_arguments(["-c", &script]).for_change();
    let output = recording_runner(folder.path()).run(&command).await.unwrap();
    assert!(output.stdout.starts_with("{\"program\":\"sh\""), "{output:?}");
    assert!(!folder.path().join("change.json").exists());
}

#[tokio::test]
async fn a_program_that_prints_without_end_is_killed() {
    let error = run_script("exec yes", TEST_TIMEOUT).await.unwrap_err();
    let RunError::Lost { source, .. } = error else { panic!("{error}") };
    assert!(source.to_string().contains("longer than"), "{source}");
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
