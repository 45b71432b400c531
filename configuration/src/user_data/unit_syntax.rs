//! Syntax of unit files, as Ignition checks it.

/// Ignition refuses lines of this length, in bytes.
const REFUSED_LINE_BYTES: usize = 2048;

/// Checks that each line is a section, an assignment, a comment or empty. A value continues on the
/// next line after a backslash.
///
/// # Errors
/// The message has the number of the line.
pub(super) fn check_unit_syntax(text: &str) -> Result<(), String> {
    let mut is_value = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.len() >= REFUSED_LINE_BYTES {
            let max = REFUSED_LINE_BYTES - 1;
            return Err(format!(
                "line {number} has more than {max} bytes; continue it on a further line after \\"
            ));
        }
        let content = line.trim();
        let is_comment = content.is_empty() || content.starts_with(['#', ';']);
        if !is_value && is_comment {
            continue;
        }
        if !is_value && !is_section(content) && !content.contains('=') {
            return Err(format!(
                "line {number} is neither a section, such as [Service], nor an assignment, such \
                 as Type=oneshot"
            ));
        }
        is_value = content.ends_with('\\');
    }
    Ok(())
}

fn is_section(line: &str) -> bool {
    let name = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    name.is_some_and(|name| !name.contains(['[', ']']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_file_has_sections_assignments_and_comments() {
        for text in [
            "",
            "# a\n; b\n\n [Unit] \nA=b\n[Service]\n A = b=c\n",
            "[Service]\nA=b \\\n [c \\\nd\nE=\n",
            "[Service]\r\nA=b\r\n",
            &format!("[Service]\nA={}", "x".repeat(2045)),
        ] {
            assert_eq!(check_unit_syntax(text), Ok(()), "{text:?}");
        }
        for text in [
            "[Service\nA=b",
            "[Service] x\nA\n",
            "[a]b]\n",
            "[Service]\nA=b\\\n#c\nd",
            "[Service]\nA=b\n\tc",
            &format!("[Service]\n#{}", "x".repeat(2048)),
        ] {
            let error = check_unit_syntax(text).unwrap_err();
            assert!(error.starts_with("line "), "{text:?}: {error}");
        }
    }
}
