//! Discovery document of an identity provider (`OpenID` Connect Discovery 1.0).

use reqwest::header::ACCEPT;
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;

use super::form::{bad_response, read_body, unexpected_status, unreachable};
use crate::Failure;
use crate::http::is_loopback;

/// Addresses and abilities of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderMetadata {
    /// Page for logins in a browser.
    pub authorization_endpoint: Option<Url>,
    pub token_endpoint: Url,
    /// Where logins with a code begin (RFC 8628).
    pub device_authorization_endpoint: Option<Url>,
    /// Where tokens are revoked (RFC 7009).
    pub revocation_endpoint: Option<Url>,
    /// Whether each response in the browser contains `iss` (RFC 9207).
    pub sends_iss: bool,
    /// Whether the provider lists the methods of PKCE without S256.
    pub lacks_s256: bool,
}

/// The fields of the discovery document that are used here.
#[derive(Debug, Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    token_endpoint: String,
    #[serde(default)]
    authorization_endpoint: Option<String>,
    #[serde(default)]
    device_authorization_endpoint: Option<String>,
    #[serde(default)]
    revocation_endpoint: Option<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
    #[serde(default)]
    code_challenge_methods_supported: Option<Vec<String>>,
}

impl ProviderMetadata {
    /// Fetches the discovery document.
    pub async fn fetch(http: &Client, issuer: &str) -> Result<Self, Failure> {
        let url = discovery_url(issuer)?;
        let request = http.get(url).header(ACCEPT, "application/json");
        let response = request.send().await.map_err(|source| unreachable(issuer, source))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                return Err(Failure::usage_with(
                    format!("{issuer} is not an identity provider: it has no discovery document"),
                    "use the issuer of the provider, such as https://keycloak.example.org/realms/master",
                ));
            }
            status => return Err(unexpected_status(issuer, status)),
        }
        let body = read_body(response, issuer).await?;
        let document = serde_json::from_slice(&body);
        document
            .map_err(|error| error.to_string())
            .and_then(|document| Self::from_document(document, issuer))
            .map_err(|why| bad_response(issuer, &why))
    }

    fn from_document(document: DiscoveryDocument, issuer: &str) -> Result<Self, String> {
        if document.issuer != issuer {
            let other = &document.issuer;
            return Err(format!("its discovery document names another issuer: {other:?}"));
        }
        let optional =
            |address: Option<String>| address.map(|address| parse_endpoint(&address)).transpose();
        let methods = document.code_challenge_methods_supported;
        Ok(Self {
            token_endpoint: parse_endpoint(&document.token_endpoint)?,
            authorization_endpoint: optional(document.authorization_endpoint)?,
            device_authorization_endpoint: optional(document.device_authorization_endpoint)?,
            revocation_endpoint: optional(document.revocation_endpoint)?,
            sends_iss: document.authorization_response_iss_parameter_supported,
            lacks_s256: methods.is_some_and(|methods| !methods.iter().any(|name| name == "S256")),
        })
    }
}

/// Address of the discovery document of an issuer.
fn discovery_url(issuer: &str) -> Result<Url, Failure> {
    let text = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    let url = parse_endpoint(&text).ok().filter(|url| {
        // With these, the path above would be a part of them.
        url.query().is_none() && url.fragment().is_none()
    });
    url.ok_or_else(|| {
        Failure::usage_with(
            format!("`{issuer}` is not the address of an identity provider"),
            "it begins with https://, or with http:// and is on this machine",
        )
    })
}

/// Parses the address of an endpoint. Passwords and tokens are sent there.
fn parse_endpoint(address: &str) -> Result<Url, String> {
    let url = Url::parse(address).ok().filter(|url| match url.scheme() {
        "https" => url.has_host(),
        "http" => is_loopback(url),
        _ => false,
    });
    url.ok_or_else(|| {
        format!("{address:?} must begin with https://, or with http:// and be on this machine")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ISSUER: &str = "https://login.example/realms/master";

    fn read(document: Value) -> Result<ProviderMetadata, String> {
        ProviderMetadata::from_document(serde_json::from_value(document).unwrap(), ISSUER)
    }

    #[test]
    fn a_document_names_its_issuer_and_addresses_with_tls() {
        let document = json!({
            "issuer": ISSUER,
            "token_endpoint": "https://login.example/token",
            "authorization_endpoint": "https://login.example/auth?realm=1",
            "code_challenge_methods_supported": ["plain", "S256"],
        });
        let metadata = read(document.clone()).unwrap();
        assert_eq!(metadata.token_endpoint.as_str(), "https://login.example/token");
        assert_eq!(metadata.device_authorization_endpoint, None);
        assert!(!metadata.sends_iss && !metadata.lacks_s256);
        for (field, value, part) in [
            ("issuer", "https://login.example/realms/other", "names another issuer"),
            ("issuer", "https://login.example/realms/master/", "names another issuer"),
            ("token_endpoint", "http://login.example/token", "must begin with https://"),
            ("authorization_endpoint", "javascript:alert(1)", "must begin with https://"),
            ("device_authorization_endpoint", "http://127.0.0.1.example/", "on this machine"),
            ("revocation_endpoint", "file:///etc/passwd", "on this machine"),
        ] {
            let mut bad = document.clone();
            bad[field] = value.into();
            let error = read(bad).unwrap_err();
            assert!(error.contains(part), "{field}: {error}");
        }
        let mut plain = document;
        plain["code_challenge_methods_supported"] = json!(["plain"]);
        plain["token_endpoint"] = "http://127.0.0.1:3000/token".into();
        assert!(read(plain).unwrap().lacks_s256);
    }

    #[test]
    fn the_discovery_document_is_below_the_issuer() {
        for issuer in [ISSUER, "https://login.example/realms/master/"] {
            let url = discovery_url(issuer).unwrap();
            let expected = format!("{ISSUER}/.well-known/openid-configuration");
            assert_eq!(url.as_str(), expected);
        }
        for bad in ["http://login.example", "login.example", "https://a?b", "https://a#b", ""] {
            let failure = discovery_url(bad).unwrap_err();
            assert!(failure.to_string().contains("is not the address"), "{bad}: {failure}");
        }
    }
}
