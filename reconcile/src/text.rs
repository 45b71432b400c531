//! Texts of errors.

/// Longest end of a text in a reason, in characters.
const MAX_REASON_CHARS: usize = 400;

/// A text without control characters; only the end of a long text.
pub(crate) fn clean_text(text: &str) -> String {
    let is_hidden =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let text: String = text.chars().filter(|c| !is_hidden(*c)).collect();
    let length = text.chars().count();
    if length <= MAX_REASON_CHARS {
        return text;
    }
    let end: String = text.chars().skip(length - MAX_REASON_CHARS).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_removed_and_a_long_text_is_cut() {
        assert_eq!(clean_text("\u{1b}[31mfourth\u{7}"), "[31mfourth");
        let cut = clean_text(&("x".repeat(100_000) + "the end"));
        assert!(cut.chars().count() < 500 && cut.ends_with("the end"), "{cut}");
    }
}
