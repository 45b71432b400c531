//! Connection to the server over gRPC and TLS.

mod renewal;

use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use chrono::{DateTime, Utc};
use evenkeel_kit::{Secret, chain};
use evenkeel_proto::agent::PollResponse;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::channel::ChannelFactory;
use super::floor::TimeFloor;
use super::proxy::Proxy;
use super::trust::Trust;
use super::{
    Applicant, Enrollment, LinkError, PollAnswer, PollQuery, ServerLink, StartPermit,
    connect_error, wire,
};
use crate::journal::JournalEntry;
use crate::modules::{MODULES, ModuleKind};
use crate::node::NodeCertificates;

use self::renewal::{ADVICE, RenewalPace};

/// How much later than the maximum long-poll time an answer may arrive.
const POLL_GRACE_PERIOD: Duration = Duration::from_secs(20);

/// Metadata key with the milliseconds after which an overloaded server accepts a retry. The name is gRPC's own.
const PUSHBACK_METADATA_KEY: &str = "grpc-retry-pushback-ms";

/// Upper limit of the retry time that the server may ask for.
const MAX_PUSHBACK: Duration = Duration::from_hours(1);

/// Calls the server. Connects on demand, and again when the connection is lost.
pub struct GrpcLink {
    channels: ChannelFactory,
    client: RwLock<AgentServiceClient<Channel>>,
    certificates: Option<Arc<NodeCertificates>>,
    renewal_pace: RenewalPace,
    credential: RwLock<Option<AsciiMetadataValue>>,
    /// A renewed bearer token that the agent has not stored yet.
    renewed_credential: Mutex<Option<Secret>>,
    deadline: Duration,
    floor: Arc<TimeFloor>,
    modules: Vec<ModuleKind>,
}

impl std::fmt::Debug for GrpcLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcLink").finish_non_exhaustive()
    }
}

impl GrpcLink {
    /// A link of a machine that was never in contact with the server. Uses `trust` to verify the server, and the proxy if
    /// there is one. Sends nothing yet. Each call may take up to `deadline`.
    pub fn new(
        server: &str,
        trust: &Trust,
        proxy: Option<&Proxy>,
        deadline: Duration,
    ) -> Result<Self, LinkError> {
        Self::with_floor(Arc::new(TimeFloor::unset()), server, trust, proxy, deadline)
    }

    /// A link of a node: verifies certificates at no earlier time than the floor. The answer to an enrolment and each answer
    /// to a poll update the floor.
    pub fn with_floor(
        floor: Arc<TimeFloor>,
        server: &str,
        trust: &Trust,
        proxy: Option<&Proxy>,
        deadline: Duration,
    ) -> Result<Self, LinkError> {
        let channels = ChannelFactory::new(server, trust.verifier(Arc::clone(&floor))?, proxy);
        let client = AgentServiceClient::new(channels.open(None)?);
        Ok(Self {
            channels,
            client: RwLock::new(client),
            certificates: None,
            renewal_pace: RenewalPace::default(),
            credential: RwLock::new(None),
            renewed_credential: Mutex::default(),
            deadline,
            floor,
            modules: MODULES.to_vec(),
        })
    }

    /// Shows the node's client certificate to the server, and renews it.
    pub fn with_certificates(
        mut self,
        certificates: Arc<NodeCertificates>,
    ) -> Result<Self, LinkError> {
        self.certificates = Some(certificates);
        self.reconnect()?;
        Ok(self)
    }

    /// Uses these modules to read specs and to write reports.
    #[must_use]
    pub fn with_modules(mut self, modules: Vec<ModuleKind>) -> Self {
        self.modules = modules;
        self
    }

    /// Converts the answer to a poll. The server has proved its identity, so its time updates the floor. Renews the
    /// certificate if the server asks for it.
    async fn accept_answer(&self, answer: PollResponse) -> Result<PollAnswer, LinkError> {
        let renew = answer.renew_certificate;
        let mut answer = wire::parse_poll_answer(answer, &self.modules)?;
        if let Some(credential) = answer.credential.take() {
            // If the caller drops the poll during the renewal, the next answer contains it.
            self.replace_renewed_credential(Some(credential));
        }
        if let Some(now) = answer.server_time {
            self.floor.record_server_time(now);
        }
        if renew {
            self.renew_in_time().await;
        }
        answer.credential = self.replace_renewed_credential(None);
        Ok(answer)
    }

    /// Checks whether the server can be reached, proves its identity and accepts the node. Changes nothing: an expired
    /// certificate is not renewed. Returns the server's time.
    pub async fn probe(&self) -> Result<Option<DateTime<Utc>>, LinkError> {
        let message = wire::empty_report();
        let answer = self
            .call(|| {
                let request = self.request(message.clone());
                let mut client = self.client();
                async move { client.report(request).await }
            })
            .await?;
        Ok(wire::server_time(&answer))
    }

    fn client(&self) -> AgentServiceClient<Channel> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a new connection, which shows the present client certificate, at the next call. Calls in progress finish on
    /// the old connection.
    fn reconnect(&self) -> Result<(), LinkError> {
        let identity = self.certificates.as_ref().and_then(|own| own.tls_identity());
        let client = AgentServiceClient::new(self.channels.open(identity)?);
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        Ok(())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        self.request_with_deadline(message, self.deadline)
    }

    fn request_with_deadline<T>(&self, message: T, deadline: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(deadline);
        let credential = self.credential.read();
        if let Some(value) = &*credential.unwrap_or_else(PoisonError::into_inner) {
            request.metadata_mut().insert("authorization", value.clone());
        }
        request
    }

    /// Makes a call, and retries it while the server is unavailable.
    async fn call<A, F>(&self, call: impl Fn() -> F) -> Result<A, LinkError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let once = || with_deadline(self.deadline, call());
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

    /// Makes a call as this node. If the server does not accept the certificate or the bearer token, renews it and repeats
    /// the call once.
    async fn call_as_node<A, F>(&self, call: impl Fn() -> F) -> Result<A, LinkError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        match self.call(&call).await {
            Err(LinkError::Unauthenticated(why)) if self.may_renew() => {
                self.renew_rejected(&why).await?;
                self.call(&call).await
            }
            answer => answer,
        }
    }

    /// Makes one long poll. It is not retried here: the agent decides what to do when it breaks off.
    async fn long_poll(&self, query: PollQuery<'_>) -> Result<PollResponse, LinkError> {
        let deadline = query.max_hold.saturating_add(POLL_GRACE_PERIOD);
        let request = self.request_with_deadline(wire::poll_request(query), deadline);
        let mut client = self.client();
        Box::pin(with_deadline(deadline, client.poll(request))).await
    }
}

/// Waits for an answer. The server is told the deadline too, but it may not keep it.
async fn with_deadline<A>(
    deadline: Duration,
    call: impl Future<Output = Result<Response<A>, Status>>,
) -> Result<A, LinkError> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(to_link_error(&status)),
        Err(_) => Err(LinkError::Unavailable(format!("no answer within {} s", deadline.as_secs()))),
    }
}

#[async_trait::async_trait]
impl ServerLink for GrpcLink {
    async fn enroll(&self, applicant: &Applicant) -> Result<Enrollment, LinkError> {
        let message = wire::enroll_request(applicant);
        let answer = self
            .call(|| {
                let request = self.request(message.clone());
                let mut client = self.client();
                async move { client.enroll(request).await }
            })
            .await?;
        let enrolled = wire::parse_enrollment(answer)?;
        if let Some(now) = enrolled.server_time {
            self.floor.record_server_time(now);
        }
        Ok(enrolled)
    }

    async fn poll(&self, query: PollQuery<'_>) -> Result<PollAnswer, LinkError> {
        if !query.max_hold.is_zero() {
            let answer = match self.long_poll(query).await {
                Err(LinkError::Unauthenticated(why)) if self.may_renew() => {
                    self.renew_rejected(&why).await?;
                    self.long_poll(query).await?
                }
                answer => answer?,
            };
            return self.accept_answer(answer).await;
        }
        let message = wire::poll_request(query);
        let answer = self
            .call_as_node(|| {
                let request = self.request(message.clone());
                let mut client = self.client();
                // Facts make the request large.
                Box::pin(async move { client.poll(request).await })
            })
            .await?;
        self.accept_answer(answer).await
    }

    async fn request_start(&self, entry: &JournalEntry) -> Result<StartPermit, LinkError> {
        let message = wire::begin_request(entry);
        let answer = self
            .call_as_node(|| {
                let request = self.request(message.clone());
                let mut client = self.client();
                async move { client.begin(request).await }
            })
            .await?;
        wire::parse_start_permit(answer)
    }

    async fn report(&self, entry: &JournalEntry) -> Result<u32, LinkError> {
        let message = wire::report_request(entry, &self.modules);
        let answer = self
            .call_as_node(|| {
                let request = self.request(message.clone());
                let mut client = self.client();
                async move { client.report(request).await }
            })
            .await?;
        if !answer.run_id.is_empty() {
            tracing::debug!(run = answer.run_id, acknowledged = answer.acknowledged, "reported");
        }
        Ok(answer.acknowledged)
    }

    fn set_credential(&self, credential: &Secret) -> Result<(), LinkError> {
        let text = format!("Bearer {}", credential.reveal());
        let mut value = AsciiMetadataValue::try_from(text)
            .map_err(|_| LinkError::Setup("the credential is not a valid token".to_owned()))?;
        value.set_sensitive(true);
        let mut current = self.credential.write().unwrap_or_else(PoisonError::into_inner);
        *current = Some(value);
        Ok(())
    }
}

/// The message of the server about a host that it does not have.
const HOST_NOT_FOUND: &str = "host_resource not found";

fn to_link_error(status: &Status) -> LinkError {
    let text = match status.source() {
        Some(source) => {
            connect_error::explain(source).map_or_else(|| chain(source).to_string(), str::to_owned)
        }
        None => status.message().to_owned(),
    };
    if let Some(again) = parse_pushback(status) {
        return LinkError::Busy { retry_after: again, message: text };
    }
    match status.code() {
        Code::Unauthenticated => LinkError::Unauthenticated(text),
        // The server has one text for EIM's agents and for ours, and it names no remedy.
        Code::NotFound if text == HOST_NOT_FOUND => {
            LinkError::Denied(format!("this host was deleted on the server; {ADVICE}"))
        }
        // What a node names belongs to its host, so the host was deleted if it is not found.
        Code::PermissionDenied | Code::NotFound => LinkError::Denied(text),
        Code::InvalidArgument
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

/// The retry time that an overloaded server asks for; `None` if it is missing or invalid.
fn parse_pushback(status: &Status) -> Option<Duration> {
    if !matches!(status.code(), Code::Unavailable | Code::ResourceExhausted) {
        return None;
    }
    let value = status.metadata().get(PUSHBACK_METADATA_KEY)?.to_str().ok()?;
    let again = Duration::from_millis(value.parse().ok()?);
    Some(again.min(MAX_PUSHBACK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(code: Code, value: &str) -> LinkError {
        let mut status = Status::new(code, "too much to do");
        let value = AsciiMetadataValue::try_from(value).unwrap();
        status.metadata_mut().insert(PUSHBACK_METADATA_KEY, value);
        to_link_error(&status)
    }

    #[test]
    fn a_server_with_a_retry_time_is_busy_and_not_unavailable() {
        for code in [Code::Unavailable, Code::ResourceExhausted] {
            let LinkError::Busy { retry_after: again, message: why } = busy(code, "1500") else {
                panic!("busy")
            };
            assert_eq!(again, Duration::from_millis(1_500));
            assert_eq!(why, "too much to do");
        }
        let LinkError::Busy { retry_after: again, .. } = busy(Code::Unavailable, "99999999999")
        else {
            panic!("busy")
        };
        assert_eq!(again, MAX_PUSHBACK);
    }

    #[test]
    fn a_deleted_host_is_not_accepted() {
        let error = to_link_error(&Status::not_found("host_resource not found"));
        let text = "the server does not accept this node: this host was deleted on the server; \
                    enrol this machine again with a join token";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn an_invalid_retry_time_is_ignored() {
        for value in ["", "-1", "soon", "1.5", "99999999999999999999999"] {
            let error = busy(Code::Unavailable, value);
            assert!(matches!(error, LinkError::Unavailable(_)), "{value}");
        }
        let denied = busy(Code::PermissionDenied, "1500");
        assert!(matches!(denied, LinkError::Denied(_)));
    }
}
