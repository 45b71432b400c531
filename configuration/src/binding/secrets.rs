//! Versions of secrets.

use std::collections::{BTreeMap, BTreeSet};

use crate::document::{Desired, Entry, SecretRef};
use crate::validation::FieldError;

/// The versions of a secret that exist. The values are not needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretVersions {
    /// The version that references without a version get.
    pub current: u64,
    /// The keys of each version.
    pub keys: BTreeMap<u64, BTreeSet<String>>,
}

/// Writes the current version into a reference that has none. Returns an error if the secret, its
/// version, or its key does not exist.
pub(super) fn set_secret_version(
    entry: &mut Entry,
    secrets: &BTreeMap<String, SecretVersions>,
) -> Option<FieldError> {
    let Desired::File(state) = &mut entry.desired else { return None };
    let secret_ref = state.content.as_mut()?.secret_ref.as_mut()?;
    match find_version(secret_ref, secrets) {
        Ok(version) => {
            secret_ref.version = Some(version);
            None
        }
        Err(message) => Some(FieldError::new("desired.content.secretRef", message)),
    }
}

/// The version that a reference has in a bound document.
///
/// # Errors
/// The secret, the version, or the key in this version does not exist.
pub(super) fn find_version(
    secret_ref: &SecretRef,
    secrets: &BTreeMap<String, SecretVersions>,
) -> Result<u64, String> {
    let SecretRef { name, key, version } = secret_ref;
    let secret = secrets.get(name).ok_or_else(|| format!("the secret {name} does not exist"))?;
    let version = version.unwrap_or(secret.current);
    let keys = secret.keys.get(&version);
    let keys = keys.ok_or_else(|| format!("the secret {name} has no version {version}"))?;
    if keys.contains(key) {
        Ok(version)
    } else {
        Err(format!("version {version} of the secret {name} has no key {key}"))
    }
}
