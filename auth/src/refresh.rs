//! Refresh tokens: with one, a user who has logged in gets further access tokens.
//!
//! They have the form that EIM's clients expect: the claim `typ` is `Refresh`, `azp` names the
//! client, and `iss` is the address of the endpoint. So no refresh token is accepted as an access
//! token, and no access token as a refresh token.
//!
//! Each use of a refresh token replaces it. The tokens of one login count up a number, so that the
//! caller of this module can distinguish a replaced token from the current one. It stores only the
//! login and the number.

use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::keys::KeyPurpose;
use crate::token::{AuthError, Authority, IssueError, check_not_expired, parse_time};

const REFRESH_TOKEN_TYPE: &str = "Refresh";

/// Content of a refresh token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshToken {
    /// Address of the endpoint, as the client knows it.
    pub endpoint: String,
    /// Name of the client program.
    pub client: String,
    /// Name of the user.
    pub subject: String,
    /// Identifies the password of the login. It changes when the user must log in again, see
    /// [`crate::User::session`].
    pub session: String,
    /// The login that the token continues.
    pub login: Uuid,
    /// How often the login was continued before the token was issued.
    pub generation: u32,
}

#[derive(Debug, Serialize)]
struct NewRefreshClaims<'a> {
    iss: &'a str,
    aud: &'a str,
    sub: &'a str,
    azp: &'a str,
    typ: &'a str,
    sid: &'a str,
    login: Uuid,
    generation: u32,
    iat: i64,
    exp: i64,
    jti: Uuid,
}

#[derive(Debug, Deserialize)]
struct RefreshClaims {
    iss: String,
    sub: String,
    azp: String,
    typ: String,
    sid: String,
    login: Uuid,
    generation: u32,
    exp: f64,
}

impl Authority {
    /// Issues a refresh token.
    pub fn issue_refresh(
        &self,
        refresh: &RefreshToken,
        expires_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Secret, IssueError> {
        let claims = NewRefreshClaims {
            iss: &refresh.endpoint,
            aud: &refresh.endpoint,
            sub: &refresh.subject,
            azp: &refresh.client,
            typ: REFRESH_TOKEN_TYPE,
            sid: &refresh.session,
            login: refresh.login,
            generation: refresh.generation,
            iat: now.timestamp(),
            exp: expires_at.timestamp(),
            jti: Uuid::new_v4(),
        };
        self.sign(KeyPurpose::Operators, &claims)
    }

    /// Verifies one of our refresh tokens. Returns its content and its expiry.
    pub fn verify_refresh(
        &self,
        token: &str,
        now: DateTime<Utc>,
    ) -> Result<(RefreshToken, DateTime<Utc>), AuthError> {
        let claims = self.verify_own(token)?;
        let refresh_claims =
            RefreshClaims::deserialize(&claims).map_err(|_| AuthError::WrongKind)?;
        if refresh_claims.typ != REFRESH_TOKEN_TYPE {
            return Err(AuthError::WrongKind);
        }
        let expires_at = parse_time(refresh_claims.exp)?;
        check_not_expired(expires_at, now)?;
        let refresh = RefreshToken {
            endpoint: refresh_claims.iss,
            client: refresh_claims.azp,
            subject: refresh_claims.sub,
            session: refresh_claims.sid,
            login: refresh_claims.login,
            generation: refresh_claims.generation,
        };
        Ok((refresh, expires_at))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use chrono::TimeDelta;

    use super::*;
    use crate::{Keys, Role, Settings};

    const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
    const HOUR: TimeDelta = TimeDelta::hours(1);

    fn test_authority() -> (Authority, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        (Authority::new(keys, Settings::default()), folder)
    }

    fn alice() -> RefreshToken {
        RefreshToken {
            endpoint: "http://127.0.0.1:8080/realms/master".to_owned(),
            client: "system-client".to_owned(),
            subject: "alice".to_owned(),
            session: "abc".to_owned(),
            login: Uuid::from_u128(7),
            generation: 3,
        }
    }

    #[test]
    fn a_refresh_token_identifies_its_subject_until_it_expires() {
        let (authority, _folder) = test_authority();
        let issued = authority.issue_refresh(&alice(), NOON + HOUR, NOON).unwrap();
        let read = |now| authority.verify_refresh(issued.reveal(), now);
        assert_eq!(read(NOON), Ok((alice(), NOON + HOUR)));
        assert_eq!(read(NOON + HOUR * 2), Err(AuthError::Expired { at: NOON + HOUR }));
        let (other, _folder) = test_authority();
        let elsewhere = other.verify_refresh(issued.reveal(), NOON);
        assert_eq!(elsewhere, Err(AuthError::UnknownKey));
    }

    #[test]
    fn a_refresh_token_has_the_claims_that_eim_clients_read() {
        let (authority, _folder) = test_authority();
        let issued = authority.issue_refresh(&alice(), NOON + HOUR, NOON).unwrap();
        let claims = issued.reveal().split('.').nth(1).unwrap().to_owned();
        let claims = URL_SAFE_NO_PAD.decode(claims).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["typ"], "Refresh");
        assert_eq!(claims["azp"], "system-client");
        assert_eq!(claims["iss"], "http://127.0.0.1:8080/realms/master");
        assert_eq!(claims["sub"], "alice");
        assert_eq!(claims["exp"], (NOON + HOUR).timestamp());
    }

    #[test]
    fn refresh_tokens_and_access_tokens_are_not_interchangeable() {
        let (authority, _folder) = test_authority();
        // Also if the endpoint has the same address as the issuer.
        let ours = Settings::default();
        for endpoint in [alice().endpoint, ours.issuer, ours.audience] {
            let refresh = RefreshToken { endpoint, ..alice() };
            let issued = authority.issue_refresh(&refresh, NOON + HOUR, NOON).unwrap();
            assert!(authority.verify(issued.reveal(), NOON).is_err());
        }
        let both = Settings { audience: "urn:evenkeel:issuer".to_owned(), ..Settings::default() };
        let folder = tempfile::tempdir().unwrap();
        let same = Authority::new(Keys::open(folder.path()).unwrap(), both.clone());
        let refresh = RefreshToken { endpoint: both.issuer, ..alice() };
        let issued = same.issue_refresh(&refresh, NOON + HOUR, NOON).unwrap();
        let refused = same.verify(issued.reveal(), NOON).unwrap_err();
        assert_eq!(refused, AuthError::WrongKind);

        let access = authority.issue_operator("alice", &[Role::Administrator], HOUR, NOON);
        let access = access.unwrap().token;
        let refused = authority.verify_refresh(access.reveal(), NOON).unwrap_err();
        assert_eq!(refused, AuthError::WrongKind);
        // The key of nodes signs no refresh token.
        let node = authority.issue_node(Uuid::from_u128(1), "host-0a1b2c3d", HOUR, NOON);
        let refused = authority.verify_refresh(node.unwrap().token.reveal(), NOON).unwrap_err();
        assert_eq!(refused, AuthError::UnknownKey);
    }
}
