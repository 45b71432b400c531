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
        if content.starts_with('<') {
            return Self::Bcfg2;
        }
        // Most texts are not read twice.
        if !content.contains(GARDENER_KIND) {
            return Self::Native;
        }
        let is_gardener = match serde_saphyr::from_str::<Header>(content) {
            Ok(header) => header.kind.as_deref() == Some(GARDENER_KIND),
            // The text is damaged, or its kind is no text.
            Err(_) => has_gardener_kind(content),
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

/// Whether a damaged text seems to be of Gardener: a line of YAML has the kind, or JSON in lines or
/// in one line. An indented line of YAML belongs to an inner object or to a text.
fn has_gardener_kind(text: &str) -> bool {
    let is_json = text.starts_with('{');
    let fields = text.lines().flat_map(|line| line.split(if is_json { ',' } else { '\n' }));
    fields.into_iter().any(|field| {
        let field = if is_json { field.trim_start_matches(['{', ' ', '\t']) } else { field };
        let Some((key, value)) = field.split_once(':') else { return false };
        let value = value.split(" #").next().unwrap_or_default();
        let unquote = |text: &str| text.trim_end().trim_matches(['"', '\'']).to_owned();
        unquote(key) == "kind" && unquote(value.trim()) == GARDENER_KIND
    })
}

/// The field of a document that determines its format.
#[derive(Debug, Deserialize)]
struct Header {
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
            ("{kind: OperatingSystemConfig, spec: {}}", Gardener),
            ("\"kind\": OperatingSystemConfig\nspec: {}\n", Gardener),
            ("# {}\n{\"spec\": {},\n \"kind\": \"OperatingSystemConfig\"}\n", Gardener),
            ("{\"kind\": \"OperatingSystemConfig\", \"spec\": {\"files\": [", Gardener),
            ("{\n  \"kind\": \"OperatingSystemConfig\",\n  \"spec\": {", Gardener),
            ("\"kind\": \"OperatingSystemConfig\"\nspec: [", Gardener),
            ("{\"bundles\": [{\"kind\": \"OperatingSystemConfig\"}]}", Native),
            ("note: {kind: OperatingSystemConfig}\n", Native),
            ("kind: [OperatingSystemConfig]\n", Native),
            ("{\"spec\": {}, \"kind\": \"OperatingSystemConfig\"}", Gardener),
            ("<Configuration/>", Bcfg2),
            ("\u{feff}\n <?xml version=\"1.0\"?>\n<Configuration/>", Bcfg2),
        ] {
            assert_eq!(DocumentFormat::detect(text), format, "{text}");
        }
    }
}
