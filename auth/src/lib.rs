//! Who is asking: keys, tokens, roles.
//!
//! | module | what it answers |
//! | --- | --- |
//! | [`keys`] | with which key is signed |
//! | [`issuer`] | who else signs tokens that count ([`OutsideIssuer`]) |
//! | [`provider`] | with which keys do they sign: the door to identity providers |
//! | [`token`] | is this token good, and how is one made ([`Authority`]) |
//! | [`refresh`] | how does somebody who has logged in get another token |
//! | [`users`] | who logs in with a password |
//! | [`roles`] | what may its bearer do ([`Caller`]) |
//! | [`ca`] | which certificate does a listener show, and who vouches for it |
//! | [`join`] | what does a machine show that has no token yet |
//!
//! Nothing here reads the clock, the environment or the database. The keys and the certificate authority are files; a
//! fleet's replicas share them. Whoever verifies a token waits for nobody: providers are asked in the background.

pub mod ca;
pub mod issuer;
pub mod join;
pub mod keys;
pub mod provider;
pub mod refresh;
pub mod roles;
pub mod token;
pub mod users;

mod file;
mod key_set;
mod remembered;

pub use ca::{CertificateAuthority, ServerCertificate};
pub use file::FileError;
pub use issuer::{OutsideIssuer, Rhythm};
pub use join::{BadJoinToken, JoinToken, SecretHash};
pub use keys::Keys;
pub use provider::{BadAddress, NoClient};
pub use refresh::Refresh;
pub use roles::{Caller, Role};
pub use token::{AuthError, Authority, IssueError, Issued, Settings};
pub use users::{User, Users, UsersFile};
