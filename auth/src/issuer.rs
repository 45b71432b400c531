//! External issuers whose tokens are accepted, such as the identity provider of the organisation.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::file::FileError;
use crate::key_set::{self, KeySet};
use crate::provider::{self, BadAddress};

/// An external issuer whose tokens are accepted.
#[derive(Clone, Debug)]
pub struct ExternalIssuer {
    pub(crate) issuer: String,
    pub(crate) audience: Option<String>,
    pub(crate) keys: Arc<KeySet>,
    pub(crate) roles: RolesClaim,
    /// How often its keys are fetched. None if the keys are fixed.
    pub(crate) key_refresh: Option<KeyRefreshIntervals>,
}

/// How often the keys of a provider are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRefreshIntervals {
    /// Time between two fetches, while they succeed.
    pub interval: Duration,
    /// Shortest time between two fetches, even if tokens name unknown keys. Also the longest retry
    /// delay.
    pub min_interval: Duration,
    /// Delay after the first failure. Each further failure doubles it, up to `min_interval`.
    pub retry_interval: Duration,
}

impl Default for KeyRefreshIntervals {
    fn default() -> Self {
        Self {
            interval: Duration::from_hours(1),
            min_interval: Duration::from_mins(1),
            retry_interval: Duration::from_secs(1),
        }
    }
}

impl ExternalIssuer {
    /// Reads the issuer's key set from a file. Without an audience, tokens for every audience are
    /// accepted.
    pub fn open(issuer: &str, audience: Option<&str>, jwks: &Path) -> Result<Self, FileError> {
        let text = fs::read_to_string(jwks).map_err(FileError::io("read", jwks))?;
        let keys = key_set::parse(&text).map_err(|why| FileError::content(jwks, why))?;
        Ok(Self::new(issuer, audience, KeySet::fixed(keys)))
    }

    /// Fetches the keys from the issuer by `OpenID` Connect Discovery, in the background
    /// ([`crate::Authority::spawn_key_refresh`]). Its tokens are rejected until the first fetch
    /// succeeds.
    pub fn discover(issuer: &str, audience: Option<&str>) -> Result<Self, BadAddress> {
        provider::discovery_url(issuer)?;
        let issuer = Self::new(issuer, audience, KeySet::unfetched());
        Ok(issuer.with_key_refresh(KeyRefreshIntervals::default()))
    }

    /// Sets how often the keys are fetched.
    #[must_use]
    pub fn with_key_refresh(self, intervals: KeyRefreshIntervals) -> Self {
        Self { key_refresh: Some(intervals), ..self }
    }

    /// Reads the roles from another claim than `realm_access.roles`: names joined by dots, or a
    /// JSON pointer.
    #[must_use]
    pub fn with_roles_claim(self, claim: &str) -> Self {
        Self { roles: RolesClaim::new(claim), ..self }
    }

    pub(crate) fn new(issuer: &str, audience: Option<&str>, keys: KeySet) -> Self {
        Self {
            issuer: issuer.to_owned(),
            audience: audience.map(str::to_owned),
            keys: Arc::new(keys),
            roles: RolesClaim::default(),
            key_refresh: None,
        }
    }
}

/// Position of the roles in a token's claims, as a JSON pointer (RFC 6901).
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

    /// Roles in the claims; empty if the claim is missing. None if the claim is not a list of
    /// strings.
    pub(crate) fn read_roles<'a>(&self, claims: &'a Value) -> Option<Vec<&'a str>> {
        match claims.pointer(&self.0) {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(value) => value.as_array()?.iter().map(Value::as_str).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn roles_are_read_from_the_configured_claim() {
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
            assert_eq!(RolesClaim::new(claim).read_roles(&claims), roles, "{claim}");
        }
        assert_eq!(RolesClaim::default(), RolesClaim::new("realm_access.roles"));
    }

    #[test]
    fn an_issuer_must_use_tls_unless_it_is_on_this_machine() {
        for good in [
            "https://login.example/realms/master",
            "https://login.example/",
            "http://127.0.0.1:8080/realms/master",
            "http://localhost:8080",
            "http://[::1]:8080",
        ] {
            assert!(ExternalIssuer::discover(good, None).is_ok(), "{good}");
        }
        for bad in [
            "http://login.example/realms/master",
            "http://127.0.0.1.example",
            "ftp://localhost",
            "login.example",
            "urn:evenkeel:issuer",
            "",
        ] {
            let error = ExternalIssuer::discover(bad, None).unwrap_err();
            assert!(error.to_string().contains("https://"), "{error}");
        }
    }
}
