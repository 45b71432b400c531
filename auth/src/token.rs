//! Makes and verifies tokens: JSON Web Tokens that are signed with a key pair.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Secret;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::keys::{Keys, OutsideIssuer, VerificationKey};
use crate::remembered::Remembered;
use crate::roles::{Caller, Role};

/// The longest token that is looked at.
const LONGEST: usize = 8 * 1024;

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
    /// How many verified tokens are remembered, so that they are not verified again with each request.
    pub remembered: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            issuer: "urn:evenkeel:issuer".to_owned(),
            audience: "evenkeel".to_owned(),
            remembered: 100_000,
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

#[derive(Debug, Default, Serialize, Deserialize)]
struct RealmAccess {
    #[serde(default)]
    roles: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Claims {
    #[serde(default)]
    iss: Option<String>,
    #[serde(default)]
    aud: Audience,
    #[serde(default)]
    sub: String,
    exp: f64,
    #[serde(default)]
    nbf: Option<f64>,
    #[serde(default)]
    realm_access: RealmAccess,
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
        let ourselves = OutsideIssuer {
            issuer: settings.issuer.clone(),
            audience: Some(settings.audience.clone()),
            keys: keys.verification(),
        };
        Self {
            keys,
            settings,
            issuers: vec![ourselves],
            remembered,
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
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.keys.signing_id.clone());
        let token =
            jsonwebtoken::encode(&header, &claims, &self.keys.signing).map_err(IssueError::Sign)?;
        Ok(Issued {
            token: Secret::new(token),
            expires_at,
        })
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
        let caller = Arc::new(self.verify_signature(bearer)?);
        in_time(&caller, now)?;
        self.remembered.put(digest, Arc::clone(&caller), now);
        Ok(caller)
    }

    /// Verifies all but the time.
    fn verify_signature(&self, token: &str) -> Result<Caller, AuthError> {
        let header = jsonwebtoken::decode_header(token).map_err(refused)?;
        if header.crit.is_some() {
            return Err(AuthError::Malformed(
                "it needs an extension that is not known",
            ));
        }
        let issuer = claimed_issuer(token)?;
        let place = self.issuers.iter().position(|known| known.issuer == issuer);
        let place = place.ok_or(AuthError::WrongIssuer)?;
        let issuer = &self.issuers[place];
        let claims = verified_claims(token, &header, &issuer.keys)?;
        if let Some(audience) = &issuer.audience
            && !claims.aud.has(audience)
        {
            return Err(AuthError::WrongAudience);
        }
        let mut roles: Vec<Role> = Vec::new();
        for role in claims
            .realm_access
            .roles
            .iter()
            .filter_map(|role| Role::parse(role))
        {
            if !roles.contains(&role) {
                roles.push(role);
            }
        }
        Ok(Caller {
            subject: claims.sub,
            roles,
            not_before: claims.nbf.map(instant).transpose()?,
            expires_at: instant(claims.exp)?,
            ours: place == 0,
        })
    }
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
) -> Result<Claims, AuthError> {
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
        match jsonwebtoken::decode::<Claims>(token, &key.key, &validation) {
            Ok(token) if token.claims.iss.is_some() => return Ok(token.claims),
            Ok(_) => return Err(AuthError::WrongIssuer),
            Err(error) => failure = refused(error),
        }
    }
    Err(failure)
}

fn in_time(caller: &Caller, now: DateTime<Utc>) -> Result<(), AuthError> {
    let at = caller.expires_at;
    if at + LEEWAY <= now {
        return Err(AuthError::Expired { at });
    }
    match caller.not_before {
        Some(from) if now + LEEWAY < from => Err(AuthError::NotYetValid { from }),
        _ => Ok(()),
    }
}

/// Seconds since 1970, which may have a fraction. Far beyond any life of a token it is refused.
fn instant(seconds: f64) -> Result<DateTime<Utc>, AuthError> {
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
        E::Json(_) | E::Utf8(_) => A::Malformed("a part is not the JSON of a token"),
        _ => A::BadSignature,
    }
}
