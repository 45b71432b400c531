//! Logs rows that cannot be read. Each poll and each list reads such a row again, so a process logs it
//! only once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::error::StoreError;

/// Maximum number of errors that are remembered. Further ones are not logged.
const MAX_LOGGED_ERRORS: usize = 1_000;

/// Errors of rows that were logged.
#[derive(Debug)]
pub(crate) struct LoggedErrors(Mutex<BTreeSet<String>>);

impl LoggedErrors {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    /// Remembers an error. Returns its text if it is to be logged now.
    pub(crate) fn insert(&self, error: &StoreError) -> Option<String> {
        let error = evenkeel_kit::chain(error).to_string();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = logged.len() < MAX_LOGGED_ERRORS && logged.insert(error.clone());
        is_new.then_some(error)
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
    fn the_number_of_remembered_errors_is_limited() {
        let logged = LoggedErrors::new();
        let lines = (0..2_000).filter(|row| logged.insert(&error(*row)).is_some()).count();
        assert_eq!(lines, MAX_LOGGED_ERRORS);
    }
}
