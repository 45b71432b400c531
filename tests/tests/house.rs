//! The rules of the house, held against the tree as it is.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use clap::CommandFactory as _;
use evenkeel_tests::house::{arrows, documents, doors, shape, tree};
use serde_json::Value;

/// Fails with every finding, one a line.
#[track_caller]
fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[expect(
    clippy::disallowed_methods,
    reason = "a rule asks the project's own tools"
)]
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(tree::root())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn crates_use_only_what_the_arrows_allow() {
    let arguments = [
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ];
    let metadata: Value = serde_json::from_str(&output(env!("CARGO"), &arguments)).expect("JSON");
    assert!(
        metadata["packages"]
            .as_array()
            .is_some_and(|all| all.len() > 10)
    );
    none(arrows::forbidden(&metadata));
}

#[test]
fn everything_goes_through_its_door() {
    none(doors::outside_doors(&tree::rust_files(), doors::DOORS));
}

#[test]
fn the_domain_is_pure() {
    let files = tree::rust_files();
    assert!(
        files
            .iter()
            .any(|file| file.path.starts_with("domain/src/"))
    );
    none(doors::effects_in_the_domain(&files));
}

#[test]
fn no_file_is_longer_than_a_sitting() {
    none(shape::too_long(&tree::rust_files()));
}

#[test]
fn every_name_says_something() {
    none(shape::empty_names(&tree::files(|_| true)));
}

#[test]
fn nothing_is_left_unfinished() {
    none(shape::unfinished(&tree::files(|path| {
        ["rs", "sql", "proto", "toml", "md"]
            .iter()
            .any(|end| tree::ends_in(path, end))
    })));
}

#[test]
fn every_script_is_executable_and_seen_by_shellcheck() {
    let scripts: Vec<(String, bool)> = tree::files(|_| true)
        .into_iter()
        .filter(|file| shape::is_script(&file.text))
        .map(|file| {
            let meta = std::fs::metadata(tree::root().join(&file.path)).expect("a script");
            (file.path, meta.permissions().mode() & 0o111 == 0o111)
        })
        .collect();
    assert!(scripts.len() > 5, "{scripts:?}");
    let listed = output("deploy/dev/scripts", &["list"]);
    let listed: Vec<&str> = listed.lines().collect();
    none(shape::neglected_scripts(&scripts, &listed));
}

#[test]
fn no_snapshot_is_left_unreviewed() {
    let left = tree::files(|path| path.ends_with(".snap.new") || path.ends_with(".pending-snap"));
    none(left.into_iter().map(|file| file.path).collect());
}

#[test]
fn released_migrations_stay_as_they_were() {
    let steps = tree::files(|path| path.starts_with("migrations/") && tree::ends_in(path, "sql"));
    assert!(!steps.is_empty());
    let released = include_str!("../released-migrations.txt");
    none(shape::edited_migrations(&steps, released));
}

#[test]
fn documents_name_only_what_is_there() {
    let texts = tree::files(|path| tree::ends_in(path, "md"));
    assert!(texts.iter().any(|file| file.path == "README.md"));
    let makefile = std::fs::read_to_string(tree::root().join("Makefile")).expect("a Makefile");
    none(documents::unknown_targets(&texts, &makefile));
    let root = tree::root();
    none(documents::broken_links(&texts, |path| {
        root.join(path).exists()
    }));
}

#[test]
fn documents_show_only_commands_that_exist() {
    let programs = [
        ("evenkeel", evenkeel_cli::args::Cli::command()),
        ("evenkeel-agent", evenkeel_update_agent::cli::Cli::command()),
        ("evenkeeld", evenkeel_server::Cli::command()),
    ];
    let understands = |words: &[&str]| {
        let program = programs.iter().find(|(name, _)| *name == words[0]);
        let (_, command) = program.ok_or("no such program")?;
        let parsed = command.clone().try_get_matches_from(words);
        parsed.map(|_| ()).map_err(|error| error.kind().to_string())
    };
    let texts = tree::files(|path| tree::ends_in(path, "md"));
    let names = programs.each_ref().map(|(name, _)| *name);
    none(documents::misunderstood(&texts, &names, understands));
}

#[test]
fn decision_records_are_numbered() {
    let records = tree::files(|path| path.starts_with("docs/adr/") && tree::ends_in(path, "md"));
    assert!(!records.is_empty());
    none(documents::misnumbered(&records));
}
