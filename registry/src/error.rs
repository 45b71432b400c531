//! Errors of registries.

use std::io;
use std::time::Duration;

use evenkeel_fetch::{BadDigest, Digest, FillError, SourceError, StallError};

/// Result of a request to a registry.
pub type RegistryResult<T> = Result<T, RegistryError>;

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry or the server of a file does not respond.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// The transfer stalled or was too slow.
    #[error("the server stopped responding")]
    Stalled,
    /// The server answered 429 or 503.
    #[error("the server is busy; try again later")]
    Busy {
        /// Delay that the server asks for, if any.
        retry_after: Option<Duration>,
    },
    /// The server answered 401 or 403.
    #[error("access denied: the credentials are missing or not accepted")]
    Denied,
    /// The requested item does not exist.
    #[error("not found")]
    NotFound,
    /// The server answered with another HTTP status than expected.
    #[error("the server answered with status {0}")]
    Status(u16),
    /// The content exceeds a limit.
    #[error("larger than {limit} bytes or entries")]
    TooLarge {
        /// The limit that was exceeded, in bytes or entries.
        limit: u64,
    },
    /// The content does not match its digest.
    #[error("the digest is {actual}, expected {expected}")]
    WrongDigest {
        /// Digest that was requested or declared.
        expected: Digest,
        /// Digest of the content.
        actual: Digest,
    },
    /// The content changed during the transfer.
    #[error("the transfer cannot continue: {0}")]
    Changed(String),
    /// The content or a setting is invalid.
    #[error("the {what} is invalid: {why}")]
    Malformed {
        /// Kind of the invalid item, such as `manifest`.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// An address that is not allowed, for example the target of a redirect.
    #[error("{0} is not an allowed address")]
    ForbiddenAddress(String),
    /// A connection or a disk failed during a transfer.
    #[error("the transfer failed: {0}")]
    Io(#[from] io::Error),
}

/// Whether an error is worth a retry, and what it affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// A retry may succeed.
    Transient,
    /// The error stays until the content of the registry changes.
    Permanent,
    /// The error affects all content of the registry.
    WholeRegistry,
}

impl RegistryError {
    /// Class of the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unreachable(_) | Self::Denied | Self::Busy { .. } => ErrorClass::WholeRegistry,
            Self::Stalled | Self::Changed(_) | Self::Io(_) => ErrorClass::Transient,
            Self::Status(status) if *status >= 500 => ErrorClass::Transient,
            Self::NotFound
            | Self::Status(_)
            | Self::TooLarge { .. }
            | Self::WrongDigest { .. }
            | Self::Malformed { .. }
            | Self::ForbiddenAddress(_) => ErrorClass::Permanent,
        }
    }

    /// Whether the same request may succeed if it is repeated soon.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Busy { .. } => true,
            // The bytes that were received are not of the file that the server has now.
            Self::Changed(_) => false,
            _ => self.class() == ErrorClass::Transient,
        }
    }
}

impl From<BadDigest> for RegistryError {
    fn from(BadDigest(why): BadDigest) -> Self {
        malformed("digest", why)
    }
}

impl From<StallError> for RegistryError {
    fn from(_: StallError) -> Self {
        Self::Stalled
    }
}

impl From<FillError<RegistryError>> for RegistryError {
    fn from(error: FillError<RegistryError>) -> Self {
        match error {
            FillError::Disk(error) => Self::Io(error),
            FillError::Source(error) => error,
            FillError::Incomplete => Self::Stalled,
            FillError::TooLarge { limit } => Self::TooLarge { limit },
            FillError::WrongSize => malformed("blob", "its size differs from the declared one"),
            FillError::WrongDigest { expected, actual } => Self::WrongDigest { expected, actual },
        }
    }
}

impl SourceError for RegistryError {
    fn is_wrong_content(&self) -> bool {
        // Content that changed may be right now, so `Changed` is left to the next transfer.
        matches!(self, Self::WrongDigest { .. } | Self::TooLarge { .. } | Self::Malformed { .. })
    }
}

/// Error for content or a setting that is invalid.
pub(crate) fn malformed(what: &'static str, why: impl Into<String>) -> RegistryError {
    RegistryError::Malformed { what, why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_one_artifact_is_not_one_of_the_registry() {
        let expected = Digest::compute(b"one");
        let actual = Digest::compute(b"other");
        assert_eq!(RegistryError::WrongDigest { expected, actual }.class(), ErrorClass::Permanent);
        assert_eq!(RegistryError::Status(404).class(), ErrorClass::Permanent);
        assert_eq!(RegistryError::Status(502).class(), ErrorClass::Transient);
        assert_eq!(RegistryError::Stalled.class(), ErrorClass::Transient);
        assert_eq!(RegistryError::Changed(String::new()).class(), ErrorClass::Transient);
        assert_eq!(RegistryError::Denied.class(), ErrorClass::WholeRegistry);
    }

    #[test]
    fn only_retryable_errors_are_retried() {
        assert!(RegistryError::Unreachable(String::new()).is_retryable());
        assert!(RegistryError::Busy { retry_after: None }.is_retryable());
        assert!(!RegistryError::Denied.is_retryable());
        assert!(!RegistryError::Changed(String::new()).is_retryable());
        assert!(!malformed("manifest", "it is empty").is_retryable());
    }
}
