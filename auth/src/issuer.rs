//! External issuers whose tokens are accepted, such as the identity provider of the organisation.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use crate::file::FileError;
use crate::key_set::{self, KeySet};
use crate::named_role::{NamedRole, ProjectNames, RoleGrant};
use crate::provider::{self, BadAddress};
use crate::roles::{NodeSubject, RoleLimits};

/// An external issuer whose tokens are accepted.
#[derive(Clone, Debug)]
pub struct ExternalIssuer {
    pub(crate) issuer: Arc<str>,
    pub(crate) audience: Option<String>,
    pub(crate) keys: Arc<KeySet>,
    pub(crate) roles: ClaimPath,
    pub(crate) role_limits: RoleLimits,
    role_mappings: Vec<RoleMapping>,
    /// The first of these claims that a token contains names its node.
    node_claims: Vec<ClaimPath>,
    node_binding: NodeBinding,
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
        Self { roles: ClaimPath::new(claim), ..self }
    }

    /// Limits the roles that the issuer may give. By default it may give all but that of an
    /// administrator.
    #[must_use]
    pub fn with_role_limits(self, role_limits: RoleLimits) -> Self {
        Self { role_limits, ..self }
    }

    /// The roles of the mappings whose projects do not exist.
    pub(crate) fn unknown_mapped_roles<'a>(
        &'a self,
        names: &'a ProjectNames,
    ) -> impl Iterator<Item = &'a NamedRole> {
        self.role_mappings.iter().filter_map(move |mapping| match &mapping.role {
            RoleGrant::Named(role) => names.find(&role.project).is_none().then_some(role),
            RoleGrant::Exact(_) => None,
        })
    }

    /// Also gives the roles of these mappings, within the limits of the issuer.
    #[must_use]
    pub fn with_role_mappings(self, role_mappings: Vec<RoleMapping>) -> Self {
        Self { role_mappings, ..self }
    }

    /// The roles that the mappings give for these claims.
    pub(crate) fn mapped_roles(&self, claims: &Value) -> impl Iterator<Item = &RoleGrant> {
        let fits = move |mapping: &&RoleMapping| mapping.fits(claims);
        self.role_mappings.iter().filter(fits).map(|mapping| &mapping.role)
    }

    /// Sets how the tokens of nodes are bound to hosts. By default a subject belongs to the first
    /// host that uses it.
    #[must_use]
    pub fn with_node_binding(self, binding: NodeBinding) -> Self {
        Self { node_binding: binding, ..self }
    }

    /// Reads the name of a node from this claim: names joined by dots, or a JSON pointer. By
    /// default it is `sub`, or `azp` in a token without `sub`.
    #[must_use]
    pub fn with_node_claim(self, claim: &str) -> Self {
        Self { node_claims: vec![ClaimPath::new(claim)], ..self }
    }

    /// The node that a token with these claims belongs to; none if the claim is missing or does not
    /// name a node.
    pub(crate) fn read_node_subject(&self, claims: &Value) -> Option<NodeSubject> {
        let mut texts = self.node_claims.iter().filter_map(|claim| claim.read_text(claims));
        let text = texts.find(|text| !text.is_empty());
        match &self.node_binding {
            NodeBinding::FirstHost => Some(NodeSubject::FirstHost(text?.into())),
            NodeBinding::Pattern(pattern) => pattern.parse(text?).map(NodeSubject::Uuid),
            NodeBinding::TokenOnly => Some(NodeSubject::Unknown),
        }
    }

    pub(crate) fn new(issuer: &str, audience: Option<&str>, keys: KeySet) -> Self {
        Self {
            issuer: issuer.into(),
            audience: audience.map(str::to_owned),
            keys: Arc::new(keys),
            roles: ClaimPath::new(DEFAULT_ROLES_CLAIM),
            role_limits: RoleLimits::default(),
            role_mappings: Vec::new(),
            node_claims: Vec::from(DEFAULT_NODE_CLAIMS.map(ClaimPath::new)),
            node_binding: NodeBinding::FirstHost,
            key_refresh: None,
        }
    }
}

/// Claim with the roles, unless another is set.
const DEFAULT_ROLES_CLAIM: &str = "realm_access.roles";

/// Claims that name a node, unless another is set. EIM gives the clients of its nodes no scope that
/// adds `sub`, so Keycloak 25 and later leave it out; `azp` names the client, and each node has one.
const DEFAULT_NODE_CLAIMS: [&str; 2] = ["sub", "azp"];

/// How the tokens of an issuer's nodes are bound to hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeBinding {
    /// All tokens with one text in the claim belong to the first host that uses one of them.
    FirstHost,
    /// The claim contains the UUID of the host.
    Pattern(NodePattern),
    /// Each token belongs to the first host that uses it. Only for an issuer whose nodes share a
    /// subject.
    TokenOnly,
}

/// A text with the UUID of a host in it, such as `edgenode-{uuid}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePattern {
    prefix: String,
    suffix: String,
}

/// The text is not the pattern of a node's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it must contain {{uuid}} once, in the place of the UUID of a host, as in edgenode-{{uuid}}"
)]
pub struct BadNodePattern;

impl NodePattern {
    const PLACEHOLDER: &str = "{uuid}";

    /// # Errors
    /// The text does not contain `{uuid}` exactly once.
    pub fn new(text: &str) -> Result<Self, BadNodePattern> {
        let (prefix, suffix) = text.split_once(Self::PLACEHOLDER).ok_or(BadNodePattern)?;
        if suffix.contains(Self::PLACEHOLDER) {
            return Err(BadNodePattern);
        }
        Ok(Self { prefix: prefix.to_owned(), suffix: suffix.to_owned() })
    }

    /// The UUID in a text of this pattern. UUIDs are accepted only in the form with hyphens.
    fn parse(&self, text: &str) -> Option<Uuid> {
        let uuid = text.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        (uuid.len() == 36).then(|| uuid.parse().ok()).flatten()
    }
}

/// Gives a role to the bearers of tokens with a value in a claim, such as the members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleMapping {
    claim: ClaimPath,
    value: String,
    role: RoleGrant,
}

impl RoleMapping {
    /// A mapping of tokens whose claim is `value`, or a list that contains it. The claim is written
    /// as in [`ExternalIssuer::with_roles_claim`].
    #[must_use]
    pub fn new(claim: &str, value: &str, role: RoleGrant) -> Self {
        Self { claim: ClaimPath::new(claim), value: value.to_owned(), role }
    }

    fn fits(&self, claims: &Value) -> bool {
        let is_value = |value: &Value| value.as_str() == Some(self.value.as_str());
        match claims.pointer(&self.claim.0) {
            Some(Value::Array(values)) => values.iter().any(is_value),
            Some(value) => is_value(value),
            None => false,
        }
    }
}

/// Position of a value in a token's claims, as a JSON pointer (RFC 6901).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimPath(String);

impl ClaimPath {
    fn new(claim: &str) -> Self {
        if claim.starts_with('/') {
            return Self(claim.to_owned());
        }
        let step = |name: &str| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        Self(claim.split('.').map(step).collect())
    }

    fn read_text<'a>(&self, claims: &'a Value) -> Option<&'a str> {
        claims.pointer(&self.0)?.as_str()
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
    fn a_mapping_fits_a_text_or_a_member_of_a_list() {
        let claims = json!({
            "groups": ["shops", "banks", 7],
            "department": "shops",
            "nested": {"groups": ["shops"]},
            "number": 7,
            "none": null,
        });
        let role: RoleGrant = "viewer@shops".parse().unwrap();
        for (claim, value, expected) in [
            ("groups", "shops", true),
            ("groups", "shop", false),
            ("groups", "7", false),
            ("groups", "Shops", false),
            ("department", "shops", true),
            ("department", "", false),
            ("nested.groups", "shops", true),
            ("/nested/groups", "shops", true),
            ("nested", "groups", false),
            ("number", "7", false),
            ("none", "", false),
            ("missing", "", false),
        ] {
            let mapping = RoleMapping::new(claim, value, role.clone());
            assert_eq!(mapping.fits(&claims), expected, "{claim} {value}");
        }
    }

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
            assert_eq!(ClaimPath::new(claim).read_roles(&claims), roles, "{claim}");
        }
    }

    fn issuer() -> ExternalIssuer {
        ExternalIssuer::new("https://login.example", None, KeySet::unfetched())
    }

    #[test]
    fn the_claim_of_a_node_names_its_host_or_is_bound_to_one() {
        let uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);
        let claims = json!({
            "sub": "5a0c1f4e",
            "azp": format!("edgenode-{uuid}"),
            "bare": uuid.simple().to_string(),
            "other": format!("node-{uuid}"),
            "number": 7,
        });
        let first = Some(NodeSubject::FirstHost("5a0c1f4e".into()));
        assert_eq!(issuer().read_node_subject(&claims), first);
        assert_eq!(issuer().read_node_subject(&json!({})), None);
        assert_eq!(issuer().read_node_subject(&json!({"sub": ""})), None);

        let with_pattern = |claim: &str, pattern: &str| {
            let pattern = NodePattern::new(pattern).unwrap();
            let issuer = issuer().with_node_claim(claim);
            issuer.with_node_binding(NodeBinding::Pattern(pattern)).read_node_subject(&claims)
        };
        let by_uuid = Some(NodeSubject::Uuid(uuid));
        assert_eq!(with_pattern("azp", "edgenode-{uuid}"), by_uuid);
        assert_eq!(with_pattern("/azp", "edgenode-{uuid}"), by_uuid);
        for claim in ["other", "sub", "bare", "number", "missing"] {
            assert_eq!(with_pattern(claim, "edgenode-{uuid}"), None, "{claim}");
        }
        assert_eq!(with_pattern("bare", "{uuid}"), None);

        let unbound = issuer().with_node_binding(NodeBinding::TokenOnly);
        assert_eq!(unbound.read_node_subject(&claims), Some(NodeSubject::Unknown));
    }

    #[test]
    fn a_token_without_a_subject_belongs_to_the_node_of_its_client() {
        let by_client = Some(NodeSubject::FirstHost("edgenode-1".into()));
        for claims in [json!({"azp": "edgenode-1"}), json!({"sub": "", "azp": "edgenode-1"})] {
            assert_eq!(issuer().read_node_subject(&claims), by_client, "{claims}");
            // A claim that is set has no replacement.
            assert_eq!(issuer().with_node_claim("sub").read_node_subject(&claims), None);
        }
    }

    #[test]
    fn a_pattern_contains_the_uuid_once() {
        for bad in ["", "edgenode", "{uuid}{uuid}", "{UUID}"] {
            assert_eq!(NodePattern::new(bad), Err(BadNodePattern), "{bad}");
        }
        assert!(NodePattern::new("{uuid}").is_ok());
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
