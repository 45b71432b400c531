//! The door to identity providers: whose keys they are, by `OpenID` Connect Discovery.
//!
//! A provider is asked in the background, as the process lives; a token is verified with the keys that are known by then.
//! What it says is bounded in size and time, and comes over TLS, or from this machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::{Lifecycle, chain};
use reqwest::header::ACCEPT;
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use crate::issuer::{OutsideIssuer, Rhythm};
use crate::key_set;
use crate::keys::VerificationKey;
use crate::token::Authority;

/// The largest document that is read, in bytes.
const LARGEST: usize = 512 * 1024;

/// How long one question may take in all.
const PATIENCE: Duration = Duration::from_secs(10);

/// An address that must not be asked for keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address:?} must not be asked for keys: it must begin with https://, or with http:// and be on this machine"
)]
pub struct BadAddress {
    address: String,
}

/// Nobody outside can be asked from here.
#[derive(Debug, thiserror::Error)]
#[error(
    "identity providers cannot be asked from here (are the system's CA certificates installed?)"
)]
pub struct NoClient(#[source] reqwest::Error);

/// Why a provider gave no keys.
#[derive(Debug, thiserror::Error)]
enum NoKeys {
    #[error("it cannot be reached")]
    Request(#[from] reqwest::Error),
    #[error("{url} is answered with {status}")]
    Status { url: Url, status: StatusCode },
    #[error("what is at {url} is larger than {} bytes", LARGEST)]
    TooLarge { url: Url },
    #[error("what is at {url} is not usable: {why}")]
    Content { url: Url, why: String },
    #[error("it says that it is {said:?}")]
    Another { said: String },
    #[error(transparent)]
    Address(#[from] BadAddress),
}

/// The part of a provider's description that matters here.
#[derive(Debug, Deserialize)]
struct Description {
    issuer: String,
    jwks_uri: String,
}

impl Authority {
    /// Asks the providers among the issuers for their keys, now and from time to time, while the process lives. One that
    /// is away is asked again; what is known of it still counts.
    pub fn keep_fresh(self: &Arc<Self>, life: &Lifecycle) -> Result<(), NoClient> {
        for (place, issuer) in self.issuers().iter().enumerate() {
            let Some(rhythm) = issuer.rhythm else {
                continue;
            };
            let client = client(&issuer.issuer).map_err(NoClient)?;
            let (authority, stopping) = (Arc::clone(self), life.stopping());
            life.spawn("keys of an issuer", async move {
                tokio::select! {
                    () = stopping.cancelled() => {}
                    () = authority.follow(place, &client, rhythm) => {}
                }
                Ok(())
            });
        }
        Ok(())
    }

    /// Follows the keys of one issuer.
    async fn follow(&self, place: usize, client: &Client, rhythm: Rhythm) {
        let issuer = &self.issuers()[place];
        let mut failures = 0_u32;
        loop {
            let asked = Instant::now();
            match fetch(client, &issuer.issuer).await {
                Ok(keys) => {
                    self.learn(issuer, keys, failures);
                    failures = 0;
                }
                Err(error) => {
                    note_failure(issuer, &error, failures);
                    failures = failures.saturating_add(1);
                }
            }
            // One that fails is asked again soon enough; that somebody asks for it must not put that off.
            tokio::select! {
                () = sleep(pause(&rhythm, failures)) => {}
                () = issuer.keys.wanted(), if failures == 0 => {
                    sleep_until(asked + rhythm.at_most_every).await;
                }
            }
        }
    }

    /// Takes the keys that a provider says it has.
    fn learn(&self, issuer: &OutsideIssuer, keys: Vec<VerificationKey>, failures: u32) {
        let count = keys.len();
        if issuer.keys.now().is_none() || failures > 0 {
            tracing::info!(
                issuer = issuer.issuer,
                count,
                "the issuer's keys are known now"
            );
        }
        if issuer.keys.replace(keys) {
            tracing::info!(issuer = issuer.issuer, count, "the issuer's keys changed");
            // What a key that is gone has signed is looked at anew.
            self.forget_verified();
        }
    }
}

/// Says once that a provider is away, and not with each try.
fn note_failure(issuer: &OutsideIssuer, error: &NoKeys, failures: u32) {
    let (issuer, error) = (issuer.issuer.as_str(), chain(error));
    if failures == 0 {
        tracing::warn!(issuer, %error, "the issuer's keys cannot be fetched; it is asked again");
    } else {
        tracing::debug!(issuer, %error, failures, "the issuer's keys cannot be fetched yet");
    }
}

/// How long to wait after so many failures in a row.
fn pause(rhythm: &Rhythm, failures: u32) -> Duration {
    if failures == 0 {
        return rhythm.every;
    }
    let doubled = 2_u32.saturating_pow(failures - 1);
    rhythm
        .after_failure
        .saturating_mul(doubled)
        .min(rhythm.at_most_every)
}

/// One that asks an issuer. What is on this machine is not asked through a proxy.
fn client(issuer: &str) -> Result<Client, reqwest::Error> {
    // An error means that the program has chosen one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("evenkeeld/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(PATIENCE / 2)
        .timeout(PATIENCE)
        .redirect(reqwest::redirect::Policy::none());
    if Url::parse(issuer).is_ok_and(|url| is_here(&url)) {
        builder = builder.no_proxy();
    }
    builder.build()
}

/// Where an issuer describes itself.
pub(crate) fn discovery_of(issuer: &str) -> Result<Url, BadAddress> {
    allowed(issuer)?;
    let path = "/.well-known/openid-configuration";
    allowed(&format!("{}{path}", issuer.trim_end_matches('/')))
}

/// An address that may be asked: over TLS, or on this machine.
fn allowed(address: &str) -> Result<Url, BadAddress> {
    let bad = || BadAddress {
        address: address.to_owned(),
    };
    let url = Url::parse(address).map_err(|_| bad())?;
    let may = match url.scheme() {
        "https" => url.host_str().is_some(),
        "http" => is_here(&url),
        _ => false,
    };
    if may { Ok(url) } else { Err(bad()) }
}

fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The keys that an issuer says it has.
async fn fetch(client: &Client, issuer: &str) -> Result<Vec<VerificationKey>, NoKeys> {
    let description = discovery_of(issuer)?;
    let is_secret = description.scheme() == "https";
    let said: Description = parsed(&description, &get(client, &description).await?)?;
    if said.issuer != issuer {
        return Err(NoKeys::Another { said: said.issuer });
    }
    let keys = allowed(&said.jwks_uri)?;
    // What came over TLS leads to nothing that does not.
    if is_secret && keys.scheme() != "https" {
        let address = said.jwks_uri;
        return Err(BadAddress { address }.into());
    }
    let text = get(client, &keys).await?;
    key_set::read(&text).map_err(|why| NoKeys::Content { url: keys, why })
}

fn parsed<T: DeserializeOwned>(url: &Url, text: &str) -> Result<T, NoKeys> {
    serde_json::from_str(text).map_err(|error| NoKeys::Content {
        url: url.clone(),
        why: error.to_string(),
    })
}

async fn get(client: &Client, url: &Url) -> Result<String, NoKeys> {
    let request = client.get(url.clone()).header(ACCEPT, "application/json");
    let mut answer = request.send().await?;
    if answer.status() != StatusCode::OK {
        return Err(NoKeys::Status {
            url: url.clone(),
            status: answer.status(),
        });
    }
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await? {
        if body.len() + part.len() > LARGEST {
            return Err(NoKeys::TooLarge { url: url.clone() });
        }
        body.extend_from_slice(&part);
    }
    String::from_utf8(body).map_err(|error| NoKeys::Content {
        url: url.clone(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_is_away_is_asked_more_and_more_seldom() {
        let rhythm = Rhythm::default();
        let seconds = |failures| pause(&rhythm, failures).as_secs();
        assert_eq!(
            [1, 2, 3, 4, 7, 8, u32::MAX].map(seconds),
            [1, 2, 4, 8, 60, 60, 60]
        );
        assert_eq!(seconds(0), 3600);
    }

    #[test]
    fn an_issuer_describes_itself_below_its_own_address() {
        for issuer in [
            "https://login.example/realms/a",
            "https://login.example/realms/a/",
        ] {
            assert_eq!(
                discovery_of(issuer).unwrap().as_str(),
                "https://login.example/realms/a/.well-known/openid-configuration"
            );
        }
    }
}
