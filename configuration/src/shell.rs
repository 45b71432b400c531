//! Words of command lines.

/// Words that begin or end a command of the shell. Other keywords have characters that are quoted.
const KEYWORDS: [&str; 13] = [
    "case", "do", "done", "elif", "else", "esac", "fi", "for", "if", "in", "then", "until", "while",
];

/// A word as a shell reads it. The shell takes a first word with an equals sign as an assignment.
pub(crate) fn quote(word: &str, is_first: bool) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,@%+".contains(c);
    let is_safe = |c: char| is_plain(c) || (c == '=' && !is_first);
    let is_keyword = is_first && KEYWORDS.contains(&word);
    if !word.is_empty() && !is_keyword && word.chars().all(is_safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
