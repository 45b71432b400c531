//! Seals of the change log. A seal contains the digests of some changes of a project, and the digest of the seal before it.
//! So whoever alters a sealed change must replace its seal and all later ones. docs/design/change-log.md describes the
//! encoding.

mod encoding;
mod span;
#[cfg(test)]
mod tests;
mod verifier;

use std::fmt;
use std::str::FromStr;

use chrono::TimeDelta;

use crate::Time;
use crate::invalid::Invalid;
use crate::tenant::TenantId;

pub use span::ChangeSpan;
pub use verifier::{ChainFault, ChainReport, ChainVerifier, VerificationScope};

/// The encoding of new seals.
pub const CURRENT_ENCODING: i16 = 1;

/// A SHA-256 digest: of a seal, or of the changes that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SealDigest([u8; 32]);

impl SealDigest {
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for SealDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for SealDigest {
    type Err = Invalid;

    /// Parses 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("digest", "a digest of a seal has 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let mut bytes = [0; 32];
        for (byte, start) in bytes.iter_mut().zip((0..64).step_by(2)) {
            let digits = text.get(start..start + 2).ok_or_else(invalid)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(Self(bytes))
    }
}

/// Who made a change. Changes of users are kept longer, so a seal has a digest for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeClass {
    /// The change has an actor.
    Users,
    /// The server made the change on its own.
    Server,
}

impl fmt::Display for ChangeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Users => "users",
            Self::Server => "the server",
        })
    }
}

/// A change as the log records it, with every column that a seal covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedChange {
    /// Unique in the log of all projects.
    pub number: i64,
    /// The bits of the transaction id.
    pub transaction: i64,
    /// In microseconds.
    pub at: Time,
    pub kind: String,
    pub id: i32,
    pub operation: String,
    pub scope_level: Option<String>,
    pub scope_id: Option<i32>,
    pub actor: Option<String>,
    pub request_id: Option<String>,
    pub client_address: Option<String>,
    /// The row before the change, as Postgres prints the value of type `jsonb`.
    pub before: Option<String>,
    /// The row after the change, likewise.
    pub after: Option<String>,
}

impl RecordedChange {
    #[must_use]
    pub const fn class(&self) -> ChangeClass {
        if self.actor.is_some() { ChangeClass::Users } else { ChangeClass::Server }
    }
}

/// The number of changes of a class that a seal covers, and their digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedChanges {
    pub count: u32,
    pub digest: SealDigest,
}

/// A seal. It covers the changes of a project with numbers above `above` and up to `up_to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    pub tenant: TenantId,
    /// Its number in the chain of the project, from 1.
    pub number: i64,
    /// The version of the encoding.
    pub encoding: i16,
    /// `up_to` of the seal before; 0 for the first seal.
    pub above: i64,
    pub up_to: i64,
    pub by_users: SealedChanges,
    pub by_server: SealedChanges,
    /// The earliest time of a covered change.
    pub first_at: Time,
    /// The latest time of a covered change.
    pub last_at: Time,
    /// By the clock of the database.
    pub sealed_at: Time,
    /// The digest of the seal before; none for the first seal.
    pub previous: Option<SealDigest>,
    pub digest: SealDigest,
}

/// The end of the chain of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainHead {
    pub number: i64,
    pub up_to: i64,
    pub digest: SealDigest,
}

impl Seal {
    /// Seals changes that have numbers up to `up_to`, in the order of their numbers, after the end of the chain. Returns
    /// none if there are no changes.
    #[must_use]
    pub fn create(
        (tenant, head): (TenantId, Option<ChainHead>),
        changes: &[RecordedChange],
        up_to: i64,
        sealed_at: Time,
    ) -> Option<Self> {
        let first_at = changes.iter().map(|change| change.at).min()?;
        let last_at = changes.iter().map(|change| change.at).max()?;
        let mut seal = Self {
            tenant,
            number: head.map_or(1, |head| head.number + 1),
            encoding: CURRENT_ENCODING,
            above: head.map_or(0, |head| head.up_to),
            up_to,
            by_users: encoding::seal_changes(changes, ChangeClass::Users),
            by_server: encoding::seal_changes(changes, ChangeClass::Server),
            first_at,
            last_at,
            sealed_at,
            previous: head.map(|head| head.digest),
            digest: SealDigest([0; 32]),
        };
        seal.digest = encoding::digest_seal(&seal);
        Some(seal)
    }

    /// The end of the chain if this is its last seal.
    #[must_use]
    pub const fn head(&self) -> ChainHead {
        ChainHead { number: self.number, up_to: self.up_to, digest: self.digest }
    }

    /// What the seal states about the changes of a class.
    #[must_use]
    pub const fn sealed_changes(&self, class: ChangeClass) -> SealedChanges {
        match class {
            ChangeClass::Users => self.by_users,
            ChangeClass::Server => self.by_server,
        }
    }

    /// Number of covered changes.
    #[must_use]
    pub fn count(&self) -> u64 {
        u64::from(self.by_users.count) + u64::from(self.by_server.count)
    }
}

/// How long changes are kept after they were sealed; none: for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeRetention {
    pub by_users: Option<TimeDelta>,
    pub by_server: Option<TimeDelta>,
}

impl ChangeRetention {
    /// The changes of a class that were sealed before this time may be removed; none if all are kept.
    #[must_use]
    pub fn removed_before(&self, class: ChangeClass, now: Time) -> Option<Time> {
        let retention = match class {
            ChangeClass::Users => self.by_users,
            ChangeClass::Server => self.by_server,
        };
        retention.and_then(|retention| now.checked_sub_signed(retention))
    }

    /// Seals from before this time may be removed if none of their changes is left; none if all are kept.
    #[must_use]
    pub fn seals_removed_before(&self, now: Time) -> Option<Time> {
        let by_users = self.removed_before(ChangeClass::Users, now)?;
        let by_server = self.removed_before(ChangeClass::Server, now)?;
        Some(by_users.min(by_server))
    }
}
