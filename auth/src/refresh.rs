//! Refresh tokens: what somebody who has logged in gets further access tokens with.
//!
//! They have the form that the ancestor's clients read before they use one: the claim `typ` is `Refresh`, `azp` names the
//! client, and `iss` is the endpoint by its own name for it. So a refresh token is none of our access tokens, and none of
//! these is a refresh token.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::token::{AuthError, Authority, IssueError, Issued, instant, not_over};

const TYPE: &str = "Refresh";

/// What a refresh token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// The address of the endpoint, as the client knows it.
    pub endpoint: String,
    /// The name of the client program.
    pub client: String,
    /// Who has logged in.
    pub subject: String,
    /// What changes when the subject must log in anew.
    pub session: String,
}

#[derive(Debug, Serialize)]
struct Made<'a> {
    iss: &'a str,
    aud: &'a str,
    sub: &'a str,
    azp: &'a str,
    typ: &'a str,
    sid: &'a str,
    iat: i64,
    exp: i64,
    jti: Uuid,
}

#[derive(Debug, Deserialize)]
struct Read {
    iss: String,
    sub: String,
    azp: String,
    typ: String,
    sid: String,
    exp: f64,
}

impl Authority {
    /// Makes a refresh token.
    pub fn issue_refresh(
        &self,
        refresh: &Refresh,
        lifetime: TimeDelta,
        now: DateTime<Utc>,
    ) -> Result<Issued, IssueError> {
        let expires_at = now
            .checked_add_signed(lifetime)
            .ok_or(IssueError::TooLong)?;
        let token = self.sign(&Made {
            iss: &refresh.endpoint,
            aud: &refresh.endpoint,
            sub: &refresh.subject,
            azp: &refresh.client,
            typ: TYPE,
            sid: &refresh.session,
            iat: now.timestamp(),
            exp: expires_at.timestamp(),
            jti: Uuid::new_v4(),
        })?;
        Ok(Issued { token, expires_at })
    }

    /// What a refresh token of ours says, and until when it counts.
    pub fn verify_refresh(
        &self,
        token: &str,
        now: DateTime<Utc>,
    ) -> Result<(Refresh, DateTime<Utc>), AuthError> {
        let claims = self.verified_own(token)?;
        let said = Read::deserialize(&claims).map_err(|_| AuthError::WrongKind)?;
        if said.typ != TYPE {
            return Err(AuthError::WrongKind);
        }
        let expires_at = instant(said.exp)?;
        not_over(expires_at, now)?;
        let refresh = Refresh {
            endpoint: said.iss,
            client: said.azp,
            subject: said.sub,
            session: said.sid,
        };
        Ok((refresh, expires_at))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::{Keys, Role, Settings};

    const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
    const HOUR: TimeDelta = TimeDelta::hours(1);

    fn house() -> (Authority, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        (Authority::new(keys, Settings::default()), folder)
    }

    fn alice() -> Refresh {
        Refresh {
            endpoint: "http://127.0.0.1:8080/realms/master".to_owned(),
            client: "system-client".to_owned(),
            subject: "alice".to_owned(),
            session: "abc".to_owned(),
        }
    }

    #[test]
    fn a_refresh_token_says_for_whom_it_is_until_it_expires() {
        let (authority, _folder) = house();
        let issued = authority.issue_refresh(&alice(), HOUR, NOON).unwrap();
        let read = |now| authority.verify_refresh(issued.token.reveal(), now);
        assert_eq!(read(NOON), Ok((alice(), NOON + HOUR)));
        assert_eq!(
            read(NOON + HOUR * 2),
            Err(AuthError::Expired { at: NOON + HOUR })
        );
        let (other, _folder) = house();
        let elsewhere = other.verify_refresh(issued.token.reveal(), NOON);
        assert_eq!(elsewhere, Err(AuthError::UnknownKey));
    }

    #[test]
    fn a_refresh_token_has_the_claims_that_the_ancestors_clients_read() {
        let (authority, _folder) = house();
        let issued = authority.issue_refresh(&alice(), HOUR, NOON).unwrap();
        let claims = issued.token.reveal().split('.').nth(1).unwrap().to_owned();
        let claims = URL_SAFE_NO_PAD.decode(claims).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["typ"], "Refresh");
        assert_eq!(claims["azp"], "system-client");
        assert_eq!(claims["iss"], "http://127.0.0.1:8080/realms/master");
        assert_eq!(claims["sub"], "alice");
        assert_eq!(claims["exp"], (NOON + HOUR).timestamp());
    }

    #[test]
    fn a_refresh_token_lets_nobody_in_and_an_access_token_refreshes_nothing() {
        let (authority, _folder) = house();
        // Even where the endpoint has the name of the issuer.
        let ours = Settings::default();
        for endpoint in [alice().endpoint, ours.issuer, ours.audience] {
            let refresh = Refresh {
                endpoint,
                ..alice()
            };
            let issued = authority.issue_refresh(&refresh, HOUR, NOON).unwrap();
            assert!(authority.verify(issued.token.reveal(), NOON).is_err());
        }
        let both = Settings {
            audience: "urn:evenkeel:issuer".to_owned(),
            ..Settings::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let same = Authority::new(Keys::open(folder.path()).unwrap(), both.clone());
        let refresh = Refresh {
            endpoint: both.issuer,
            ..alice()
        };
        let issued = same.issue_refresh(&refresh, HOUR, NOON).unwrap();
        let refused = same.verify(issued.token.reveal(), NOON).unwrap_err();
        assert_eq!(refused, AuthError::WrongKind);

        let access = authority.issue_operator("alice", &[Role::Administrator], HOUR, NOON);
        let access = access.unwrap().token;
        let refused = authority.verify_refresh(access.reveal(), NOON).unwrap_err();
        assert_eq!(refused, AuthError::WrongKind);
    }
}
