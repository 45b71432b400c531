//! Reports to the server that a connection has authenticated its client.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

/// Called for each request whose token is valid, before the request is served. The server puts the
/// hook of the connection into the extensions of its requests. The default does nothing.
#[derive(Clone, Default)]
pub struct AuthenticationHook(Option<Arc<dyn Fn() + Send + Sync>>);

impl AuthenticationHook {
    /// A hook that calls a function, which must return soon.
    #[must_use]
    pub fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(call)))
    }

    /// Reports that a token was valid.
    pub fn call(&self) {
        if let Some(call) = &self.0 {
            call();
        }
    }
}

impl Debug for AuthenticationHook {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("AuthenticationHook")
    }
}
