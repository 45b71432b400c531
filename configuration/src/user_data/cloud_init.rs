//! The archive of cloud-init.

use std::fmt::Write;

const INDENTATION: &str = "    ";

/// Wraps a script, which ends with a line break, in an archive.
pub(super) fn wrap(script: &str) -> String {
    let mut archive = "#cloud-config-archive\n- type: text/x-shellscript\n  content: ".to_owned();
    if script.chars().all(is_plain) {
        archive.push_str("|\n");
        for line in script.lines() {
            if !line.is_empty() {
                archive.push_str(INDENTATION);
            }
            archive.push_str(line);
            archive.push('\n');
        }
    } else {
        push_quoted(&mut archive, script);
        archive.push('\n');
    }
    archive
}

/// Whether a block of YAML keeps the character. It changes carriage returns and the line breaks of
/// Unicode.
fn is_plain(c: char) -> bool {
    let is_break = matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    matches!(c, '\n' | '\t') || (!c.is_control() && !is_break)
}

/// Adds a text in double quotes, with ASCII only.
fn push_quoted(archive: &mut String, text: &str) {
    archive.push('"');
    for c in text.chars() {
        match c {
            '\n' => archive.push_str("\\n"),
            '"' | '\\' => {
                archive.push('\\');
                archive.push(c);
            }
            ' '..='~' => archive.push(c),
            _ => {
                let code = u32::from(c);
                write!(archive, "\\U{code:08x}").expect("a String accepts every text");
            }
        }
    }
    archive.push('"');
}
