//! Problems of published content, reported to users.

use std::fmt;

use evenkeel_domain::text;
use serde::{Deserialize, Serialize};

/// Longest message, in bytes.
const MAX_MESSAGE_BYTES: usize = 1_000;

/// Longest name of a field, in bytes.
const MAX_FIELD_BYTES: usize = 200;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// Kind of a problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum FindingKind {
            $($(#[$doc])* #[serde(rename = $name)] $variant),+
        }

        impl FindingKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The stable name, as used in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

kinds! {
    /// The registry or a file server cannot be reached.
    Unreachable = "unreachable",
    /// The registry or a file server denies access.
    Denied = "denied",
    /// The server answered 429 or 503.
    Busy = "busy",
    /// A referenced item does not exist.
    NotThere = "not_there",
    /// The content exceeds a limit.
    TooLarge = "too_large",
    /// The content does not match its digest.
    WrongDigest = "wrong_digest",
    /// The layer of the artifact has no title, so its file has no name.
    NoTitle = "no_title",
    /// The artifact has several layers; only the first one is used.
    SeveralLayers = "several_layers",
    /// The artifact does not contain a profile.
    NotAProfile = "not_a_profile",
    /// The profile cannot be read as YAML.
    Yaml = "yaml",
    /// The name in the profile differs from the name of its file or repository.
    OtherProfile = "other_profile",
    /// A required value is missing, or a value is invalid.
    BadField = "bad_field",
    /// The profile has an unknown key, which is ignored.
    UnknownKey = "unknown_key",
    /// The release in the profile differs from its tag.
    RevisionMismatch = "revision_mismatch",
    /// Two tags mean the same revision and refer to different artifacts, or two files have one
    /// name.
    Ambiguous = "ambiguous",
    /// A known version of an image has another digest, kind or address than before.
    SameImageOtherDigest = "same_image_other_digest",
    /// Another operating system of the project has this name.
    NameTaken = "name_taken",
    /// A tag refers to another artifact than before.
    TagMoved = "tag_moved",
    /// A tag does not exist any more.
    Gone = "gone",
    /// The artifact has no signature.
    Unsigned = "unsigned",
    /// No signature is by a trusted key and for this artifact.
    BadSignature = "bad_signature",
    /// The package list cannot be used.
    Packages = "packages",
    /// The CVE document cannot be used.
    Cves = "cves",
    /// The list of vulnerabilities is truncated.
    CvesCut = "cves_cut",
    /// A file has an address that is not allowed.
    AddressNotAllowed = "address_not_allowed",
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A problem of published content, reported to users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Kind of the problem.
    pub kind: FindingKind,
    /// Path of the value concerned, such as `spec.name`; `None` if the problem is not about one
    /// value.
    pub field: Option<String>,
    /// What is wrong and what would be right, in one line of at most 1,000 bytes.
    pub message: String,
}

impl Finding {
    /// A finding that is not about a single value. The message is sanitized and shortened.
    pub fn new(kind: FindingKind, message: impl AsRef<str>) -> Self {
        Self { kind, field: None, message: sanitize(message.as_ref(), MAX_MESSAGE_BYTES) }
    }

    /// A finding about a single value.
    pub fn about(kind: FindingKind, field: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        Self { field: Some(sanitize(field.as_ref(), MAX_FIELD_BYTES)), ..Self::new(kind, message) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Finding {}

/// Makes a text storable: one line without control characters, of at most `longest` bytes.
fn sanitize(raw: &str, longest: usize) -> String {
    // Each control character becomes a space, so the text does not grow.
    let mut plain: String =
        raw.chars().take(longest + 1).map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.truncate(plain.trim_end().len());
    text::cut(&plain, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_serialized_under_its_name() {
        for kind in FindingKind::ALL {
            let json = serde_json::to_string(kind).unwrap();
            assert_eq!(json, format!("{:?}", kind.name()));
            assert_eq!(serde_json::from_str::<FindingKind>(&json).unwrap(), *kind);
        }
    }

    #[test]
    fn a_message_is_short_and_on_one_line() {
        let long = "é\0\n".repeat(1_000);
        let finding = Finding::about(FindingKind::Yaml, &long, &long);
        assert!(finding.message.len() <= MAX_MESSAGE_BYTES, "{}", finding.message.len());
        assert!(finding.field.is_some_and(|field| field.len() <= MAX_FIELD_BYTES));
        assert!(!finding.message.contains(['\0', '\n']));
        assert!(finding.message.ends_with("[cut]"));
    }

    #[test]
    fn a_finding_reads_as_a_sentence() {
        let finding = Finding::about(FindingKind::BadField, "spec.name", "must not be empty");
        assert_eq!(finding.to_string(), "spec.name: must not be empty");
        assert_eq!(Finding::new(FindingKind::Gone, "gone").to_string(), "gone");
    }
}
