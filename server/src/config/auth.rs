//! Section `auth`: authentication and authorisation.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_auth::{
    BadRole, ExternalIssuer, NodeBinding, NodePattern, RoleGrant, RoleKind, RoleLimits, RoleMapping,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AuthConfig {
    /// Disables authentication: every request to the REST API has administrator rights. Allowed
    /// only if the REST API listens on a loopback address.
    pub(crate) disabled: bool,
    /// Tokens that this server issues, and the cache of verified tokens.
    pub(crate) tokens: evenkeel_auth::Settings,
    /// Directory of the signing keys. If not set: `keys` in the data directory.
    pub(crate) keys: Option<PathBuf>,
    /// Directory of the certificate authority. If not set: `ca` in the data directory.
    pub(crate) ca: Option<PathBuf>,
    /// Lifetime of the token that the first start creates.
    #[serde(with = "humantime_serde")]
    pub(crate) first_token_ttl: Duration,
    /// External token issuers, for example identity providers. Each entry needs `issuer`, and either
    /// `jwks` or `discovery = true`.
    pub(crate) issuers: Vec<IssuerConfig>,
    /// Token endpoint on the REST listener, for logins with a password. Without this section there
    /// is no login. An empty section is sufficient for the users in the database.
    pub(crate) login: Option<LoginConfig>,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            disabled: false,
            tokens: evenkeel_auth::Settings::default(),
            keys: None,
            ca: None,
            first_token_ttl: Duration::from_hours(30 * 24),
            issuers: Vec::new(),
            login: None,
        }
    }
}

/// External token issuer, for example an identity provider.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IssuerConfig {
    /// Required `iss` claim of its tokens.
    pub(crate) issuer: String,
    /// Required `aud` claim of its tokens. Without it, the server accepts tokens that the issuer
    /// issued for any program, and logs a warning.
    #[serde(default)]
    pub(crate) audience: Option<String>,
    /// File with the JSON Web Key Set of the issuer.
    #[serde(default)]
    pub(crate) jwks: Option<PathBuf>,
    /// Whether the keys are fetched from the address in the issuer's discovery document.
    #[serde(default)]
    pub(crate) discovery: bool,
    /// Claim with the roles: names separated by dots, or a JSON pointer. If not set:
    /// `realm_access.roles`.
    #[serde(default)]
    pub(crate) roles: Option<String>,
    /// Roles that the issuer may give. Other roles in its tokens are ignored.
    #[serde(default = "default_allowed_roles")]
    pub(crate) allowed_roles: Vec<evenkeel_auth::RoleKind>,
    /// Roles for values of claims, for example for the members of a group of the provider. Each entry
    /// needs `claim`, `value` and `role`, and gives no role that `allowed_roles` or `projects`
    /// excludes.
    #[serde(default)]
    pub(crate) role_mapping: Vec<RoleMappingConfig>,
    /// Projects for which the issuer may give roles, by UUID. Roles for other projects are ignored.
    /// If not set: all projects.
    #[serde(default)]
    pub(crate) projects: Option<Vec<Uuid>>,
    /// Claim that identifies a node of EIM: names separated by dots, or a JSON pointer. All tokens
    /// with one value belong to one host: the first that uses one of them. If not set: `sub`, or
    /// `azp` in tokens without `sub`.
    #[serde(default)]
    pub(crate) node_claim: Option<String>,
    /// Form of `node_claim`, with `{uuid}` in the place of the UUID of the host, for example
    /// `edgenode-{uuid}`. Tokens of nodes in another form are refused.
    #[serde(default)]
    pub(crate) node_subject: Option<String>,
    /// OAuth client ID of `evenkeel login` at the issuer: a public client with the redirect URI
    /// `http://127.0.0.1/callback` on any port, or with the device code grant. If not set, the command
    /// line does not offer the issuer.
    #[serde(default)]
    pub(crate) client_id: Option<String>,
    /// Scopes that `evenkeel login` requests in addition to `openid`. Many providers return a refresh
    /// token only for `offline_access`.
    #[serde(default)]
    pub(crate) scopes: Vec<String>,
    /// Name of the issuer in `evenkeel login`. If not set: its URL.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Whether several nodes of EIM have the same `node_claim`. If so, only each token is bound to
    /// a host, and a node can act as another host with a new token.
    #[serde(default)]
    pub(crate) shared_node_subject: bool,
}

/// Role for a value of a claim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoleMappingConfig {
    /// Claim of the token: names separated by dots, or a JSON pointer. It contains a text or a list of
    /// texts.
    pub(crate) claim: String,
    /// Text that the claim must contain.
    pub(crate) value: String,
    /// Role of the bearer, for example `operator@default`, or `evenkeel-admin`. A project that does
    /// not exist gives no role.
    pub(crate) role: String,
}

/// Token endpoint on the REST listener.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginConfig {
    /// File of users: names, password hashes and roles. They log in in addition to the users in the
    /// database, which `evenkeel user` manages.
    #[serde(default)]
    pub(crate) users: Option<PathBuf>,
    /// Lifetime of access tokens.
    #[serde(with = "humantime_serde", default = "default_access_token_ttl")]
    pub(crate) access_token_ttl: Duration,
    /// Lifetime of refresh tokens.
    #[serde(with = "humantime_serde", default = "default_refresh_token_ttl")]
    pub(crate) refresh_token_ttl: Duration,
    /// Public base URL of the server, such as `https://updates.example`. Needed if clients reach the
    /// server through a proxy that terminates TLS and sends no `X-Forwarded-Proto`.
    #[serde(default)]
    pub(crate) url: Option<String>,
    /// Addresses of reverse proxies whose `X-Forwarded-*` headers are trusted.
    #[serde(default)]
    pub(crate) trusted_proxies: Vec<IpAddr>,
    /// IDs of clients whose refresh tokens can be used more than once, because the client does not
    /// store the next one: `system-client` is `orch-cli` of EIM. Refresh tokens of other clients are
    /// valid once.
    #[serde(default = "default_reusable_refresh_token_clients")]
    pub(crate) reusable_refresh_token_clients: Vec<String>,
}

fn default_reusable_refresh_token_clients() -> Vec<String> {
    vec!["system-client".to_owned()]
}

fn default_allowed_roles() -> Vec<RoleKind> {
    RoleLimits::default().kinds
}

fn default_access_token_ttl() -> Duration {
    Duration::from_mins(15)
}

fn default_refresh_token_ttl() -> Duration {
    Duration::from_hours(7 * 24)
}

impl AuthConfig {
    /// Violations of the rules of the section, for a REST listener at the given address.
    pub(crate) fn find_faults(&self, rest: SocketAddr) -> Vec<String> {
        let mut faults = Vec::new();
        if self.disabled && !rest.ip().to_canonical().is_loopback() {
            faults.push(format!(
                "auth.disabled gives administrator rights to everyone who reaches {rest}; it requires a loopback \
                 address in rest.listen, for example 127.0.0.1:8080"
            ));
        }
        let mut issuers = vec![self.tokens.issuer.as_str()];
        let mut names = Vec::new();
        for outside in &self.issuers {
            let issuer = &outside.issuer;
            let checks = [outside.check_keys(), outside.check_limits(), outside.check_client()];
            faults.extend(checks.into_iter().filter_map(Result::err));
            if issuers.contains(&issuer.as_str()) {
                faults.push(format!("the issuer {issuer:?} is configured twice"));
            }
            issuers.push(issuer);
            let name = outside.name.as_ref();
            if name.is_some_and(|name| names.contains(&name)) {
                faults.push(format!(
                    "the issuer {issuer:?} has the name of another issuer: change name"
                ));
            }
            names.extend(name);
        }
        faults.extend(self.login.as_ref().and_then(|login| login.check().err()));
        faults
    }
}

impl IssuerConfig {
    fn check_keys(&self) -> Result<(), String> {
        let issuer = &self.issuer;
        match (&self.jwks, self.discovery) {
            (Some(_), false) | (None, true) => Ok(()),
            (None, false) => Err(format!(
                "the keys of {issuer:?} are not configured: set jwks to a file, or set discovery = true"
            )),
            (Some(_), true) => Err(format!(
                "the keys of {issuer:?} have two sources: set either jwks or discovery, not both"
            )),
        }
    }

    fn check_limits(&self) -> Result<(), String> {
        let issuer = &self.issuer;
        if self.projects.is_some() && self.allowed_roles.contains(&RoleKind::Admin) {
            return Err(format!(
                "the issuer {issuer:?} is limited to projects, but may give the role admin, which allows everything in \
                 every project: remove projects, or admin in allowed_roles"
            ));
        }
        self.role_mappings()?;
        self.node_binding().map(drop)
    }

    /// Logins need the address of the provider and a client ID.
    fn check_client(&self) -> Result<(), String> {
        let issuer = &self.issuer;
        let fault = |why: &str| Err(format!("logins at the issuer {issuer:?}: {why}"));
        let Some(client_id) = &self.client_id else {
            return match (&self.name, self.scopes.is_empty()) {
                (None, true) => Ok(()),
                _ => fault("name and scopes have no effect without client_id: set client_id"),
            };
        };
        let is_word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        if ExternalIssuer::discover(issuer, None).is_err() {
            return fault(
                "client_id needs an issuer whose address begins with https://, or with http:// on this machine",
            );
        }
        if !is_word(client_id) || self.name.as_ref().is_some_and(String::is_empty) {
            return fault("client_id and name must not be empty, and client_id has no spaces");
        }
        match self.scopes.iter().find(|scope| !is_word(scope)) {
            Some(scope) => fault(&format!("{scope:?} is not a scope: a scope has no spaces")),
            None => Ok(()),
        }
    }

    /// Name of the issuer in `evenkeel login`.
    pub(crate) fn login_name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.issuer)
    }

    /// The mappings of claims to roles. A mapping that can never give its role is a mistake.
    pub(crate) fn role_mappings(&self) -> Result<Vec<RoleMapping>, String> {
        self.role_mapping.iter().map(|mapping| self.parse_role_mapping(mapping)).collect()
    }

    fn parse_role_mapping(&self, mapping: &RoleMappingConfig) -> Result<RoleMapping, String> {
        let RoleMappingConfig { claim, value, role } = mapping;
        let fault = |why: &str| format!("a role_mapping of the issuer {:?}: {why}", self.issuer);
        if claim.is_empty() || value.is_empty() {
            return Err(fault("claim and value must not be empty"));
        }
        let grant: RoleGrant = role.parse().map_err(|error: BadRole| fault(&error.to_string()))?;
        let kind = match &grant {
            RoleGrant::Exact(role) => RoleKind::from(*role),
            RoleGrant::Named(named) => RoleKind::from(named.role.in_project(Uuid::nil())),
        };
        if !self.allowed_roles.contains(&kind) {
            let why = format!(
                "its allowed_roles exclude {role}: add the role to allowed_roles, or remove the mapping"
            );
            return Err(fault(&why));
        }
        Ok(RoleMapping::new(claim, value, grant))
    }

    pub(crate) fn role_limits(&self) -> RoleLimits {
        RoleLimits { kinds: self.allowed_roles.clone(), projects: self.projects.clone() }
    }

    /// How the tokens of nodes are bound to hosts.
    pub(crate) fn node_binding(&self) -> Result<NodeBinding, String> {
        let issuer = &self.issuer;
        match (&self.node_subject, self.shared_node_subject) {
            (None, false) => Ok(NodeBinding::FirstHost),
            (None, true) => Ok(NodeBinding::TokenOnly),
            (Some(pattern), false) => NodePattern::new(pattern)
                .map(NodeBinding::Pattern)
                .map_err(|why| format!("node_subject of the issuer {issuer:?}: {why}")),
            (Some(_), true) => Err(format!(
                "the nodes of the issuer {issuer:?} have either their own subjects or a shared one: set node_subject or \
                 shared_node_subject, not both"
            )),
        }
    }
}

impl LoginConfig {
    fn check(&self) -> Result<(), String> {
        if let Some(url) = &self.url
            && !is_origin(url)
        {
            return Err(format!(
                "auth.login.url is {url:?}; it must have the form https://updates.example"
            ));
        }
        if self.access_token_ttl.is_zero() || self.refresh_token_ttl.is_zero() {
            return Err(
                "auth.login: access_token_ttl and refresh_token_ttl must be greater than 0"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// Returns whether a text consists of a scheme, a host and an optional port only.
pub(crate) fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    host.is_some_and(|host| {
        let fits = |b: u8| {
            b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']')
        };
        !host.is_empty() && host.bytes().all(fits)
    })
}

#[cfg(test)]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::*;

    fn check_auth(text: &str, rest: &str) -> Result<(), String> {
        let auth: AuthConfig = Figment::from(Toml::string(text)).extract().unwrap();
        match auth.find_faults(rest.parse().unwrap()) {
            faults if faults.is_empty() => Ok(()),
            faults => Err(faults.join("\n")),
        }
    }

    #[test]
    fn each_fault_of_an_issuer_is_named() {
        let text = "[[issuers]]\nissuer = 'https://one'\n\
                    [[issuers]]\nissuer = 'https://one'\njwks = 'keys'\ndiscovery = true\n\
                    [login]\nusers = 'users'\nurl = 'updates.example'\n";
        let faults = check_auth(text, "127.0.0.1:8080").unwrap_err();
        for part in ["not configured", "two sources", "configured twice", "auth.login.url is"] {
            assert!(faults.contains(part), "{part}: {faults}");
        }
        assert_eq!(faults.lines().count(), 4, "{faults}");
    }

    #[test]
    fn auth_can_be_disabled_only_for_a_loopback_listener() {
        for here in ["127.0.0.1:8080", "127.9.9.9:1", "[::1]:8080", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(check_auth("disabled = true", here), Ok(()), "{here}");
        }
        for elsewhere in ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:8080"] {
            let error = check_auth("disabled = true", elsewhere).unwrap_err();
            assert!(error.contains(elsewhere), "{error}");
            assert_eq!(check_auth("", elsewhere), Ok(()));
        }
    }

    #[test]
    fn an_issuer_has_exactly_one_key_source() {
        for (keys, expected) in [
            ("jwks = '/keys.json'", None),
            ("discovery = true", None),
            ("discovery = false", Some("are not configured")),
            ("", Some("are not configured")),
            ("jwks = '/keys.json'\ndiscovery = true", Some("not both")),
        ] {
            let text = format!("[[issuers]]\nissuer = 'https://login.example'\n{keys}");
            let answer = check_auth(&text, "0.0.0.0:80");
            match (answer, expected) {
                (Ok(()), None) => {}
                (Err(error), Some(part)) => assert!(error.contains(part), "{error}"),
                (answer, _) => panic!("{text}: {answer:?}"),
            }
        }
    }

    #[test]
    fn the_limits_of_an_issuer_do_not_contradict_each_other() {
        let check = |more: &str| {
            let issuer = "[[issuers]]\nissuer = 'urn:one'\ndiscovery = true\n";
            check_auth(&format!("{issuer}{more}"), "0.0.0.0:80")
        };
        let project = "projects = ['01900000-0000-7000-8000-000000000001']";
        for good in [
            "",
            "allowed_roles = ['read', 'admin']",
            project,
            "projects = []",
            "node_claim = 'azp'\nnode_subject = 'edgenode-{uuid}'",
            "shared_node_subject = true",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, part) in [
            (format!("{project}\nallowed_roles = ['admin']"), "every project"),
            ("node_subject = 'edgenode'".to_owned(), "must contain {uuid} once"),
            ("node_subject = '{uuid}'\nshared_node_subject = true".to_owned(), "not both"),
        ] {
            let error = check(&bad).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_role_mapping_needs_a_role_that_the_issuer_may_give() {
        let check = |more: &str| {
            let issuer = "[[issuers]]\nissuer = 'urn:one'\ndiscovery = true\n";
            check_auth(&format!("{issuer}{more}"), "0.0.0.0:80")
        };
        let mapping = |role: &str| {
            format!("[[issuers.role_mapping]]\nclaim = 'groups'\nvalue = 'it'\nrole = '{role}'\n")
        };
        assert_eq!(check(&mapping("operator@default")), Ok(()));
        let all = "allowed_roles = ['viewer', 'operator', 'administrator', 'admin']\n";
        for role in ["administrator@default", "evenkeel-admin"] {
            let error = check(&mapping(role)).unwrap_err();
            assert!(error.contains(role) && error.contains("allowed_roles"), "{error}");
            assert_eq!(check(&format!("{all}{}", mapping(role))), Ok(()), "{role}");
        }
        for role in ["owner@default", "01900000-0000-7000-8000-000000000001_en-agent-rw"] {
            let error = check(&mapping(role)).unwrap_err();
            assert!(error.contains("a role_mapping of the issuer \"urn:one\""), "{error}");
        }
        let error = check(&mapping("viewer@default").replace("'it'", "''")).unwrap_err();
        assert!(error.contains("must not be empty"), "{error}");
    }

    #[test]
    fn a_login_at_an_issuer_needs_its_address_and_a_client() {
        let check = |issuer: &str, more: &str| {
            let text = format!("[[issuers]]\nissuer = '{issuer}'\ndiscovery = true\n{more}");
            check_auth(&text, "0.0.0.0:80")
        };
        for issuer in ["https://login.example/realms/master", "http://127.0.0.1:3000"] {
            let client = "client_id = 'cli'\nscopes = ['offline_access']\nname = 'Our staff'";
            assert_eq!(check(issuer, client), Ok(()), "{issuer}");
        }
        let one = "https://login.example";
        for (issuer, more, part) in [
            ("http://login.example", "client_id = 'cli'", "begins with https://"),
            ("urn:one", "client_id = 'cli'", "begins with https://"),
            (one, "client_id = ''", "must not be empty"),
            (one, "client_id = 'our cli'", "has no spaces"),
            (one, "client_id = 'cli'\nname = ''", "must not be empty"),
            (one, "client_id = 'cli'\nscopes = ['openid profile']", "is not a scope"),
            (one, "name = 'staff'", "set client_id"),
            (one, "scopes = ['groups']", "set client_id"),
        ] {
            let error = check(issuer, more).unwrap_err();
            assert!(error.contains(part), "{issuer} {more}: {error}");
        }
        let named = |issuer: &str| {
            format!(
                "[[issuers]]\nissuer = '{issuer}'\ndiscovery = true\nclient_id = 'cli'\nname = 'staff'\n"
            )
        };
        let twice = format!("{}{}", named(one), named("https://two.example"));
        let error = check_auth(&twice, "0.0.0.0:80").unwrap_err();
        assert!(
            error.contains("\"https://two.example\" has the name of another issuer"),
            "{error}"
        );
    }

    #[test]
    fn an_issuer_is_no_administrator_by_default() {
        let text = "[[issuers]]\nissuer = 'urn:one'\ndiscovery = true\n";
        let auth: AuthConfig = Figment::from(Toml::string(text)).extract().unwrap();
        assert_eq!(auth.issuers[0].role_limits(), RoleLimits::default());
        assert!(!auth.issuers[0].role_limits().kinds.contains(&RoleKind::Admin));
    }

    #[test]
    fn an_issuer_is_listed_once() {
        let one = "[[issuers]]\nissuer = 'urn:one'\ndiscovery = true\n";
        assert_eq!(check_auth(one, "0.0.0.0:80"), Ok(()));
        for twice in [format!("{one}{one}"), one.replace("urn:one", "urn:evenkeel:issuer")] {
            let error = check_auth(&twice, "0.0.0.0:80").unwrap_err();
            assert!(error.contains("is configured twice"), "{error}");
        }
    }

    #[test]
    fn a_login_needs_a_valid_url_and_token_lifetimes() {
        let login = |more: &str| {
            let text = format!("[login]\nusers = '/users.toml'\n{more}");
            check_auth(&text, "0.0.0.0:80")
        };
        for good in [
            "",
            "url = 'https://updates.example'",
            "url = 'http://127.0.0.1:8080'",
            "trusted_proxies = ['127.0.0.1', '::1']",
            "access_token_ttl = '5m'\nrefresh_token_ttl = '12h'",
        ] {
            assert_eq!(login(good), Ok(()), "{good}");
        }
        for bad in [
            "url = 'https://updates.example/'",
            "url = 'updates.example'",
            "url = 'https://'",
            "access_token_ttl = '0s'",
        ] {
            assert!(login(bad).is_err(), "{bad}");
        }
    }
}
