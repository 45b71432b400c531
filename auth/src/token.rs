//! Issues and verifies tokens: JSON Web Tokens signed with a key pair.

mod issue;
mod roles;
mod validity;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use chrono::{DateTime, Utc};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

pub use self::issue::{IssueError, IssuedToken};
use self::validity::check_validity_period;
pub(crate) use self::validity::{check_not_expired, parse_time};
use crate::issuer::ExternalIssuer;
use crate::key_fingerprint::KeyFingerprint;
use crate::key_set::KeySet;
use crate::keys::{KeyPurpose, Keys, VerificationKey};
use crate::named_role::{NamedRole, ProjectNames};
use crate::revocations::Revocations;
use crate::roles::{Caller, DEFAULT_ISSUER, Role};
use crate::token_cache::VerifiedTokenCache;
use crate::token_usage::TokenUsage;

/// Longest accepted token, in bytes.
const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// The token is signed, but its content is not what a token must contain.
const INVALID_TOKEN_JSON: AuthError = AuthError::Malformed("a part is not the JSON of a token");

/// Settings of an [`Authority`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Issuer of the tokens that this server issues: the claim `iss`.
    pub issuer: String,
    /// Audience of the tokens that this server issues: the claim `aud`.
    pub audience: String,
    /// Approximate number of verified tokens that are cached, so that a token is not verified again
    /// for each request. Each takes about 400 bytes.
    pub max_cached_tokens: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            issuer: DEFAULT_ISSUER.to_owned(),
            audience: "evenkeel".to_owned(),
            max_cached_tokens: 1_500_000,
        }
    }
}

/// Why a request is not authenticated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The request has no token.
    #[error("a bearer token is needed")]
    Missing,
    /// The text is not a token.
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    /// The token is not signed, or signed with a shared secret or another algorithm that is not
    /// accepted.
    #[error("the token is signed in a way that is not accepted here")]
    Algorithm,
    /// No key has the id that the token names.
    #[error("the token is signed with an unknown key")]
    UnknownKey,
    /// The signature is invalid.
    #[error("the token's signature is wrong")]
    BadSignature,
    #[error("the token expired at {at}")]
    Expired {
        /// End of the token's validity.
        at: DateTime<Utc>,
    },
    #[error("the token is not valid before {from}")]
    NotYetValid {
        /// Start of the token's validity.
        from: DateTime<Utc>,
    },
    /// The issuer is not one whose tokens are accepted.
    #[error("the token is from another issuer")]
    WrongIssuer,
    /// The token is for another audience.
    #[error("the token is for another audience")]
    WrongAudience,
    /// The token is a refresh or ID token.
    #[error("this is not an access token")]
    WrongKind,
    /// The token was revoked.
    #[error("the token was revoked")]
    Revoked,
    /// The token is signed with the key of nodes and is not one of a node. In an earlier release,
    /// tokens of operators had this key.
    #[error("the token is signed with the key of nodes, as in an earlier release: log in again")]
    WrongPurpose,
    /// The token has the role of a node, but does not say which node.
    #[error("the claim that names the node of the token is missing or invalid")]
    UnknownNode,
    /// The keys of the issuer were not fetched yet.
    #[error("the keys of the token's issuer are not known yet; try again in a moment")]
    KeysUnavailable,
}

/// Issues our tokens, and verifies them and those of the accepted external issuers.
#[derive(Debug)]
pub struct Authority {
    keys: Keys,
    settings: Settings,
    /// All accepted issuers; we are the first.
    issuers: Vec<ExternalIssuer>,
    /// The keys that verify the credentials of our nodes.
    node_keys: Vec<VerificationKey>,
    verified_tokens: VerifiedTokenCache,
    usage: TokenUsage,
    revocations: RwLock<Revocations>,
    /// The existing projects, for roles that name their project.
    project_names: RwLock<Arc<ProjectNames>>,
    /// Roles of mappings in projects that do not exist, which were logged.
    warned_roles: Mutex<HashSet<NamedRole>>,
    /// Caller of every request, if authentication is disabled.
    anonymous: Option<Arc<Caller>>,
}

#[derive(Debug, Deserialize)]
struct TokenClaims {
    #[serde(default)]
    aud: Audience,
    #[serde(default)]
    sub: String,
    exp: f64,
    #[serde(default)]
    nbf: Option<f64>,
    #[serde(default)]
    iat: Option<f64>,
    #[serde(default)]
    jti: Value,
    #[serde(default)]
    typ: Value,
}

/// The claim is a string or a list of strings.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Audience {
    #[default]
    None,
    Single(String),
    List(Vec<String>),
}

impl Audience {
    fn contains(&self, expected: &str) -> bool {
        match self {
            Self::None => false,
            Self::Single(one) => one == expected,
            Self::List(many) => many.iter().any(|one| one == expected),
        }
    }
}

impl Authority {
    /// An authority that signs with `keys` and accepts only its own tokens.
    #[must_use]
    pub fn new(keys: Keys, settings: Settings) -> Self {
        let verified_tokens = VerifiedTokenCache::new(settings.max_cached_tokens);
        // Our own tokens are verified like all others.
        let own = KeySet::fixed(keys.operators.verification_keys());
        let ourselves = ExternalIssuer::new(&settings.issuer, Some(&settings.audience), own);
        Self {
            node_keys: keys.nodes.verification_keys(),
            keys,
            settings,
            issuers: vec![ourselves],
            verified_tokens,
            usage: TokenUsage::default(),
            revocations: RwLock::default(),
            project_names: RwLock::default(),
            warned_roles: Mutex::default(),
            anonymous: None,
        }
    }

    /// Replaces the list of revoked tokens, also for tokens that were verified before.
    pub fn set_revocations(&self, revocations: Revocations) {
        *self.revocations.write().unwrap_or_else(PoisonError::into_inner) = revocations;
    }

    /// Treats every request as an administrator's and ignores its token
    /// ([`Authority::verify_header`]). Only for listeners that nothing but this machine can reach.
    #[must_use]
    pub fn allow_anonymous(self) -> Self {
        let anonymous = Caller {
            issuer: Arc::clone(&self.issuers[0].issuer),
            ..Caller::new("anonymous", &[Role::Administrator], DateTime::<Utc>::MAX_UTC)
        };
        Self { anonymous: Some(Arc::new(anonymous)), ..self }
    }

    /// Also accepts the tokens of this issuer.
    #[must_use]
    pub fn accept(mut self, issuer: ExternalIssuer) -> Self {
        self.issuers.push(issuer);
        self
    }

    /// The public keys for tokens of operators as a JSON Web Key Set.
    #[must_use]
    pub fn jwks(&self) -> serde_json::Value {
        self.keys.jwks()
    }

    /// The caller of a request with this value of the header `authorization`.
    pub fn verify_header(
        &self,
        value: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Arc<Caller>, AuthError> {
        if let Some(anybody) = &self.anonymous {
            return Ok(Arc::clone(anybody));
        }
        self.verify(parse_bearer(value)?, now)
    }

    /// The caller of a request that renews a credential: its token may have expired. Verifies the
    /// signature each time.
    pub fn verify_expired_header(&self, value: Option<&str>) -> Result<Caller, AuthError> {
        let caller = self.verify_signed(parse_bearer(value)?)?;
        self.check_not_revoked(&caller)?;
        Ok(caller)
    }

    /// The caller with this token. The signature is verified once; later only the digest, the time
    /// and the list of revoked tokens are checked.
    pub fn verify(&self, bearer: &str, now: DateTime<Utc>) -> Result<Arc<Caller>, AuthError> {
        if bearer.is_empty() {
            return Err(AuthError::Missing);
        }
        let digest = Sha256::digest(bearer.as_bytes()).into();
        if let Some(caller) = self.verified_tokens.get(&digest) {
            return match self.check_accepted(&caller, now) {
                Ok(()) => Ok(self.note_accepted(caller, now)),
                Err(error) => {
                    self.verified_tokens.remove(&digest);
                    Err(error)
                }
            };
        }
        let generation = self.verified_tokens.generation();
        let caller = Arc::new(self.verify_signed(bearer)?);
        self.check_accepted(&caller, now)?;
        self.verified_tokens.insert(digest, Arc::clone(&caller), generation);
        Ok(self.note_accepted(caller, now))
    }

    /// Checks what may change after a token was verified.
    fn check_accepted(&self, caller: &Caller, now: DateTime<Utc>) -> Result<(), AuthError> {
        check_validity_period(caller, now)?;
        self.check_not_revoked(caller)
    }

    fn check_not_revoked(&self, caller: &Caller) -> Result<(), AuthError> {
        let revocations = self.revocations.read().unwrap_or_else(PoisonError::into_inner);
        if revocations.contain(caller) { Err(AuthError::Revoked) } else { Ok(()) }
    }

    /// Verifies everything but the validity period and the revocation.
    fn verify_signed(&self, token: &str) -> Result<Caller, AuthError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(AuthError::Malformed("it is too long"));
        }
        let header = parse_header(token)?;
        let issuer = claimed_issuer(token)?;
        let index = self.issuers.iter().position(|candidate| *candidate.issuer == *issuer);
        let index = index.ok_or(AuthError::WrongIssuer)?;
        let issuer = &self.issuers[index];
        let (all, purpose) = if index == 0 {
            let (claims, purpose) = self.verify_with_own_keys(token, &header)?;
            (claims, Some(purpose))
        } else {
            (verify_with_issuer(issuer, token, &header)?, None)
        };
        let claims = TokenClaims::deserialize(&all).map_err(|_| INVALID_TOKEN_JSON)?;
        if let Some(audience) = &issuer.audience
            && !claims.aud.contains(audience)
        {
            return Err(AuthError::WrongAudience);
        }
        if is_not_access_token(&claims.typ) {
            return Err(AuthError::WrongKind);
        }
        let (roles, named_roles) = roles::read_roles(issuer, purpose, &all)?;
        let is_node = roles.iter().any(|role| matches!(role, Role::Node(_)));
        if purpose == Some(KeyPurpose::Nodes) && !is_node {
            return Err(AuthError::WrongPurpose);
        }
        let node_subject = if purpose.is_none() && is_node {
            Some(issuer.read_node_subject(&all).ok_or(AuthError::UnknownNode)?)
        } else {
            None
        };
        let node_key = all.get("node_key").and_then(Value::as_str);
        let node_key = node_key.filter(|_| purpose == Some(KeyPurpose::Nodes));
        let token_name = all.get("token_name").and_then(Value::as_str);
        let token_name = token_name.filter(|_| purpose == Some(KeyPurpose::Operators));
        let mut subject = claims.sub;
        if subject.is_empty()
            && let Some(client) = all.get("azp").and_then(Value::as_str)
        {
            // Some providers name only the client. Nodes without a name would share one rate limit.
            client.clone_into(&mut subject);
        }
        Ok(Caller {
            subject,
            roles,
            not_before: claims.nbf.map(parse_time).transpose()?,
            expires_at: parse_time(claims.exp)?,
            node_key: node_key.and_then(KeyFingerprint::parse),
            issued_by_us: purpose.is_some(),
            issuer: Arc::clone(&issuer.issuer),
            token_id: claims.jti.as_str().and_then(|id| id.parse().ok()),
            issued_at: claims.iat.map(parse_time).transpose()?,
            node_subject,
            named_roles,
            token_name: token_name.map(Into::into),
        })
    }

    /// Verifies the signature of one of our own tokens. Returns its claims and the purpose of the
    /// key.
    fn verify_with_own_keys(
        &self,
        token: &str,
        header: &Header,
    ) -> Result<(Value, KeyPurpose), AuthError> {
        let operators = self.issuers[0].keys.current().ok_or(AuthError::KeysUnavailable)?;
        let mut failure = AuthError::UnknownKey;
        for (purpose, keys) in
            [(KeyPurpose::Nodes, &*self.node_keys), (KeyPurpose::Operators, &*operators)]
        {
            match verify_with_keys(token, header, keys) {
                Ok(claims) => return Ok((claims, purpose)),
                Err(AuthError::UnknownKey) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Verifies the signature of one of our tokens for operators and returns its claims, whatever
    /// kind of token it is.
    pub(crate) fn verify_own(&self, token: &str) -> Result<Value, AuthError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(AuthError::Malformed("it is too long"));
        }
        let header = parse_header(token)?;
        verify_with_issuer(&self.issuers[0], token, &header)
    }

    /// The claim `iss` of our own tokens.
    #[must_use]
    pub fn own_issuer(&self) -> &str {
        &self.settings.issuer
    }

    /// Whether tokens with this claim `iss` are accepted.
    #[must_use]
    pub fn accepts_issuer(&self, issuer: &str) -> bool {
        self.issuers.iter().any(|accepted| *accepted.issuer == *issuer)
    }

    /// All accepted issuers; our own is the first.
    pub(crate) fn issuers(&self) -> &[ExternalIssuer] {
        &self.issuers
    }

    /// Removes expired tokens from the cache, to free memory. Scans the whole cache.
    pub fn remove_expired_tokens(&self, now: DateTime<Utc>) {
        self.verified_tokens.remove_expired(now);
    }

    /// Clears the cache, so that all tokens are verified again.
    pub(crate) fn clear_verified_tokens(&self) {
        self.verified_tokens.clear();
    }
}

/// The token in a value of the header `authorization`.
fn parse_bearer(value: Option<&str>) -> Result<&str, AuthError> {
    let value = value.ok_or(AuthError::Missing)?.trim();
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    if value.is_empty() || (scheme.eq_ignore_ascii_case("bearer") && token.trim().is_empty()) {
        return Err(AuthError::Missing);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(AuthError::Malformed("the scheme must be Bearer"));
    }
    Ok(token.trim())
}

fn parse_header(token: &str) -> Result<Header, AuthError> {
    let header = jsonwebtoken::decode_header(token).map_err(from_jwt_error)?;
    if header.crit.is_some() {
        let why = "it requires an unknown extension";
        return Err(AuthError::Malformed(why));
    }
    Ok(header)
}

/// Verifies a token with the keys of an issuer and returns its claims. Requests a fetch of the keys
/// if the issuer may have a new key.
fn verify_with_issuer(
    issuer: &ExternalIssuer,
    token: &str,
    header: &Header,
) -> Result<Value, AuthError> {
    let keys = issuer.keys.current().ok_or(AuthError::KeysUnavailable)?;
    let verified = verify_with_keys(token, header, &keys);
    let may_be_new = match &verified {
        Err(AuthError::UnknownKey) => true,
        Err(AuthError::BadSignature) => header.kid.is_none(),
        _ => false,
    };
    if may_be_new {
        issuer.keys.request_refresh();
    }
    verified
}

/// Whether the claim `typ` says that this is not an access token. Providers sign other tokens with
/// the same keys.
fn is_not_access_token(typ: &Value) -> bool {
    let typ = typ.as_str().unwrap_or_default();
    ["refresh", "offline", "id", "logout"].iter().any(|other| typ.eq_ignore_ascii_case(other))
}

/// The issuer that the token names. Nothing else is read from a token before its signature is
/// verified.
fn claimed_issuer(token: &str) -> Result<String, AuthError> {
    #[derive(Deserialize)]
    struct IssuerClaim {
        #[serde(default)]
        iss: Option<String>,
    }
    let claims: IssuerClaim =
        jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(from_jwt_error)?;
    claims.iss.ok_or(AuthError::WrongIssuer)
}

fn verify_with_keys(
    token: &str,
    header: &Header,
    keys: &[VerificationKey],
) -> Result<Value, AuthError> {
    let is_named = |key: &&VerificationKey| header.kid.is_none() || key.id == header.kid;
    let candidates: Vec<_> = keys.iter().filter(is_named).collect();
    if candidates.is_empty() {
        return Err(AuthError::UnknownKey);
    }
    let mut validation = Validation::new(header.alg);
    // We check time and audience ourselves: with our clock, and per issuer.
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let mut failure = AuthError::Algorithm;
    for key in candidates.into_iter().filter(|key| key.signs_by(header.alg)) {
        match jsonwebtoken::decode::<Value>(token, &key.key, &validation) {
            Ok(token) => return Ok(token.claims),
            Err(error) => failure = from_jwt_error(error),
        }
    }
    Err(failure)
}

fn from_jwt_error(error: jsonwebtoken::errors::Error) -> AuthError {
    use AuthError as A;
    use ErrorKind as E;
    match error.kind() {
        E::InvalidSignature => A::BadSignature,
        E::InvalidAlgorithm | E::InvalidAlgorithmName | E::UnsupportedAlgorithm => A::Algorithm,
        E::InvalidToken => A::Malformed("it does not have three parts"),
        E::Base64(_) => A::Malformed("a part is not base64url"),
        // An unknown algorithm, such as `none`, is an error in the JSON of the header.
        E::Json(error) if error.to_string().contains("unknown variant") => A::Algorithm,
        E::Json(_) | E::Utf8(_) => INVALID_TOKEN_JSON,
        _ => A::BadSignature,
    }
}
