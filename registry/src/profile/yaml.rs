//! Parser for the YAML of a profile. Anchors, tags, merge keys and repeated keys are refused.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options};

use crate::finding::{Finding, FindingKind};

/// Keys in `spec` whose values are texts.
const TEXT_KEYS: [&str; 14] = [
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

/// A profile as written. An empty or null value is an empty text.
#[derive(Debug, Default)]
pub(super) struct ProfileDocument {
    pub metadata: BTreeMap<String, String>,
    pub spec: BTreeMap<&'static str, String>,
    pub bundle: BTreeMap<String, String>,
    pub signatures: Vec<String>,
    /// Unknown keys.
    pub unknown: Vec<String>,
}

/// Parses the YAML of a profile.
pub(super) fn read(yaml: &[u8]) -> Result<ProfileDocument, Finding> {
    let bad = |why: String| Finding::new(FindingKind::Yaml, why);
    let text = str::from_utf8(yaml).map_err(|error| bad(format!("it is not UTF-8: {error}")))?;
    // Some editors write a byte order mark at the start of a text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('<') {
        return Err(Finding::new(FindingKind::NotAProfile, "it is a web page"));
    }
    if text.trim().is_empty() {
        return Err(Finding::new(FindingKind::NotAProfile, "it is empty"));
    }
    let root: ProfileRoot = serde_saphyr::from_str_with_options(text, options())
        .map_err(|error| bad(error.to_string()))?;
    let Some(spec) = root.spec else {
        return Err(Finding::new(FindingKind::NotAProfile, "it has no spec"));
    };
    let mut unknown = root.unknown;
    unknown.extend(spec.unknown.iter().map(|key| format!("spec.{key}")));
    Ok(ProfileDocument {
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
struct ProfileRoot {
    metadata: TextMap,
    spec: Option<ProfileSpec>,
    unknown: Vec<String>,
}

impl<'de> Deserialize<'de> for ProfileRoot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ProfileRootVisitor)
    }
}

struct ProfileRootVisitor;

impl<'de> Visitor<'de> for ProfileRootVisitor {
    type Value = ProfileRoot;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a profile")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<ProfileRoot, A::Error> {
        let mut root = ProfileRoot::default();
        while let Some(key) = fields.next_key::<String>()? {
            match key.as_str() {
                "metadata" => root.metadata = fields.next_value()?,
                "spec" => root.spec = Some(fields.next_value()?),
                other => {
                    fields.next_value::<IgnoredAny>()?;
                    if other != "appVersion" {
                        root.unknown.push(key);
                    }
                }
            }
        }
        Ok(root)
    }
}

#[derive(Default)]
struct ProfileSpec {
    texts: BTreeMap<&'static str, String>,
    bundle: TextMap,
    signatures: Vec<String>,
    unknown: Vec<String>,
}

impl<'de> Deserialize<'de> for ProfileSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ProfileSpecVisitor)
    }
}

struct ProfileSpecVisitor;

impl<'de> Visitor<'de> for ProfileSpecVisitor {
    type Value = ProfileSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the spec of a profile")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<ProfileSpec, A::Error> {
        let mut spec = ProfileSpec::default();
        while let Some(key) = fields.next_key::<String>()? {
            if let Some(text_key) = TEXT_KEYS.iter().copied().find(|text_key| *text_key == key) {
                let text: Option<String> = fields.next_value()?;
                spec.texts.insert(text_key, text.unwrap_or_default());
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

/// A map of texts as written.
#[derive(Default)]
struct TextMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for TextMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = BTreeMap::<String, Option<String>>::deserialize(deserializer)?;
        let plain = |(key, text): (String, Option<String>)| (key, text.unwrap_or_default());
        Ok(Self(texts.into_iter().map(plain).collect()))
    }
}
