//! The way to the server over gRPC and TLS.

use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use evenkeel_proto::agent::PollResponse;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use hyper_util::rt::TokioIo;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

use super::floor::Floor;
use super::proxy::{self, KEEP_ALIVE_AFTER, KEEP_ALIVE_EVERY, KEEP_ALIVE_TIMES, Proxy};
use super::trust::Trust;
use super::{Answer, Applicant, Enrolled, Leave, Link, LinkError, Question, wire};
use crate::journal::Entry;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// How long an answer may be late after the time for which the server may keep a poll open.
const GRACE: Duration = Duration::from_secs(20);

/// In how many milliseconds a server that has too much to do wants to be asked again: gRPC's own name.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// A server that names a later time is asked after this one.
const LONGEST_PUSHBACK: Duration = Duration::from_hours(1);

/// Speaks to the server. Connects when it must and again when the connection was lost.
pub struct GrpcLink {
    client: AgentServiceClient<Channel>,
    credential: RwLock<Option<AsciiMetadataValue>>,
    deadline: Duration,
    floor: Arc<Floor>,
}

impl std::fmt::Debug for GrpcLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcLink").finish_non_exhaustive()
    }
}

impl GrpcLink {
    /// A link of a machine that never was in contact with the server. It trusts whom it is told to, and goes through
    /// the proxy if there is one. Nothing is sent yet. Each call may take as long as `deadline`.
    pub fn new(
        server: &str,
        trust: &Trust,
        proxy: Option<&Proxy>,
        deadline: Duration,
    ) -> Result<Self, LinkError> {
        Self::above(Arc::new(Floor::none()), server, trust, proxy, deadline)
    }

    /// The same for a node, whose certificates are looked at no earlier than the floor, which each answer to a poll
    /// raises.
    pub fn above(
        floor: Arc<Floor>,
        server: &str,
        trust: &Trust,
        proxy: Option<&Proxy>,
        deadline: Duration,
    ) -> Result<Self, LinkError> {
        let setup = |error: tonic::transport::Error| LinkError::Setup(whole(&error));
        let verifier = trust.verifier(Arc::clone(&floor))?;
        let endpoint = Endpoint::from_shared(server.to_owned())
            .map_err(setup)?
            .tls_config_with_verifier(ClientTlsConfig::new(), verifier)
            .map_err(setup)?
            .connect_timeout(CONNECT)
            // A poll that is kept open is silent: that nobody is there any more is noticed within two minutes.
            .tcp_keepalive(Some(KEEP_ALIVE_AFTER))
            .tcp_keepalive_interval(Some(KEEP_ALIVE_EVERY))
            .tcp_keepalive_retries(Some(KEEP_ALIVE_TIMES));
        let channel = match proxy {
            None => endpoint.connect_lazy(),
            Some(proxy) => through(&endpoint, proxy),
        };
        Ok(Self {
            client: AgentServiceClient::new(channel),
            credential: RwLock::new(None),
            deadline,
            floor,
        })
    }

    /// The answer to a poll. The server has proved itself: its clock is worth to be remembered.
    fn heard(&self, answer: PollResponse) -> Result<Answer, LinkError> {
        let answer = wire::answer(answer)?;
        if let Some(now) = answer.now {
            self.floor.heard(now);
        }
        Ok(answer)
    }

    /// Asks for nothing and changes nothing: whether the server can be reached, proves itself, and accepts the
    /// credential. The answer is its clock.
    pub async fn probe(&self) -> Result<Option<DateTime<Utc>>, LinkError> {
        let message = wire::empty_report();
        let answer = self
            .call(|| {
                let request = self.request(message.clone());
                let mut client = self.client.clone();
                async move { client.report(request).await }
            })
            .await?;
        Ok(wire::server_time(&answer))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        self.request_within(message, self.deadline)
    }

    fn request_within<T>(&self, message: T, deadline: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(deadline);
        let credential = self.credential.read();
        if let Some(value) = &*credential.unwrap_or_else(PoisonError::into_inner) {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        request
    }

    /// Makes a call, again if that may help.
    async fn call<A, F>(&self, call: impl Fn() -> F) -> Result<A, LinkError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let once = || within(self.deadline, call());
        let backoff = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(500))
            .with_max_delay(Duration::from_secs(5))
            .with_jitter()
            .with_max_times(2);
        once.retry(backoff)
            .sleep(tokio::time::sleep)
            .when(|error| matches!(error, LinkError::Unavailable(_)))
            .await
    }

    /// Makes a poll that the server may keep open, once: what to do when it breaks off is for the agent to say.
    async fn poll_held(&self, question: Question<'_>) -> Result<PollResponse, LinkError> {
        let deadline = question.hold.saturating_add(GRACE);
        let request = self.request_within(wire::poll_request(question), deadline);
        let mut client = self.client.clone();
        within(deadline, client.poll(request)).await
    }
}

/// Waits for an answer. The server is told the deadline, and we do not rely on its keeping it.
async fn within<A>(
    deadline: Duration,
    call: impl Future<Output = Result<Response<A>, Status>>,
) -> Result<A, LinkError> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(meaning(&status)),
        Err(_) => Err(LinkError::Unavailable(format!(
            "no answer within {} s",
            deadline.as_secs()
        ))),
    }
}

#[async_trait::async_trait]
impl Link for GrpcLink {
    async fn enroll(&self, applicant: &Applicant) -> Result<Enrolled, LinkError> {
        let message = wire::enroll_request(applicant);
        let answer = self
            .call(|| {
                let request = self.request(message.clone());
                let mut client = self.client.clone();
                async move { client.enroll(request).await }
            })
            .await?;
        wire::enrolled(answer)
    }

    async fn poll(&self, question: Question<'_>) -> Result<Answer, LinkError> {
        if !question.hold.is_zero() {
            return self.heard(self.poll_held(question).await?);
        }
        let message = wire::poll_request(question);
        let answer = self
            .call(|| {
                let request = self.request(message.clone());
                let mut client = self.client.clone();
                async move { client.poll(request).await }
            })
            .await?;
        self.heard(answer)
    }

    async fn begin(&self, entry: &Entry) -> Result<Leave, LinkError> {
        let message = wire::begin_request(entry);
        let answer = self
            .call(|| {
                let request = self.request(message.clone());
                let mut client = self.client.clone();
                async move { client.begin(request).await }
            })
            .await?;
        wire::leave(answer)
    }

    async fn report(&self, entry: &Entry) -> Result<u32, LinkError> {
        let message = wire::report_request(entry);
        let answer = self
            .call(|| {
                let request = self.request(message.clone());
                let mut client = self.client.clone();
                async move { client.report(request).await }
            })
            .await?;
        if !answer.run_id.is_empty() {
            tracing::debug!(
                run = answer.run_id,
                acknowledged = answer.acknowledged,
                "reported"
            );
        }
        Ok(answer.acknowledged)
    }

    fn renew(&self, credential: &Secret) -> Result<(), LinkError> {
        let text = format!("Bearer {}", credential.reveal());
        let mut value = AsciiMetadataValue::try_from(text)
            .map_err(|_| LinkError::Setup("the credential is no token".to_owned()))?;
        value.set_sensitive(true);
        let mut current = self
            .credential
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = Some(value);
        Ok(())
    }
}

/// A channel through the tunnel of a proxy. TLS begins inside the tunnel.
fn through(endpoint: &Endpoint, proxy: &Proxy) -> Channel {
    let proxy = Arc::new(proxy.clone());
    endpoint.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| {
        let proxy = Arc::clone(&proxy);
        async move {
            let host = proxy::unbracketed(uri.host().unwrap_or_default());
            let port = uri.port_u16().unwrap_or(443);
            let stream = proxy::connect(Some(&*proxy), host, port).await?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    }))
}

fn meaning(status: &Status) -> LinkError {
    let text = match status.source() {
        Some(source) => whole(source),
        None => status.message().to_owned(),
    };
    if let Some(again) = pushback(status) {
        return LinkError::Busy { again, why: text };
    }
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => LinkError::Denied(text),
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => LinkError::Refused(text),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => LinkError::Unavailable(text),
    }
}

/// After what time a server that has too much to do wants to be asked again. A value that makes no sense is none.
fn pushback(status: &Status) -> Option<Duration> {
    if !matches!(status.code(), Code::Unavailable | Code::ResourceExhausted) {
        return None;
    }
    let value = status.metadata().get(PUSHBACK)?.to_str().ok()?;
    let again = Duration::from_millis(value.parse().ok()?);
    Some(again.min(LONGEST_PUSHBACK))
}

/// The error with its causes. Errors of the transport repeat their causes; here each is said once.
fn whole(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.ends_with(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(code: Code, value: &str) -> LinkError {
        let mut status = Status::new(code, "too much to do");
        let value = AsciiMetadataValue::try_from(value).unwrap();
        status.metadata_mut().insert(PUSHBACK, value);
        meaning(&status)
    }

    #[test]
    fn a_server_that_says_when_to_ask_again_is_busy_and_not_away() {
        for code in [Code::Unavailable, Code::ResourceExhausted] {
            let LinkError::Busy { again, why } = busy(code, "1500") else {
                panic!("busy")
            };
            assert_eq!(again, Duration::from_millis(1_500));
            assert_eq!(why, "too much to do");
        }
        let LinkError::Busy { again, .. } = busy(Code::Unavailable, "99999999999") else {
            panic!("busy")
        };
        assert_eq!(again, LONGEST_PUSHBACK);
    }

    #[test]
    fn a_time_that_makes_no_sense_is_none() {
        for value in ["", "-1", "soon", "1.5", "99999999999999999999999"] {
            let error = busy(Code::Unavailable, value);
            assert!(matches!(error, LinkError::Unavailable(_)), "{value}");
        }
        let denied = busy(Code::PermissionDenied, "1500");
        assert!(matches!(denied, LinkError::Denied(_)));
    }
}
