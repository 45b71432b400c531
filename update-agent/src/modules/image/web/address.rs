//! Addresses: which may be used, and how they are shown.

use url::{Position, Url};

use super::failure;
use crate::link::proxy::unbracketed;
use crate::model::Failure;

/// The address that others are relative to. It ends with a slash, so that its last part is not cut off.
pub fn base(address: &str, plain_http: bool) -> Result<Url, Failure> {
    let bad = |why: &str| {
        failure(format!(
            "image.web.release_service in agent.toml is {:?}: {why}; it must look like https://HOST/PATH",
            shown(address)
        ))
    };
    let mut url = Url::parse(address).map_err(|error| bad(&error.to_string()))?;
    is_permitted(&url, plain_http).map_err(|why| bad(&why))?;
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// Whether a server may be spoken to at all as an address says; else why not.
pub fn is_permitted(url: &Url, plain_http: bool) -> Result<(), String> {
    match url.scheme() {
        "https" => {}
        "http" if plain_http => {}
        "http" => {
            let why = "it is plain http, which needs image.web.plain_http in agent.toml";
            return Err(why.to_owned());
        }
        other => return Err(format!("the agent does not know {other}")),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it must not hold a user or a password".to_owned());
    }
    Ok(())
}

/// Whether an address names a host, whatever the port.
pub fn is_host(url: &Url, host: &str) -> bool {
    let found = url.host_str().map(unbracketed);
    found.is_some_and(|found| found.eq_ignore_ascii_case(unbracketed(host.trim())))
}

/// Whether an address leads to `HOST:PORT`.
pub fn is_at(url: &Url, authority: &str) -> bool {
    let Some((host, port)) = authority.rsplit_once(':') else {
        return false;
    };
    let found = url.port_or_known_default();
    is_host(url, host) && found.is_some_and(|found| port.parse::<u16>() == Ok(found))
}

/// Whom an address names, for a person. What is behind it may be a secret.
pub fn host(url: &Url) -> &str {
    &url[Position::BeforeHost..Position::AfterPort]
}

/// An address from outside, for a person: not long, and without what may be a secret.
pub fn shown(text: &str) -> String {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let text = &text[..end];
    let nameless = text.split_once("://").map(|(scheme, rest)| {
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let server = authority.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{server}{path}")
    });
    let whole = nameless.as_deref().unwrap_or(text);
    whole.chars().take(200).collect()
}
