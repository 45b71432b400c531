//! Addresses of images: which ones may be used, and how they are displayed.

use url::{Position, Url};

use super::download_failure;
use crate::link::proxy::unbracketed;
use crate::model::Failure;

/// Parses the base of relative addresses. The result ends with a slash, so that `join` retains its
/// last part.
pub fn parse_base_address(address: &str, plain_http: bool) -> Result<Url, Failure> {
    let bad = |why: &str| {
        download_failure(format!(
            "image.web.release_service in agent.toml is {:?}: {why}; it must look like https://HOST/PATH",
            redact_address(address)
        ))
    };
    let mut url = Url::parse(address).map_err(|error| bad(&error.to_string()))?;
    check_permitted(&url, plain_http).map_err(|why| bad(&why))?;
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// Fails with the reason if an address must not be used at all.
pub fn check_permitted(url: &Url, plain_http: bool) -> Result<(), String> {
    match url.scheme() {
        "https" => {}
        "http" if plain_http => {}
        "http" => {
            let why = "it is plain http, which needs image.web.plain_http in agent.toml";
            return Err(why.to_owned());
        }
        other => return Err(format!("the agent does not support {other}")),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it must not contain a user or a password".to_owned());
    }
    Ok(())
}

/// Whether an address has this host, on any port.
pub fn has_host(url: &Url, host: &str) -> bool {
    let actual = url.host_str().map(unbracketed);
    actual.is_some_and(|actual| actual.eq_ignore_ascii_case(unbracketed(host.trim())))
}

/// Whether an address has this `HOST:PORT`.
pub fn has_authority(url: &Url, authority: &str) -> bool {
    let Some((host, port)) = authority.rsplit_once(':') else {
        return false;
    };
    let actual = url.port_or_known_default();
    has_host(url, host) && actual.is_some_and(|actual| port.parse::<u16>() == Ok(actual))
}

/// Host and port for messages. The rest of the address may contain a secret.
pub fn host_and_port(url: &Url) -> &str {
    &url[Position::BeforeHost..Position::AfterPort]
}

/// Shortens an address for messages and removes parts that may be secret.
pub fn redact_address(text: &str) -> String {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let text = &text[..end];
    let without_user = text.split_once("://").map(|(scheme, rest)| {
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let server = authority.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{server}{path}")
    });
    let redacted = without_user.as_deref().unwrap_or(text);
    redacted.chars().take(200).collect()
}
