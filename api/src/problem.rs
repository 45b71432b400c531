//! Errors: what the ancestor's clients read, and the members of RFC 9457 beside it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is said when a request cannot be served.
///
/// The order of the members matters: clients of the ancestor look for `"code":"…"` in the raw text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Problem {
    /// The name of the gRPC code, such as `NotFound`.
    pub code: String,
    /// What went wrong, for people.
    pub message: String,
    /// Which problem it is: `urn:evenkeel:problem:…`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What all problems of this type have in common.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What went wrong this time; repeats `message`.
    pub detail: String,
    /// The request: `urn:evenkeel:request:…`, as the log names it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// The name of the field of the body or of the parameter that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The place in the body that is wrong, as RFC 6901 has it in an address: `#/packageRules/suites`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The parameter that is wrong: one of the query, of the path or of the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// In a `filter` or `orderBy`: how many characters stand before what is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// What was probably meant, or what to do instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    /// The media type.
    pub const MEDIA_TYPE: &str = "application/problem+json";
}
