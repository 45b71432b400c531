//! The YAML of a profile, as texts. What YAML can do besides is refused: anchors, tags, merged or repeated keys.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options};

use crate::finding::{Finding, FindingKind};

/// The keys below `spec` whose values are texts.
const TEXTS: [&str; 14] = [
    "architecture",
    "description",
    "name",
    "osExistingCvesURL",
    "osFixedCvesURL",
    "osImageSha256",
    "osImageUrl",
    "osImageVersion",
    "osPackageManifestURL",
    "profileName",
    "provider",
    "securityFeature",
    "tlsCaCertificate",
    "type",
];

/// A profile as it is written. A value that is empty or null is an empty text.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub metadata: BTreeMap<String, String>,
    pub spec: BTreeMap<&'static str, String>,
    pub bundle: BTreeMap<String, String>,
    pub signatures: Vec<String>,
    /// Keys that no profile has.
    pub unknown: Vec<String>,
}

/// Reads the YAML of a profile.
pub(super) fn read(yaml: &[u8]) -> Result<Document, Finding> {
    let bad = |why: String| Finding::new(FindingKind::Yaml, why);
    let text = str::from_utf8(yaml).map_err(|error| bad(format!("it is not UTF-8: {error}")))?;
    // Some editors put a byte order mark before a text. It is no part of it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('<') {
        return Err(Finding::new(FindingKind::NotAProfile, "it is a web page"));
    }
    if text.trim().is_empty() {
        return Err(Finding::new(FindingKind::NotAProfile, "it is empty"));
    }
    let root: Root = serde_saphyr::from_str_with_options(text, options())
        .map_err(|error| bad(error.to_string()))?;
    let Some(spec) = root.spec else {
        return Err(Finding::new(FindingKind::NotAProfile, "it has no spec"));
    };
    let mut unknown = root.unknown;
    unknown.extend(spec.unknown.iter().map(|key| format!("spec.{key}")));
    Ok(Document {
        metadata: root.metadata.0,
        spec: spec.texts,
        bundle: spec.bundle.0,
        signatures: spec.signatures,
        unknown,
    })
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_anchors: 0,
            max_aliases: 0,
            max_documents: 1,
            max_depth: 8,
            max_nodes: 2_000,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        reject_unsupported_tags: true,
        strict_booleans: true,
        with_snippet: false,
    }
}

#[derive(Default)]
struct Root {
    metadata: Texts,
    spec: Option<Spec>,
    unknown: Vec<String>,
}

impl<'de> Deserialize<'de> for Root {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RootVisitor)
    }
}

struct RootVisitor;

impl<'de> Visitor<'de> for RootVisitor {
    type Value = Root;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a profile")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Root, A::Error> {
        let mut root = Root::default();
        while let Some(key) = fields.next_key::<String>()? {
            match key.as_str() {
                "metadata" => root.metadata = fields.next_value()?,
                "spec" => root.spec = Some(fields.next_value()?),
                known => {
                    fields.next_value::<IgnoredAny>()?;
                    if known != "appVersion" {
                        root.unknown.push(key);
                    }
                }
            }
        }
        Ok(root)
    }
}

#[derive(Default)]
struct Spec {
    texts: BTreeMap<&'static str, String>,
    bundle: Texts,
    signatures: Vec<String>,
    unknown: Vec<String>,
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SpecVisitor)
    }
}

struct SpecVisitor;

impl<'de> Visitor<'de> for SpecVisitor {
    type Value = Spec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what an operating system is")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Spec, A::Error> {
        let mut spec = Spec::default();
        while let Some(key) = fields.next_key::<String>()? {
            if let Some(known) = TEXTS.iter().copied().find(|known| *known == key) {
                let text: Option<String> = fields.next_value()?;
                spec.texts.insert(known, text.unwrap_or_default());
            } else if key == "platformBundle" {
                spec.bundle = fields.next_value()?;
            } else if key == "osImageSignatures" {
                let signatures: Option<Vec<String>> = fields.next_value()?;
                spec.signatures = signatures.unwrap_or_default();
            } else {
                fields.next_value::<IgnoredAny>()?;
                spec.unknown.push(key);
            }
        }
        Ok(spec)
    }
}

/// A map of texts, each as it is written.
#[derive(Default)]
struct Texts(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = BTreeMap::<String, Option<String>>::deserialize(deserializer)?;
        let plain = |(key, text): (String, Option<String>)| (key, text.unwrap_or_default());
        Ok(Self(texts.into_iter().map(plain).collect()))
    }
}
