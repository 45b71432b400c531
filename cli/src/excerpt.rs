//! Excerpts of a text that mark a position.

/// How many characters are shown before and after the position.
const CHARS_BEFORE: usize = 48;
const CHARS_AFTER: usize = 28;

/// The part of a text around a position (in characters from 0), and a caret below the position.
pub fn excerpt_with_caret(text: &str, at: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    let at = at.min(letters.len());
    let first = at.saturating_sub(CHARS_BEFORE);
    let last = letters.len().min(at + CHARS_AFTER);
    let mut line = String::new();
    if first > 0 {
        line.push('…');
    }
    let blank = |letter: &char| if letter.is_control() { ' ' } else { *letter };
    line.extend(letters[first..last].iter().map(blank));
    if last < letters.len() {
        line.push('…');
    }
    let below = at - first + usize::from(first > 0);
    format!("{line}\n{:below$}^", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_marks_the_position() {
        assert_eq!(excerpt_with_caret("nam = x", 0), "nam = x\n^");
        assert_eq!(excerpt_with_caret("name = ", 7), "name = \n       ^");
        assert_eq!(excerpt_with_caret("größe = x", 8), "größe = x\n        ^");
        assert_eq!(excerpt_with_caret("a\nb", 99), "a b\n   ^");
    }

    #[test]
    fn a_long_text_is_cut_around_the_position() {
        let text = format!("{}!{}", "a".repeat(200), "b".repeat(200));
        let excerpt = excerpt_with_caret(&text, 200);
        let (line, below) = excerpt.split_once('\n').expect("two lines");
        assert_eq!(line.chars().count(), 1 + CHARS_BEFORE + CHARS_AFTER + 1);
        assert!(line.starts_with('…') && line.ends_with('…'), "{line}");
        let at = below.chars().count() - 1;
        assert_eq!(line.chars().nth(at), Some('!'));
    }
}
