//! Who is asking: keys, tokens, roles.
//!
//! | module | what it answers |
//! | --- | --- |
//! | [`keys`] | with which key is signed, and whose signatures count |
//! | [`token`] | is this token good, and how is one made ([`Authority`]) |
//! | [`roles`] | what may its bearer do ([`Caller`]) |
//! | [`ca`] | which certificate does a listener show, and who vouches for it |
//! | [`join`] | what does a machine show that has no token yet |
//!
//! Nothing here reads the clock, the environment or the database. The keys and the certificate authority are files; a
//! fleet's replicas share them.

pub mod ca;
pub mod join;
pub mod keys;
pub mod roles;
pub mod token;

mod file;
mod remembered;

pub use ca::{CertificateAuthority, ServerCertificate};
pub use file::FileError;
pub use join::{BadJoinToken, JoinToken, SecretHash};
pub use keys::{Keys, OutsideIssuer};
pub use roles::{Caller, Role};
pub use token::{AuthError, Authority, IssueError, Issued, Settings};
