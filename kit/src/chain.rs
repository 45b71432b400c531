//! Prints an error together with everything that caused it.

use std::error::Error;
use std::fmt::Display;

/// The error and all its causes on one line, separated by colons.
///
/// Errors of this project never repeat their cause in their own `Display`. Errors of other libraries
/// do; a cause that the text before it already contains is left out.
///
/// ```
/// use evenkeel_kit::chain;
///
/// let error = std::fs::read("/does/not/exist").expect_err("there is no such file");
/// assert!(chain(&error).to_string().contains("No such file"));
/// ```
pub fn chain(error: &(dyn Error + 'static)) -> impl Display + use<> {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// An error with its own text.
    #[derive(Debug)]
    struct Outer(&'static str, std::io::Error);

    impl Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn an_error_is_printed_with_its_causes() {
        let error = Outer("the journal cannot be read", std::io::Error::other("disk on fire"));
        assert_eq!(chain(&error).to_string(), "the journal cannot be read: disk on fire");
    }

    #[test]
    fn an_error_without_a_cause_is_printed_alone() {
        let error = std::io::Error::other("disk on fire");
        assert_eq!(chain(&error).to_string(), "disk on fire");
    }

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let cause = std::io::Error::other("disk on fire");
        let error = Outer("cannot read the journal: disk on fire", cause);
        assert_eq!(chain(&error).to_string(), "cannot read the journal: disk on fire");
    }
}
