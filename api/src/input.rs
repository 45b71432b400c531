//! What every body of a request has in common.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The body of a request.
///
/// Clients send back what they were given, so keys of the answer that cannot be written are ignored. A key that no
/// answer has either is a mistake of the caller, which `deny_unknown_fields` reports.
pub trait Input: DeserializeOwned {
    /// The keys of the answer that cannot be written.
    const READ_ONLY: &[&str];

    /// Takes the keys that cannot be written out of a body.
    #[must_use]
    fn without_read_only(mut body: Value) -> Value {
        if let Value::Object(keys) = &mut body {
            keys.retain(|key, _| !Self::READ_ONLY.contains(&key.as_str()));
        }
        body
    }
}
