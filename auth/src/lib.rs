//! Authentication and authorisation: keys, tokens, roles.
//!
//! | module | content |
//! | --- | --- |
//! | [`keys`] | the keys that sign our tokens |
//! | [`issuer`] | external issuers whose tokens are accepted ([`ExternalIssuer`]) |
//! | [`provider`] | fetches the keys of identity providers; the only module that connects to them |
//! | [`token`] | issues and verifies tokens ([`Authority`]) |
//! | [`revocations`] | tokens that are revoked before they expire |
//! | [`refresh`] | refresh tokens of users who have logged in |
//! | [`users`] | users who log in with a password |
//! | [`roles`] | what the bearer of a token may do ([`Caller`]) |
//! | [`named_role`] | roles in projects that are identified by their names ([`NamedRole`]) |
//! | [`ca`] | the certificate authority and the certificates of the listeners |
//! | [`node_certificate`] | the certificates of nodes ([`NodeCertificate`]) |
//! | [`certificate_request`] | what a node sends to get them |
//! | [`key_fingerprint`] | identifies the key of a node |
//! | [`join`] | join tokens of machines that are not enrolled yet |
//! | [`webhook_key`] | the keys with which webhooks are signed |
//!
//! This crate does not read the clock, the environment or the database. The keys and the
//! certificate authority are files that all replicas share. Verifying a token never waits: the keys
//! of identity providers are fetched in the background.

pub mod ca;
pub mod certificate_request;
pub mod issuer;
pub mod join;
pub mod key_fingerprint;
pub mod keys;
pub mod named_role;
pub mod node_certificate;
pub mod provider;
pub mod refresh;
pub mod revocations;
pub mod roles;
pub mod token;
pub mod users;
pub mod webhook_key;

mod file;
mod key_set;
mod token_cache;
mod token_usage;

pub use ca::{CertificateAuthority, ServerCertificate, ValidityPeriod};
pub use certificate_request::{BadCertificateRequest, ClientKey, DecryptionKey};
pub use file::FileError;
pub use issuer::{
    BadNodePattern, ExternalIssuer, KeyRefreshIntervals, NodeBinding, NodePattern, RoleMapping,
};
pub use join::{BadJoinToken, JoinToken, SecretHash};
pub use key_fingerprint::KeyFingerprint;
pub use keys::{KeyPurpose, Keys};
pub use named_role::{BadRole, NamedRole, ProjectNames, ProjectRole, RoleGrant};
pub use node_certificate::{
    BadNodeCertificate, CertificateNotValid, NODE_CERTIFICATE_LIFETIME, NodeCertificate,
};
pub use provider::{BadAddress, HttpClientError};
pub use refresh::RefreshToken;
pub use revocations::{Revocations, RevokedSubject};
pub use roles::{Caller, NodeSubject, Role, RoleKind, RoleLimits};
pub use token::{AuthError, Authority, IssueError, IssuedToken, Settings};
pub use users::{BadUser, User, Users, UsersFile};
pub use webhook_key::generate_webhook_key;
