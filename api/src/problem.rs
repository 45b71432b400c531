//! Errors: the members that EIM clients read, and those of RFC 9457.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Error document.
///
/// The order of the members matters: EIM clients search for `"code":"…"` in the raw text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Problem {
    /// Name of the gRPC status code, for example `NotFound`.
    pub code: String,
    /// Explanation of this error.
    pub message: String,
    /// Type of the problem: `urn:evenkeel:problem:…`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Summary of the problem type.
    pub title: String,
    /// HTTP status code.
    pub status: u16,
    /// Explanation of this error; same as `message`.
    pub detail: String,
    /// ID of the request, as in the server's log: `urn:evenkeel:request:…`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// Name of the invalid field of the body, or of the invalid parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Position of the invalid value in the body, as a JSON pointer in a URI fragment (RFC 6901):
    /// `#/packageRules/suites`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// Name of the invalid parameter of the query, the path or the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// Position of the error in `filter` or `orderBy`, in characters from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Probable intention of the caller, or a solution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    /// Media type of error documents.
    pub const MEDIA_TYPE: &str = "application/problem+json";

    /// Type of the problem that the caller may use the project, but lacks the role for the request.
    pub const MISSING_ROLE_TYPE: &str = "urn:evenkeel:problem:missing-role";
}
