//! Compares a text file that the node writes, such as a unit file.

use serde_json::{Value, json};

use crate::files::{FileContext, FileSpec, PathKind};
use crate::names::TEXT_MODE;

/// How a text file of the node differs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OwnTextDifference {
    pub is_missing: bool,
    /// The current content as a report has it: its digest.
    pub current: Value,
    pub reason: String,
}

/// Compares a file with its desired content; it must belong to root and have the mode 0644. `label`
/// names the file in reasons.
///
/// # Errors
/// A sentence: the file cannot be compared or corrected.
pub(super) fn compare_own_text(
    files: &FileContext<'_>,
    path: &str,
    text: &str,
    label: &str,
) -> Result<Option<OwnTextDifference>, String> {
    let inspection = files.inspect(&FileSpec::root_file(path, TEXT_MODE, text));
    if inspection.is_good() {
        return Ok(None);
    }
    if let Some(problem) = inspection.problem {
        return Err(format!("{label}: {problem}"));
    }
    let state = &inspection.observation.state;
    let has_content = inspection.goal.as_ref().is_some_and(|g| g.state.kind.accepts(&state.kind));
    let (current, reason) = match &state.kind {
        PathKind::Missing => (Value::Null, format!("{label} is missing")),
        PathKind::File { digest: Some(digest) } => {
            let reason = if has_content {
                format!("{label} does not belong to root with the mode {TEXT_MODE:04o}")
            } else {
                format!("{label} differs")
            };
            (json!({ "sha256": digest }), reason)
        }
        kind => (Value::Null, format!("{label} is {}", kind.label())),
    };
    Ok(Some(OwnTextDifference { is_missing: state.kind == PathKind::Missing, current, reason }))
}
