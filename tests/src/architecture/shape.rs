//! Sizes and names of files, scripts, migrations.

use sha2::{Digest, Sha256};

use super::code::before_tests;
use super::tree::SourceFile;

/// Maximum number of lines of a file, without the tests at its end.
pub const MAX_FILE_LINES: usize = 500;

/// Names without a meaning.
const MEANINGLESS_NAMES: &[&str] = &["utils", "util", "helpers", "helper", "common", "misc"];

pub fn too_long(files: &[SourceFile]) -> Vec<String> {
    let lines = |file: &SourceFile| before_tests(&file.text).lines().count();
    let long = files.iter().filter(|file| lines(file) > MAX_FILE_LINES);
    long.map(|file| format!("{} has {} lines", file.path, lines(file))).collect()
}

/// Each file or folder with a name without a meaning.
pub fn meaningless_names(files: &[SourceFile]) -> Vec<String> {
    let is_empty = |file: &&SourceFile| {
        let parts = file.path.split('/');
        parts
            .map(|part| part.split('.').next().unwrap_or_default())
            .any(|part| MEANINGLESS_NAMES.contains(&part))
    };
    let bad = files.iter().filter(is_empty);
    bad.map(|file| format!("{} has a name without a meaning", file.path)).collect()
}

/// Each line with a mark for unfinished work.
pub fn unfinished(files: &[SourceFile]) -> Vec<String> {
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat()];
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                findings.push(format!("{}:{} is unfinished", file.path, number + 1));
            }
        }
    }
    findings
}

/// Each script that is not in the list of scripts or that is not executable.
pub fn neglected_scripts(scripts: &[(String, bool)], listed: &[&str]) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, is_executable) in scripts {
        if !is_executable {
            findings.push(format!("{path} is a script but not executable"));
        }
        if !listed.contains(&path.as_str()) {
            findings.push(format!("{path} is a script that shellcheck does not check"));
        }
    }
    findings
}

/// Whether the text is a shell script.
pub fn is_script(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.starts_with("#!") && first.trim_end().ends_with("sh")
}

/// Each released migration (`digest  path` lines) that has changed or vanished. A migration that is not listed is not
/// released yet, so it may change.
pub fn changed_migrations(steps: &[SourceFile], released: &str) -> Vec<String> {
    let listed = released
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once("  "));
    let mut findings = Vec::new();
    for (digest, path) in listed {
        match steps.iter().find(|step| step.path == path) {
            None => findings.push(format!("{path} was removed after its release")),
            Some(step) if sha256_hex(&step.text) != digest => {
                findings.push(format!("{path} was edited after its release"));
            }
            Some(_) => {}
        }
    }
    findings
}

/// SHA-256 in hexadecimal.
pub fn sha256_hex(text: &str) -> String {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found_and_its_tests_are_not_counted() {
        let long = SourceFile::sample("a/src/x.rs", &"line\n".repeat(501));
        let tested = format!("{}#[cfg(test)]\n{}", "line\n".repeat(500), "line\n".repeat(99));
        let fine = SourceFile::sample("a/src/y.rs", &tested);
        assert_eq!(too_long(&[long, fine]), ["a/src/x.rs has 501 lines"]);
    }

    #[test]
    fn a_meaningless_name_is_found() {
        let files = [
            SourceFile::sample("a/src/utils.rs", ""),
            SourceFile::sample("a/src/common/mod.rs", ""),
            SourceFile::sample("a/src/utilisation.rs", ""),
        ];
        assert_eq!(
            meaningless_names(&files),
            [
                "a/src/utils.rs has a name without a meaning",
                "a/src/common/mod.rs has a name without a meaning",
            ]
        );
    }

    #[test]
    fn an_unfinished_line_is_found() {
        let text = format!("fn f() {{}}\n// {}{}: later\n", "TO", "DO");
        assert_eq!(
            unfinished(&[SourceFile::sample("a/src/x.rs", &text)]),
            ["a/src/x.rs:2 is unfinished"]
        );
    }

    #[test]
    fn a_neglected_script_is_found() {
        let scripts = [("deploy/a".to_owned(), false), ("deploy/b".to_owned(), true)];
        assert_eq!(
            neglected_scripts(&scripts, &["deploy/a"]),
            [
                "deploy/a is a script but not executable",
                "deploy/b is a script that shellcheck does not check",
            ]
        );
        assert!(is_script("#!/usr/bin/env bash\n") && is_script("#!/bin/sh\n"));
        assert!(!is_script("#!/usr/bin/env python3\n") && !is_script("text"));
    }

    #[test]
    fn a_released_step_that_was_edited_or_removed_is_found() {
        let steps = [
            SourceFile::sample("m/0001.sql", "CREATE TABLE a ();"),
            SourceFile::sample("m/0002.sql", "edited"),
            SourceFile::sample("m/0003.sql", "not released yet"),
        ];
        let released = format!(
            "# comment\n{}  m/0000.sql\n{}  m/0001.sql\n{}  m/0002.sql\n",
            sha256_hex("gone"),
            sha256_hex("CREATE TABLE a ();"),
            sha256_hex("as it was"),
        );
        assert_eq!(
            changed_migrations(&steps, &released),
            ["m/0000.sql was removed after its release", "m/0002.sql was edited after its release",]
        );
        assert!(changed_migrations(&steps, "# no release yet\n").is_empty());
    }
}
