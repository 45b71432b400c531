//! Changes one line of a profile and preserves the others as written.

/// Sets a value in a section, such as `metadata.release`. A missing section or line is inserted.
/// Returns `None` if the text does not have one key per line, so the right line cannot be
/// determined.
pub(super) fn set_value(text: &str, section: &str, key: &str, value: &str) -> Option<String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let Some(begin) = lines.iter().position(|line| is_key(line, section)) else {
        let (before, after) = lines.split_at(lines.iter().position(|l| is_key(l, "spec"))?);
        let new = format!("{section}:\n  {key}: {value}\n");
        return (section != "spec").then(|| format!("{}{new}{}", before.concat(), after.concat()));
    };
    let (before, rest) = lines.split_at(begin + 1);
    if !value_of(before.last()?, section).is_empty() {
        return None;
    }
    let end = rest.iter().position(|line| is_top_level(line));
    let (inside, after) = rest.split_at(end.unwrap_or(rest.len()));
    let indent = inside.iter().find(|line| has_content(line));
    let indent = indent.map_or("  ", |line| indent_of(line));
    if indent.is_empty() {
        return None;
    }
    let at = inside.iter().position(|line| is_key_at_indent(line, indent, key));
    let (above, line, below): (&[&str], Option<&str>, &[&str]) = match at {
        None => (&[], None, inside),
        Some(at) => {
            let (above, below) = inside.split_at(at);
            let (line, below) = below.split_first()?;
            (above, Some(*line), below)
        }
    };
    if line.is_some() && has_continuation(below, indent) {
        return None;
    }
    let comment = line.map_or("", |line| comment_of(line.trim_start(), key));
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let new = format!("{indent}{key}: {value}{comment}{newline}");
    let before = before.concat();
    let glue = if before.ends_with('\n') { "" } else { newline };
    let (above, below, after) = (above.concat(), below.concat(), after.concat());
    Some([&before, glue, &above, &new, &below, &after].concat())
}

/// Whether a value in a section is missing or empty.
pub(super) fn is_absent(text: &str, section: &str, key: &str) -> bool {
    let mut lines = text.lines().skip_while(|line| !is_key(line, section));
    lines.next();
    let mut inside = lines.take_while(|line| !is_top_level(line));
    let own = inside.find(|line| is_key(line.trim_start(), key));
    own.is_none_or(|line| {
        let value = value_of(line.trim_start(), key);
        matches!(value, "" | "\"\"" | "''" | "~" | "null")
    })
}

/// Whether a line starts with a key.
fn is_key(line: &str, key: &str) -> bool {
    let rest = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(':'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn is_key_at_indent(line: &str, indent: &str, key: &str) -> bool {
    line.strip_prefix(indent).is_some_and(|rest| is_key(rest, key))
}

/// Whether a line ends a section.
fn is_top_level(line: &str) -> bool {
    has_content(line) && !line.starts_with([' ', '\t'])
}

fn has_content(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

fn indent_of(line: &str) -> &str {
    let length = line.len() - line.trim_start_matches(' ').len();
    line.get(..length).unwrap_or_default()
}

/// Whether the value continues on the next lines. List items may have the same indent as their key.
fn has_continuation(below: &[&str], indent: &str) -> bool {
    let next = below.iter().find(|line| has_content(line));
    next.is_some_and(|line| {
        let is_of_list = line.trim() == "-" || line.trim_start().starts_with("- ");
        indent_of(line).len() > indent.len() || is_of_list
    })
}

/// The value in the line of a key, without a comment.
fn value_of<'a>(line: &'a str, key: &str) -> &'a str {
    let rest = after_key(line, key);
    let comment = comment_of(line, key);
    rest.strip_suffix(comment).unwrap_or(rest).trim()
}

/// The comment after the value in the line of a key, with the space before it.
fn comment_of<'a>(line: &'a str, key: &str) -> &'a str {
    let rest = after_key(line, key);
    let value = rest.trim_start();
    let skipped = rest.len() - value.len();
    let from = match value.chars().next() {
        Some('#') if skipped > 0 => return rest,
        Some(quote @ ('"' | '\'')) => {
            let end = value.get(1..).and_then(|value| value.find(quote));
            end.map_or(0, |end| end + 2)
        }
        _ => 0,
    };
    let tail = value.get(from..).unwrap_or_default();
    match tail.find(" #") {
        Some(at) => tail.get(at..).unwrap_or_default(),
        None => "",
    }
}

fn after_key<'a>(line: &'a str, key: &str) -> &'a str {
    let rest = line.get(key.len() + 1..).unwrap_or_default();
    rest.trim_end_matches(['\r', '\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_line_changes() {
        let text = "# ours\nmetadata:\n  # which\n  release: 0.1.0  # by hand\n  a: \"1\"\nspec:\n  b: x\n";
        let new = set_value(text, "metadata", "release", "\"0.2.0\"").unwrap();
        assert_eq!(new, text.replace("0.1.0  # by hand", "\"0.2.0\" # by hand"));
        let again = set_value(&new, "metadata", "release", "\"0.3.0\"").unwrap();
        assert_eq!(again, new.replace("0.2.0", "0.3.0"));
    }

    #[test]
    fn a_missing_line_is_inserted() {
        let text = "metadata:\n    other: 1\nspec:\n  name: x";
        let new = set_value(text, "metadata", "release", "\"1.0.0\"").unwrap();
        assert_eq!(new, "metadata:\n    release: \"1.0.0\"\n    other: 1\nspec:\n  name: x");
        let new = set_value("spec:\n  name: x\n", "metadata", "release", "1").unwrap();
        assert_eq!(new, "metadata:\n  release: 1\nspec:\n  name: x\n");
        let new =
            set_value("metadata:\r\nspec:\r\n  a: b\r\n", "metadata", "release", "1").unwrap();
        assert_eq!(new, "metadata:\r\n  release: 1\r\nspec:\r\n  a: b\r\n");
        let new = set_value("spec:", "spec", "a", "b").unwrap();
        assert_eq!(new, "spec:\n  a: b\n");
    }

    #[test]
    fn other_layouts_than_one_key_a_line_are_not_edited() {
        for text in [
            "",
            "metadata: {release: 1}\nspec:\n  a: b\n",
            "metadata:\n  release: |\n    1\nspec:\n",
            "{metadata: {release: 1}, spec: {}}",
            "metadata: null\nspec:\n",
            "metadata:\n  release:\n  - 1\nspec:\n",
            "metadata:\n  release:\n  -\nspec:\n",
        ] {
            assert_eq!(set_value(text, "metadata", "release", "2"), None, "{text}");
        }
    }

    #[test]
    fn a_key_of_the_same_name_elsewhere_is_another_one() {
        let text = "metadata:\n  deep:\n    release: 1\nspec:\n  release: 2\n";
        let new = set_value(text, "metadata", "release", "3").unwrap();
        assert_eq!(new, text.replace("metadata:\n", "metadata:\n  release: 3\n"));
    }

    #[test]
    fn an_empty_value_is_absent() {
        for line in [
            "",
            "  sha:\n",
            "  sha: \"\"\n",
            "  sha: ''  # none\n",
            "  sha: # none\n",
            "  sha: ~\n",
        ] {
            let text = format!("spec:\n{line}  b: c\n");
            assert!(is_absent(&text, "spec", "sha"), "{line}");
        }
        assert!(!is_absent("spec:\n  sha: abc # x\n", "spec", "sha"));
        assert!(is_absent("spec:\n  b: c\nother:\n  sha: abc\n", "spec", "sha"));
    }
}
