//! `evenkeel-agent configuration apply`. It needs root, and is not tested otherwise.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::geteuid;
use serde_json::Value;

use crate::image_root::{ImageRoot, document, list_tree, program, run, text};
use crate::skipping::skip_test;

const MOTD: &str = "{component: File, name: /etc/motd, desired: {content: {inline: hello}}}";

/// A machine; none without root.
pub fn open_image() -> Option<ImageRoot> {
    if geteuid().is_root() {
        return Some(ImageRoot::new());
    }
    skip_test("only root can change a machine");
    None
}

pub fn apply(image: &ImageRoot, options: &[&str], document: &str) -> Output {
    let line: Vec<&str> = ["apply", "-"].iter().chain(options).copied().collect();
    image.run(&line, document.as_bytes())
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn the_exit_status_of_a_change_is_that_of_the_result() {
    let Some(image) = open_image() else { return };
    let mut before = Vec::new();
    list_tree(image.path(), &mut before);
    let provision = format!("purpose: provision\n{}", document(MOTD));
    let extension = document(&format!("{MOTD}, {{component: Extension, name: disk}}"));
    let (invalid, audit) =
        (document("{component: File}"), format!("applyMode: audit\n{}", document(MOTD)));
    for (document, status, message) in [
        (&invalid, 2, "bundles[0].entries[0].name"),
        (&provision, 2, "is for new machines"),
        (&extension, 3, "(entry \"disk\")"),
    ] {
        let output = apply(&image, &[], document);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(text(&output.stderr).contains(message), "{output:?}");
        assert!(output.stdout.is_empty());
    }
    let mut after = Vec::new();
    list_tree(image.path(), &mut after);
    assert_eq!(before, after, "nothing was done");

    let output = apply(&image, &[], &audit);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!image.path().join("etc/motd").exists());
    let output = apply(&image, &[], &document(MOTD));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = apply(&image, &[], &document("{component: Package, name: nginx}"));
    assert_eq!(output.status.code(), Some(1), "there is no apt: {output:?}");
    assert!(text(&output.stderr).starts_with("install nginx\n  failed: "), "{output:?}");
    assert!(text(&output.stdout).contains("the package is not installed; "), "{output:?}");
}

#[test]
fn a_second_change_changes_nothing() {
    let Some(image) = open_image() else { return };
    let secrets = image.write("secrets.yaml", "db: {password: hunter2}");
    let entries = format!(
        "{MOTD}, {{component: File, name: /etc/db, desired: {{content: {{secretRef: {{name: db, key: password}}}}}}}}"
    );
    let options = ["-o", "json", "--secrets", secrets.to_str().unwrap()];
    let first = apply(&image, &options, &document(&entries));
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    assert_eq!(report(&first)["entries"][0]["modified"], true);
    assert_eq!(fs::read_to_string(image.path().join("etc/db")).unwrap(), "hunter2");
    assert_eq!(text(&first.stderr), "change File /etc/motd, File /etc/db\n");
    let mut before = Vec::new();
    list_tree(image.path(), &mut before);

    let second = apply(&image, &options, &document(&entries));
    assert_eq!(second.status.code(), Some(0), "{second:?}");
    let entries = report(&second)["entries"].as_array().unwrap().clone();
    assert!(entries.iter().all(|entry| entry["modified"] == false), "{entries:?}");
    assert!(second.stderr.is_empty(), "{second:?}");
    let mut after = Vec::new();
    list_tree(image.path(), &mut after);
    // The folder of the state gets its mode again.
    let without_times = |found: Vec<(std::path::PathBuf, u64, u32, i64)>| -> Vec<_> {
        let is_state = |path: &std::path::Path| {
            path.ends_with("evenkeel-agent") || path.ends_with("configuration")
        };
        found
            .into_iter()
            .map(|(path, inode, mode, time)| {
                let time = if is_state(&path) { 0 } else { time };
                (path, inode, mode, time)
            })
            .collect()
    };
    assert_eq!(without_times(before), without_times(after));
    let state = image.path().join("var/lib/evenkeel-agent/configuration");
    let left: Vec<_> =
        fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["state.json"]);
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(!fs::read_to_string(state.join("state.json")).unwrap().contains("hunter2"));
}

/// Kills a change of many files. Returns false if it had ended before.
fn kill_in_change(image: &ImageRoot, document: &Path) -> bool {
    let mut child = image.command(&["apply", document.to_str().unwrap()]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first_step = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut first_step).unwrap();
    assert!(first_step.starts_with("change File /etc/app/0, "), "{first_step}");
    child.kill().unwrap();
    child.wait().unwrap();
    image.path().join("var/lib/evenkeel-agent/configuration/run.jsonl").exists()
}

/// Enough files that the change takes longer than a signal.
const FILES: usize = 2_000;

#[test]
fn a_change_that_was_killed_continues() {
    if open_image().is_none() {
        return;
    }
    let entry = |number: usize| {
        format!("{{component: File, name: /etc/app/{number}, desired: {{content: {{inline: a}}}}}}")
    };
    let entries: Vec<_> = (0..FILES).map(entry).collect();
    let document = document(&entries.join(", "));
    // The process may end before the signal arrives.
    let killed = (0..5).find_map(|_| {
        let image = ImageRoot::new();
        let path = image.write("document.yaml", &document);
        kill_in_change(&image, &path).then_some((image, path))
    });
    let (image, path) = killed.expect("a change that was killed");

    let output = image.run(&["apply", path.to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let start = "continuing the run that was interrupted\n";
    assert!(text(&output.stderr).starts_with(start), "{output:?}");
    let mut paths = Vec::new();
    list_tree(image.path(), &mut paths);
    let names = paths.iter().filter_map(|(path, ..)| path.file_name()?.to_str());
    assert!(!names.clone().any(|name| name.contains("evenkeel-tmp")));
    let state = image.path().join("var/lib/evenkeel-agent/configuration");
    let left: Vec<_> =
        fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["state.json"]);
    let state = fs::read_to_string(state.join("state.json")).unwrap();
    let is_owned = |number| state.contains(&format!("File /etc/app/{number}\""));
    assert!((0..FILES).all(is_owned), "{state}");
}

#[test]
fn a_run_that_cannot_be_continued_has_a_way_out() {
    let Some(image) = open_image() else { return };
    let journal =
        image.write("var/lib/evenkeel-agent/configuration/run.jsonl", "{\"format\": 9}\n");
    let output = apply(&image, &[], &document(MOTD));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let advice = "or remove this file to give the run up";
    assert!(text(&output.stderr).contains(advice), "{output:?}");
    fs::remove_file(journal).unwrap();
    let output = apply(&image, &[], &document(MOTD));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_secret_without_a_value_fails() {
    let Some(image) = open_image() else { return };
    let secret =
        "{component: File, name: /etc/db, desired: {content: {secretRef: {name: db, key: p}}}}";
    let output = apply(&image, &[], &document(&format!("{MOTD}, {secret}")));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("give it with --secrets"), "{output:?}");
    assert!(image.path().join("etc/motd").exists() && !image.path().join("etc/db").exists());
}

#[test]
fn what_a_change_has_created_is_removed_with_its_entry() {
    let Some(image) = open_image() else { return };
    let other = image.write("etc/other", "by somebody else");
    apply(&image, &[], &document(MOTD));
    let output = apply(&image, &[], "bundles: []");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!image.path().join("etc/motd").exists() && other.exists());
}

#[test]
fn only_one_bundle_is_changed() {
    let Some(image) = open_image() else { return };
    let text_of_two = format!(
        "bundles: [{{name: a, entries: [{MOTD}]}}, {{name: b, entries: [{}]}}]",
        MOTD.replace("motd", "issue")
    );
    let options = ["--only-bundle", "b", "--remove-extra", "all"];
    let output = apply(&image, &options, &text_of_two);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stderr).starts_with("warning: with --only-bundle"), "{output:?}");
    assert!(image.path().join("etc/issue").exists() && !image.path().join("etc/motd").exists());
}

#[test]
fn an_action_is_refused_with_the_digest_that_would_allow_it() {
    let Some(image) = open_image() else { return };
    let entries =
        format!("{MOTD}, {{component: Action, name: reload, desired: {{command: 'true'}}}}");
    let output = apply(&image, &[], &document(&entries));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let digest = "b5bea41b6c623f7c09f1bf24dcae58ebab3c0cdd90ad966bc43a45b44867e12b";
    assert!(text(&output.stderr).contains(digest), "{output:?}");
    assert!(image.path().join("etc/motd").exists());
}

#[test]
fn a_change_needs_root() {
    let Some(image) = open_image() else { return };
    let tools = tempfile::tempdir().unwrap();
    fs::set_permissions(tools.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let agent = tools.path().join("evenkeel-agent");
    fs::copy(env!("CARGO_BIN_EXE_evenkeel-agent"), &agent).unwrap();
    let mut command = program("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&agent);
    command.args(["configuration", "apply", "-", "--image-root"]).arg(image.path());
    let output = run(command, document(MOTD).as_bytes());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("run this command as root"), "{output:?}");
}
