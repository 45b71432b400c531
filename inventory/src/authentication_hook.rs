//! Reports to the server that a connection has authenticated its client.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use evenkeel_auth::Caller;

/// Which limit of connections the caller of a request has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionLimit {
    /// That of the user.
    PerUser,
    /// That of the projects of the token.
    PerProject,
    /// That of the client's address.
    PerAddress,
}

type HookFunction = dyn Fn(&Caller) -> Result<(), ConnectionLimit> + Send + Sync;

/// Called for each request whose token is valid, before the request is served. It refuses a request
/// whose caller has too many connections. The server puts the hook of the connection into the
/// extensions of its requests. The default does nothing.
#[derive(Clone, Default)]
pub struct AuthenticationHook(Option<Arc<HookFunction>>);

impl AuthenticationHook {
    /// A hook that calls a function, which must return soon.
    #[must_use]
    pub fn new(
        call: impl Fn(&Caller) -> Result<(), ConnectionLimit> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(call)))
    }

    /// Reports that the token of a caller was valid.
    ///
    /// # Errors
    ///
    /// The caller has too many connections, and the request must be refused.
    pub fn call(&self, caller: &Caller) -> Result<(), ConnectionLimit> {
        self.0.as_ref().map_or(Ok(()), |call| call(caller))
    }
}

impl Debug for AuthenticationHook {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("AuthenticationHook")
    }
}
