//! Names: no retired word in an identifier, a setting or a metric, and no type name twice in a crate.
//!
//! `tests/retired-words.txt` lists the words. A line is `word: replacement`; a line that starts with `=` allows one
//! identifier that holds a retired word, with the reason after a colon.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{before_tests, only_code};
use super::tree::SourceFile;

/// Type names that derive macros and traits of other crates fix.
const FIXED_TYPE_NAMES: &[&str] = &["ActiveModel", "Column", "Entity", "Model", "Relation"];

/// The retired words and the identifiers that may hold one.
#[derive(Debug)]
pub struct RetiredWords<'a> {
    words: BTreeMap<&'a str, &'a str>,
    allowed: BTreeSet<&'a str>,
}

impl<'a> RetiredWords<'a> {
    /// Reads the list.
    ///
    /// # Panics
    ///
    /// If a line is neither a comment nor `word: replacement` nor `= identifier: reason`.
    pub fn parse(text: &'a str) -> Self {
        let mut list = Self { words: BTreeMap::new(), allowed: BTreeSet::new() };
        for line in text.lines() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, rest) =
                line.split_once(": ").unwrap_or_else(|| panic!("no `: ` in `{line}`"));
            if let Some(identifier) = name.strip_prefix("= ") {
                list.allowed.insert(identifier);
            } else {
                list.words.insert(name, rest);
            }
        }
        list
    }

    /// Every retired word.
    pub fn words(&self) -> impl Iterator<Item = &'a str> {
        self.words.keys().copied()
    }

    /// The retired word in an identifier and what to write instead.
    fn find(&self, identifier: &str) -> Option<(&'a str, &'a str)> {
        if self.allowed.contains(identifier) {
            return None;
        }
        let parts = parts(identifier);
        self.words
            .iter()
            .find(|(word, _)| parts.iter().any(|part| part == *word))
            .map(|(word, instead)| (*word, *instead))
    }

    fn finding(&self, path: &str, identifier: &str) -> Option<String> {
        let (word, instead) = self.find(identifier)?;
        Some(format!("{path}: `{identifier}` contains `{word}`: {instead}"))
    }
}

/// Each identifier of Rust code that contains a retired word, once per file.
pub fn retired_identifiers(files: &[SourceFile], retired: &RetiredWords<'_>) -> Vec<String> {
    let in_file = |file: &SourceFile| {
        let code = only_code(&file.text);
        let names: BTreeSet<&str> = identifiers(&code).collect();
        let findings = names.into_iter().filter_map(|name| retired.finding(&file.path, name));
        findings.collect::<Vec<_>>()
    };
    files.iter().flat_map(in_file).collect()
}

/// Each metric (`evenkeel_…` in Rust text) whose name contains a retired word, once per file.
pub fn retired_metrics(files: &[SourceFile], retired: &RetiredWords<'_>) -> Vec<String> {
    let in_file = |file: &SourceFile| {
        let names: BTreeSet<&str> =
            identifiers(&file.text).filter(|name| name.starts_with("evenkeel_")).collect();
        let findings = names.into_iter().filter_map(|name| retired.finding(&file.path, name));
        findings.collect::<Vec<_>>()
    };
    files.iter().flat_map(in_file).collect()
}

/// Each key of a configuration file, commented or not, that contains a retired word.
pub fn retired_settings(files: &[SourceFile], retired: &RetiredWords<'_>) -> Vec<String> {
    let in_file = |file: &SourceFile| {
        let keys: BTreeSet<String> = file.text.lines().filter_map(setting_key).collect();
        let findings = keys
            .iter()
            .flat_map(|key| key.split('.'))
            .filter_map(|name| retired.finding(&file.path, name));
        findings.collect::<Vec<_>>()
    };
    files.iter().flat_map(in_file).collect()
}

/// Each type name that a crate defines more than once outside of tests.
pub fn type_names_used_twice(files: &[SourceFile]) -> Vec<String> {
    let mut definitions: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.is_test()) {
        let package = file.path.split('/').next().unwrap_or_default();
        for name in type_names(&only_code(before_tests(&file.text))) {
            if !FIXED_TYPE_NAMES.contains(&name.as_str()) {
                definitions.entry((package, name)).or_default().push(&file.path);
            }
        }
    }
    let twice = definitions.into_iter().filter(|(_, paths)| paths.len() > 1);
    twice
        .map(|((package, name), paths)| {
            format!("{package} defines `{name}` in {}", paths.join(" and "))
        })
        .collect()
}

/// The parts of a name: `BytesInFlight` and `bytes_in_flight` are both `bytes`, `in`, `flight`.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let chars: Vec<char> = identifier.chars().collect();
    for (at, c) in chars.iter().enumerate() {
        let after_lower = at > 0 && !chars[at - 1].is_ascii_uppercase();
        let before_lower = chars.get(at + 1).is_some_and(char::is_ascii_lowercase);
        if *c == '_' || (c.is_ascii_uppercase() && (after_lower || before_lower)) {
            parts.push(String::new());
        }
        if *c != '_'
            && let Some(last) = parts.last_mut()
        {
            last.push(c.to_ascii_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

pub(super) fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
        .filter(|name| name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic()))
}

/// The key that a line of TOML sets, or the table that it opens.
fn setting_key(line: &str) -> Option<String> {
    let line = line.trim_start_matches(['#', ' ']);
    let key = match line.strip_prefix('[') {
        Some(table) => table.trim_start_matches('[').split(']').next()?,
        None => line.split_once(" = ")?.0,
    };
    let is_key = |c: char| c == '_' || c == '.' || c == '-' || c.is_ascii_alphanumeric();
    (!key.is_empty() && key.chars().all(is_key)).then(|| key.to_owned())
}

/// The types that the code defines. Aliases count at the top level only: inside of traits they are associated types.
pub(super) fn type_names(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in code.lines() {
        let words: Vec<&str> = line
            .split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .filter(|word| !matches!(*word, "pub" | "crate" | "super" | "in" | "unsafe"))
            .collect();
        let (Some(keyword), Some(name)) = (words.first(), words.get(1)) else {
            continue;
        };
        let defines = matches!(*keyword, "struct" | "enum" | "trait" | "union")
            || (*keyword == "type" && !line.starts_with(' '));
        if defines && name.starts_with(|c: char| c.is_ascii_uppercase()) {
            names.push((*name).to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = include_str!("../../retired-words.txt");

    #[test]
    fn every_retired_word_is_found_in_a_function_a_type_a_metric_and_a_setting() {
        let retired = RetiredWords::parse(LIST);
        for word in retired.words() {
            let capital = format!("{}{}", word[..1].to_ascii_uppercase(), &word[1..]);
            let code = format!("fn load_{word}() {{}}\nstruct {capital}Row;\n");
            let found = retired_identifiers(&[SourceFile::sample("a/src/x.rs", &code)], &retired);
            assert_eq!(found.len(), 2, "{word}: {found:?}");
            let code = format!("counter!(\"evenkeel_{word}_total\")");
            let found = retired_metrics(&[SourceFile::sample("a/src/x.rs", &code)], &retired);
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            let toml = format!("[{word}]\n# {word}_limit = 4\n");
            let found = retired_settings(&[SourceFile::sample("deploy/a.toml", &toml)], &retired);
            assert_eq!(found.len(), 2, "{word}: {found:?}");
        }
    }

    #[test]
    fn comments_texts_and_longer_words_are_no_findings() {
        let retired = RetiredWords::parse("told: report\n= told_by_eim: a name of EIM\n");
        let code = "// told\nlet a = \"told\"; fn untold() {} let told_by_eim = 1;";
        let found = retired_identifiers(&[SourceFile::sample("a/src/x.rs", code)], &retired);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_type_name_used_twice_in_a_crate_is_found() {
        let files = [
            SourceFile::sample("a/src/x.rs", "pub struct Plan;\nstruct Model;\n"),
            SourceFile::sample("a/src/y.rs", "pub(crate) enum Plan<T> {}\nstruct Model;\n"),
            SourceFile::sample("a/src/z.rs", "#[cfg(test)]\nstruct Plan;\n"),
            SourceFile::sample("a/tests/story.rs", "struct Plan;\n"),
            SourceFile::sample("b/src/x.rs", "struct Plan;\nimpl X {\n    type Plan = u8;\n}\n"),
        ];
        assert_eq!(
            type_names_used_twice(&files),
            ["a defines `Plan` in a/src/x.rs and a/src/y.rs"]
        );
    }
}
