//! Check of the password of a caller, which another part of the server does.

use std::fmt::{self, Debug, Formatter};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::Secret;
use futures_util::future::BoxFuture;

type Check = dyn Fn(PasswordAttempt) -> BoxFuture<'static, PasswordCheck> + Send + Sync;

/// A password to check.
#[derive(Debug)]
pub struct PasswordAttempt {
    /// Name of the user.
    pub user: String,
    /// Address of the client, if it is known.
    pub client: Option<IpAddr>,
    pub password: Secret,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordCheck {
    Correct,
    Wrong,
    /// The user or the client must wait because of earlier failures.
    TooManyAttempts(Duration),
    /// The user cannot log in, and why.
    Refused(String),
    /// The check is not possible at the moment.
    Unavailable,
}

/// Checks the passwords of users in the database, and counts failed attempts. The default is a server
/// without logins with a password.
#[derive(Clone, Default)]
pub struct PasswordChecker(Option<Arc<Check>>);

impl PasswordChecker {
    #[must_use]
    pub fn new(
        check: impl Fn(PasswordAttempt) -> BoxFuture<'static, PasswordCheck> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(check)))
    }

    /// Checks a password. None if the server has no logins with a password.
    pub async fn check(&self, attempt: PasswordAttempt) -> Option<PasswordCheck> {
        match &self.0 {
            Some(check) => Some(check(attempt).await),
            None => None,
        }
    }
}

impl Debug for PasswordChecker {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordChecker")
    }
}
