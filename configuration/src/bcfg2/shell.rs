//! Command lines of actions that run without a shell.
//!
//! Bcfg2's client splits them into words as a shell does, and runs the first word as a program. The
//! agent runs every command in a shell, so words that mean something to the shell are quoted.

use crate::shell::quote;

/// The command for a shell that runs the same program with the same arguments.
pub(super) fn quote_words(command: &str) -> Result<String, &'static str> {
    let words = split_words(command)?;
    if words.is_empty() {
        return Err("the command is empty");
    }
    let quoted: Vec<_> = words.iter().enumerate().map(|(i, word)| quote(word, i == 0)).collect();
    Ok(quoted.join(" "))
}

/// Words between white space. Quotes group; a backslash protects the next character, and between
/// double quotes only a quote or a backslash.
fn split_words(command: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = command.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\\' => {
                let next = characters.next().ok_or("the command ends with a backslash")?;
                word.get_or_insert_default().push(next);
            }
            '\'' | '"' => {
                let text = word.get_or_insert_default();
                loop {
                    let next = characters.next().ok_or("a quote in the command has no end")?;
                    if next == c {
                        break;
                    }
                    let escaped = characters
                        .next_if(|after| c == '"' && next == '\\' && matches!(after, '"' | '\\'));
                    text.push(escaped.unwrap_or(next));
                }
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_a_shell_keeps_its_words() {
        let cases = [
            ("systemctl daemon-reload", "systemctl daemon-reload"),
            ("  a \t b\nc ", "a b c"),
            ("echo $HOME && reboot", "echo '$HOME' '&&' reboot"),
            ("echo 'two words' \"and \\\"two\\\"\"", "echo 'two words' 'and \"two\"'"),
            ("echo it\\'s '' a=b", "echo 'it'\\''s' '' a=b"),
            ("a=b c", "'a=b' c"),
            ("if done", "'if' done"),
            ("x \"a\\$b\"", "x 'a\\$b'"),
            ("grep -q ^root: /etc/passwd", "grep -q '^root:' /etc/passwd"),
        ];
        for (command, expected) in cases {
            assert_eq!(quote_words(command).as_deref(), Ok(expected), "{command}");
        }
    }

    #[test]
    fn a_command_that_no_shell_can_split_is_refused() {
        assert_eq!(quote_words(" \n"), Err("the command is empty"));
        assert_eq!(quote_words("echo 'a"), Err("a quote in the command has no end"));
        assert_eq!(quote_words("echo \\"), Err("the command ends with a backslash"));
    }
}
