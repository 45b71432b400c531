//! Sends one message to a webhook. The only module of this crate with an HTTP client.
//!
//! The address is checked where it is used: for a host name, the connection gets only the addresses
//! that the check has let through, so a name that resolves to another address the next time does not
//! matter. Redirects are not followed, proxies are not used, each attempt opens its own connection,
//! and the body of the answer is not read.

use std::net::{IpAddr, SocketAddr};

use chrono::TimeDelta;
use evenkeel_kit::chain;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};

use super::addresses::{AddressClass, classify};
use super::message::SignedMessage;
use crate::settings::NotificationSettings;

/// Why a message was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliveryError {
    #[error("the URL of the target is not valid")]
    Url,
    #[error(
        "the URL of the target begins with http://; use https://, or set maintenance_manager.notifications.allow_http"
    )]
    NotEncrypted,
    #[error(transparent)]
    Address(#[from] AddressRefused),
    #[error("the target answered with {0}; redirects are not followed")]
    Redirect(StatusCode),
    #[error("the target answered with {0}")]
    Status(StatusCode),
    /// The answer has the header `Retry-After`.
    #[error("the target answered with {status}; it permits the next attempt after {} s", .delay.num_seconds())]
    RetryAfter { status: StatusCode, delay: TimeDelta },
    #[error("the target did not answer in time")]
    Timeout,
    #[error("the target cannot be reached: {0}")]
    Unreachable(String),
}

impl DeliveryError {
    /// The shortest delay before the next attempt that the target permits.
    pub(crate) fn min_retry_delay(&self) -> TimeDelta {
        match self {
            Self::RetryAfter { delay, .. } => *delay,
            _ => TimeDelta::zero(),
        }
    }

    /// The error for an answer that accepts nothing. `Retry-After` counts in seconds only, as services
    /// with rate limits send it.
    fn from_answer(answer: &Response) -> Self {
        let status = answer.status();
        let text = answer.headers().get(RETRY_AFTER).and_then(|text| text.to_str().ok());
        match text.and_then(|text| text.trim().parse::<u32>().ok()) {
            Some(seconds) => {
                let delay = TimeDelta::seconds(seconds.into()).min(MAX_RETRY_AFTER);
                Self::RetryAfter { status, delay }
            }
            None => Self::Status(status),
        }
    }
}

/// Longest delay that a target gets by `Retry-After`. A target must not hold back its messages until
/// they become dead letters.
const MAX_RETRY_AFTER: TimeDelta = TimeDelta::hours(1);

/// The server does not connect to an address. Users see these texts, so they do not contain the address:
/// a user could resolve the names of the network of the server with them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressRefused {
    #[error(
        "{host} has a private address; set maintenance_manager.notifications.allow_private_targets to allow it"
    )]
    Private { host: String },
    #[error("{host} has a link-local or reserved address")]
    Forbidden { host: String },
    #[error("{host} has no address")]
    Unknown { host: String },
}

/// Which addresses are allowed.
#[derive(Clone, Copy, Debug)]
struct AddressRules {
    allow_private: bool,
}

impl AddressRules {
    fn check(self, host: &str, address: IpAddr) -> Result<(), AddressRefused> {
        let host = host.to_owned();
        match classify(address) {
            AddressClass::Public => Ok(()),
            AddressClass::Private if self.allow_private => Ok(()),
            AddressClass::Private => Err(AddressRefused::Private { host }),
            AddressClass::Forbidden => Err(AddressRefused::Forbidden { host }),
        }
    }

    /// The addresses that are allowed; an error if there is none.
    fn filter(
        self,
        host: &str,
        addresses: impl Iterator<Item = SocketAddr>,
    ) -> Result<Vec<SocketAddr>, AddressRefused> {
        let mut refused = AddressRefused::Unknown { host: host.to_owned() };
        let mut allowed = Vec::new();
        for address in addresses {
            match self.check(host, address.ip()) {
                Ok(()) => allowed.push(address),
                Err(error) => refused = error,
            }
        }
        if allowed.is_empty() { Err(refused) } else { Ok(allowed) }
    }
}

impl Resolve for AddressRules {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = *self;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Addrs = Box::new(rules.filter(name.as_str(), found)?.into_iter());
            Ok(allowed)
        })
    }
}

/// Sends messages. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct WebhookSender {
    client: Client,
    rules: AddressRules,
    allow_http: bool,
}

impl WebhookSender {
    /// A sender with these settings.
    ///
    /// # Errors
    /// The certificates of the system cannot be read.
    pub(crate) fn new(settings: &NotificationSettings) -> Result<Self, reqwest::Error> {
        // Fails if the program has installed a crypto provider already, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let rules = AddressRules { allow_private: settings.allow_private_targets };
        let timeout = settings.attempt_timeout;
        let client = Client::builder()
            .user_agent(concat!("evenkeeld/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(timeout)
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(0)
            .dns_resolver(rules)
            .build()?;
        Ok(Self { client, rules, allow_http: settings.allow_http })
    }

    /// Sends a message. Statuses from 200 to 299 accept it.
    pub(crate) async fn send(
        &self,
        url: &str,
        message: &SignedMessage,
    ) -> Result<(), DeliveryError> {
        let url = self.check_url(url)?;
        let request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", message.timestamp.to_string())
            .header("webhook-signature", &message.signature)
            .body(message.body.clone());
        match request.send().await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) if answer.status().is_redirection() => {
                Err(DeliveryError::Redirect(answer.status()))
            }
            Ok(answer) => Err(DeliveryError::from_answer(&answer)),
            Err(error) if error.is_timeout() => Err(DeliveryError::Timeout),
            Err(error) => {
                let error = error.without_url();
                Err(DeliveryError::Unreachable(chain(&error).to_string()))
            }
        }
    }

    /// Parses a URL, and checks an address in it, which is connected to without a resolver. The parser
    /// turns decimal, octal and hexadecimal forms of an address into the address.
    fn check_url(&self, url: &str) -> Result<Url, DeliveryError> {
        let url = Url::parse(url).map_err(|_| DeliveryError::Url)?;
        match url.scheme() {
            "https" => {}
            "http" if self.allow_http => {}
            "http" => return Err(DeliveryError::NotEncrypted),
            _ => return Err(DeliveryError::Url),
        }
        let host = url.host_str().ok_or(DeliveryError::Url)?;
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = literal.parse::<IpAddr>() {
            self.rules.check(literal, address)?;
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(allow: bool) -> WebhookSender {
        let settings = NotificationSettings {
            allow_private_targets: allow,
            allow_http: allow,
            ..NotificationSettings::default()
        };
        WebhookSender::new(&settings).expect("certificates of the system")
    }

    #[test]
    fn every_form_of_a_refused_address_is_refused() {
        for url in [
            "https://127.0.0.1/",
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://0/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]/",
            "https://169.254.169.254/latest/meta-data/",
            "https://2852039166/",
            "https://①②⑦.0.0.1/",
        ] {
            let error = sender(false).check_url(url).expect_err(url);
            assert!(matches!(error, DeliveryError::Address(_)), "{url}: {error}");
        }
    }

    #[test]
    fn settings_allow_private_addresses_and_http_but_no_metadata_service() {
        let strict = sender(false).check_url("http://1.1.1.1/").expect_err("not encrypted");
        assert!(matches!(strict, DeliveryError::NotEncrypted), "{strict}");
        sender(true).check_url("http://127.0.0.1:8080/").expect("allowed");
        for url in ["http://169.254.169.254/", "http://[fe80::1]/", "http://0.0.0.0/"] {
            assert!(sender(true).check_url(url).is_err(), "{url}");
        }
        for url in ["ftp://1.1.1.1/", "https://", "nonsense"] {
            let error = sender(true).check_url(url).expect_err(url);
            assert!(matches!(error, DeliveryError::Url), "{url}: {error}");
        }
    }

    #[test]
    fn only_allowed_addresses_of_a_name_are_connected_to() {
        let rules = AddressRules { allow_private: false };
        let parse = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().expect(text)).collect()
        };
        let mixed = parse(&["127.0.0.1:0", "1.1.1.1:0", "[fe80::1]:0"]);
        let allowed = rules.filter("hooks.example", mixed.into_iter()).expect("one is public");
        assert_eq!(allowed, parse(&["1.1.1.1:0"]));
        let private = parse(&["10.0.0.1:0"]);
        let refused = rules.filter("hooks.example", private.into_iter()).expect_err("private");
        let refused = refused.to_string();
        assert!(refused.starts_with("hooks.example has a private address"), "{refused}");
        assert!(!refused.contains("10.0.0.1"), "{refused}");
    }
}
