//! Checks the architecture rules against the source tree.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use clap::CommandFactory as _;
use evenkeel_tests::architecture::naming::{self, RetiredWords};
use evenkeel_tests::architecture::{
    agent_modules, arrows, cycles, documents, markdown, migration_steps, restricted_names, shape,
    tree,
};
use serde_json::Value;

/// Fails with all findings, one per line.
#[track_caller]
fn assert_none(findings: Vec<String>) {
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[expect(clippy::disallowed_methods, reason = "a rule uses the project's own tools")]
fn command_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(tree::root())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn crates_use_only_what_the_arrows_allow() {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let metadata: Value =
        serde_json::from_str(&command_output(env!("CARGO"), &arguments)).expect("JSON");
    assert!(metadata["packages"].as_array().is_some_and(|all| all.len() > 10));
    assert_none(arrows::forbidden_arrows(&metadata));
}

#[test]
fn modules_import_each_other_in_one_direction() {
    let files = tree::rust_files();
    let has_modules = |package: &&str| files.iter().any(|file| file.path.starts_with(*package));
    assert!(cycles::CRATES_WITHOUT_CYCLES.iter().all(has_modules));
    assert_none(cycles::import_cycles(&files, cycles::CRATES_WITHOUT_CYCLES));
}

#[test]
fn restricted_names_are_used_only_in_their_paths() {
    assert_none(restricted_names::names_outside_their_paths(
        &tree::rust_files(),
        restricted_names::RESTRICTED_NAMES,
    ));
}

#[test]
fn the_domain_is_pure() {
    let files = tree::rust_files();
    assert!(files.iter().any(|file| file.path.starts_with("domain/src/")));
    assert_none(restricted_names::effects_in_the_domain(&files));
}

#[test]
fn the_agent_runs_modules_that_it_does_not_know() {
    let files = tree::rust_files();
    assert!(agent_modules::module_names(&files).len() > 1);
    for name in agent_modules::RUNNERS {
        assert!(files.iter().any(|file| agent_modules::is_runner(name, &file.path)), "{name}");
    }
    assert_none(agent_modules::uses_of_modules(&files));
}

#[test]
fn no_file_is_too_long() {
    assert_none(shape::too_long(&tree::rust_files()));
}

#[test]
fn no_name_is_meaningless() {
    assert_none(shape::meaningless_names(&tree::files(|_| true)));
}

#[test]
fn no_line_is_marked_as_unfinished() {
    assert_none(shape::unfinished(&tree::files(|path| {
        ["rs", "sql", "proto", "toml", "md"].iter().any(|end| tree::ends_in(path, end))
    })));
}

#[test]
fn every_script_is_executable_and_checked_by_shellcheck() {
    let scripts: Vec<(String, bool)> = tree::files(|_| true)
        .into_iter()
        .filter(|file| shape::is_script(&file.text))
        .map(|file| {
            let meta = std::fs::metadata(tree::root().join(&file.path)).expect("a script");
            (file.path, meta.permissions().mode() & 0o111 == 0o111)
        })
        .collect();
    assert!(scripts.len() > 5, "{scripts:?}");
    let listed = command_output("deploy/dev/scripts", &["list"]);
    let listed: Vec<&str> = listed.lines().collect();
    assert_none(shape::neglected_scripts(&scripts, &listed));
}

#[test]
fn no_snapshot_is_unreviewed() {
    let left = tree::files(|path| path.ends_with(".snap.new") || path.ends_with(".pending-snap"));
    assert_none(left.into_iter().map(|file| file.path).collect());
}

#[test]
fn released_migrations_are_unchanged() {
    let steps = tree::files(|path| path.starts_with("migrations/") && tree::ends_in(path, "sql"));
    assert!(!steps.is_empty());
    let released = include_str!("../released-migrations.txt");
    assert_none(shape::changed_migrations(&steps, released));
}

#[test]
fn steps_of_the_schema_do_not_block_servers() {
    let steps = tree::files(|path| path.starts_with("migrations/") && tree::ends_in(path, "sql"));
    assert!(steps.len() > 10);
    let exceptions = migration_steps::STEP_EXCEPTIONS;
    assert_none(migration_steps::blocking_statements(&steps, exceptions));
}

#[test]
fn documents_refer_only_to_existing_targets_and_files() {
    let texts = tree::files(|path| tree::ends_in(path, "md"));
    assert!(texts.iter().any(|file| file.path == "README.md"));
    let makefile = std::fs::read_to_string(tree::root().join("Makefile")).expect("a Makefile");
    assert_none(documents::unknown_targets(&texts, &makefile));
    let root = tree::root();
    let is_there = |path: &str| root.join(path).exists();
    assert_none(markdown::broken_anchors(&texts));
    assert_none(markdown::missing_files(&texts, is_there));
    assert_none(markdown::long_lines(&texts));
    assert_none(documents::broken_links(&texts, is_there));
    assert_none(documents::unlisted_pages(&texts));
}

#[test]
fn documents_show_only_commands_that_exist() {
    let programs = [
        ("evenkeel", evenkeel_cli::args::Cli::command()),
        ("evenkeel-agent", evenkeel_update_agent::cli::Cli::command()),
        ("evenkeeld", evenkeel_server::Cli::command()),
    ];
    let understands = |arguments: &[&str]| {
        let program = programs.iter().find(|(name, _)| *name == arguments[0]);
        let (_, command) = program.ok_or("no such program")?;
        let parsed = command.clone().try_get_matches_from(arguments);
        parsed.map(|_| ()).map_err(|error| error.kind().to_string())
    };
    let texts = tree::files(|path| tree::ends_in(path, "md"));
    let names = programs.each_ref().map(|(name, _)| *name);
    assert_none(documents::invalid_commands(&texts, &names, understands));
}

/// apt has `--error-on=any`, with which the agent refreshes the package lists, since this version.
#[test]
fn the_package_of_the_agent_requires_the_apt_that_the_documents_name() {
    let read = |path: &str| std::fs::read_to_string(tree::root().join(path)).expect("a text");
    let control = read("deploy/package/evenkeel-agent/control");
    let required = documents::required_version(&control, "apt").expect("a version of apt");
    assert_eq!(required, "2.1.16");
    assert!(read("docs/supported-systems.md").contains(&format!("apt before {required}")));
}

#[test]
fn decision_records_are_numbered() {
    let records = tree::files(|path| path.starts_with("docs/adr/") && tree::ends_in(path, "md"));
    assert!(!records.is_empty());
    assert_none(documents::misnumbered(&records));
}

#[test]
fn no_name_contains_a_retired_word() {
    let retired = RetiredWords::parse(include_str!("../retired-words.txt"));
    let rust = tree::rust_files();
    let settings = tree::files(|path| {
        path.starts_with("deploy/") && tree::ends_in(path, "toml") && !path.ends_with("Cargo.toml")
    });
    assert!(!settings.is_empty());
    assert_none(naming::retired_identifiers(&rust, &retired));
    assert_none(naming::retired_metrics(&rust, &retired));
    assert_none(naming::retired_settings(&settings, &retired));
}

#[test]
fn no_crate_defines_two_types_of_one_name() {
    assert_none(naming::type_names_used_twice(&tree::rust_files()));
}
