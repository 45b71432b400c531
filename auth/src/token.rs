//! Makes and verifies tokens: JSON Web Tokens that are signed with a key pair.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Secret;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::issuer::OutsideIssuer;
use crate::key_set::KeySet;
use crate::keys::{Keys, VerificationKey};
use crate::remembered::Remembered;
use crate::roles::{Caller, Role};

/// The longest token that is looked at.
const LONGEST: usize = 8 * 1024;

/// What is said of a token that is signed and holds something else than it should.
const NOT_OF_A_TOKEN: AuthError = AuthError::Malformed("a part is not the JSON of a token");

/// How far clocks may be apart.
const LEEWAY: TimeDelta = TimeDelta::seconds(30);

/// What an [`Authority`] can be told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Who issues our tokens: the claim `iss`.
    pub issuer: String,
    /// Whom our tokens are for: the claim `aud`.
    pub audience: String,
    /// About how many verified tokens are remembered, so that they are not verified again with each request; some 250 bytes
    /// each.
    pub remembered: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            issuer: "urn:evenkeel:issuer".to_owned(),
            audience: "evenkeel".to_owned(),
            remembered: 1_500_000,
        }
    }
}

/// Why a request is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// There is no token.
    #[error("a bearer token is needed")]
    Missing,
    /// It is not a token at all, or not one of ours.
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    /// It is not signed, or with a shared secret.
    #[error("the token is signed in a way that is not accepted here")]
    Algorithm,
    /// None of the keys is the one that it names.
    #[error("the token is signed with an unknown key")]
    UnknownKey,
    /// The signature is not that of the token.
    #[error("the token's signature is wrong")]
    BadSignature,
    /// Its time is over.
    #[error("the token expired at {at}")]
    Expired {
        /// When.
        at: DateTime<Utc>,
    },
    /// Its time is yet to come.
    #[error("the token is not valid before {from}")]
    NotYetValid {
        /// When it will be.
        from: DateTime<Utc>,
    },
    /// Nobody whose tokens count issued it.
    #[error("the token is from another issuer")]
    WrongIssuer,
    /// It is for somebody else.
    #[error("the token is for another audience")]
    WrongAudience,
    /// It is one to get others with, or one that only says who somebody is.
    #[error("this is no access token")]
    WrongKind,
    /// Its issuer has not said yet with which keys it signs.
    #[error("the keys of the token's issuer are not known yet; try again in a moment")]
    KeysAway,
}

/// A token could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// It would end beyond the calendar.
    #[error("the token would live too long")]
    TooLong,
    /// The signature failed.
    #[error("the token cannot be signed")]
    Sign(#[source] jsonwebtoken::errors::Error),
}

/// A token that was made.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The token.
    pub token: Secret,
    /// Until when it counts.
    pub expires_at: DateTime<Utc>,
}

/// Whose tokens count, and how they are signed.
#[derive(Debug)]
pub struct Authority {
    keys: Keys,
    settings: Settings,
    issuers: Vec<OutsideIssuer>,
    remembered: Remembered,
    /// Whoever asks, if nobody has to prove anything.
    anybody: Option<Arc<Caller>>,
}

#[derive(Debug, Serialize)]
struct OwnClaims<'a> {
    iss: &'a str,
    aud: &'a str,
    sub: &'a str,
    iat: i64,
    exp: i64,
    jti: Uuid,
    realm_access: RealmAccess,
}

#[derive(Debug, Serialize)]
struct RealmAccess {
    roles: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Claims {
    #[serde(default)]
    aud: Audience,
    #[serde(default)]
    sub: String,
    exp: f64,
    #[serde(default)]
    nbf: Option<f64>,
    #[serde(default)]
    typ: Value,
}

/// The claim is one text or a list of them.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Audience {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn has(&self, wanted: &str) -> bool {
        match self {
            Self::None => false,
            Self::One(one) => one == wanted,
            Self::Many(many) => many.iter().any(|one| one == wanted),
        }
    }
}

impl Authority {
    /// An authority that signs with `keys` and accepts nobody else's tokens.
    #[must_use]
    pub fn new(keys: Keys, settings: Settings) -> Self {
        let remembered = Remembered::new(settings.remembered);
        // Our own tokens are verified like all others.
        let own = KeySet::fixed(keys.verification());
        let ourselves = OutsideIssuer::new(&settings.issuer, Some(&settings.audience), own);
        Self {
            keys,
            settings,
            issuers: vec![ourselves],
            remembered,
            anybody: None,
        }
    }

    /// Lets everybody in as an administrator, without looking at what is shown ([`Authority::verify_header`]). For
    /// requests that only this machine can send.
    #[must_use]
    pub fn open_to_everybody(self) -> Self {
        let nobody = Caller {
            subject: "nobody in particular".to_owned(),
            roles: vec![Role::Administrator],
            not_before: None,
            expires_at: DateTime::<Utc>::MAX_UTC,
            ours: true,
        };
        Self {
            anybody: Some(Arc::new(nobody)),
            ..self
        }
    }

    /// Accepts the tokens of one more issuer.
    #[must_use]
    pub fn accept(mut self, issuer: OutsideIssuer) -> Self {
        self.issuers.push(issuer);
        self
    }

    /// The public keys as a JSON Web Key Set.
    #[must_use]
    pub fn jwks(&self) -> serde_json::Value {
        self.keys.jwks()
    }

    /// Makes a token for a person or a program.
    pub fn issue_operator(
        &self,
        subject: &str,
        roles: &[Role],
        lifetime: TimeDelta,
        now: DateTime<Utc>,
    ) -> Result<Issued, IssueError> {
        let expires_at = now
            .checked_add_signed(lifetime)
            .ok_or(IssueError::TooLong)?;
        let claims = OwnClaims {
            iss: &self.settings.issuer,
            aud: &self.settings.audience,
            sub: subject,
            iat: now.timestamp(),
            exp: expires_at.timestamp(),
            jti: Uuid::new_v4(),
            realm_access: RealmAccess {
                roles: roles.iter().map(Role::to_string).collect(),
            },
        };
        Ok(Issued {
            token: self.sign(&claims)?,
            expires_at,
        })
    }

    /// Signs claims with our own key.
    pub(crate) fn sign(&self, claims: &impl Serialize) -> Result<Secret, IssueError> {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.keys.signing_id.clone());
        let token = jsonwebtoken::encode(&header, claims, &self.keys.signing);
        token.map(Secret::new).map_err(IssueError::Sign)
    }

    /// Makes the credential of a node: `host` is the id of its host, as text.
    pub fn issue_node(
        &self,
        project: Uuid,
        host: &str,
        lifetime: TimeDelta,
        now: DateTime<Utc>,
    ) -> Result<Issued, IssueError> {
        self.issue_operator(host, &[Role::Node(project)], lifetime, now)
    }

    /// Who sent a request with this value of the header `authorization`.
    pub fn verify_header(
        &self,
        value: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Arc<Caller>, AuthError> {
        if let Some(anybody) = &self.anybody {
            return Ok(Arc::clone(anybody));
        }
        let value = value.ok_or(AuthError::Missing)?.trim();
        let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
        if value.is_empty() || (scheme.eq_ignore_ascii_case("bearer") && token.trim().is_empty()) {
            return Err(AuthError::Missing);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(AuthError::Malformed("the scheme must be Bearer"));
        }
        self.verify(token.trim(), now)
    }

    /// Whose token this is. A signature is verified once; later only the digest is compared and the time looked at.
    pub fn verify(&self, bearer: &str, now: DateTime<Utc>) -> Result<Arc<Caller>, AuthError> {
        if bearer.is_empty() {
            return Err(AuthError::Missing);
        }
        if bearer.len() > LONGEST {
            return Err(AuthError::Malformed("it is too long"));
        }
        let digest = Sha256::digest(bearer.as_bytes()).into();
        if let Some(caller) = self.remembered.get(&digest) {
            return match in_time(&caller, now) {
                Ok(()) => Ok(caller),
                Err(error) => {
                    self.remembered.forget(&digest);
                    Err(error)
                }
            };
        }
        let era = self.remembered.era();
        let caller = Arc::new(self.verify_signature(bearer)?);
        in_time(&caller, now)?;
        self.remembered.put(digest, Arc::clone(&caller), era);
        Ok(caller)
    }

    /// Verifies all but the time.
    fn verify_signature(&self, token: &str) -> Result<Caller, AuthError> {
        let header = header_of(token)?;
        let issuer = claimed_issuer(token)?;
        let place = self.issuers.iter().position(|known| known.issuer == issuer);
        let place = place.ok_or(AuthError::WrongIssuer)?;
        let issuer = &self.issuers[place];
        let all = verified_by(issuer, token, &header)?;
        let claims = Claims::deserialize(&all).map_err(|_| NOT_OF_A_TOKEN)?;
        if let Some(audience) = &issuer.audience
            && !claims.aud.has(audience)
        {
            return Err(AuthError::WrongAudience);
        }
        if is_for_something_else(&claims.typ) {
            return Err(AuthError::WrongKind);
        }
        let mut roles: Vec<Role> = Vec::new();
        let named = issuer.roles.of(&all).ok_or(NOT_OF_A_TOKEN)?;
        for role in named.into_iter().filter_map(Role::parse) {
            if !roles.contains(&role) {
                roles.push(role);
            }
        }
        roles.shrink_to_fit();
        Ok(Caller {
            subject: claims.sub,
            roles,
            not_before: claims.nbf.map(instant).transpose()?,
            expires_at: instant(claims.exp)?,
            ours: place == 0,
        })
    }

    /// The claims of a token that we signed ourselves, whatever it is for.
    pub(crate) fn verified_own(&self, token: &str) -> Result<Value, AuthError> {
        if token.len() > LONGEST {
            return Err(AuthError::Malformed("it is too long"));
        }
        let header = header_of(token)?;
        verified_by(&self.issuers[0], token, &header)
    }

    /// Everybody whose tokens count, ourselves first.
    pub(crate) fn issuers(&self) -> &[OutsideIssuer] {
        &self.issuers
    }

    /// Forgets the verified tokens whose time is over: they only take memory. Looks at each that is remembered.
    pub fn forget_expired(&self, now: DateTime<Utc>) {
        self.remembered.forget_expired(now);
    }

    /// Verifies anew what was verified before.
    pub(crate) fn forget_verified(&self) {
        self.remembered.clear();
    }
}

fn header_of(token: &str) -> Result<Header, AuthError> {
    let header = jsonwebtoken::decode_header(token).map_err(refused)?;
    if header.crit.is_some() {
        let why = "it needs an extension that is not known";
        return Err(AuthError::Malformed(why));
    }
    Ok(header)
}

/// The claims of a token that an issuer has signed. If it may be that the issuer has a new key, it is asked.
fn verified_by(issuer: &OutsideIssuer, token: &str, header: &Header) -> Result<Value, AuthError> {
    let keys = issuer.keys.now().ok_or(AuthError::KeysAway)?;
    let verified = verified_claims(token, header, &keys);
    let may_be_new = match &verified {
        Err(AuthError::UnknownKey) => true,
        Err(AuthError::BadSignature) => header.kid.is_none(),
        _ => false,
    };
    if may_be_new {
        issuer.keys.want();
    }
    verified
}

/// Whether the claim `typ` says that a token is no access token. Providers sign more than those with the same keys.
fn is_for_something_else(typ: &Value) -> bool {
    let typ = typ.as_str().unwrap_or_default();
    ["refresh", "offline", "id", "logout"]
        .iter()
        .any(|other| typ.eq_ignore_ascii_case(other))
}

/// Who the token says issued it. Nothing else is taken from it before its signature was verified.
fn claimed_issuer(token: &str) -> Result<String, AuthError> {
    #[derive(Deserialize)]
    struct Issuer {
        #[serde(default)]
        iss: Option<String>,
    }
    let claims: Issuer = jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(refused)?;
    claims.iss.ok_or(AuthError::WrongIssuer)
}

fn verified_claims(
    token: &str,
    header: &Header,
    keys: &[VerificationKey],
) -> Result<Value, AuthError> {
    let is_named = |key: &&VerificationKey| header.kid.is_none() || key.id == header.kid;
    let named: Vec<_> = keys.iter().filter(is_named).collect();
    if named.is_empty() {
        return Err(AuthError::UnknownKey);
    }
    let mut validation = Validation::new(header.alg);
    // Time and audience are ours to judge: by our clock, and per issuer.
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let mut failure = AuthError::Algorithm;
    for key in named.into_iter().filter(|key| key.signs_by(header.alg)) {
        match jsonwebtoken::decode::<Value>(token, &key.key, &validation) {
            Ok(token) => return Ok(token.claims),
            Err(error) => failure = refused(error),
        }
    }
    Err(failure)
}

fn in_time(caller: &Caller, now: DateTime<Utc>) -> Result<(), AuthError> {
    not_over(caller.expires_at, now)?;
    match caller.not_before {
        Some(from) if now + LEEWAY < from => Err(AuthError::NotYetValid { from }),
        _ => Ok(()),
    }
}

/// Whether a time that ends then is not over.
pub(crate) fn not_over(at: DateTime<Utc>, now: DateTime<Utc>) -> Result<(), AuthError> {
    if at + LEEWAY <= now {
        return Err(AuthError::Expired { at });
    }
    Ok(())
}

/// Seconds since 1970, which may have a fraction. Far beyond any life of a token it is refused.
pub(crate) fn instant(seconds: f64) -> Result<DateTime<Utc>, AuthError> {
    const YEAR_9999: f64 = 253_402_300_799.0;
    if !(0.0..=YEAR_9999).contains(&seconds) {
        return Err(AuthError::Malformed("its time is none"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the range was checked, and a fraction of a second does not matter"
    )]
    let whole = seconds as i64;
    DateTime::from_timestamp(whole, 0).ok_or(AuthError::Malformed("its time is none"))
}

fn refused(error: jsonwebtoken::errors::Error) -> AuthError {
    use AuthError as A;
    use ErrorKind as E;
    match error.kind() {
        E::InvalidSignature => A::BadSignature,
        E::InvalidAlgorithm | E::InvalidAlgorithmName | E::UnsupportedAlgorithm => A::Algorithm,
        E::InvalidToken => A::Malformed("it has not three parts"),
        E::Base64(_) => A::Malformed("a part is not base64url"),
        // An algorithm that is not known, `none` among them, is an error of the header's JSON.
        E::Json(error) if error.to_string().contains("unknown variant") => A::Algorithm,
        E::Json(_) | E::Utf8(_) => NOT_OF_A_TOKEN,
        _ => A::BadSignature,
    }
}
