//! What can go wrong with a registry.

use std::io;
use std::time::Duration;

use crate::digest::Digest;

/// What a question to a registry gives.
pub type Got<T> = Result<T, RegistryError>;

/// Why a registry did not give what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Nobody answers there.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It stopped in the middle.
    #[error("it stopped answering")]
    Stalled,
    /// It asks to be left alone for a while.
    #[error("it is busy")]
    Busy {
        /// How long, if it says so.
        again: Option<Duration>,
    },
    /// It does not let us in.
    #[error("it does not let us in: the credentials are missing or not accepted")]
    Denied,
    /// It has no such thing.
    #[error("it is not there")]
    NotThere,
    /// It answers with a status that is of no use.
    #[error("it answers with status {0}")]
    Status(u16),
    /// It is larger than what is taken.
    #[error("it is larger than {limit} bytes or entries")]
    TooLarge {
        /// What would have been taken.
        limit: u64,
    },
    /// It is not what its digest says.
    #[error("it should have the digest {said} and has {found}")]
    WrongDigest {
        /// What it should have been.
        said: Digest,
        /// What it is.
        found: Digest,
    },
    /// It is not made as it should be.
    #[error("the {what} is not usable: {why}")]
    Malformed {
        /// What is not usable.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// It leads to an address that must not be asked.
    #[error("it leads to {0}, which must not be asked")]
    Elsewhere(String),
    /// A connection broke, or a disk failed.
    #[error("it broke off: {0}")]
    Io(#[from] io::Error),
}

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It may be gone at the next try.
    Passing,
    /// It stays until somebody changes what is in the registry.
    Lasting,
    /// It concerns everything in the registry.
    WholeRegistry,
}

impl RegistryError {
    /// What to do about it.
    pub fn class(&self) -> Class {
        match self {
            Self::Unreachable(_) | Self::Denied | Self::Busy { .. } => Class::WholeRegistry,
            Self::Stalled | Self::Io(_) => Class::Passing,
            Self::Status(status) if *status >= 500 => Class::Passing,
            Self::NotThere
            | Self::Status(_)
            | Self::TooLarge { .. }
            | Self::WrongDigest { .. }
            | Self::Malformed { .. }
            | Self::Elsewhere(_) => Class::Lasting,
        }
    }

    /// Whether the same question may be answered better in a moment.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Busy { .. } => true,
            _ => self.class() == Class::Passing,
        }
    }
}

/// Something that is not made as it should be.
pub(crate) fn malformed(what: &'static str, why: impl Into<String>) -> RegistryError {
    RegistryError::Malformed {
        what,
        why: why.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_one_artefact_does_not_concern_the_registry() {
        let said = Digest::of(b"one");
        let found = Digest::of(b"other");
        assert_eq!(
            RegistryError::WrongDigest { said, found }.class(),
            Class::Lasting
        );
        assert_eq!(RegistryError::Status(404).class(), Class::Lasting);
        assert_eq!(RegistryError::Status(502).class(), Class::Passing);
        assert_eq!(RegistryError::Stalled.class(), Class::Passing);
        assert_eq!(RegistryError::Denied.class(), Class::WholeRegistry);
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        assert!(RegistryError::Unreachable(String::new()).may_pass());
        assert!(RegistryError::Busy { again: None }.may_pass());
        assert!(!RegistryError::Denied.may_pass());
        assert!(!malformed("manifest", "it is empty").may_pass());
    }
}
