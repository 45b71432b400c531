//! Markdown: anchors of links exist, files in code spans exist, and prose is wrapped.

use std::collections::{BTreeMap, BTreeSet};

use super::documents::{links, resolve};
use super::tree::SourceFile;

/// Longest line of prose, in characters. Tables and code may be longer.
pub const MAX_LINE_CHARS: usize = 100;

/// Each link to a heading that its document does not have.
pub fn broken_anchors(documents: &[SourceFile]) -> Vec<String> {
    let known: BTreeMap<&str, BTreeSet<String>> = documents
        .iter()
        .map(|document| (document.path.as_str(), anchors(&document.text)))
        .collect();
    let mut findings = Vec::new();
    for document in documents {
        let folder = document.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in links(&document.text) {
            let Some((target, anchor)) = link.split_once('#') else {
                continue;
            };
            let path =
                if target.is_empty() { document.path.clone() } else { resolve(folder, target) };
            let anchors = known.get(path.as_str());
            if anchors.is_some_and(|anchors| !anchors.contains(anchor)) {
                findings.push(format!("{} links to {link}", document.path));
            }
        }
    }
    findings
}

/// Each file or folder that a code span names and that does not exist, such as the test of a property. A span is checked
/// if it begins with a folder of the repository. `{a,b}` stands for several names, and a module may lack its `.rs`.
pub fn missing_files(documents: &[SourceFile], is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let is_path = |span: &str| {
        let has_folder = span.split_once('/').is_some_and(|(folder, _)| {
            !matches!(folder, "" | "target" | "dist") && is_there(folder)
        });
        has_folder && span.chars().all(|c| c.is_ascii_alphanumeric() || "_-./{},".contains(c))
    };
    let mut findings = Vec::new();
    for document in documents {
        for span in code_spans(&document.text) {
            let path = span.split("::").next().unwrap_or_default();
            if !is_path(path) {
                continue;
            }
            for path in alternatives(path) {
                if !is_there(&path) && !is_there(&format!("{path}.rs")) {
                    findings.push(format!("{} names {path}", document.path));
                }
            }
        }
    }
    findings
}

/// The code spans outside of fenced code.
fn code_spans(text: &str) -> Vec<String> {
    let lines: Vec<&str> = prose(text).into_iter().map(|(_, line)| line).collect();
    lines.join("\n").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The names that a path with `{a,b}` stands for.
fn alternatives(path: &str) -> Vec<String> {
    let Some((start, (names, end))) =
        path.split_once('{').and_then(|(start, rest)| Some((start, rest.split_once('}')?)))
    else {
        return vec![path.to_owned()];
    };
    names.split(',').flat_map(|name| alternatives(&format!("{start}{name}{end}"))).collect()
}

/// Each line of prose that is longer than [`MAX_LINE_CHARS`].
pub fn long_lines(documents: &[SourceFile]) -> Vec<String> {
    let mut findings = Vec::new();
    for document in documents {
        for (number, line) in prose(&document.text) {
            let is_table = line.trim_start().starts_with('|');
            // A link cannot be wrapped.
            let can_break = line.trim_start().contains(' ');
            if !is_table && can_break && line.chars().count() > MAX_LINE_CHARS {
                findings.push(format!("{}:{number} is too long", document.path));
            }
        }
    }
    findings
}

/// Anchors of all headings, as GitHub makes them: lower case, blanks become hyphens, other punctuation goes.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let mut candidates = std::iter::once(anchor.clone()).chain(repeated);
        let free = candidates.find(|candidate| !anchors.contains(candidate));
        anchors.extend(free);
    }
    anchors
}

/// Numbered lines outside of fenced code.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push((at + 1, line));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_missing_heading_is_found() {
        let text = "# Who may: `roles`\n## Again\n## Again\n[a](#who-may-roles) [b](#again-1) [c](b.md#x-y)\n[d](#gone)\n";
        let documents = [
            SourceFile::sample("docs/a.md", text),
            SourceFile::sample("docs/b.md", "```\n# x y\n```\n[e](a.md#again)"),
        ];
        assert_eq!(
            broken_anchors(&documents),
            ["docs/a.md links to b.md#x-y", "docs/a.md links to #gone"]
        );
    }

    #[test]
    fn a_file_that_a_code_span_names_must_exist() {
        let text = "`store/src/{a,b/c}.rs::a_test` `store/src/module`\n| `store/gone` | `/store/x` |\n\
                    `npm/store` `store/FILE …` `target/x`\n```\n`store/code`\n```\n`store/late`";
        let there = ["store", "target", "store/src/a.rs", "store/src/module.rs"];
        assert_eq!(
            missing_files(&[SourceFile::sample("a.md", text)], |path| there.contains(&path)),
            ["a.md names store/src/b/c.rs", "a.md names store/gone", "a.md names store/late"]
        );
    }

    #[test]
    fn a_long_line_of_prose_is_found_and_tables_and_code_are_not() {
        let long = "word ".repeat(21);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\n");
        assert_eq!(long_lines(&[SourceFile::sample("a.md", &text)]), ["a.md:1 is too long"]);
    }
}
