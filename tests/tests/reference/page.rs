//! Pages: comparison with the committed file, and Markdown.

use evenkeel_tests::architecture::markdown::MAX_LINE_CHARS;
use evenkeel_tests::architecture::tree;

/// First line of each generated page.
pub const GENERATED_COMMENT: &str =
    "<!-- Generated from the code by `make generate`. Do not edit this page. -->\n\n";

/// Compares a page of `docs/reference` with the committed one. With `UPDATE_GENERATED=1`, writes it
/// first.
#[track_caller]
pub fn check(name: &str, fresh: &str) {
    let fresh = format!("{GENERATED_COMMENT}{}\n", fresh.trim_end());
    check_file(&format!("docs/reference/{name}"), &fresh);
}

/// Compares a file of the repository with the committed one. With `UPDATE_GENERATED=1`, writes it
/// first.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "the test is controlled by one environment variable")]
pub fn check_file(path: &str, fresh: &str) {
    let file = tree::root().join(path);
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&file, fresh).expect("write the file");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == fresh, "{path} is stale: run `make generate` and commit the file");
}

/// Wraps each paragraph. Paragraphs are separated by an empty line.
pub fn wrap(text: &str) -> String {
    let paragraphs: Vec<String> = text.split("\n\n").map(wrap_paragraph).collect();
    paragraphs.join("\n\n") + "\n"
}

fn wrap_paragraph(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in unbreakable_parts(text) {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(&word);
        } else if line.chars().count() + 1 + word.chars().count() > MAX_LINE_CHARS {
            lines.push(word);
        } else {
            line.push(' ');
            line.push_str(&word);
        }
    }
    lines.join("\n")
}

/// The words of a text. Code in backticks is one word.
fn unbreakable_parts(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut is_code = false;
    for word in text.split_whitespace() {
        match parts.last_mut() {
            Some(last) if is_code => *last = format!("{last} {word}"),
            _ => parts.push(word.to_owned()),
        }
        is_code ^= word.matches('`').count() % 2 == 1;
    }
    parts
}

/// Ends a text that clap left without a full stop.
pub fn end_sentence(text: &str) -> String {
    let text = text.trim_end();
    if text.is_empty() || text.ends_with(['.', ':', '?', '!']) {
        text.to_owned()
    } else {
        format!("{text}.")
    }
}

/// A row of a table.
pub fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |")
}

/// The header of a table.
pub fn header(titles: &[&str]) -> String {
    let rules: Vec<&str> = titles.iter().map(|_| "---").collect();
    format!("{}| {} |\n", row(titles), rules.join(" | "))
}

/// Escapes what Markdown would read as HTML, outside of code.
pub fn escape(text: &str) -> String {
    let parts = text
        .split('`')
        .enumerate()
        .map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

/// One line: breaks become blanks.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn prose_is_wrapped_and_html_is_escaped() {
    let text = format!("{}\n\nnext\nline", "word ".repeat(21));
    let lines: Vec<String> = wrap(&text).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[0].len() <= MAX_LINE_CHARS, "{}", lines[0]);
    assert_eq!(lines[3], "next line");
    assert_eq!(escape("<a> in `<b>` and <c>"), "&lt;a> in `<b>` and &lt;c>");
    assert_eq!(unbreakable_parts("a `b c` d"), ["a", "`b c`", "d"]);
    assert_eq!(end_sentence("`a`") + &end_sentence("b."), "`a`.b.");
    assert_eq!(row(&["a|b", "", "c"]), "| a\\|b | | c |\n");
}
