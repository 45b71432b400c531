//! Prints an error together with everything that caused it.

use std::error::Error;
use std::fmt::{self, Display};

/// The error and all its causes on one line, separated by colons.
///
/// Errors of this project never repeat their cause in their own `Display`, so nothing appears twice.
///
/// ```
/// use evenkeel_kit::chain;
///
/// let error = std::fs::read("/does/not/exist").expect_err("there is no such file");
/// assert!(chain(&error).to_string().contains("No such file"));
/// ```
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Display + 'a {
    Chain(error)
}

struct Chain<'a>(&'a (dyn Error + 'static));

impl Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the journal cannot be read")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn an_error_is_printed_with_its_causes() {
        let error = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(chain(&error).to_string(), "the journal cannot be read: disk on fire");
    }

    #[test]
    fn an_error_without_a_cause_is_printed_alone() {
        let error = std::io::Error::other("disk on fire");
        assert_eq!(chain(&error).to_string(), "disk on fire");
    }
}
