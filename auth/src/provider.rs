//! Fetches the keys of identity providers by `OpenID` Connect Discovery.
//!
//! Keys are fetched in the background; a token is verified with the keys that are known at that
//! time. Responses are limited in size and time. They come over TLS or from this machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::{Lifecycle, chain};
use reqwest::header::ACCEPT;
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use crate::issuer::{ExternalIssuer, KeyRefreshIntervals};
use crate::key_set;
use crate::keys::VerificationKey;
use crate::token::Authority;

/// Largest document that is read, in bytes.
const MAX_DOCUMENT_BYTES: usize = 512 * 1024;

/// Timeout of one request, including the body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// An address from which keys must not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "keys must not be fetched from {address:?}: it must begin with https://, or with http:// and be on this machine"
)]
pub struct BadAddress {
    address: String,
}

/// The HTTP client for identity providers could not be created.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot create the HTTP client for identity providers (are the system's CA certificates installed?)"
)]
pub struct HttpClientError(#[source] reqwest::Error);

/// Why the keys of a provider could not be fetched.
#[derive(Debug, thiserror::Error)]
enum KeyFetchError {
    #[error("it cannot be reached")]
    Request(#[from] reqwest::Error),
    #[error("{url} responded with {status}")]
    Status { url: Url, status: StatusCode },
    #[error("the document at {url} is larger than {} bytes", MAX_DOCUMENT_BYTES)]
    TooLarge { url: Url },
    #[error("the document at {url} is not usable: {why}")]
    Content { url: Url, why: String },
    #[error("its discovery document names another issuer: {issuer:?}")]
    WrongIssuer { issuer: String },
    #[error(transparent)]
    Address(#[from] BadAddress),
}

/// The fields of the discovery document that are used here.
#[derive(Debug, Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    jwks_uri: String,
}

impl Authority {
    /// Fetches the keys of the discovered issuers, now and periodically, until the process stops.
    /// If a provider cannot be reached, the fetch is retried and its last known keys stay valid.
    pub fn spawn_key_refresh(self: &Arc<Self>, life: &Lifecycle) -> Result<(), HttpClientError> {
        for (index, issuer) in self.issuers().iter().enumerate() {
            let Some(intervals) = issuer.key_refresh else {
                continue;
            };
            let client = build_client(&issuer.issuer).map_err(HttpClientError)?;
            let (authority, stopping) = (Arc::clone(self), life.stopping());
            life.spawn("keys of an issuer", async move {
                tokio::select! {
                    () = stopping.cancelled() => {}
                    () = authority.refresh_keys(index, &client, intervals) => {}
                }
                Ok(())
            });
        }
        Ok(())
    }

    /// Fetches the keys of one issuer in a loop.
    async fn refresh_keys(&self, index: usize, client: &Client, intervals: KeyRefreshIntervals) {
        let issuer = &self.issuers()[index];
        let mut failures = 0_u32;
        loop {
            let requested_at = Instant::now();
            match fetch_keys(client, &issuer.issuer).await {
                Ok(keys) => {
                    self.store_keys(issuer, keys, failures);
                    failures = 0;
                }
                Err(error) => {
                    log_failure(issuer, &error, failures);
                    failures = failures.saturating_add(1);
                }
            }
            // While fetches fail, requests for keys are ignored: they must not postpone the retry.
            tokio::select! {
                () = sleep(refresh_delay(&intervals, failures)) => {}
                () = issuer.keys.wait_for_refresh_request(), if failures == 0 => {
                    sleep_until(requested_at + intervals.min_interval).await;
                }
            }
        }
    }

    /// Stores the keys that were fetched from a provider.
    fn store_keys(&self, issuer: &ExternalIssuer, keys: Vec<VerificationKey>, failures: u32) {
        let count = keys.len();
        if issuer.keys.current().is_none() || failures > 0 {
            tracing::info!(issuer = &*issuer.issuer, count, "the issuer's keys were fetched");
        }
        if issuer.keys.replace(keys) {
            tracing::info!(issuer = &*issuer.issuer, count, "the issuer's keys changed");
            // Tokens that were signed with a removed key must be verified again.
            self.clear_verified_tokens();
        }
    }
}

/// Logs the first failure as a warning and the following ones as debug messages.
fn log_failure(issuer: &ExternalIssuer, error: &KeyFetchError, failures: u32) {
    let (issuer, error) = (&*issuer.issuer, chain(error));
    if failures == 0 {
        tracing::warn!(issuer, %error, "the issuer's keys cannot be fetched; retrying");
    } else {
        tracing::debug!(issuer, %error, failures, "the issuer's keys still cannot be fetched");
    }
}

/// Delay before the next fetch, after this number of consecutive failures.
fn refresh_delay(intervals: &KeyRefreshIntervals, failures: u32) -> Duration {
    if failures == 0 {
        return intervals.interval;
    }
    let doubled = 2_u32.saturating_pow(failures - 1);
    intervals.retry_interval.saturating_mul(doubled).min(intervals.min_interval)
}

/// HTTP client for an issuer. It uses no proxy for an issuer on this machine.
fn build_client(issuer: &str) -> Result<Client, reqwest::Error> {
    // Fails if the program has installed a crypto provider already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("evenkeeld/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(REQUEST_TIMEOUT / 2)
        .timeout(REQUEST_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none());
    if Url::parse(issuer).is_ok_and(|url| is_loopback(&url)) {
        builder = builder.no_proxy();
    }
    builder.build()
}

/// Address of an issuer's discovery document.
pub(crate) fn discovery_url(issuer: &str) -> Result<Url, BadAddress> {
    check_address(issuer)?;
    let path = "/.well-known/openid-configuration";
    check_address(&format!("{}{path}", issuer.trim_end_matches('/')))
}

/// Parses an address and checks that it uses TLS or is on this machine.
fn check_address(address: &str) -> Result<Url, BadAddress> {
    let bad = || BadAddress { address: address.to_owned() };
    let url = Url::parse(address).map_err(|_| bad())?;
    let may = match url.scheme() {
        "https" => url.host_str().is_some(),
        "http" => is_loopback(&url),
        _ => false,
    };
    if may { Ok(url) } else { Err(bad()) }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

async fn fetch_keys(client: &Client, issuer: &str) -> Result<Vec<VerificationKey>, KeyFetchError> {
    let description = discovery_url(issuer)?;
    let is_secret = description.scheme() == "https";
    let document: DiscoveryDocument =
        parse_json(&description, &get_text(client, &description).await?)?;
    if document.issuer != issuer {
        return Err(KeyFetchError::WrongIssuer { issuer: document.issuer });
    }
    let keys = check_address(&document.jwks_uri)?;
    // A document that came over TLS must not lead to an address without TLS.
    if is_secret && keys.scheme() != "https" {
        let address = document.jwks_uri;
        return Err(BadAddress { address }.into());
    }
    let text = get_text(client, &keys).await?;
    key_set::parse(&text).map_err(|why| KeyFetchError::Content { url: keys, why })
}

fn parse_json<T: DeserializeOwned>(url: &Url, text: &str) -> Result<T, KeyFetchError> {
    serde_json::from_str(text)
        .map_err(|error| KeyFetchError::Content { url: url.clone(), why: error.to_string() })
}

async fn get_text(client: &Client, url: &Url) -> Result<String, KeyFetchError> {
    let request = client.get(url.clone()).header(ACCEPT, "application/json");
    let mut answer = request.send().await?;
    if answer.status() != StatusCode::OK {
        return Err(KeyFetchError::Status { url: url.clone(), status: answer.status() });
    }
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await? {
        if body.len() + part.len() > MAX_DOCUMENT_BYTES {
            return Err(KeyFetchError::TooLarge { url: url.clone() });
        }
        body.extend_from_slice(&part);
    }
    String::from_utf8(body)
        .map_err(|error| KeyFetchError::Content { url: url.clone(), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_delay_up_to_the_limit() {
        let intervals = KeyRefreshIntervals::default();
        let seconds = |failures| refresh_delay(&intervals, failures).as_secs();
        assert_eq!([1, 2, 3, 4, 7, 8, u32::MAX].map(seconds), [1, 2, 4, 8, 60, 60, 60]);
        assert_eq!(seconds(0), 3600);
    }

    #[test]
    fn the_discovery_document_is_below_the_issuers_address() {
        for issuer in ["https://login.example/realms/a", "https://login.example/realms/a/"] {
            assert_eq!(
                discovery_url(issuer).unwrap().as_str(),
                "https://login.example/realms/a/.well-known/openid-configuration"
            );
        }
    }
}
