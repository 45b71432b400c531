//! Names of users that another source has.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

type NameCheck = dyn Fn(&str) -> bool + Send + Sync;

/// Names of users that must not be in the database, because they are in the file of users. The default
/// has none.
#[derive(Clone, Default)]
pub struct ReservedNames(Option<Arc<NameCheck>>);

impl ReservedNames {
    /// The names for which a function returns true. It may read a file.
    #[must_use]
    pub fn new(check: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(check)))
    }

    /// Whether the name is reserved. Runs the check on a blocking thread.
    pub async fn contain(&self, name: &str) -> bool {
        let Some(check) = self.0.clone() else {
            return false;
        };
        let name = name.to_owned();
        // A check that fails must not let two people have one name.
        tokio::task::spawn_blocking(move || check(&name)).await.unwrap_or(true)
    }
}

impl Debug for ReservedNames {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("ReservedNames")
    }
}
