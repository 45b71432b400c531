//! What the access log says about the caller of a request. A handler verifies the token, so the
//! layer that writes the line learns the caller only afterwards.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_auth::Caller;

/// Maximum length of a value that an identity provider chooses, in characters.
const MAX_VALUE_CHARS: usize = 200;

/// The caller and the project of a request. In the extensions of the request.
#[derive(Clone, Debug, Default)]
pub struct AccessRecord(Arc<Mutex<AccessFields>>);

/// Fields of the line in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessFields {
    /// Subject of a valid token.
    pub user: Option<String>,
    /// Issuer of this token, unless we issued it.
    pub issuer: Option<String>,
    /// Project that the request names, by name or UUID.
    pub project: Option<String>,
}

impl AccessRecord {
    /// Notes the caller, whose token is valid.
    pub fn note_caller(&self, caller: &Caller) {
        let mut fields = self.lock();
        fields.user = Some(printable(&caller.subject));
        fields.issuer = (!caller.issued_by_us).then(|| printable(&caller.issuer));
    }

    /// Notes a valid name or UUID of a project. The project need not exist.
    pub fn note_project(&self, project: String) {
        self.lock().project = Some(project);
    }

    /// What was noted so far.
    pub fn fields(&self) -> AccessFields {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, AccessFields> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value that cannot begin another line of the log.
fn printable(text: &str) -> String {
    let replace = |c: char| if c.is_control() { '?' } else { c };
    text.chars().take(MAX_VALUE_CHARS).map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_on_its_line() {
        assert_eq!(printable("alice\nlevel=ERROR\u{1b}[0m"), "alice?level=ERROR?[0m");
        assert_eq!(printable(&"ä".repeat(1_000)).chars().count(), MAX_VALUE_CHARS);
    }
}
