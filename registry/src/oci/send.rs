//! Sends HTTP requests with timeouts, retries, redirects and size limits.

use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use evenkeel_fetch::MIN_PROGRESS_BYTES;
use reqwest::header::{AUTHORIZATION, DATE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Certificate, Client, ClientBuilder, Method, Response, StatusCode};
use tokio::time::{sleep, timeout};
use url::{Host, Url};

use super::body::{ChunkSource as _, ResponseBody};
use crate::address::{Access, Proxy};
use crate::error::{RegistryError, RegistryResult, malformed};
use crate::limits::Limits;

/// Largest `Retry-After` that is accepted. Longer ones are shortened to it.
const MAX_RETRY_AFTER_SECONDS: u64 = 24 * 60 * 60;

/// A request that can be sent several times.
#[derive(Clone, Debug)]
pub(super) struct HttpRequest {
    /// HTTP method.
    pub method: Method,
    /// URL to send the request to.
    pub url: Url,
    /// Headers without the credentials.
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: Option<Bytes>,
}

impl HttpRequest {
    /// A request without headers and body.
    pub fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: None }
    }
}

/// Sends requests to a registry and the servers it refers to.
#[derive(Debug)]
pub(super) struct HttpSender {
    remote_client: Client,
    /// Client for this machine, without proxy.
    local_client: Client,
    plain_http: bool,
    /// The only hosts that are allowed, with or without a port; `None` allows all.
    allowed_hosts: Option<Vec<String>>,
    pub limits: Limits,
}

impl HttpSender {
    /// Creates a sender. This sends no request yet.
    pub fn new(access: &Access) -> RegistryResult<Self> {
        // An error means that the program has already installed a provider, which is used then.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let unusable = |error: reqwest::Error| malformed("connection", error_chain(&error));
        let remote = match &access.proxy {
            Proxy::Environment => client_builder(access)?,
            Proxy::None => client_builder(access)?.no_proxy(),
            Proxy::Through(url) => {
                let proxy = reqwest::Proxy::all(url.as_str()).map_err(unusable)?;
                client_builder(access)?.proxy(proxy)
            }
        };
        Ok(Self {
            remote_client: remote.build().map_err(unusable)?,
            local_client: client_builder(access)?.no_proxy().build().map_err(unusable)?,
            plain_http: access.plain_http,
            allowed_hosts: None,
            limits: access.limits.clone(),
        })
    }

    /// Restricts requests to these hosts.
    pub fn with_allowed_hosts(mut self, hosts: Vec<String>) -> Self {
        self.allowed_hosts = Some(hosts);
        self
    }

    /// The client that reaches an address.
    pub fn client(&self, url: &Url) -> &Client {
        if is_loopback(url) { &self.local_client } else { &self.remote_client }
    }

    /// Retries of a new request.
    pub fn retries(&self) -> Retries {
        let times = usize::try_from(self.limits.max_attempts).unwrap_or(usize::MAX);
        let pauses = ExponentialBuilder::default()
            .with_min_delay(self.limits.initial_backoff)
            .with_max_delay(self.limits.max_backoff)
            .with_max_times(times.saturating_sub(1))
            .with_jitter();
        Retries {
            builder: pauses,
            backoff: pauses.build(),
            counted_from: 0,
            max_retry_after: self.limits.max_retry_after,
        }
    }

    /// Checks that an address is allowed.
    pub fn check_url(&self, url: &Url) -> RegistryResult<()> {
        let is_scheme_fine = match url.scheme() {
            "https" => true,
            "http" => self.plain_http,
            _ => false,
        };
        let is_host_fine = self.allowed_hosts.as_ref().is_none_or(|hosts| {
            let (host, with_port) = host_names(url);
            let mut hosts = hosts.iter();
            hosts.any(|may| may.eq_ignore_ascii_case(&host) || may.eq_ignore_ascii_case(&with_port))
        });
        if is_scheme_fine && is_host_fine { Ok(()) } else { Err(forbidden_address(url)) }
    }

    /// Sends a request once and follows redirects of reads. Credentials are sent only to the origin
    /// of the request.
    pub async fn send_once(
        &self,
        outgoing: &HttpRequest,
        credentials: Option<&HeaderValue>,
    ) -> RegistryResult<Response> {
        let mut url = outgoing.url.clone();
        let mut credentials = credentials;
        for _ in 0..=self.limits.max_redirects {
            self.check_url(&url)?;
            let mut request = self
                .client(&url)
                .request(outgoing.method.clone(), url.clone())
                .headers(outgoing.headers.clone());
            if let Some(credentials) = credentials {
                request = request.header(AUTHORIZATION, credentials.clone());
            }
            if let Some(body) = &outgoing.body {
                request = request.body(body.clone());
            }
            let response_timeout =
                self.limits.connect_timeout.saturating_add(self.limits.stall_timeout);
            let answer = timeout(response_timeout, request.send())
                .await
                .map_err(|_| RegistryError::Stalled)?
                .map_err(connection_error)?;
            let Some(next) = redirect_target(outgoing, &url, &answer)? else {
                return Ok(answer);
            };
            if next.origin() != url.origin() {
                credentials = None;
            }
            url = next;
        }
        Err(malformed("response", "it has too many redirects"))
    }

    /// Waits for the response to an upload. `sent` counts the bytes that were sent. Fails if the
    /// upload stalls or is slower than the minimum rate.
    pub async fn await_upload(
        &self,
        sending: impl Future<Output = Result<Response, reqwest::Error>> + Send,
        sent: &AtomicU64,
        size: u64,
    ) -> RegistryResult<Response> {
        let mut sending = pin!(sending);
        let mut before = 0;
        loop {
            // A registry checks the whole content before it answers.
            let is_going_out = before < size;
            let factor = if is_going_out { 1 } else { 10 };
            let interval = self.limits.stall_timeout.saturating_mul(factor);
            if let Ok(answer) = timeout(interval, sending.as_mut()).await {
                return answer.map_err(connection_error);
            }
            let now = sent.load(Ordering::Relaxed);
            let least =
                u128::from(self.limits.min_bytes_per_second).saturating_mul(interval.as_millis());
            let is_fast_enough = u128::from(now.saturating_sub(before)) * 1_000 >= least;
            // The last interval may have few bytes left to send.
            if !is_going_out || (now < size && !is_fast_enough) {
                return Err(RegistryError::Stalled);
            }
            before = now;
        }
    }

    /// Reads the whole response, up to `limit` bytes.
    pub async fn read_body(&self, answer: Response, limit: u64) -> RegistryResult<Bytes> {
        let too_large = || RegistryError::TooLarge { limit };
        if answer.content_length().is_some_and(|size| size > limit) {
            return Err(too_large());
        }
        let mut content = Vec::new();
        let mut body = ResponseBody::new(answer, &self.limits, 0);
        while let Some(chunk) = body.next_chunk().await? {
            if (content.len() as u64).saturating_add(chunk.len() as u64) > limit {
                return Err(too_large());
            }
            content.extend_from_slice(&chunk);
        }
        Ok(Bytes::from(content))
    }
}

/// Retries of a request.
#[derive(Debug)]
pub(super) struct Retries {
    builder: ExponentialBuilder,
    backoff: ExponentialBackoff,
    /// Number of received bytes at which the attempts were last reset.
    counted_from: u64,
    max_retry_after: Duration,
}

impl Retries {
    /// Waits until the next attempt. Returns the error if there is none or a retry is useless.
    pub async fn wait_or_fail(&mut self, error: RegistryError) -> RegistryResult<()> {
        self.wait_or_fail_at(0, error).await
    }

    /// The same for a transfer that failed after this total of bytes. Enough progress resets the
    /// attempts.
    pub async fn wait_or_fail_at(
        &mut self,
        received_bytes: u64,
        error: RegistryError,
    ) -> RegistryResult<()> {
        if !error.is_retryable() {
            return Err(error);
        }
        let requested = match &error {
            RegistryError::Busy { retry_after } => *retry_after,
            _ => None,
        };
        if received_bytes.saturating_sub(self.counted_from) >= MIN_PROGRESS_BYTES {
            self.counted_from = received_bytes;
            self.backoff = self.builder.build();
        }
        let Some(pause) = self.backoff.next() else {
            return Err(error);
        };
        let pause = requested.unwrap_or(pause);
        if requested.is_some_and(|requested| requested > self.max_retry_after) {
            return Err(error);
        }
        tracing::debug!(%error, ?pause, "request failed, retrying");
        sleep(pause).await;
        Ok(())
    }
}

fn client_builder(access: &Access) -> RegistryResult<ClientBuilder> {
    let builder = Client::builder()
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(access.limits.connect_timeout)
        .redirect(reqwest::redirect::Policy::none());
    let Some(pem) = &access.ca_pem else {
        return Ok(builder);
    };
    let authorities = Certificate::from_pem_bundle(pem)
        .map_err(|error| malformed("CA file", error_chain(&error)))?;
    if authorities.is_empty() {
        return Err(malformed("CA file", "it contains no certificate"));
    }
    Ok(builder.tls_certs_only(authorities))
}

/// Whether an address is on this machine.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Host of a URL, without and with its port.
pub(super) fn host_names(url: &Url) -> (String, String) {
    let host = url.host_str().unwrap_or_default().to_owned();
    let port = url.port_or_known_default().unwrap_or_default();
    let with_port = format!("{host}:{port}");
    (host, with_port)
}

/// Error for an address that is not allowed. Only scheme and host are named: the rest may be
/// secret.
pub(super) fn forbidden_address(url: &Url) -> RegistryError {
    let host = url.host_str().unwrap_or_default();
    RegistryError::ForbiddenAddress(format!("{}://{host}", url.scheme()))
}

/// Target of a redirect, if the response is one.
fn redirect_target(
    request: &HttpRequest,
    url: &Url,
    answer: &Response,
) -> RegistryResult<Option<Url>> {
    let leads = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    if !leads || !matches!(request.method, Method::GET | Method::HEAD) {
        return Ok(None);
    }
    parse_location(url, answer.headers()).map(Some)
}

/// URL in the `Location` header of a response from `url`.
pub(super) fn parse_location(url: &Url, headers: &HeaderMap) -> RegistryResult<Url> {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let location = location.ok_or_else(|| malformed("response", "it has no Location header"))?;
    let next = url
        .join(location)
        .map_err(|error| malformed("response", format!("its Location is not a URL: {error}")))?;
    let is_worse = url.scheme() == "https" && next.scheme() != "https";
    if is_worse || !next.has_host() || !next.username().is_empty() || next.password().is_some() {
        return Err(forbidden_address(&next));
    }
    Ok(next)
}

/// Returns a successful response, or the error that the status means.
pub(super) fn check_status(answer: Response) -> RegistryResult<Response> {
    match answer.status() {
        status if status.is_success() => Ok(answer),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(RegistryError::Denied),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(RegistryError::NotFound),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            let retry_after = parse_retry_after(answer.headers());
            Err(RegistryError::Busy { retry_after })
        }
        status => Err(RegistryError::Status(status.as_u16())),
    }
}

/// Delay that a response asks for: in seconds, or until a time by the clock of the server.
fn parse_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let value = text(RETRY_AFTER)?.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // A number that does not fit is larger than the maximum.
        let seconds = value.parse().unwrap_or(MAX_RETRY_AFTER_SECONDS);
        return Some(Duration::from_secs(seconds.min(MAX_RETRY_AFTER_SECONDS)));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    let now = httpdate::parse_http_date(text(DATE)?.trim()).ok()?;
    let delay = until.duration_since(now).unwrap_or_default();
    Some(delay.min(Duration::from_secs(MAX_RETRY_AFTER_SECONDS)))
}

/// Error of a connection. URLs are removed from it, because they may contain secrets.
pub(super) fn connection_error(error: reqwest::Error) -> RegistryError {
    let error = error.without_url();
    if error.is_connect() {
        RegistryError::Unreachable(error_chain(&error))
    } else if error.is_timeout() {
        RegistryError::Stalled
    } else {
        let reasons = error_chain(&error);
        RegistryError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, reasons))
    }
}

/// An error and all its causes.
fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
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
                (reqwest::header::HeaderName::from_static(name), value.parse().unwrap())
            })
            .collect()
    }

    /// Sends `each` bytes per second and never gets a response.
    async fn sending(sent: &AtomicU64, each: u64) -> Result<Response, reqwest::Error> {
        loop {
            sleep(Duration::from_secs(1)).await;
            sent.fetch_add(each, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_is_too_slow_is_aborted() {
        let mut access = Access::new("https://registry.example/".parse().unwrap());
        access.proxy = Proxy::None;
        let sender = HttpSender::new(&access).unwrap();
        let test_timeout = access.limits.stall_timeout.saturating_mul(3);
        for (each, is_given_up) in [(1, true), (1_000, true), (2_000, false)] {
            let sent = AtomicU64::new(0);
            let answer = sender.await_upload(sending(&sent, each), &sent, 10_000_000);
            let answer = timeout(test_timeout, answer).await;
            let stalled = matches!(answer, Ok(Err(RegistryError::Stalled)));
            assert_eq!(stalled, is_given_up, "{each} bytes in a second");
        }
        // All bytes were sent before the first check, so the timeout for the response applies.
        let sent = AtomicU64::new(0);
        let answer = sender.await_upload(sending(&sent, 1), &sent, 20);
        assert!(timeout(test_timeout, answer).await.is_err());
    }

    #[test]
    fn retry_after_is_in_seconds_or_a_date_of_the_server() {
        let delay = |all: &[(&'static str, &str)]| parse_retry_after(&headers(all));
        assert_eq!(delay(&[("retry-after", "120")]), Some(Duration::from_mins(2)));
        let until = "Fri, 31 Dec 1999 23:59:59 GMT";
        let date = "Fri, 31 Dec 1999 23:59:29 GMT";
        assert_eq!(delay(&[("retry-after", until), ("date", date)]), Some(Duration::from_secs(30)));
        assert_eq!(delay(&[("retry-after", date), ("date", until)]), Some(Duration::ZERO));
        assert_eq!(delay(&[("retry-after", until)]), None);
        assert_eq!(delay(&[("retry-after", "soon")]), None);
        assert_eq!(delay(&[("retry-after", "-1")]), None);
        assert_eq!(delay(&[]), None);
        let day = Some(Duration::from_secs(MAX_RETRY_AFTER_SECONDS));
        assert_eq!(delay(&[("retry-after", "99999999999999999999999")]), day);
    }

    #[test]
    fn redirects_keep_tls_and_lead_to_valid_addresses() {
        let at = |from: &str, to: &str| {
            let from = Url::parse(from).unwrap();
            parse_location(&from, &headers(&[("location", to)])).map(|url| url.to_string())
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
    fn loopback_addresses_are_recognised() {
        for (address, here) in [
            ("http://localhost:5000/", true),
            ("http://127.1.2.3/", true),
            ("http://[::1]/", true),
            ("http://192.0.2.1/", false),
            ("http://localhost.example/", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(address).unwrap()), here, "{address}");
        }
    }
}
