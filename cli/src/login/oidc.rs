//! Logins at an identity provider: in a browser (RFC 8252 with PKCE, RFC 7636), or with a code on
//! another device (RFC 8628).
//!
//! The client has no secret, because everyone can read it in a program. Addresses, except those of
//! this machine, use TLS. So tokens come from the provider itself, and the server verifies the
//! signature of the one that it gets.

mod browser;
mod device;
mod form;
mod loopback;
mod metadata;
mod tokens;

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use reqwest::Client;

use crate::login::{IssuedToken, Login, ProviderLogin};
use crate::{Failure, sanitize_text};

pub use browser::BrowserOptions;
use metadata::ProviderMetadata;
use tokens::ProviderTokens;
pub use tokens::expires_before;

/// Scope of every login: it makes OAuth a login with `OpenID` Connect.
const OPENID_SCOPE: &str = "openid";

/// Registration of this program at an identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSettings {
    /// URL of the provider, exactly as in the claim `iss`.
    pub issuer: String,
    /// OAuth client ID.
    pub client_id: String,
    /// Scopes to request in addition to `openid`.
    pub scopes: Vec<String>,
    /// Value that the server requires in the claim `aud`; none if it is not known.
    pub audience: Option<String>,
}

impl ProviderSettings {
    /// All scopes, separated by spaces.
    fn scope(&self) -> String {
        let mut scope = OPENID_SCOPE.to_owned();
        for other in self.scopes.iter().filter(|other| *other != OPENID_SCOPE) {
            // Writing to a text cannot fail.
            let _ = write!(scope, " {other}");
        }
        scope
    }
}

/// Client of an identity provider.
#[derive(Debug)]
pub struct ProviderClient<'a> {
    http: &'a Client,
    settings: ProviderSettings,
    metadata: ProviderMetadata,
}

impl<'a> ProviderClient<'a> {
    /// Reads the discovery document of the provider.
    pub async fn discover(http: &'a Client, settings: ProviderSettings) -> Result<Self, Failure> {
        let metadata = ProviderMetadata::fetch(http, &settings.issuer).await?;
        Ok(Self { http, settings, metadata })
    }

    /// Whether the provider offers logins with a code on another device.
    pub const fn offers_device_login(&self) -> bool {
        self.metadata.device_authorization_endpoint.is_some()
    }

    /// Verifies the ID token, and chooses the token for the server.
    ///
    /// `nonce` is that of the request in the browser; device logins have none.
    fn accept_tokens(
        &self,
        tokens: ProviderTokens,
        nonce: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<IssuedToken, Failure> {
        let claims = tokens.verify_id_token(&self.settings, nonce, now)?;
        let token = tokens.choose_token(&self.settings)?;
        let login = tokens.refresh.map(|refresh_token| Login {
            username: sanitize_text(&tokens::user_name(&claims)),
            realm: self.settings.issuer.clone(),
            client: self.settings.client_id.clone(),
            refresh_token,
            provider: Some(ProviderLogin { audience: self.settings.audience.clone() }),
        });
        Ok(IssuedToken { token, login })
    }
}

/// Renews the token of a login.
pub async fn renew(
    http: &Client,
    login: &Login,
    provider: &ProviderLogin,
) -> Result<IssuedToken, Failure> {
    let metadata = ProviderMetadata::fetch(http, &login.realm).await?;
    let settings = ProviderSettings {
        issuer: login.realm.clone(),
        client_id: login.client.clone(),
        scopes: Vec::new(),
        audience: provider.audience.clone(),
    };
    let form = [
        ("client_id", login.client.as_str()),
        ("grant_type", "refresh_token"),
        ("refresh_token", login.refresh_token.reveal()),
    ];
    let response = form::send_form(http, &settings.issuer, &metadata.token_endpoint, &form).await?;
    let tokens: ProviderTokens = response.into_content(&settings.issuer)?;
    let token = tokens.choose_token(&settings)?;
    // Without a new refresh token, the old one stays valid.
    let refresh_token = tokens.refresh.unwrap_or_else(|| login.refresh_token.clone());
    Ok(IssuedToken { token, login: Some(Login { refresh_token, ..login.clone() }) })
}

/// Revokes the refresh token of a login (RFC 7009). Returns whether the provider offers this.
pub async fn revoke(http: &Client, login: &Login) -> Result<bool, Failure> {
    let metadata = ProviderMetadata::fetch(http, &login.realm).await?;
    let Some(endpoint) = &metadata.revocation_endpoint else {
        return Ok(false);
    };
    let form = [
        ("client_id", login.client.as_str()),
        ("token", login.refresh_token.reveal()),
        ("token_type_hint", "refresh_token"),
    ];
    let response = form::send_form(http, &login.realm, endpoint, &form).await?;
    response.check_success(&login.realm)?;
    Ok(true)
}
