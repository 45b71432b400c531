//! The logins that a server accepts.

use std::path::Path;

use serde::Deserialize;

use crate::http::{build_client, parse_server_address};
use crate::login::oidc::ProviderSettings;
use crate::{Failure, sanitize_text};

/// Response to `GET /v1/login`. By default, that of a server that accepts only tokens.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoginMethods {
    /// Whether there are logins with a password.
    password: bool,
    identity_providers: Vec<ListedProvider>,
}

/// An identity provider, and the registration of the command line at it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListedProvider {
    name: String,
    issuer: String,
    client_id: String,
    scopes: Vec<String>,
    /// Value that the server requires in the claim `aud`; empty if it requires none.
    audience: String,
}

/// Fetches the logins of a server. Older servers have no list.
pub async fn fetch_login_methods(server: &str, ca: Option<&Path>) -> Result<LoginMethods, Failure> {
    let mut url = parse_server_address(server)?;
    let http = build_client(&url, ca)?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["v1", "login"]);
    }
    let unreachable = |source: reqwest::Error| Failure::Unreachable {
        server: server.to_owned(),
        // The message already contains the URL.
        source: source.without_url(),
    };
    let response = http.get(url).send().await.map_err(unreachable)?;
    let status = response.status().as_u16();
    let body = response.bytes().await.map_err(unreachable)?;
    match status {
        200 => serde_json::from_slice(&body)
            .map_err(|source| Failure::Unreadable { server: server.to_owned(), source }),
        401 | 404 => Ok(LoginMethods::default()),
        status => Err(Failure::Refused {
            status,
            code: String::new(),
            message: format!("the server responded with HTTP status {status}"),
            field: None,
            lacks_role: false,
            detail: None,
            server: server.to_owned(),
        }),
    }
}

impl LoginMethods {
    /// The identity provider, if that is the only login.
    pub fn only_provider(&self) -> Option<ProviderSettings> {
        match self.identity_providers.as_slice() {
            [provider] if !self.password => Some(provider.settings()),
            _ => None,
        }
    }

    /// Whether a password is the only login.
    pub const fn are_passwords_only(&self) -> bool {
        self.password && self.identity_providers.is_empty()
    }

    /// Whether there is no login.
    pub const fn are_none(&self) -> bool {
        !self.password && self.identity_providers.is_empty()
    }

    /// The identity provider with this URL or name, else the only one. A provider that the server does
    /// not list needs a URL and a client ID.
    pub fn select_provider(
        &self,
        issuer: Option<&str>,
        client_id: Option<&str>,
    ) -> Result<ProviderSettings, Failure> {
        let providers = &self.identity_providers;
        let Some(issuer) = issuer else {
            return match providers.as_slice() {
                [provider] => Ok(provider.settings()),
                [] => Err(Failure::usage_with(
                    "the server lists no identity provider",
                    "give its URL and the client ID: --issuer URL --client-id ID",
                )),
                _ => Err(self.several_logins_error()),
            };
        };
        let named = |provider: &&ListedProvider| provider.issuer == issuer;
        let found = providers.iter().find(named);
        let found = found.or_else(|| providers.iter().find(|provider| provider.name == issuer));
        match (found, client_id) {
            (Some(provider), _) => Ok(provider.settings()),
            (None, Some(client_id)) => Ok(ProviderSettings {
                issuer: issuer.to_owned(),
                client_id: client_id.to_owned(),
                scopes: Vec::new(),
                audience: None,
            }),
            (None, None) => Err(Failure::usage_with(
                format!("the server does not list the identity provider {issuer}"),
                format!("{}; for another provider, give --client-id as well", self.describe()),
            )),
        }
    }

    /// Error of a login that does not choose one of several.
    pub fn several_logins_error(&self) -> Failure {
        Failure::usage_with("the server accepts several logins: choose one", self.describe())
    }

    /// The options for each login.
    fn describe(&self) -> String {
        let providers = self.identity_providers.iter().map(|provider| {
            let (name, issuer) = (sanitize_text(&provider.name), sanitize_text(&provider.issuer));
            let name = if name.contains(' ') { format!("\"{name}\"") } else { name };
            if name == issuer {
                format!("--issuer {name}")
            } else {
                format!("--issuer {name} ({issuer})")
            }
        });
        let password = self.password.then(|| "--username NAME (with a password)".to_owned());
        let all: Vec<String> = providers.chain(password).collect();
        if all.is_empty() {
            "the server lists no logins".to_owned()
        } else {
            format!("logins: {}", all.join(", "))
        }
    }
}

impl ListedProvider {
    fn settings(&self) -> ProviderSettings {
        ProviderSettings {
            issuer: self.issuer.clone(),
            client_id: self.client_id.clone(),
            scopes: self.scopes.clone(),
            audience: Some(self.audience.clone()).filter(|audience| !audience.is_empty()),
        }
    }
}
