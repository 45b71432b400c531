//! Sends requests: how long is waited, how often is tried, where answers may lead, how much of them is read.

use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, DATE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Certificate, Client, ClientBuilder, Method, Response, StatusCode};
use tokio::time::{sleep, timeout};
use url::{Host, Url};

use super::body::{Coming, Pieces as _};
use crate::address::{Access, Proxy};
use crate::error::{Got, RegistryError, malformed};
use crate::limits::Limits;

/// The longest wish to be left alone that is believed.
const LONGEST_WISH: u64 = 24 * 60 * 60;

/// A request, as often as it is sent.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// What is to be done.
    pub method: Method,
    /// With what.
    pub url: Url,
    /// What else is said, but for the credentials.
    pub headers: HeaderMap,
    /// What is brought along.
    pub body: Option<Bytes>,
}

impl Ask {
    /// A request without anything else.
    pub fn new(method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            headers: HeaderMap::new(),
            body: None,
        }
    }
}

/// One that sends requests.
#[derive(Debug)]
pub(super) struct Sender {
    outside: Client,
    /// For what is on this machine.
    here: Client,
    plain_http: bool,
    /// The only hosts that are asked, with or without a port; none: all.
    hosts: Option<Vec<String>>,
    pub limits: Limits,
}

impl Sender {
    /// One that asks as `access` says. Nothing is asked yet.
    pub fn new(access: &Access) -> Got<Self> {
        // An error means that the program has chosen one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let unusable = |error: reqwest::Error| malformed("connection", reasons(&error));
        let outside = match &access.proxy {
            Proxy::Environment => builder(access)?,
            Proxy::None => builder(access)?.no_proxy(),
            Proxy::Through(url) => {
                let proxy = reqwest::Proxy::all(url.as_str()).map_err(unusable)?;
                builder(access)?.proxy(proxy)
            }
        };
        Ok(Self {
            outside: outside.build().map_err(unusable)?,
            here: builder(access)?.no_proxy().build().map_err(unusable)?,
            plain_http: access.plain_http,
            hosts: None,
            limits: access.limits.clone(),
        })
    }

    /// Asks only these hosts from now on.
    pub fn only(mut self, hosts: Vec<String>) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// The one that reaches an address.
    pub fn client(&self, url: &Url) -> &Client {
        if is_here(url) {
            &self.here
        } else {
            &self.outside
        }
    }

    /// How often something is tried that begins now.
    pub fn tries(&self) -> Tries {
        let times = usize::try_from(self.limits.tries).unwrap_or(usize::MAX);
        let pauses = ExponentialBuilder::default()
            .with_min_delay(self.limits.first_pause)
            .with_max_delay(self.limits.longest_pause)
            .with_max_times(times.saturating_sub(1))
            .with_jitter()
            .build();
        Tries {
            pauses,
            longest_wish: self.limits.longest_wish,
        }
    }

    /// Whether an address may be asked.
    pub fn check(&self, url: &Url) -> Got<()> {
        let is_scheme_fine = match url.scheme() {
            "https" => true,
            "http" => self.plain_http,
            _ => false,
        };
        let is_host_fine = self.hosts.as_ref().is_none_or(|hosts| {
            let (host, with_port) = names_of(url);
            let mut hosts = hosts.iter();
            hosts.any(|may| may.eq_ignore_ascii_case(&host) || may.eq_ignore_ascii_case(&with_port))
        });
        if is_scheme_fine && is_host_fine {
            Ok(())
        } else {
            Err(elsewhere(url))
        }
    }

    /// Sends a request once, and follows where reading leads to. Credentials go to nobody else.
    pub async fn once(&self, ask: &Ask, credentials: Option<&HeaderValue>) -> Got<Response> {
        let mut url = ask.url.clone();
        let mut credentials = credentials;
        for _ in 0..=self.limits.redirects {
            self.check(&url)?;
            let mut request = self
                .client(&url)
                .request(ask.method.clone(), url.clone())
                .headers(ask.headers.clone());
            if let Some(credentials) = credentials {
                request = request.header(AUTHORIZATION, credentials.clone());
            }
            if let Some(body) = &ask.body {
                request = request.body(body.clone());
            }
            let patience = self.limits.connect.saturating_add(self.limits.stalled);
            let answer = timeout(patience, request.send())
                .await
                .map_err(|_| RegistryError::Stalled)?
                .map_err(broken)?;
            let Some(next) = leads_to(ask, &url, &answer)? else {
                return Ok(answer);
            };
            if next.origin() != url.origin() {
                credentials = None;
            }
            url = next;
        }
        Err(malformed("answer", "it leads on and on"))
    }

    /// Waits for the answer to a request that brings much along. `sent` tells how much of it went out. One that only
    /// drips is given up like one that does not go out at all.
    pub async fn watched(
        &self,
        sending: impl Future<Output = Result<Response, reqwest::Error>> + Send,
        sent: &AtomicU64,
        size: u64,
    ) -> Got<Response> {
        let mut sending = pin!(sending);
        let mut before = 0;
        loop {
            // A registry looks through all of it before it answers.
            let is_going_out = before < size;
            let patience = if is_going_out { 1 } else { 10 };
            let patience = self.limits.stalled.saturating_mul(patience);
            if let Ok(answer) = timeout(patience, sending.as_mut()).await {
                return answer.map_err(broken);
            }
            let now = sent.load(Ordering::Relaxed);
            let least = u128::from(self.limits.slowest).saturating_mul(patience.as_millis());
            let is_fast_enough = u128::from(now.saturating_sub(before)) * 1_000 >= least;
            // The last of it may be little.
            if !is_going_out || (now < size && !is_fast_enough) {
                return Err(RegistryError::Stalled);
            }
            before = now;
        }
    }

    /// The whole of an answer that is not larger than allowed.
    pub async fn read(&self, answer: Response, limit: u64) -> Got<Bytes> {
        let too_large = || RegistryError::TooLarge { limit };
        if answer.content_length().is_some_and(|size| size > limit) {
            return Err(too_large());
        }
        let mut whole = Vec::new();
        let mut coming = Coming::new(answer, &self.limits, 0);
        while let Some(piece) = coming.next().await? {
            if (whole.len() as u64).saturating_add(piece.len() as u64) > limit {
                return Err(too_large());
            }
            whole.extend_from_slice(&piece);
        }
        Ok(Bytes::from(whole))
    }
}

/// How often something is tried.
#[derive(Debug)]
pub(crate) struct Tries {
    pauses: ExponentialBackoff,
    longest_wish: Duration,
}

impl Tries {
    /// Waits until it may be tried again, or gives the error back if it should not be.
    pub async fn pause(&mut self, error: RegistryError) -> Got<()> {
        if !error.may_pass() {
            return Err(error);
        }
        let wish = match &error {
            RegistryError::Busy { again } => *again,
            _ => None,
        };
        let Some(pause) = self.pauses.next() else {
            return Err(error);
        };
        let pause = wish.unwrap_or(pause);
        if wish.is_some_and(|wish| wish > self.longest_wish) {
            return Err(error);
        }
        tracing::debug!(%error, ?pause, "it is tried again");
        sleep(pause).await;
        Ok(())
    }
}

fn builder(access: &Access) -> Got<ClientBuilder> {
    let builder = Client::builder()
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(access.limits.connect)
        .redirect(reqwest::redirect::Policy::none());
    let Some(pem) = &access.ca_pem else {
        return Ok(builder);
    };
    let authorities = Certificate::from_pem_bundle(pem)
        .map_err(|error| malformed("file of authorities", reasons(&error)))?;
    if authorities.is_empty() {
        return Err(malformed("file of authorities", "there is none in it"));
    }
    Ok(builder.tls_certs_only(authorities))
}

/// Whether an address is on this machine.
fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// The host of an address, without and with its port.
pub(super) fn names_of(url: &Url) -> (String, String) {
    let host = url.host_str().unwrap_or_default().to_owned();
    let port = url.port_or_known_default().unwrap_or_default();
    let with_port = format!("{host}:{port}");
    (host, with_port)
}

/// An address that must not be asked. Only its host is told, for there may be secrets in the rest.
pub(super) fn elsewhere(url: &Url) -> RegistryError {
    let host = url.host_str().unwrap_or_default();
    RegistryError::Elsewhere(format!("{}://{host}", url.scheme()))
}

/// Where an answer leads that says that the thing is somewhere else.
fn leads_to(ask: &Ask, url: &Url, answer: &Response) -> Got<Option<Url>> {
    let leads = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    if !leads || !matches!(ask.method, Method::GET | Method::HEAD) {
        return Ok(None);
    }
    location(url, answer.headers()).map(Some)
}

/// The address that an answer from `url` names.
pub(super) fn location(url: &Url, headers: &HeaderMap) -> Got<Url> {
    let said = headers.get(LOCATION).and_then(|said| said.to_str().ok());
    let said = said.ok_or_else(|| malformed("answer", "it names no address to go on with"))?;
    let next = url
        .join(said)
        .map_err(|error| malformed("answer", format!("it leads to no address: {error}")))?;
    let is_worse = url.scheme() == "https" && next.scheme() != "https";
    if is_worse || !next.has_host() || !next.username().is_empty() || next.password().is_some() {
        return Err(elsewhere(&next));
    }
    Ok(next)
}

/// An answer that is of use, or why it is not.
pub(super) fn checked(answer: Response) -> Got<Response> {
    match answer.status() {
        status if status.is_success() => Ok(answer),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(RegistryError::Denied),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(RegistryError::NotThere),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            let again = retry_after(answer.headers());
            Err(RegistryError::Busy { again })
        }
        status => Err(RegistryError::Status(status.as_u16())),
    }
}

/// How long an answer asks to be left alone: in seconds, or until an instant by the clock of the one who answers.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let wish = text(RETRY_AFTER)?.trim();
    if !wish.is_empty() && wish.bytes().all(|b| b.is_ascii_digit()) {
        // What does not fit is longer than what is believed.
        let seconds = wish.parse().unwrap_or(LONGEST_WISH);
        return Some(Duration::from_secs(seconds.min(LONGEST_WISH)));
    }
    let until = httpdate::parse_http_date(wish).ok()?;
    let now = httpdate::parse_http_date(text(DATE)?.trim()).ok()?;
    let wish = until.duration_since(now).unwrap_or_default();
    Some(wish.min(Duration::from_secs(LONGEST_WISH)))
}

/// What an error of the connection means. Addresses are left out, for there may be secrets in them.
pub(super) fn broken(error: reqwest::Error) -> RegistryError {
    let error = error.without_url();
    if error.is_connect() {
        RegistryError::Unreachable(reasons(&error))
    } else if error.is_timeout() {
        RegistryError::Stalled
    } else {
        let reasons = reasons(&error);
        RegistryError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, reasons))
    }
}

/// An error with all its causes.
fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = all.iter();
        pairs
            .map(|(name, value)| {
                (
                    reqwest::header::HeaderName::from_static(name),
                    value.parse().unwrap(),
                )
            })
            .collect()
    }

    /// Sends so many bytes every second, and never gets an answer.
    async fn sending(sent: &AtomicU64, each: u64) -> Result<Response, reqwest::Error> {
        loop {
            sleep(Duration::from_secs(1)).await;
            sent.fetch_add(each, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_only_drips_is_given_up() {
        let mut access = Access::to("https://registry.example/".parse().unwrap());
        access.proxy = Proxy::None;
        let sender = Sender::new(&access).unwrap();
        let patience = access.limits.stalled.saturating_mul(3);
        for (each, is_given_up) in [(1, true), (1_000, true), (2_000, false)] {
            let sent = AtomicU64::new(0);
            let answer = sender.watched(sending(&sent, each), &sent, 10_000_000);
            let answer = timeout(patience, answer).await;
            let stalled = matches!(answer, Ok(Err(RegistryError::Stalled)));
            assert_eq!(stalled, is_given_up, "{each} bytes in a second");
        }
        // All went out before the first look, so the answer is waited for longer.
        let sent = AtomicU64::new(0);
        let answer = sender.watched(sending(&sent, 1), &sent, 20);
        assert!(timeout(patience, answer).await.is_err());
    }

    #[test]
    fn a_wish_to_be_left_alone_is_in_seconds_or_by_the_others_clock() {
        let wish = |all: &[(&'static str, &str)]| retry_after(&headers(all));
        assert_eq!(
            wish(&[("retry-after", "120")]),
            Some(Duration::from_mins(2))
        );
        let until = "Fri, 31 Dec 1999 23:59:59 GMT";
        let date = "Fri, 31 Dec 1999 23:59:29 GMT";
        assert_eq!(
            wish(&[("retry-after", until), ("date", date)]),
            Some(Duration::from_secs(30))
        );
        assert_eq!(
            wish(&[("retry-after", date), ("date", until)]),
            Some(Duration::ZERO)
        );
        assert_eq!(wish(&[("retry-after", until)]), None);
        assert_eq!(wish(&[("retry-after", "soon")]), None);
        assert_eq!(wish(&[("retry-after", "-1")]), None);
        assert_eq!(wish(&[]), None);
        let day = Some(Duration::from_secs(LONGEST_WISH));
        assert_eq!(wish(&[("retry-after", "99999999999999999999999")]), day);
    }

    #[test]
    fn no_answer_leads_away_from_tls_or_to_what_is_no_address() {
        let at = |from: &str, to: &str| {
            let from = Url::parse(from).unwrap();
            location(&from, &headers(&[("location", to)])).map(|url| url.to_string())
        };
        let next = at("https://one.example/v2/a", "/v2/b?c=d").unwrap();
        assert_eq!(next, "https://one.example/v2/b?c=d");
        let next = at("http://one.example/", "https://two.example/x").unwrap();
        assert_eq!(next, "https://two.example/x");
        assert!(at("https://one.example/", "http://one.example/").is_err());
        assert!(at("http://one.example/", "file:///etc/passwd").is_err());
        assert!(at("http://one.example/", "http://a:b@one.example/").is_err());
        assert!(at("http://one.example/", "http://[").is_err());
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        for (address, here) in [
            ("http://localhost:5000/", true),
            ("http://127.1.2.3/", true),
            ("http://[::1]/", true),
            ("http://192.0.2.1/", false),
            ("http://localhost.example/", false),
        ] {
            assert_eq!(is_here(&Url::parse(address).unwrap()), here, "{address}");
        }
    }
}
