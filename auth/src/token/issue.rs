//! Issues our own tokens.

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Secret;
use jsonwebtoken::{Algorithm, Header};
use serde::Serialize;
use uuid::Uuid;

use super::Authority;
use crate::key_fingerprint::KeyFingerprint;
use crate::keys::KeyPurpose;
use crate::roles::Role;

/// A token could not be issued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The token would expire after the last date that can be represented.
    #[error("the lifetime of the token is too long")]
    TooLong,
    /// Signing failed.
    #[error("the token cannot be signed")]
    Sign(#[source] jsonwebtoken::errors::Error),
}

/// A new token.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The signed token.
    pub token: Secret,
    /// ID of the token: its claim `jti`.
    pub id: Uuid,
    /// End of the token's validity.
    pub expires_at: DateTime<Utc>,
}

#[derive(Debug, Serialize)]
struct OwnClaims<'a> {
    iss: &'a str,
    aud: &'a str,
    sub: &'a str,
    iat: i64,
    exp: i64,
    jti: Uuid,
    realm_access: RealmAccess,
    /// Name of a token for automation.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_name: Option<&'a str>,
    /// Fingerprint of the key of a node of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_key: Option<String>,
}

/// What a new token says about its bearer.
#[derive(Clone, Copy, Debug)]
struct Bearer<'a> {
    subject: &'a str,
    roles: &'a [Role],
    token_name: Option<&'a str>,
    node_key: Option<&'a KeyFingerprint>,
}

impl<'a> Bearer<'a> {
    fn new(subject: &'a str, roles: &'a [Role]) -> Self {
        Self { subject, roles, token_name: None, node_key: None }
    }
}

#[derive(Debug, Serialize)]
struct RealmAccess {
    roles: Vec<String>,
}

impl Authority {
    /// Issues a token for a person or a program. It cannot have the role of a node.
    pub fn issue_operator(
        &self,
        subject: &str,
        roles: &[Role],
        lifetime: TimeDelta,
        now: DateTime<Utc>,
    ) -> Result<IssuedToken, IssueError> {
        self.issue(KeyPurpose::Operators, Bearer::new(subject, roles), lifetime, now)
    }

    /// Issues a token for automation with this name. Its subject is the user who created it, so that
    /// it is revoked with the other tokens of the user.
    pub fn issue_named(
        &self,
        (subject, name): (&str, &str),
        roles: &[Role],
        lifetime: TimeDelta,
        now: DateTime<Utc>,
    ) -> Result<IssuedToken, IssueError> {
        let bearer = Bearer { token_name: Some(name), ..Bearer::new(subject, roles) };
        self.issue(KeyPurpose::Operators, bearer, lifetime, now)
    }

    /// Issues the credential of a node of ours that was enrolled with this key. `host` is the id of
    /// its host, as text.
    pub fn issue_credential(
        &self,
        (project, host): (Uuid, &str),
        key: &KeyFingerprint,
        lifetime: TimeDelta,
        now: DateTime<Utc>,
    ) -> Result<IssuedToken, IssueError> {
        let roles = [Role::Node(project)];
        let bearer = Bearer { node_key: Some(key), ..Bearer::new(host, &roles) };
        self.issue(KeyPurpose::Nodes, bearer, lifetime, now)
    }

    /// Issues a token for an EIM node. `host` is the id of its host, as text.
    pub fn issue_node(
        &self,
        project: Uuid,
        host: &str,
        lifetime: TimeDelta,
        now: DateTime<Utc>,
    ) -> Result<IssuedToken, IssueError> {
        self.issue(KeyPurpose::Nodes, Bearer::new(host, &[Role::Node(project)]), lifetime, now)
    }

    fn issue(
        &self,
        purpose: KeyPurpose,
        bearer: Bearer<'_>,
        lifetime: TimeDelta,
        now: DateTime<Utc>,
    ) -> Result<IssuedToken, IssueError> {
        let expires_at = now.checked_add_signed(lifetime).ok_or(IssueError::TooLong)?;
        let id = Uuid::new_v4();
        let claims = OwnClaims {
            iss: &self.settings.issuer,
            aud: &self.settings.audience,
            sub: bearer.subject,
            iat: now.timestamp(),
            exp: expires_at.timestamp(),
            jti: id,
            realm_access: RealmAccess { roles: bearer.roles.iter().map(Role::to_string).collect() },
            token_name: bearer.token_name,
            node_key: bearer.node_key.map(KeyFingerprint::to_string),
        };
        Ok(IssuedToken { token: self.sign(purpose, &claims)?, id, expires_at })
    }

    /// Signs claims with our own key for a purpose.
    pub(crate) fn sign(
        &self,
        purpose: KeyPurpose,
        claims: &impl Serialize,
    ) -> Result<Secret, IssueError> {
        let ring = self.keys.ring(purpose);
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(ring.signing_id.clone());
        let token = jsonwebtoken::encode(&header, claims, &ring.signing);
        token.map(Secret::new).map_err(IssueError::Sign)
    }
}
