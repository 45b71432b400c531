//! Shapes: sizes and names of files, scripts, migrations.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::code::before_tests;
use super::tree::SourceFile;

/// The longest that a file may be, tests at its end not counted.
pub const LONGEST_FILE: usize = 500;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["utils", "util", "helpers", "helper", "common", "misc"];

/// Each file that is longer than a sitting.
pub fn too_long(files: &[SourceFile]) -> Vec<String> {
    let lines = |file: &SourceFile| before_tests(&file.text).lines().count();
    let long = files.iter().filter(|file| lines(file) > LONGEST_FILE);
    long.map(|file| format!("{} has {} lines", file.path, lines(file)))
        .collect()
}

/// Each file or folder whose name says nothing.
pub fn empty_names(files: &[SourceFile]) -> Vec<String> {
    let is_empty = |file: &&SourceFile| {
        let parts = file.path.split('/');
        parts
            .map(|part| part.split('.').next().unwrap_or_default())
            .any(|part| EMPTY_NAMES.contains(&part))
    };
    let bad = files.iter().filter(is_empty);
    bad.map(|file| format!("{} has a name that says nothing", file.path))
        .collect()
}

/// Each place that says that something is unfinished.
pub fn unfinished(files: &[SourceFile]) -> Vec<String> {
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat()];
    let mut found = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                found.push(format!("{}:{} is unfinished", file.path, number + 1));
            }
        }
    }
    found
}

/// Each script that the list of scripts does not name or that cannot be executed.
pub fn neglected_scripts(scripts: &[(String, bool)], listed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, is_executable) in scripts {
        if !is_executable {
            found.push(format!("{path} is a script and not executable"));
        }
        if !listed.contains(&path.as_str()) {
            found.push(format!("{path} is a script that shellcheck does not see"));
        }
    }
    found
}

/// Whether the text is a shell script.
pub fn is_script(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.starts_with("#!") && first.trim_end().ends_with("sh")
}

/// Each schema step that differs from the list of released ones (`digest  path` lines), or is missing from it.
pub fn edited_migrations(steps: &[SourceFile], released: &str) -> Vec<String> {
    let listed: BTreeMap<&str, &str> = released
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once("  "))
        .map(|(digest, path)| (path, digest))
        .collect();
    let mut found = Vec::new();
    for step in steps {
        match listed.get(step.path.as_str()) {
            Some(digest) if *digest == digest_of(&step.text) => {}
            Some(_) => found.push(format!("{} was edited after its release", step.path)),
            None => found.push(format!(
                "{} is not in the list; add `{}  {}`",
                step.path,
                digest_of(&step.text),
                step.path
            )),
        }
    }
    let is_there = |path: &&str| steps.iter().any(|step| step.path == **path);
    let gone = listed.keys().filter(|path| !is_there(path));
    found.extend(gone.map(|path| format!("{path} was removed after its release")));
    found
}

/// SHA-256 in hexadecimal.
pub fn digest_of(text: &str) -> String {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        write!(hex, "{byte:02x}").expect("a string takes it all");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found_and_its_tests_do_not_count() {
        let long = SourceFile::sample("a/src/x.rs", &"line\n".repeat(501));
        let tested = format!(
            "{}#[cfg(test)]\n{}",
            "line\n".repeat(500),
            "line\n".repeat(99)
        );
        let fine = SourceFile::sample("a/src/y.rs", &tested);
        assert_eq!(too_long(&[long, fine]), ["a/src/x.rs has 501 lines"]);
    }

    #[test]
    fn a_name_that_says_nothing_is_found() {
        let files = [
            SourceFile::sample("a/src/utils.rs", ""),
            SourceFile::sample("a/src/common/mod.rs", ""),
            SourceFile::sample("a/src/utilisation.rs", ""),
        ];
        assert_eq!(
            empty_names(&files),
            [
                "a/src/utils.rs has a name that says nothing",
                "a/src/common/mod.rs has a name that says nothing",
            ]
        );
    }

    #[test]
    fn an_unfinished_place_is_found() {
        let text = format!("fn f() {{}}\n// {}{}: later\n", "TO", "DO");
        assert_eq!(
            unfinished(&[SourceFile::sample("a/src/x.rs", &text)]),
            ["a/src/x.rs:2 is unfinished"]
        );
    }

    #[test]
    fn a_neglected_script_is_found() {
        let scripts = [
            ("deploy/a".to_owned(), false),
            ("deploy/b".to_owned(), true),
        ];
        assert_eq!(
            neglected_scripts(&scripts, &["deploy/a"]),
            [
                "deploy/a is a script and not executable",
                "deploy/b is a script that shellcheck does not see",
            ]
        );
        assert!(is_script("#!/usr/bin/env bash\n") && is_script("#!/bin/sh\n"));
        assert!(!is_script("#!/usr/bin/env python3\n") && !is_script("text"));
    }

    #[test]
    fn an_edited_a_new_and_a_removed_step_are_found() {
        let steps = [
            SourceFile::sample("m/0001.sql", "CREATE TABLE a ();"),
            SourceFile::sample("m/0002.sql", "edited"),
            SourceFile::sample("m/0003.sql", "new"),
        ];
        let released = format!(
            "# comment\n{}  m/0001.sql\n{}  m/0002.sql\n{}  m/0000.sql\n",
            digest_of("CREATE TABLE a ();"),
            digest_of("as it was"),
            digest_of("gone"),
        );
        let found = edited_migrations(&steps, &released);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], "m/0002.sql was edited after its release");
        assert!(found[1].starts_with("m/0003.sql is not in the list; add `"));
        assert_eq!(found[2], "m/0000.sql was removed after its release");
    }
}
