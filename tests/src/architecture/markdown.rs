//! Markdown: anchors of links exist, and prose is wrapped.

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
    fn a_long_line_of_prose_is_found_and_tables_and_code_are_not() {
        let long = "word ".repeat(21);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\n");
        assert_eq!(long_lines(&[SourceFile::sample("a.md", &text)]), ["a.md:1 is too long"]);
    }
}
