//! What is wrong with something that was published, for people to read.

use std::fmt;

use evenkeel_domain::text;
use serde::{Deserialize, Serialize};

/// The longest message, in bytes.
const LONGEST: usize = 1_000;

/// The longest name of a field, in bytes.
const LONGEST_FIELD: usize = 200;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// What is wrong. No other kinds are ever found.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum FindingKind {
            $($(#[$doc])* #[serde(rename = $name)] $variant),+
        }

        impl FindingKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The stable name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

kinds! {
    /// The registry or a server of files cannot be reached.
    Unreachable = "unreachable",
    /// It does not let us in.
    Denied = "denied",
    /// It asks to be left alone for a while.
    Busy = "busy",
    /// What is referred to is not there.
    NotThere = "not_there",
    /// It is larger than what is taken.
    TooLarge = "too_large",
    /// It is not what its digest says.
    WrongDigest = "wrong_digest",
    /// The artefact's layer has no title, so its file has no name.
    NoTitle = "no_title",
    /// The artefact has several layers; only the first one counts.
    SeveralLayers = "several_layers",
    /// The artefact holds no profile.
    NotAProfile = "not_a_profile",
    /// The profile cannot be read as YAML.
    Yaml = "yaml",
    /// The profile is another one than its place says.
    OtherProfile = "other_profile",
    /// A value is missing or cannot be taken.
    BadField = "bad_field",
    /// A value has a name that nobody knows; it is left out.
    UnknownKey = "unknown_key",
    /// The release that the profile names is not its tag.
    RevisionMismatch = "revision_mismatch",
    /// Two tags mean the same revision and lead to different things.
    Ambiguous = "ambiguous",
    /// The same version of an image has another digest, kind or address than before.
    SameImageOtherDigest = "same_image_other_digest",
    /// Another operating system of the project has this name.
    NameTaken = "name_taken",
    /// A tag leads to something else than before.
    TagMoved = "tag_moved",
    /// A tag is not there any more.
    Gone = "gone",
    /// Nobody signed it.
    Unsigned = "unsigned",
    /// Its signatures are not by a key that is trusted, or for something else.
    BadSignature = "bad_signature",
    /// The list of packages cannot be used.
    Packages = "packages",
    /// The document about vulnerabilities cannot be used.
    Cves = "cves",
    /// Not all vulnerabilities have room.
    CvesCut = "cves_cut",
    /// A file lies at an address that nobody allowed.
    AddressNotAllowed = "address_not_allowed",
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something wrong that was found, which people are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// The value that it is about, as `spec.name`, if it is about a single one.
    pub field: Option<String>,
    /// What is wrong with it, and what would be right; at most 1,000 bytes.
    pub message: String,
}

impl Finding {
    /// A finding about the whole of something. The message is made short and storable.
    pub fn new(kind: FindingKind, message: impl AsRef<str>) -> Self {
        Self {
            kind,
            field: None,
            message: tidy(message.as_ref(), LONGEST),
        }
    }

    /// A finding about one value.
    pub fn about(kind: FindingKind, field: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        Self {
            field: Some(tidy(field.as_ref(), LONGEST_FIELD)),
            ..Self::new(kind, message)
        }
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

/// A text of one line that a database can keep. What is cut off is not even looked at.
fn tidy(raw: &str, longest: usize) -> String {
    // Each character of control becomes a space, so the text does not grow.
    let mut plain: String = raw
        .chars()
        .take(longest + 1)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    plain.truncate(plain.trim_end().len());
    text::cut(&plain, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_kept_under_its_name() {
        for kind in FindingKind::ALL {
            let json = serde_json::to_string(kind).unwrap();
            assert_eq!(json, format!("{:?}", kind.name()));
            assert_eq!(serde_json::from_str::<FindingKind>(&json).unwrap(), *kind);
        }
    }

    #[test]
    fn a_message_is_short_and_of_one_line() {
        let long = "é\0\n".repeat(1_000);
        let finding = Finding::about(FindingKind::Yaml, &long, &long);
        assert!(
            finding.message.len() <= LONGEST,
            "{}",
            finding.message.len()
        );
        assert!(
            finding
                .field
                .is_some_and(|field| field.len() <= LONGEST_FIELD)
        );
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
