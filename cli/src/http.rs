//! HTTP clients for the addresses of servers and identity providers.

use std::path::Path;
use std::time::Duration;

use reqwest::{Certificate, Url};

use crate::Failure;

/// Builds an HTTP client for the realm of an identity provider. The CA of the server applies only
/// if the server itself hosts the realm.
pub fn build_realm_client(
    realm: &str,
    server: &Url,
    ca: Option<&Path>,
) -> Result<reqwest::Client, Failure> {
    let realm = parse_server_address(realm)?;
    let is_same_origin = realm.origin() == server.origin();
    build_client(&realm, ca.filter(|_| is_same_origin))
}

/// Builds an HTTP client for a URL.
pub fn build_client(base: &Url, ca: Option<&Path>) -> Result<reqwest::Client, Failure> {
    // Fails only if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(30))
        .redirect(reqwest::redirect::Policy::none());
    if is_loopback(base) {
        builder = builder.no_proxy();
    }
    if let Some(path) = ca {
        builder = builder.tls_certs_only(read_ca(path)?);
    }
    builder.build().map_err(Failure::Setup)
}

pub fn invalid_server_address(text: &str) -> Failure {
    Failure::usage_with(
        format!("`{text}` is not a server address"),
        "use an address such as http://127.0.0.1:8080 or https://updates.example.org",
    )
}

/// Parses the URL of a server.
pub fn parse_server_address(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text).map_err(|_| invalid_server_address(text))?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Ok(url)
    } else {
        Err(invalid_server_address(text))
    }
}

/// Whether a URL is on this machine.
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn read_ca(path: &Path) -> Result<Vec<Certificate>, Failure> {
    let pem =
        std::fs::read(path).map_err(|source| Failure::File { path: path.to_owned(), source })?;
    let invalid = |source| Failure::Content {
        path: path.to_owned(),
        expected: "a PEM file with certificates",
        source,
    };
    let certificates =
        Certificate::from_pem_bundle(&pem).map_err(|source| invalid(source.into()))?;
    if certificates.is_empty() {
        return Err(invalid("it contains no certificate".into()));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_REALM: &str = "https://updates.example.org/realms/master";

    fn server_url(text: &str) -> Url {
        parse_server_address(text).expect("an address")
    }

    #[test]
    fn the_ca_of_a_server_applies_only_to_its_own_realm() {
        let server = server_url("https://updates.example.org:443");
        let ca = Some(Path::new("/does/not/exist.pem"));
        for other_realm in [
            "https://keycloak.example.org/realms/master",
            "https://updates.example.org:8443/realms/master",
        ] {
            let http = build_realm_client(other_realm, &server, ca);
            assert!(http.is_ok(), "the CA file is not read: {http:?}");
        }
        let http = build_realm_client(OWN_REALM, &server, ca);
        assert!(matches!(http, Err(Failure::File { .. })), "{http:?}");
    }

    #[test]
    fn the_proxy_is_chosen_by_the_address_of_the_realm() {
        let may_have_proxy = |realm: &str, at: &str| {
            let http = build_realm_client(realm, &server_url(at), None).expect("a connection");
            format!("{http:?}").contains("proxies")
        };
        let local_realm = "http://127.0.0.1:8080/realms/master";
        assert!(may_have_proxy(OWN_REALM, "http://127.0.0.1:8080"));
        assert!(!may_have_proxy(local_realm, "https://updates.example.org"));
    }
}
