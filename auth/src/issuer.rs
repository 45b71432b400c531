//! Others whose tokens count, such as the identity provider of the organisation.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::file::FileError;
use crate::key_set::{self, KeySet};
use crate::provider::{self, BadAddress};

/// Somebody else whose tokens count.
#[derive(Clone, Debug)]
pub struct OutsideIssuer {
    pub(crate) issuer: String,
    pub(crate) audience: Option<String>,
    pub(crate) keys: Arc<KeySet>,
    pub(crate) roles: RolesClaim,
    /// How often its provider is asked for keys; none if the keys stay as they are.
    pub(crate) rhythm: Option<Rhythm>,
}

/// How often a provider is asked for its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    /// While all is well.
    pub every: Duration,
    /// At most so often, also when tokens name keys that are not known.
    pub at_most_every: Duration,
    /// How soon again after the first failure; each further one doubles it, up to `at_most_every`.
    pub after_failure: Duration,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self {
            every: Duration::from_hours(1),
            at_most_every: Duration::from_mins(1),
            after_failure: Duration::from_secs(1),
        }
    }
}

impl OutsideIssuer {
    /// Reads the issuer's key set from a file. Without an audience, tokens for any audience count.
    pub fn open(issuer: &str, audience: Option<&str>, jwks: &Path) -> Result<Self, FileError> {
        let text = fs::read_to_string(jwks).map_err(FileError::io("read", jwks))?;
        let keys = key_set::read(&text).map_err(|why| FileError::content(jwks, why))?;
        Ok(Self::new(issuer, audience, KeySet::fixed(keys)))
    }

    /// Asks the issuer itself for its keys, by `OpenID` Connect Discovery, while the process lives
    /// ([`crate::Authority::keep_fresh`]). Until it has answered, none of its tokens counts.
    pub fn discover(issuer: &str, audience: Option<&str>) -> Result<Self, BadAddress> {
        provider::discovery_of(issuer)?;
        let issuer = Self::new(issuer, audience, KeySet::unknown());
        Ok(issuer.asked(Rhythm::default()))
    }

    /// The same, asked in another rhythm.
    #[must_use]
    pub fn asked(self, rhythm: Rhythm) -> Self {
        Self {
            rhythm: Some(rhythm),
            ..self
        }
    }

    /// The same, with roles in another claim than `realm_access.roles`: names with dots between them, or a JSON pointer.
    #[must_use]
    pub fn with_roles_in(self, claim: &str) -> Self {
        Self {
            roles: RolesClaim::new(claim),
            ..self
        }
    }

    pub(crate) fn new(issuer: &str, audience: Option<&str>, keys: KeySet) -> Self {
        Self {
            issuer: issuer.to_owned(),
            audience: audience.map(str::to_owned),
            keys: Arc::new(keys),
            roles: RolesClaim::default(),
            rhythm: None,
        }
    }
}

/// Where in a token the roles stand, as a JSON pointer (RFC 6901).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RolesClaim(String);

impl Default for RolesClaim {
    fn default() -> Self {
        Self("/realm_access/roles".to_owned())
    }
}

impl RolesClaim {
    fn new(claim: &str) -> Self {
        if claim.starts_with('/') {
            return Self(claim.to_owned());
        }
        let step = |name: &str| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        Self(claim.split('.').map(step).collect())
    }

    /// The roles in some claims; none if they are not a list of texts.
    pub(crate) fn of<'a>(&self, claims: &'a Value) -> Option<Vec<&'a str>> {
        match claims.pointer(&self.0) {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(found) => found.as_array()?.iter().map(Value::as_str).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn roles_are_found_where_the_provider_writes_them() {
        let claims = json!({
            "realm_access": {"roles": ["one"]},
            "groups": ["two", "three"],
            "https://example.com/roles": ["four"],
            "text": "five",
            "mixed": ["six", 7],
            "null": null,
        });
        for (claim, roles) in [
            ("realm_access.roles", Some(vec!["one"])),
            ("/realm_access/roles", Some(vec!["one"])),
            ("groups", Some(vec!["two", "three"])),
            ("/https:~1~1example.com~1roles", Some(vec!["four"])),
            ("nowhere.at.all", Some(vec![])),
            ("null", Some(vec![])),
            ("text", None),
            ("mixed", None),
        ] {
            assert_eq!(RolesClaim::new(claim).of(&claims), roles, "{claim}");
        }
        assert_eq!(RolesClaim::default(), RolesClaim::new("realm_access.roles"));
    }

    #[test]
    fn an_issuer_must_be_asked_over_tls_unless_it_is_on_this_machine() {
        for good in [
            "https://login.example/realms/master",
            "https://login.example/",
            "http://127.0.0.1:8080/realms/master",
            "http://localhost:8080",
            "http://[::1]:8080",
        ] {
            assert!(OutsideIssuer::discover(good, None).is_ok(), "{good}");
        }
        for bad in [
            "http://login.example/realms/master",
            "http://127.0.0.1.example",
            "ftp://localhost",
            "login.example",
            "urn:evenkeel:issuer",
            "",
        ] {
            let error = OutsideIssuer::discover(bad, None).unwrap_err();
            assert!(error.to_string().contains("https://"), "{error}");
        }
    }
}
