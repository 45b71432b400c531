//! OAuth logins with a password, and the renewal of all logins.

pub(crate) mod oidc;

use evenkeel_kit::Secret;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Response, Url};
use serde::{Deserialize, Serialize, Serializer};

use crate::Failure;
use crate::http::parse_server_address;

/// OAuth client ID at a server's own realm. The server replaces the refresh tokens of this client.
pub const OWN_CLIENT_ID: &str = "evenkeel";

/// OAuth client ID at another identity provider: that of EIM's Keycloak.
pub const PROVIDER_CLIENT_ID: &str = "system-client";

/// A login that can be renewed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Login {
    /// User name.
    pub username: String,
    /// URL of the realm of the identity provider.
    pub realm: String,
    /// OAuth client ID.
    pub client: String,
    /// Refresh token.
    #[serde(serialize_with = "reveal")]
    pub refresh_token: Secret,
    /// The identity provider of a login in the browser or on another device; `realm` is its issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderLogin>,
}

/// What a login at an identity provider needs to renew its token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderLogin {
    /// Value that the server requires in the claim `aud`, if it is known.
    #[serde(default)]
    pub audience: Option<String>,
}

fn reveal<S: Serializer>(token: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(token.reveal())
}

/// Parameters of a login with a password.
#[derive(Clone, Debug)]
pub struct LoginRequest {
    /// User name.
    pub username: String,
    /// URL of the realm of the identity provider.
    pub realm: String,
    /// OAuth client ID.
    pub client: String,
}

/// Tokens from an identity provider.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// Access token.
    pub token: Secret,
    /// How to renew the token; missing if the provider sent no refresh token.
    pub login: Option<Login>,
}

impl LoginRequest {
    /// Logs in with a password.
    pub(crate) async fn log_in(
        self,
        http: &Client,
        password: &Secret,
    ) -> Result<IssuedToken, Failure> {
        let form = [
            ("client_id", self.client.as_str()),
            ("grant_type", "password"),
            ("username", self.username.as_str()),
            ("password", password.reveal()),
        ];
        let tokens = request_tokens(http, &self.realm, &form).await?;
        Ok(tokens.into_issued(self))
    }
}

impl Login {
    /// Renews the token. If the login is no longer valid, the error is [`Failure::Usage`]: the user must
    /// log in again.
    pub(crate) async fn renew(&self, http: &Client) -> Result<IssuedToken, Failure> {
        if let Some(provider) = &self.provider {
            return oidc::renew(http, self, provider).await;
        }
        let form = [
            ("client_id", self.client.as_str()),
            ("grant_type", "refresh_token"),
            ("refresh_token", self.refresh_token.reveal()),
        ];
        let mut tokens = request_tokens(http, &self.realm, &form).await?;
        // Without a new refresh token, the old one stays valid.
        let old = || self.refresh_token.clone();
        tokens.refresh_token.get_or_insert_with(old);
        Ok(tokens.into_issued(LoginRequest {
            username: self.username.clone(),
            realm: self.realm.clone(),
            client: self.client.clone(),
        }))
    }
}

impl Login {
    /// Ends the login at its identity provider. Returns whether the provider offers this.
    pub(crate) async fn end(&self, http: &Client) -> Result<bool, Failure> {
        if self.provider.is_some() {
            return oidc::revoke(http, self).await;
        }
        let form =
            [("client_id", self.client.as_str()), ("refresh_token", self.refresh_token.reveal())];
        let response = send_form(http, &self.realm, "logout", &form).await?;
        if response.status().is_success() {
            return Ok(true);
        }
        Err(token_failure(&self.realm, response).await)
    }
}

/// URL of the realm that a server hosts itself.
pub fn realm_of_server(server: &str) -> Result<String, Failure> {
    append_path(server, &["realms", "master"]).map(String::from)
}

fn append_path(address: &str, parts: &[&str]) -> Result<Url, Failure> {
    let mut url = parse_server_address(address)?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(parts);
    }
    Ok(url)
}

/// Token response of an identity provider.
#[derive(Deserialize)]
struct TokenResponse {
    access_token: Secret,
    #[serde(default)]
    refresh_token: Option<Secret>,
}

impl TokenResponse {
    fn into_issued(self, request: LoginRequest) -> IssuedToken {
        let login = self.refresh_token.map(|refresh_token| Login {
            username: request.username,
            realm: request.realm,
            client: request.client,
            refresh_token,
            provider: None,
        });
        IssuedToken { token: self.access_token, login }
    }
}

async fn request_tokens(
    http: &Client,
    realm: &str,
    form: &[(&str, &str)],
) -> Result<TokenResponse, Failure> {
    let response = send_form(http, realm, "token", form).await?;
    if !response.status().is_success() {
        return Err(token_failure(realm, response).await);
    }
    let bytes = response.bytes().await.map_err(|source| unreachable(realm, source))?;
    serde_json::from_slice(&bytes)
        .map_err(|source| Failure::Unreadable { server: realm.to_owned(), source })
}

/// Sends a form to an endpoint of a realm.
async fn send_form(
    http: &Client,
    realm: &str,
    endpoint: &str,
    form: &[(&str, &str)],
) -> Result<Response, Failure> {
    let url = append_path(realm, &["protocol", "openid-connect", endpoint])?;
    // Form bodies are encoded like query strings.
    let mut encoded = url.clone();
    encoded.query_pairs_mut().clear().extend_pairs(form);
    let request = http
        .post(url)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(encoded.query().unwrap_or_default().to_owned());
    request.send().await.map_err(|source| unreachable(realm, source))
}

fn unreachable(realm: &str, source: reqwest::Error) -> Failure {
    // The message already contains the URL.
    Failure::Unreachable { server: realm.to_owned(), source: source.without_url() }
}

/// Error response of an identity provider.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenError {
    error: String,
    error_description: String,
}

async fn token_failure(realm: &str, response: Response) -> Failure {
    let status = response.status().as_u16();
    let wait = response.headers().get(RETRY_AFTER);
    let wait = wait.and_then(|wait| wait.to_str().ok()).map(str::to_owned);
    let body = response.bytes().await.unwrap_or_default();
    let error: TokenError = serde_json::from_slice(&body).unwrap_or_default();
    let why = [error.error_description, error.error].into_iter().find(|text| !text.is_empty());
    match status {
        400 | 401 | 403 => Failure::usage_with(
            why.unwrap_or_else(|| "the name or the password is wrong".to_owned()),
            "check the user name and the password; after repeated failures the server delays further attempts",
        ),
        404 | 405 => Failure::usage_with(
            format!("{realm} does not support logins with a password"),
            "the server has no section [auth.login]: use a token (`evenkeel login --token-file FILE`) or another identity \
             provider (--realm URL)",
        ),
        429 => match why {
            // Evenkeel's message contains the time.
            Some(why) if why.contains("try again") => Failure::usage(why),
            why => Failure::usage_with(
                why.unwrap_or_else(|| "too many login attempts".to_owned()),
                wait.map_or_else(
                    || "try again in a moment".to_owned(),
                    |wait| format!("try again in {wait} s"),
                ),
            ),
        },
        status => Failure::Refused {
            status,
            code: String::new(),
            message: why.unwrap_or_else(|| format!("{realm} responded with HTTP status {status}")),
            field: None,
            lacks_role: false,
            detail: None,
            server: realm.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_realm_of_a_server_lies_below_its_address() {
        let realm = |server| realm_of_server(server).expect("an address");
        let expected = "http://127.0.0.1:8080/realms/master";
        assert_eq!(realm("http://127.0.0.1:8080"), expected);
        assert_eq!(realm("http://127.0.0.1:8080/"), expected);
        let deeper = "https://example.org/evenkeel/realms/master";
        assert_eq!(realm("https://example.org/evenkeel"), deeper);
    }
}
