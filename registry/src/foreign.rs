//! Names formats of other tools, which are given by mistake.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Number of characters at the start of a document that are searched for marks.
const MAX_SEARCHED_CHARS: usize = 2_000;

/// Top-level members by which a JSON document is recognised.
#[derive(Deserialize)]
struct Marks<'a> {
    #[serde(borrow, rename = "@context")]
    context: Option<&'a RawValue>,
    #[serde(borrow, rename = "bomFormat")]
    bom_format: Option<&'a RawValue>,
    #[serde(borrow, rename = "spdxVersion")]
    spdx_version: Option<&'a RawValue>,
    #[serde(borrow)]
    matches: Option<&'a RawValue>,
    #[serde(borrow)]
    descriptor: Option<&'a RawValue>,
    #[serde(borrow, rename = "SchemaVersion")]
    schema_version: Option<&'a RawValue>,
    #[serde(borrow, rename = "ArtifactName")]
    artifact_name: Option<&'a RawValue>,
    #[serde(borrow)]
    document: Option<&'a RawValue>,
}

impl Marks<'_> {
    fn format(&self) -> Option<&'static str> {
        let names = |value: Option<&RawValue>, mark: &str| {
            value.is_some_and(|value| value.get().contains(mark))
        };
        if self.bom_format.is_some() {
            Some("a CycloneDX document")
        } else if self.spdx_version.is_some() || names(self.context, "spdx.org") {
            Some("an SPDX document")
        } else if names(self.context, "openvex") {
            Some("an OpenVEX document")
        } else if names(self.document, "csaf_version") {
            Some("a CSAF document")
        } else if self.schema_version.is_some() && self.artifact_name.is_some() {
            Some("a report of trivy")
        } else if self.matches.is_some() && self.descriptor.is_some() {
            Some("a report of grype")
        } else {
            None
        }
    }
}

/// The format of a document, with its article, if it is a well-known one that is not understood.
pub(crate) fn foreign_format(text: &str) -> Option<&'static str> {
    let text = text.trim_start();
    let start: String =
        text.chars().take(MAX_SEARCHED_CHARS).filter(|c| !c.is_whitespace()).collect();
    if start.starts_with("SPDXVersion:") {
        return Some("an SPDX document");
    }
    if start.starts_with('<') {
        return start.contains("cyclonedx.org/").then_some("a CycloneDX document");
    }
    if let Ok(marks) = serde_json::from_str::<Marks<'_>>(text)
        && let Some(format) = marks.format()
    {
        return Some(format);
    }
    // One object per source package, with its vulnerabilities.
    let is_tracker = start.starts_with("{\"")
        && [":{\"CVE-", ":{\"TEMP-"].iter().any(|mark| start.contains(mark));
    is_tracker.then_some("the data of Debian's security tracker")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_known_formats_are_named() {
        for (text, format) in [
            (r#"{"bomFormat":"CycloneDX","specVersion":"1.5","components":[]}"#, "CycloneDX"),
            (
                "<?xml version=\"1.0\"?>\n<bom xmlns=\"http://cyclonedx.org/schema/bom/1.5\"/>",
                "CycloneDX",
            ),
            (r#"{"spdxVersion":"SPDX-2.3","SPDXID":"SPDXRef-DOCUMENT","packages":[]}"#, "SPDX"),
            ("SPDXVersion: SPDX-2.3\nDataLicense: CC0-1.0\n", "SPDX"),
            (
                r#"{"@context":"https://spdx.org/rdf/3.0.1/spdx-context.jsonld","@graph":[]}"#,
                "SPDX",
            ),
            (r#"{"@context":"https://openvex.dev/ns/v0.2.0","statements":[]}"#, "OpenVEX"),
            (r#"{"document":{"csaf_version":"2.0"},"vulnerabilities":[]}"#, "CSAF"),
            (r#"{"SchemaVersion":2,"ArtifactName":"image","Results":[]}"#, "trivy"),
            (r#"{"matches":[],"descriptor":{"name":"grype"}}"#, "grype"),
            (r#"{"curl": {"CVE-2023-38545": {"releases": {}}}}"#, "Debian's security tracker"),
        ] {
            let found = foreign_format(text).unwrap_or_default();
            assert!(found.contains(format), "{text}: {found}");
        }
        for text in
            ["", "{", "{}", "[]", r#"{"repo":[]}"#, r#"{"id":"CVE-1"}"#, "curl 7.88", "<oval/>"]
        {
            assert_eq!(foreign_format(text), None, "{text}");
        }
    }
}
