//! A place in a text, for people.

/// How many letters are shown before and after the place.
const BEFORE: usize = 48;
const AFTER: usize = 28;

/// The part of a text around a place, which is counted in letters from 0, and below it a caret at the place.
pub fn caret(text: &str, at: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    let at = at.min(letters.len());
    let first = at.saturating_sub(BEFORE);
    let last = letters.len().min(at + AFTER);
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
    fn the_caret_stands_below_the_place() {
        assert_eq!(caret("nam = x", 0), "nam = x\n^");
        assert_eq!(caret("name = ", 7), "name = \n       ^");
        assert_eq!(caret("größe = x", 8), "größe = x\n        ^");
        assert_eq!(caret("a\nb", 99), "a b\n   ^");
    }

    #[test]
    fn of_a_long_text_only_the_part_around_the_place_is_shown() {
        let text = format!("{}!{}", "a".repeat(200), "b".repeat(200));
        let shown = caret(&text, 200);
        let (line, below) = shown.split_once('\n').expect("two lines");
        assert_eq!(line.chars().count(), 1 + BEFORE + AFTER + 1);
        assert!(line.starts_with('…') && line.ends_with('…'), "{line}");
        let at = below.chars().count() - 1;
        assert_eq!(line.chars().nth(at), Some('!'));
    }
}
