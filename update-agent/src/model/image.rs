//! The spec of an image update, and the image before and after.

use std::fmt;
use std::str::FromStr;

use evenkeel_fetch::Digest;
use serde::{Deserialize, Serialize};

/// A SHA-256, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256(Digest);

/// A text is not a SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a SHA-256: it must have 64 digits, 0-9 and a-f")]
pub struct BadSha256(String);

impl Sha256 {
    pub fn hash(bytes: &[u8]) -> Self {
        Self(Digest::compute(bytes))
    }

    /// The digest itself.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.bytes()
    }
}

impl From<Digest> for Sha256 {
    fn from(digest: Digest) -> Self {
        Self(digest)
    }
}

impl From<[u8; 32]> for Sha256 {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.hex())
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

impl FromStr for Sha256 {
    type Err = BadSha256;

    fn from_str(text: &str) -> Result<Self, BadSha256> {
        Digest::from_hex(text).map(Self).map_err(|_| {
            // The text comes from outside and may be long.
            let mut excerpt: String = text.chars().take(80).collect();
            if excerpt.len() < text.len() {
                excerpt.push('…');
            }
            BadSha256(excerpt)
        })
    }
}

impl TryFrom<String> for Sha256 {
    type Error = BadSha256;

    fn try_from(text: String) -> Result<Self, BadSha256> {
        text.parse()
    }
}

impl From<Sha256> for String {
    fn from(digest: Sha256) -> Self {
        digest.0.hex()
    }
}

/// Boots an image of the operating system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// The server's ID of the release.
    pub os_id: String,
    /// Display name of the release.
    pub name: String,
    /// The image series of the release; `IMAGE_ID` of its os-release(5).
    pub profile_name: String,
    /// Its version in that series; `IMAGE_VERSION` of its os-release(5).
    pub image_id: String,
    /// Architecture of the image, for example `x86_64`.
    pub architecture: String,
    /// Location of the file.
    pub url: String,
    /// Digest of the file as it is downloaded.
    pub sha256: Sha256,
    /// Each `<SHA-256 of the SPKI>:<base64 of the signature>`.
    #[serde(default)]
    pub signatures: Vec<String>,
    /// Rules for the download.
    #[serde(default)]
    pub rules: ImageRules,
    /// Whether the image may be tried although it failed on this node before: a person ordered it.
    #[serde(default)]
    pub allow_retry: bool,
}

impl ImageSpec {
    /// The file and its release as text. A change of the rules or signatures makes no other image.
    pub fn image_identity(&self) -> String {
        let digest = self.sha256.to_string();
        [&digest, &self.url, &self.profile_name, &self.image_id, &self.architecture]
            .map(String::as_str)
            .join("\n")
    }
}

/// Rules for the download of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageRules {
    /// Limit of the download; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// Maximum size of the file; 0 for no limit.
    pub max_bytes: u64,
    /// How many downloads in a row may fail.
    pub attempts: u32,
}

impl Default for ImageRules {
    fn default() -> Self {
        Self { download_bytes_per_second: 0, max_bytes: 0, attempts: 5 }
    }
}

/// The image before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChange {
    /// The image series of the new image.
    pub profile_name: String,
    /// The booted version; empty if it is not known.
    pub before: String,
    /// The desired version.
    pub after: String,
}

impl fmt::Display for ImageChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = if self.before.is_empty() { "-" } else { &self.before };
        write!(f, "{} {before} -> {}", self.profile_name, self.after)
    }
}

#[cfg(test)]
impl ImageSpec {
    /// For tests: a spec of a version, whose file contains the version as text.
    pub(crate) fn sample(image_id: &str) -> Self {
        Self {
            os_id: "os-2".into(),
            name: format!("Demo {image_id}"),
            profile_name: "demo".into(),
            image_id: image_id.into(),
            architecture: "x86_64".into(),
            url: format!("https://images.example/demo-{image_id}.raw.zst"),
            sha256: Sha256::hash(image_id.as_bytes()),
            signatures: Vec::new(),
            rules: ImageRules::default(),
            allow_retry: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of no bytes.
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn spec() -> ImageSpec {
        ImageSpec { sha256: Sha256::hash(b""), ..ImageSpec::sample("1.1") }
    }

    #[test]
    fn a_digest_is_written_and_read_in_lower_case() {
        let digest = Sha256::hash(b"");
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Sha256>().unwrap(), digest);
        assert_eq!(serde_json::to_string(&digest).unwrap(), format!("\"{EMPTY}\""));
        let read: Sha256 = serde_json::from_str(&format!("\"{EMPTY}\"")).unwrap();
        assert_eq!(read, digest);
        for bad in [
            String::new(),
            EMPTY[1..].to_owned(),
            format!("{EMPTY}0"),
            EMPTY.to_uppercase(),
            EMPTY.replace('e', "é"),
            "é".repeat(32),
        ] {
            let error = bad.parse::<Sha256>().unwrap_err().to_string();
            assert!(error.contains("64 digits"), "{error}");
            assert!(serde_json::from_str::<Sha256>(&format!("\"{bad}\"")).is_err());
        }
        let long = "x".repeat(1 << 20).parse::<Sha256>().unwrap_err();
        assert!(long.to_string().len() < 200);
    }

    #[test]
    fn a_spec_of_an_older_agent_is_read() {
        let earlier = format!(
            r#"{{"os_id":"os-2","name":"Demo 1.1","profile_name":"demo","image_id":"1.1",
            "architecture":"x86_64","url":"https://images.example/demo-1.1.raw.zst","sha256":"{EMPTY}"}}"#
        );
        assert_eq!(serde_json::from_str::<ImageSpec>(&earlier).unwrap(), spec());
    }

    /// The journal keeps the spec as JSON. Half of an instruction means something else.
    #[test]
    fn a_spec_with_an_unknown_field_is_rejected() {
        for pointer in ["", "/rules"] {
            let mut newer = serde_json::to_value(spec()).unwrap();
            let object = newer.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
            object.insert("more".into(), 1.into());
            serde_json::from_value::<ImageSpec>(newer).unwrap_err();
        }
    }

    #[test]
    fn another_file_is_another_image_but_a_retry_is_not() {
        let ordered = ImageSpec { allow_retry: true, signatures: vec!["k:s".into()], ..spec() };
        assert_eq!(spec().image_identity(), ordered.image_identity());
        let other = ImageSpec { sha256: Sha256::hash(b"other"), ..spec() };
        assert_ne!(spec().image_identity(), other.image_identity());
        let moved =
            ImageSpec { url: "https://elsewhere.example/demo-1.1.raw.zst".into(), ..spec() };
        assert_ne!(spec().image_identity(), moved.image_identity());
    }
}
