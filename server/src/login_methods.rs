//! `GET /v1/login`: how people log in. Clients read it before they have a token, so it needs none.

use std::sync::Arc;

use axum::extract::{MatchedPath, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde::Serialize;

use crate::config::AuthConfig;

/// Path of the list.
const LOGIN_METHODS_PATH: &str = "/v1/login";

/// How people log in at this server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoginMethods {
    /// Whether there are logins with a password.
    password: bool,
    identity_providers: Vec<LoginProvider>,
}

/// An identity provider, and the registration of the command line at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct LoginProvider {
    name: String,
    issuer: String,
    client_id: String,
    scopes: Vec<String>,
    /// Required `aud` claim of the tokens; empty if there is none.
    audience: String,
}

impl LoginMethods {
    /// Lists the issuers with a client ID. If authentication is disabled, the REST API accepts tokens
    /// of no issuer.
    pub(crate) fn new(auth: &AuthConfig) -> Self {
        let issuers = auth.issuers.iter().filter(|_| !auth.disabled);
        let providers = issuers.filter_map(|issuer| {
            Some(LoginProvider {
                name: issuer.login_name().to_owned(),
                issuer: issuer.issuer.clone(),
                client_id: issuer.client_id.clone()?,
                scopes: issuer.scopes.clone(),
                audience: issuer.audience.clone().unwrap_or_default(),
            })
        });
        Self { password: auth.login.is_some(), identity_providers: providers.collect() }
    }

    /// Adds the list to the router of the API.
    pub(crate) fn into_router(self, api: Router) -> Router {
        Router::new()
            .route(LOGIN_METHODS_PATH, get(list_login_methods))
            .with_state(Arc::new(self))
            .fallback_service(api)
    }
}

async fn list_login_methods(
    route: MatchedPath,
    State(methods): State<Arc<LoginMethods>>,
) -> Response {
    // The request counter outside of this router needs the route.
    let headers =
        [(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (Extension(route), headers, Json(methods.as_ref())).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, StatusCode};
    use figment::Figment;
    use figment::providers::{Format, Toml};
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;

    fn router(auth: &str) -> Router {
        let auth: AuthConfig = Figment::from(Toml::string(auth)).extract().unwrap();
        let api = Router::new().fallback(|| async { "the API" });
        LoginMethods::new(&auth).into_router(api)
    }

    async fn get_body(router: Router, path: &str) -> Vec<u8> {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        to_bytes(response.into_body(), 10_000).await.unwrap().to_vec()
    }

    async fn list(auth: &str) -> Value {
        serde_json::from_slice(&get_body(router(auth), LOGIN_METHODS_PATH).await).unwrap()
    }

    const ISSUERS: &str = "
        [[issuers]]
        issuer = 'https://nodes.example'
        discovery = true
        [[issuers]]
        issuer = 'https://login.example'
        audience = 'evenkeel'
        discovery = true
        client_id = 'evenkeel-cli'
        scopes = ['profile', 'offline_access']
        name = 'staff'
        [[issuers]]
        issuer = 'https://other.example'
        discovery = true
        client_id = 'cli'
        [login]
    ";

    #[tokio::test]
    async fn issuers_with_a_client_id_are_listed_without_a_token() {
        let expected = json!({
            "password": true,
            "identityProviders": [
                {
                    "name": "staff",
                    "issuer": "https://login.example",
                    "clientId": "evenkeel-cli",
                    "scopes": ["profile", "offline_access"],
                    "audience": "evenkeel",
                },
                {
                    "name": "https://other.example",
                    "issuer": "https://other.example",
                    "clientId": "cli",
                    "scopes": [],
                    "audience": "",
                },
            ],
        });
        assert_eq!(list(ISSUERS).await, expected);
        assert_eq!(get_body(router(ISSUERS), "/v1/login/more").await, b"the API");
        assert_eq!(get_body(router(ISSUERS), "/v1/projects").await, b"the API");
    }

    #[tokio::test]
    async fn a_server_that_accepts_no_login_lists_none() {
        let none = json!({"password": false, "identityProviders": []});
        assert_eq!(list("").await, none);
        let disabled = ISSUERS.replace("[login]", "");
        assert_eq!(list(&format!("disabled = true\n{disabled}")).await, none);
    }
}
