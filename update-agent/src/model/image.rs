//! A wish for an image of the operating system, and what is told of one.

use std::fmt::{self, Write};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// SHA-256 of some bytes. Written as 64 small hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256([u8; 32]);

/// A text is no SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no SHA-256: that has 64 digits, 0-9 and a-f")]
pub struct BadSha256(String);

impl Sha256 {
    /// That of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The digest itself.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Sha256 {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
        let bad = || {
            // A text from outside may be long.
            let mut shown: String = text.chars().take(80).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            BadSha256(shown)
        };
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else {
                return Err(bad());
            };
            let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                return Err(bad());
            };
            *byte = (high << 4) | low;
        }
        Ok(Self(bytes))
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
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
        let mut text = Self::with_capacity(64);
        // To write into text does not fail.
        write!(text, "{digest}").ok();
        text
    }
}

/// Run an image of the operating system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageWish {
    /// The server's own name of the release.
    pub os_id: String,
    /// The release in words.
    pub name: String,
    /// The line of releases that it is one of; `IMAGE_ID` of its os-release(5).
    pub profile_name: String,
    /// Its version in that line; `IMAGE_VERSION` of its os-release(5).
    pub image_id: String,
    /// What it runs on, such as `x86_64`.
    pub architecture: String,
    /// Where its file is.
    pub url: String,
    /// Of the file as it is fetched.
    pub sha256: Sha256,
    /// Each `<SHA-256 of the SPKI>:<base64 of the signature>`.
    #[serde(default)]
    pub signatures: Vec<String>,
    /// How it may be fetched.
    #[serde(default)]
    pub rules: ImageRules,
    /// Whether it is tried although it failed here before: a person ordered it.
    #[serde(default)]
    pub again: bool,
}

impl ImageWish {
    /// Whether another wish means the same file of the same release: what may be told of it anew, such as another rule
    /// or another signature, makes no other image.
    pub fn is_same_image(&self, other: &Self) -> bool {
        self.sha256 == other.sha256
            && self.url == other.url
            && self.profile_name == other.profile_name
            && self.image_id == other.image_id
            && self.architecture == other.architecture
    }
}

/// How an image may be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageRules {
    /// While fetching; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// A longer file is refused; 0 for no limit.
    pub max_bytes: u64,
    /// So often a download may fail in a row.
    pub attempts: u32,
}

impl Default for ImageRules {
    fn default() -> Self {
        Self {
            download_bytes_per_second: 0,
            max_bytes: 0,
            attempts: 5,
        }
    }
}

/// The image before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChange {
    /// The line of releases that the wanted one is one of.
    pub profile_name: String,
    /// The version that runs; empty if that is not known.
    pub before: String,
    /// The version that is wanted.
    pub wanted: String,
}

#[cfg(test)]
impl ImageWish {
    /// For tests: a wish for a version, whose file is the text of it.
    pub(crate) fn sample(image_id: &str) -> Self {
        Self {
            os_id: "os-2".into(),
            name: format!("Demo {image_id}"),
            profile_name: "demo".into(),
            image_id: image_id.into(),
            architecture: "x86_64".into(),
            url: format!("https://images.example/demo-{image_id}.raw.zst"),
            sha256: Sha256::of(image_id.as_bytes()),
            signatures: Vec::new(),
            rules: ImageRules::default(),
            again: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of no bytes at all.
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn wish() -> ImageWish {
        ImageWish {
            sha256: Sha256::of(b""),
            ..ImageWish::sample("1.1")
        }
    }

    #[test]
    fn a_digest_is_written_in_small_digits_and_read_from_them_only() {
        let digest = Sha256::of(b"");
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Sha256>().unwrap(), digest);
        assert_eq!(
            serde_json::to_string(&digest).unwrap(),
            format!("\"{EMPTY}\"")
        );
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
    fn a_wish_of_an_agent_that_noted_less_is_understood() {
        let earlier = format!(
            r#"{{"os_id":"os-2","name":"Demo 1.1","profile_name":"demo","image_id":"1.1",
            "architecture":"x86_64","url":"https://images.example/demo-1.1.raw.zst","sha256":"{EMPTY}"}}"#
        );
        assert_eq!(serde_json::from_str::<ImageWish>(&earlier).unwrap(), wish());
    }

    #[test]
    fn another_file_is_another_image_and_an_order_is_not() {
        let ordered = ImageWish {
            again: true,
            signatures: vec!["k:s".into()],
            ..wish()
        };
        assert!(wish().is_same_image(&ordered));
        let other = ImageWish {
            sha256: Sha256::of(b"other"),
            ..wish()
        };
        assert!(!wish().is_same_image(&other));
        let moved = ImageWish {
            url: "https://elsewhere.example/demo-1.1.raw.zst".into(),
            ..wish()
        };
        assert!(!wish().is_same_image(&moved));
    }
}
