//! Join tokens, which let machines join a project.

use crate::Time;
use crate::id::JoinTokenId;
use crate::text::Name;

/// A join token. Only the digest of its secret is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    pub id: JoinTokenId,
    pub spec: JoinTokenSpec,
    /// Number of uses.
    pub used: u32,
    pub last_used_at: Option<Time>,
    pub revoked_at: Option<Time>,
    pub created_at: Time,
}

/// Permissions of a join token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinTokenSpec {
    /// May be empty.
    pub name: Name,
    /// The token is valid before this instant.
    pub expires_at: Time,
    /// Whether the token can be used only once.
    pub one_time: bool,
    /// Whether unregistered machines may join with it.
    pub may_create_hosts: bool,
    /// Whether machines may join with it whose hosts an agent of EIM uses.
    pub may_replace_eim_agents: bool,
}

/// Why a join token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinTokenError {
    #[error("the join token was revoked")]
    Revoked,
    #[error("the join token has expired")]
    Expired,
    /// It is a one-time token and was used.
    #[error("the join token was for one machine and was used")]
    Used,
}

impl JoinToken {
    /// Checks whether a machine may join with the token.
    ///
    /// # Errors
    /// The token is revoked, expired or used up.
    pub fn check(&self, now: Time) -> Result<(), JoinTokenError> {
        if self.revoked_at.is_some() {
            return Err(JoinTokenError::Revoked);
        }
        if self.spec.expires_at <= now {
            return Err(JoinTokenError::Expired);
        }
        if self.spec.one_time && self.used > 0 {
            return Err(JoinTokenError::Used);
        }
        Ok(())
    }
}
