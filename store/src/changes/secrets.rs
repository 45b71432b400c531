//! Hides secrets in the rows of the change log.

use serde_json::Value;

/// Columns whose values are never shown, in rows of any kind: credentials, digests of secrets, and
/// texts of users that usually contain passwords.
pub(super) const SECRET_COLUMNS: [&str; 5] =
    ["api_credentials", "digest", "password_hash", "config", "secret"];

/// Shown instead of a secret.
const HIDDEN: &str = "(hidden)";

/// The row with its secrets hidden.
pub(super) fn hide_secrets(mut row: Value) -> Value {
    if let Value::Object(columns) = &mut row {
        for name in SECRET_COLUMNS {
            if let Some(value) = columns.get_mut(name) {
                *value = HIDDEN.into();
            }
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_of_a_row_are_hidden() {
        for name in SECRET_COLUMNS {
            let row = json!({"name": "motd", name: "hush"});
            assert_eq!(hide_secrets(row), json!({"name": "motd", name: "(hidden)"}));
        }
    }
}
