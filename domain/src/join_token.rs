//! Join tokens: leave for machines to join a project.

use crate::Time;
use crate::id::JoinTokenId;
use crate::text::Name;

/// Leave to join a project. The secret itself is not kept, only its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// Its id.
    pub id: JoinTokenId,
    /// What it allows.
    pub spec: JoinTokenSpec,
    /// How often it was used.
    pub used: u32,
    /// When it was last used.
    pub last_used_at: Option<Time>,
    /// When it was taken back.
    pub revoked_at: Option<Time>,
    /// When it was made.
    pub created_at: Time,
}

/// What a join token allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinTokenSpec {
    /// May be empty.
    pub name: Name,
    /// From then on it is worth nothing.
    pub expires_at: Time,
    /// Whether it is worth nothing after its first use.
    pub one_time: bool,
    /// Whether machines that nobody registered may join with it.
    pub may_create_hosts: bool,
}

/// Why a join token is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Worthless {
    /// It was taken back.
    #[error("the join token was revoked")]
    Revoked,
    /// Its time is over.
    #[error("the join token has expired")]
    Expired,
    /// It was for one machine, and that machine came.
    #[error("the join token was for one machine and was used")]
    Used,
}

impl JoinToken {
    /// Whether a machine may join with it.
    ///
    /// # Errors
    /// Says why not.
    pub fn check(&self, now: Time) -> Result<(), Worthless> {
        if self.revoked_at.is_some() {
            return Err(Worthless::Revoked);
        }
        if self.spec.expires_at <= now {
            return Err(Worthless::Expired);
        }
        if self.spec.one_time && self.used > 0 {
            return Err(Worthless::Used);
        }
        Ok(())
    }
}
