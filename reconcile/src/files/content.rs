//! Where the content of a file comes from.

use std::borrow::Cow;
use std::io::Read;

use base64::engine::general_purpose::STANDARD;
use base64::read::DecoderReader;
use evenkeel_configuration::document::{FileContent, SecretRef};

use super::digest::ContentDigest;
use super::state::ContentDepth;

/// Opens contents that the document does not contain: secrets and downloads.
pub trait ContentSource: Send + Sync {
    /// Opens the value of a secret.
    ///
    /// # Errors
    /// The value is not available.
    fn open_secret(&self, secret: &SecretRef) -> Result<Box<dyn Read + '_>, ContentError>;

    /// Opens a download. The reader of the content checks its digest.
    ///
    /// # Errors
    /// The content is not available.
    fn open_download(
        &self,
        uri: &str,
        digest: ContentDigest,
    ) -> Result<Box<dyn Read + '_>, ContentError>;

    /// The digest of the value of a secret. A source that has the digest need not open the value.
    ///
    /// # Errors
    /// The value is not available.
    fn secret_digest(&self, secret: &SecretRef) -> Result<ContentDigest, ContentError> {
        let mut reader = self.open_secret(secret)?;
        ContentDigest::from_reader(&mut reader).map_err(|error| {
            ContentError(format!("cannot read the secret {}: {error}", secret_label(secret)))
        })
    }
}

/// A content is not available: why, as a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ContentError(pub String);

/// A source without contents, for documents without secrets and downloads.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmptyContentSource;

impl ContentSource for EmptyContentSource {
    fn open_secret(&self, secret: &SecretRef) -> Result<Box<dyn Read + '_>, ContentError> {
        let label = secret_label(secret);
        Err(ContentError(format!("the value of the secret {label} is not available here")))
    }

    fn open_download(
        &self,
        uri: &str,
        _digest: ContentDigest,
    ) -> Result<Box<dyn Read + '_>, ContentError> {
        Err(ContentError(format!("{uri} is not downloaded")))
    }
}

fn secret_label(secret: &SecretRef) -> String {
    format!("{}/{}", secret.name, secret.key)
}

/// The content that a file should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesiredContent<'a> {
    Text(Cow<'a, str>),
    /// Base64 with padding, as documents have it.
    Base64(Cow<'a, str>),
    Secret(Cow<'a, SecretRef>),
    Download {
        uri: Cow<'a, str>,
        digest: ContentDigest,
    },
}

impl<'a> DesiredContent<'a> {
    /// The content of a file entry; an absent content is empty.
    pub(crate) fn from_document(content: Option<&'a FileContent>) -> Result<Self, ContentError> {
        let Some(content) = content else {
            return Ok(Self::Text(Cow::Borrowed("")));
        };
        if let Some(text) = &content.inline {
            return Ok(Self::Text(Cow::Borrowed(text)));
        }
        if let Some(text) = &content.base64 {
            return Ok(Self::Base64(Cow::Borrowed(text)));
        }
        if let Some(secret) = &content.secret_ref {
            return Ok(Self::Secret(Cow::Borrowed(secret)));
        }
        let (Some(uri), Some(digest)) = (&content.uri, &content.sha256) else {
            return Err(ContentError(
                "the entry has a content without inline, base64, secretRef and uri".to_owned(),
            ));
        };
        let digest = ContentDigest::from_hex(digest)
            .ok_or_else(|| ContentError("the sha256 of the content is no SHA-256".to_owned()))?;
        Ok(Self::Download { uri: Cow::Borrowed(uri), digest })
    }

    /// Whether reports and plans must not have a digest of the content: a short secret can be
    /// guessed from its digest.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self, Self::Secret(_))
    }

    /// How a file is compared with the content.
    pub(crate) fn observation_depth(&self) -> ContentDepth {
        self.size().map_or(ContentDepth::Digest, ContentDepth::DigestOfSize)
    }

    /// The size in bytes, if the document has the content.
    fn size(&self) -> Option<u64> {
        let size = match self {
            Self::Text(text) => text.len(),
            Self::Base64(text) => {
                let padding = text.bytes().rev().take_while(|digit| *digit == b'=').count();
                (text.len() / 4 * 3).saturating_sub(padding)
            }
            Self::Secret(_) | Self::Download { .. } => return None,
        };
        u64::try_from(size).ok()
    }

    /// Opens the content for reading.
    pub(crate) fn open<'s>(
        &'s self,
        source: &'s dyn ContentSource,
    ) -> Result<Box<dyn Read + 's>, ContentError> {
        match self {
            Self::Text(text) => Ok(Box::new(text.as_bytes())),
            Self::Base64(text) => Ok(Box::new(decode_base64(text))),
            Self::Secret(secret) => source.open_secret(secret),
            Self::Download { uri, digest } => source.open_download(uri, *digest),
        }
    }

    /// The digest of the content.
    pub(crate) fn digest(&self, source: &dyn ContentSource) -> Result<ContentDigest, ContentError> {
        match self {
            Self::Text(text) => Ok(ContentDigest::from_bytes(text.as_bytes())),
            Self::Base64(text) => ContentDigest::from_reader(&mut decode_base64(text))
                .map_err(|error| ContentError(format!("the content is not base64: {error}"))),
            Self::Secret(secret) => source.secret_digest(secret),
            Self::Download { digest, .. } => Ok(*digest),
        }
    }
}

fn decode_base64(text: &str) -> impl Read {
    DecoderReader::new(text.as_bytes(), &STANDARD)
}
