//! The formats that documents are read from.

use serde::Deserialize;

use crate::document::Document;
use crate::gardener::GardenerDocument;
use crate::validation::ReadError;
use crate::{bcfg2, gardener, native};

/// Value of `kind` in a document of Gardener.
const GARDENER_KIND: &str = "OperatingSystemConfig";

/// Format of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentFormat {
    /// Format of Evenkeel, in YAML or JSON.
    Native,
    /// Literal `<Configuration>` of Bcfg2.
    Bcfg2,
    /// `OperatingSystemConfig` of Gardener, in YAML or JSON.
    Gardener,
}

impl DocumentFormat {
    /// The format that a text has by its content. A text that is neither XML nor has the kind of
    /// Gardener is native, so that the native reader explains its errors.
    pub fn detect(text: &str) -> Self {
        let content = text.trim_start_matches('\u{feff}').trim_start();
        let is_gardener = match content.chars().next() {
            Some('<') => return Self::Bcfg2,
            Some('{') => serde_json::from_str::<JsonHeader>(content)
                .is_ok_and(|header| header.kind.as_deref() == Some(GARDENER_KIND)),
            _ => content.lines().any(is_gardener_kind),
        };
        if is_gardener { Self::Gardener } else { Self::Native }
    }

    /// Reads a document. The result has warnings as well: what a user should know about the
    /// document, as sentences with the path of a field.
    ///
    /// # Errors
    /// The text does not have the format, breaks a rule, or has something that is not offered.
    pub fn read(self, text: &str) -> Result<(Document, Vec<String>), ReadError> {
        match self {
            Self::Native => Ok((native::read(text)?, Vec::new())),
            Self::Bcfg2 => Ok((bcfg2::read(text)?, Vec::new())),
            Self::Gardener => {
                let GardenerDocument { document, warnings } = gardener::read(text)?;
                Ok((document, warnings))
            }
        }
    }
}

/// Whether a line of YAML is the field of a document that marks it as one of Gardener. An indented
/// line belongs to an inner object or to a text.
fn is_gardener_kind(line: &str) -> bool {
    let value = line.strip_prefix("kind:").unwrap_or_default();
    let value = value.split(" #").next().unwrap_or_default();
    value.trim().trim_matches(['"', '\'']) == GARDENER_KIND
}

/// The field of a document in JSON that determines its format.
#[derive(Debug, Deserialize)]
struct JsonHeader {
    #[serde(default)]
    kind: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_document_determines_its_format() {
        use DocumentFormat::{Bcfg2, Gardener, Native};
        for (text, format) in [
            ("bundles: []\n", Native),
            ("{\"bundles\": []}", Native),
            ("", Native),
            ("- kind: OperatingSystemConfig\n", Native),
            ("note: |\n  kind: OperatingSystemConfig\n", Native),
            ("kind: [", Native),
            ("kind: Deployment\n", Native),
            ("{\"kind\": 3}", Native),
            ("---\nspec: {}\nkind: \"OperatingSystemConfig\" # of a shoot\n", Gardener),
            ("kind: OperatingSystemConfig\nspec: [", Gardener),
            ("kind: OperatingSystemConfig\nspec: {}\n", Gardener),
            ("{\"spec\": {}, \"kind\": \"OperatingSystemConfig\"}", Gardener),
            ("<Configuration/>", Bcfg2),
            ("\u{feff}\n <?xml version=\"1.0\"?>\n<Configuration/>", Bcfg2),
        ] {
            assert_eq!(DocumentFormat::detect(text), format, "{text}");
        }
    }
}
