//! Command lines of actions that run without a shell.
//!
//! Bcfg2's client splits them into words as a shell does, and runs the first word as a program. The
//! agent runs every command in a shell, so words that mean something to the shell are quoted.

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

/// Words that begin or end a command of the shell. Other keywords have characters that are quoted.
const KEYWORDS: [&str; 13] = [
    "case", "do", "done", "elif", "else", "esac", "fi", "for", "if", "in", "then", "until", "while",
];

/// A word as a shell reads it. The shell takes a first word with an equals sign as an assignment.
pub(super) fn quote(word: &str, is_first: bool) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,@%+".contains(c);
    let is_safe = |c: char| is_plain(c) || (c == '=' && !is_first);
    let is_keyword = is_first && KEYWORDS.contains(&word);
    if !word.is_empty() && !is_keyword && word.chars().all(is_safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
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
