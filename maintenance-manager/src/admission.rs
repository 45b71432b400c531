//! Admission of calls, as a tower layer: rejects calls beyond the load limits before reading them.

pub mod concurrency;
pub mod connection;
pub mod daily_limits;
pub mod incoming_body;
pub mod peer;
pub mod rate_limit;
pub mod refusals;
pub mod semaphore;

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_auth::NodeCertificate;
use evenkeel_domain::tenant::TenantId;
use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::codegen::{Bytes, StdError};
use tower::{Layer, Service};

use crate::admission::concurrency::{CallKind, InFlightGuard, Load, RETRY_PUSHBACK_HEADER};
use crate::admission::connection::ConnectionState;
use crate::admission::incoming_body::IncomingBody;
use crate::memory::OutOfMemory;

/// Adds admission control to a service.
#[derive(Clone, Debug)]
pub struct AdmissionLayer(Arc<Load>);

impl AdmissionLayer {
    /// Admits calls within the limits of `load`.
    pub fn new(load: Arc<Load>) -> Self {
        Self(load)
    }
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Admission { load: Arc::clone(&self.0), inner }
    }
}

/// A service with admission control.
#[derive(Clone, Debug)]
pub struct Admission<S> {
    load: Arc<Load>,
    inner: S,
}

impl<S, ReqBody, RespBody> Service<Request<ReqBody>> for Admission<S>
where
    S: Service<Request<Body>, Response = Response<RespBody>>,
    S::Future: Unpin,
    ReqBody: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    ReqBody::Error: Into<StdError>,
    RespBody: Default,
{
    type Response = Response<RespBody>;
    type Error = S::Error;
    type Future = AdmissionFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let kind = CallKind::from_path(request.uri().path());
        let admitted = match request.extensions().get::<OutOfMemory>() {
            Some(OutOfMemory) => Err(self.load.refuse_for_memory(kind)),
            None => self.load.admit(kind),
        };
        match admitted {
            Ok(in_flight) => AdmissionFuture::Admitted {
                future: self.inner.call(limit_body(request, &self.load)),
                in_flight,
            },
            Err(busy) => AdmissionFuture::Refused(ready(Ok(busy.status().into_http()))),
        }
    }
}

/// Limits the arrival time and the memory of the request body.
fn limit_body<B>(request: Request<B>, load: &Arc<Load>) -> Request<Body>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    let connection = request.extensions().get::<ConnectionState>().cloned();
    let certificate = request.extensions().get::<Arc<NodeCertificate>>();
    if let (Some(connection), Some(certificate)) = (&connection, certificate) {
        connection.note_project(TenantId::new(certificate.project));
    }
    request.map(|message| Body::new(IncomingBody::new(message, Arc::clone(load), connection)))
}

/// The response future of an admitted or a refused call.
#[derive(Debug)]
pub enum AdmissionFuture<F: Future> {
    /// The call was admitted. It counts as in flight until it is answered or dropped.
    Admitted {
        /// The response future of the inner service.
        future: F,
        /// Counts the call as in flight.
        in_flight: InFlightGuard,
    },
    /// The call was refused.
    Refused(Ready<F::Output>),
}

impl<F, RespBody, Error> Future for AdmissionFuture<F>
where
    F: Future<Output = Result<Response<RespBody>, Error>> + Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Admitted { future: answer, in_flight } => {
                let answer = Pin::new(answer).poll(context);
                answer.map_ok(|answer| add_retry_hint(answer, in_flight))
            }
            Self::Refused(answer) => Pin::new(answer).poll(context),
        }
    }
}

/// Adds a retry hint to every `UNAVAILABLE` answer. Without hints all refused callers would retry
/// at the same time.
fn add_retry_hint<RespBody>(
    mut answer: Response<RespBody>,
    in_flight: &InFlightGuard,
) -> Response<RespBody> {
    let head = answer.headers_mut();
    let is_unavailable = head.get("grpc-status").is_some_and(|code| code == "14");
    if is_unavailable && !head.contains_key(RETRY_PUSHBACK_HEADER) {
        let millis = u64::try_from(in_flight.retry_after().as_millis()).unwrap_or(u64::MAX);
        head.insert(RETRY_PUSHBACK_HEADER, HeaderValue::from(millis.max(1)));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use chrono::DateTime;
    use evenkeel_auth::KeyFingerprint;
    use tonic::Status;
    use tower::{ServiceExt, service_fn};
    use uuid::Uuid;

    use super::*;
    use crate::admission::concurrency::LoadSettings;
    use crate::admission::connection::SenderProject;

    const POLL: &str = "/evenkeel.agent.v1.AgentService/Poll";
    const REPORT: &str = "/evenkeel.agent.v1.AgentService/Report";

    fn load(query_call_limit: u32, total_call_limit: u32) -> Arc<Load> {
        Arc::new(Load::new(LoadSettings {
            query_call_limit,
            total_call_limit,
            ..LoadSettings::default()
        }))
    }

    fn request(path: &str) -> Request<String> {
        let request = Request::builder().uri(path);
        request.body("never read".to_owned()).unwrap()
    }

    /// Calls a service that answers at once.
    async fn call(load: &Arc<Load>, path: &str) -> Response<String> {
        let inner = service_fn(|_: Request<Body>| {
            ready(Ok::<_, Infallible>(Response::new("answered".to_owned())))
        });
        let service = AdmissionLayer::new(Arc::clone(load)).layer(inner);
        let Ok(answer) = service.oneshot(request(path)).await;
        answer
    }

    /// Calls a service that never answers.
    fn stuck(load: &Arc<Load>, path: &str) -> impl Future {
        let never = || pending::<Result<Response<String>, Infallible>>();
        let inner = service_fn(move |_: Request<Body>| never());
        let mut service = AdmissionLayer::new(Arc::clone(load)).layer(inner);
        service.call(request(path))
    }

    #[tokio::test]
    async fn an_excess_call_is_refused_in_the_headers_with_a_retry_hint() {
        let load = load(1, 2);
        let _stuck = stuck(&load, POLL);
        let refused = call(&load, POLL).await;
        assert_eq!(refused.status(), 200);
        let head = |name: &str| refused.headers()[name].to_str().unwrap();
        assert_eq!(head("content-type"), "application/grpc");
        assert_eq!(head("grpc-status"), "14");
        let millis: u64 = head("grpc-retry-pushback-ms").parse().unwrap();
        assert!((500..=15_000).contains(&millis), "{millis}");
        assert_eq!(refused.body(), "", "there is no body");

        let admitted_call = call(&load, REPORT).await;
        assert!(!admitted_call.headers().contains_key("grpc-status"));
        assert_eq!(admitted_call.body(), "answered");
    }

    #[tokio::test]
    async fn a_call_refused_for_lack_of_memory_gets_only_a_retry_hint() {
        let load = load(1, 1);
        let inner = service_fn(|_: Request<Body>| {
            ready(Ok::<_, Infallible>(Response::new("answered".to_owned())))
        });
        let service = AdmissionLayer::new(Arc::clone(&load)).layer(inner);
        let mut request = request(REPORT);
        request.extensions_mut().insert(OutOfMemory);
        let Ok(refused) = service.oneshot(request).await;
        assert_eq!(refused.headers()["grpc-status"], "14");
        assert!(refused.headers().contains_key(RETRY_PUSHBACK_HEADER));
        assert_eq!(refused.body(), "", "there is no body");
        let another = call(&load, REPORT).await;
        assert_eq!(another.body(), "answered");
    }

    /// The first message on a connection arrives before a call is authenticated.
    #[tokio::test]
    async fn a_message_counts_for_the_project_of_the_client_certificate() {
        let project = Uuid::from_u128(1);
        let certificate = NodeCertificate {
            project,
            host: "host-00000001".to_owned(),
            key: KeyFingerprint::from_public_key(b"key"),
            issued_at: DateTime::UNIX_EPOCH,
            expires_at: DateTime::UNIX_EPOCH,
        };
        let connection = ConnectionState::default();
        let inner = service_fn(|_: Request<Body>| {
            ready(Ok::<_, Infallible>(Response::new("answered".to_owned())))
        });
        let service = AdmissionLayer::new(load(1, 1)).layer(inner);
        let mut request = request(REPORT);
        request.extensions_mut().insert(connection.clone());
        request.extensions_mut().insert(Arc::new(certificate));
        let Ok(_) = service.oneshot(request).await;
        let sender = SenderProject::from_connection(Some(&connection));
        assert_eq!(sender, SenderProject::Known(TenantId::new(project)));
        assert!(!connection.is_authenticated());
    }

    #[tokio::test]
    async fn every_unavailable_answer_carries_a_retry_hint() {
        let load = load(1, 1);
        let answers = [
            (Status::unavailable("the database is away"), true),
            (Status::not_found("no such host"), false),
        ];
        for (status, is_hinted) in answers {
            let inner = service_fn(|_: Request<Body>| {
                ready(Ok::<_, Infallible>(status.clone().into_http::<String>()))
            });
            let service = AdmissionLayer::new(Arc::clone(&load)).layer(inner);
            let Ok(answer) = service.oneshot(request(POLL)).await;
            let hint = answer.headers().get("grpc-retry-pushback-ms");
            assert_eq!(hint.is_some(), is_hinted, "{status:?}");
        }
    }

    #[tokio::test]
    async fn a_call_counts_until_it_is_answered_or_dropped() {
        let load = load(1, 1);
        for _ in 0..10 {
            let answered = call(&load, POLL).await;
            assert!(!answered.headers().contains_key("grpc-status"));
        }
        let dropped = stuck(&load, POLL);
        let refused = call(&load, POLL).await;
        assert!(refused.headers().contains_key("grpc-status"));
        drop(dropped);
        let answered = call(&load, POLL).await;
        assert!(!answered.headers().contains_key("grpc-status"));
    }

    #[tokio::test]
    async fn a_long_poll_makes_room_for_other_calls() {
        let load = load(1, 1);
        let _long_poll = stuck(&load, POLL);
        let _parked = load.park();
        let answered = call(&load, POLL).await;
        assert!(!answered.headers().contains_key("grpc-status"));
    }
}
