//! Tokens of an identity provider: checks of the ID token, and the choice of the token for the server.
//!
//! Signatures are not verified here: the tokens come from the token endpoint over TLS, which `OpenID`
//! Connect allows (Core 1.0, section 3.1.3.7), and the server verifies the one that it gets.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Secret;
use serde::Deserialize;
use serde_json::Value;

use super::ProviderSettings;
use super::form::bad_response;
use crate::Failure;

/// Accepted difference between the clocks of the provider and of this machine.
const MAX_CLOCK_DIFFERENCE: TimeDelta = TimeDelta::minutes(5);

/// Response of the token endpoint.
#[derive(Debug, Deserialize)]
pub struct ProviderTokens {
    #[serde(rename = "access_token")]
    access: Secret,
    #[serde(default, rename = "id_token")]
    id: Option<Secret>,
    #[serde(default, rename = "refresh_token")]
    pub refresh: Option<Secret>,
}

impl ProviderTokens {
    /// Verifies that the ID token belongs to this login. Returns its claims.
    pub fn verify_id_token(
        &self,
        settings: &ProviderSettings,
        nonce: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Value, Failure> {
        let issuer = &settings.issuer;
        let token = self.id.as_ref().ok_or_else(|| {
            bad_response(
                issuer,
                "it has no ID token, so the provider does not support OpenID Connect",
            )
        })?;
        let claims = decode_claims(token)
            .ok_or_else(|| bad_response(issuer, "its ID token is not a JSON Web Token"))?;
        check_id_claims(&claims, settings, nonce, now)
            .map_err(|why| bad_response(issuer, &format!("its ID token {why}")))?;
        Ok(claims)
    }

    /// The token for the server: the access token if it is a token of the issuer for the audience of
    /// the server, else the ID token if that is.
    pub fn choose_token(&self, settings: &ProviderSettings) -> Result<Secret, Failure> {
        let fits = |token: &&Secret| {
            decode_claims(token).is_some_and(|claims| {
                claims["iss"] == *settings.issuer
                    && settings.audience.as_ref().is_none_or(|name| has_audience(&claims, name))
            })
        };
        let tokens = [Some(&self.access), self.id.as_ref()];
        let token = tokens.into_iter().flatten().find(fits).cloned();
        token.ok_or_else(|| {
            let (issuer, client) = (&settings.issuer, &settings.client_id);
            let audience = settings.audience.as_deref().unwrap_or("this server");
            Failure::usage_with(
                format!("{issuer} sent no token that the server accepts: neither the access token nor the ID token is a JSON Web Token for {audience}"),
                format!("let the provider add {audience} to the audience of the access token, or set auth.issuers.audience of the server to the client ID {client}"),
            )
        })
    }
}

/// Checks the claims of an ID token (`OpenID` Connect Core 1.0, section 3.1.3.7).
fn check_id_claims(
    claims: &Value,
    settings: &ProviderSettings,
    nonce: Option<&str>,
    now: DateTime<Utc>,
) -> Result<(), String> {
    let (issuer, client) = (&settings.issuer, &settings.client_id);
    if claims["iss"] != **issuer {
        return Err(format!("names another issuer: {}", claims["iss"]));
    }
    if !has_audience(claims, client) {
        return Err(format!("is for another client: {}", claims["aud"]));
    }
    if !claims["azp"].is_null() && claims["azp"] != **client {
        return Err(format!("was issued to another client: {}", claims["azp"]));
    }
    let expires_at = read_expiry(claims).ok_or("does not expire")?;
    if expires_at < now - MAX_CLOCK_DIFFERENCE {
        return Err("has expired; check the clock of this machine".to_owned());
    }
    if let Some(nonce) = nonce
        && claims["nonce"] != *nonce
    {
        return Err("belongs to another login (its nonce differs)".to_owned());
    }
    Ok(())
}

/// Name of the user for people.
pub fn user_name(claims: &Value) -> String {
    let names = ["preferred_username", "email", "name", "sub"];
    let mut texts = names.iter().filter_map(|name| claims[*name].as_str());
    texts.find(|text| !text.is_empty()).unwrap_or("unknown user").to_owned()
}

/// Whether a token is a JSON Web Token that expires before this time.
pub fn expires_before(token: &Secret, time: DateTime<Utc>) -> bool {
    let expires_at = decode_claims(token).and_then(|claims| read_expiry(&claims));
    expires_at.is_some_and(|expires_at| expires_at < time)
}

fn read_expiry(claims: &Value) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(claims["exp"].as_i64()?, 0)
}

/// Whether the claim `aud`, a text or a list of texts, contains this audience.
fn has_audience(claims: &Value, audience: &str) -> bool {
    match &claims["aud"] {
        Value::Array(values) => values.iter().any(|value| value == audience),
        value => value == audience,
    }
}

/// Reads the claims of a JSON Web Token; none for another token.
fn decode_claims(token: &Secret) -> Option<Value> {
    let parts: Vec<&str> = token.reveal().split('.').collect();
    let [_header, claims, _signature] = parts.as_slice() else {
        return None;
    };
    let json = URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice(&json).ok().filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://login.example";

    fn jwt(claims: &Value) -> Secret {
        let text = URL_SAFE_NO_PAD.encode(claims.to_string());
        Secret::new(format!("e30.{text}.c2ln"))
    }

    fn settings(audience: Option<&str>) -> ProviderSettings {
        ProviderSettings {
            issuer: ISSUER.to_owned(),
            client_id: "cli".to_owned(),
            scopes: Vec::new(),
            audience: audience.map(str::to_owned),
        }
    }

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    fn id_claims() -> Value {
        json!({"iss": ISSUER, "aud": "cli", "exp": 1_800_000_060, "nonce": "n", "sub": "5"})
    }

    fn tokens(access: &Secret, id: Option<&Secret>) -> ProviderTokens {
        ProviderTokens { access: access.clone(), id: id.cloned(), refresh: None }
    }

    #[test]
    fn a_response_has_the_field_names_of_oauth() {
        let response = json!({"access_token": "a", "id_token": "i", "refresh_token": "r"});
        let tokens: ProviderTokens = serde_json::from_value(response).unwrap();
        let optional = [tokens.id, tokens.refresh].map(|token| token.unwrap().reveal().to_owned());
        assert_eq!((tokens.access.reveal(), optional), ("a", ["i", "r"].map(str::to_owned)));
        let tokens: ProviderTokens = serde_json::from_str(r#"{"access_token": "a"}"#).unwrap();
        assert!(tokens.id.is_none() && tokens.refresh.is_none());
    }

    #[test]
    fn an_id_token_belongs_to_the_login() {
        let check = |claims: &Value| check_id_claims(claims, &settings(None), Some("n"), now());
        assert_eq!(check(&id_claims()), Ok(()));
        for (claim, value) in [
            ("aud", json!(["other", "cli"])),
            ("azp", json!("cli")),
            ("exp", json!(1_800_000_000 - 299)),
        ] {
            let mut claims = id_claims();
            claims[claim] = value;
            assert_eq!(check(&claims), Ok(()), "{claims}");
        }
        for (claim, value, part) in [
            ("iss", json!("https://login.example/"), "another issuer"),
            ("aud", json!("other"), "for another client"),
            ("aud", json!(["other"]), "for another client"),
            ("aud", Value::Null, "for another client"),
            ("azp", json!("other"), "to another client"),
            ("exp", json!(1_800_000_000 - 301), "has expired"),
            ("exp", Value::Null, "does not expire"),
            ("nonce", json!("m"), "another login"),
            ("nonce", Value::Null, "another login"),
        ] {
            let mut claims = id_claims();
            claims[claim] = value;
            let error = check(&claims).unwrap_err();
            assert!(error.contains(part), "{claims}: {error}");
        }
        let mut without_nonce = id_claims();
        without_nonce["nonce"] = Value::Null;
        assert_eq!(check_id_claims(&without_nonce, &settings(None), None, now()), Ok(()));
    }

    #[test]
    fn a_response_without_an_id_token_is_refused() {
        for id in [None, Some(Secret::new("opaque")), Some(Secret::new("a.b.c"))] {
            let tokens = tokens(&Secret::new("opaque"), id.as_ref());
            let result = tokens.verify_id_token(&settings(None), None, now());
            assert!(result.unwrap_err().to_string().contains("ID token"));
        }
    }

    #[test]
    fn the_server_gets_the_access_token_if_it_is_for_the_server() {
        let access = |audience: &str| jwt(&json!({"iss": ISSUER, "aud": [audience]}));
        let id = jwt(&id_claims());
        let opaque = Secret::new("opaque");
        let foreign = jwt(&json!({"iss": "https://other.example", "aud": "evenkeel"}));
        for (access, audience, expected) in [
            (access("evenkeel"), Some("evenkeel"), Some("access")),
            (access("account"), Some("cli"), Some("id")),
            (access("account"), None, Some("access")),
            (opaque.clone(), Some("cli"), Some("id")),
            (opaque.clone(), None, Some("id")),
            (foreign.clone(), Some("cli"), Some("id")),
            (opaque, Some("evenkeel"), None),
            (access("account"), Some("evenkeel"), None),
            (foreign, Some("evenkeel"), None),
        ] {
            let chosen = tokens(&access, Some(&id)).choose_token(&settings(audience));
            let expected = expected.map(|kind| if kind == "id" { &id } else { &access });
            match (chosen, expected) {
                (Ok(token), Some(expected)) => assert_eq!(token.reveal(), expected.reveal()),
                (Err(failure), None) => {
                    let hint = failure.hint().unwrap();
                    assert!(hint.contains("evenkeel") && hint.contains("client ID cli"), "{hint}");
                }
                (chosen, expected) => panic!("{audience:?}: {chosen:?} {expected:?}"),
            }
        }
    }

    #[test]
    fn the_expiry_is_read_from_json_web_tokens() {
        let token = jwt(&json!({"exp": 1_800_000_000}));
        assert!(expires_before(&token, now() + TimeDelta::seconds(1)));
        assert!(!expires_before(&token, now()));
        for other in ["opaque", "a.b.c", "", "e30.e30.e30"] {
            assert!(!expires_before(&Secret::new(other), now()), "{other}");
        }
    }

    #[test]
    fn a_user_has_the_name_that_people_know() {
        assert_eq!(user_name(&json!({"sub": "5", "email": "a@b"})), "a@b");
        assert_eq!(user_name(&json!({"sub": "5", "preferred_username": ""})), "5");
        assert_eq!(user_name(&json!({})), "unknown user");
    }
}
