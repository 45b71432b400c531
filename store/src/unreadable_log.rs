//! Logs rows that cannot be read. Each poll and each list reads such a row again, so a process logs it
//! only once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::error::StoreError;

/// Maximum number of errors that are remembered. The log has no further ones, and its last one says
/// so.
const MAX_LOGGED_ERRORS: usize = 1_000;

/// Errors of rows that were logged.
#[derive(Debug)]
pub(crate) struct LoggedErrors(Mutex<BTreeSet<String>>);

impl LoggedErrors {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    /// Remembers an error. Returns the text for the log if the error is to be logged now.
    pub(crate) fn insert(&self, error: &StoreError) -> Option<String> {
        let error = evenkeel_kit::chain(error).to_string();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() >= MAX_LOGGED_ERRORS || !logged.insert(error.clone()) {
            return None;
        }
        if logged.len() < MAX_LOGGED_ERRORS {
            return Some(error);
        }
        Some(format!(
            "{error}; {MAX_LOGGED_ERRORS} such rows are logged, and further ones are not logged until the \
             server restarts"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(row: i32) -> StoreError {
        StoreError::Corrupt { table: "update_policies", row, column: "mode" }
    }

    #[test]
    fn each_row_that_cannot_be_read_is_logged_once() {
        let logged = LoggedErrors::new();
        let first = logged.insert(&error(1)).expect("a new error");
        assert!(first.contains("update_policies"), "{first}");
        assert_eq!(logged.insert(&error(1)), None);
        assert!(logged.insert(&error(2)).is_some(), "another row");
    }

    #[test]
    fn the_number_of_logged_rows_is_limited_and_the_last_one_reports_it() {
        let logged = LoggedErrors::new();
        let lines: Vec<_> = (0..2_000).filter_map(|row| logged.insert(&error(row))).collect();
        assert_eq!(lines.len(), MAX_LOGGED_ERRORS);
        let announcing =
            lines.iter().filter(|line| line.contains("further ones are not logged")).count();
        assert_eq!(announcing, 1);
        let last = lines.last().expect("a line");
        assert!(last.contains("row 999") && last.contains("further ones are not logged"), "{last}");
    }
}
