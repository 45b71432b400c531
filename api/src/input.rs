//! Common behaviour of request bodies.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Request body.
///
/// Clients send back whole resources, so read-only keys of a resource are ignored. A key that no
/// resource has is a mistake of the caller; `deny_unknown_fields` reports it.
pub trait Input: DeserializeOwned {
    /// Keys of the resource that cannot be written.
    const READ_ONLY: &[&str];

    /// Keys that a change accepts but that keep the value of the creation.
    const CREATE_ONLY: &[&str] = &[];

    /// The key of a read-only value that no resource can have, and what is wrong with it.
    #[must_use]
    fn invalid_read_only(_body: &Value) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Removes the read-only keys from a body.
    #[must_use]
    fn without_read_only(mut body: Value) -> Value {
        if let Value::Object(keys) = &mut body {
            keys.retain(|key, _| !Self::READ_ONLY.contains(&key.as_str()));
        }
        body
    }
}
