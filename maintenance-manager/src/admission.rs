//! The door before all services: a call that is too much is refused before it is read.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::codegen::{Bytes, StdError};
use tower::{Layer, Service};

use crate::arriving::Arriving;
use crate::carried::Carried;
use crate::load::{CallKind, Inside, Load, PUSHBACK};
use crate::memory::TurnedAway;

/// Puts the door before a service.
#[derive(Clone, Debug)]
pub struct AdmissionLayer(Arc<Load>);

impl AdmissionLayer {
    /// A door that lets in what there is room for.
    pub fn new(load: Arc<Load>) -> Self {
        Self(load)
    }
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, behind: S) -> Self::Service {
        Admission {
            load: Arc::clone(&self.0),
            behind,
        }
    }
}

/// A service with the door before it.
#[derive(Clone, Debug)]
pub struct Admission<S> {
    load: Arc<Load>,
    behind: S,
}

impl<S, Asked, Answered> Service<Request<Asked>> for Admission<S>
where
    S: Service<Request<Body>, Response = Response<Answered>>,
    S::Future: Unpin,
    Asked: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    Asked::Error: Into<StdError>,
    Answered: Default,
{
    type Response = Response<Answered>;
    type Error = S::Error;
    type Future = Call<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.behind.poll_ready(context)
    }

    fn call(&mut self, request: Request<Asked>) -> Self::Future {
        let kind = CallKind::of(request.uri().path());
        let admitted = match request.extensions().get::<TurnedAway>() {
            Some(TurnedAway) => Err(self.load.turn_away(kind)),
            None => self.load.enter(kind),
        };
        match admitted {
            Ok(inside) => Call::Admitted {
                answer: self.behind.call(arriving(request, &self.load)),
                inside,
            },
            Err(busy) => Call::Refused(ready(Ok(busy.status().into_http()))),
        }
    }
}

/// A call whose message is looked after while it arrives.
fn arriving<B>(request: Request<B>, load: &Arc<Load>) -> Request<Body>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    let carried = request.extensions().get::<Carried>().cloned();
    request.map(|message| Body::new(Arriving::new(message, Arc::clone(load), carried)))
}

/// A call on its way through the door.
#[derive(Debug)]
pub enum Call<F: Future> {
    /// It was let in, and counts until it is answered or given up.
    Admitted {
        /// What will be answered.
        answer: F,
        /// Counts it.
        inside: Inside,
    },
    /// It was not.
    Refused(Ready<F::Output>),
}

impl<F, Answered, Error> Future for Call<F>
where
    F: Future<Output = Result<Response<Answered>, Error>> + Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Admitted { answer, inside } => {
                let answer = Pin::new(answer).poll(context);
                answer.map_ok(|answer| hinted(answer, inside))
            }
            Self::Refused(answer) => Pin::new(answer).poll(context),
        }
    }
}

/// Who is told to try again is told when, whatever was in the way: all of them would come back at once.
fn hinted<Answered>(mut answer: Response<Answered>, inside: &Inside) -> Response<Answered> {
    let head = answer.headers_mut();
    let is_unavailable = head.get("grpc-status").is_some_and(|code| code == "14");
    if is_unavailable && !head.contains_key(PUSHBACK) {
        let millis = u64::try_from(inside.again().as_millis()).unwrap_or(u64::MAX);
        head.insert(PUSHBACK, HeaderValue::from(millis.max(1)));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use tonic::Status;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::load::LoadSettings;

    const POLL: &str = "/evenkeel.agent.v1.AgentService/Poll";
    const REPORT: &str = "/evenkeel.agent.v1.AgentService/Report";

    fn load(calls: u32, calls_of_any_kind: u32) -> Arc<Load> {
        Arc::new(Load::new(LoadSettings {
            calls,
            calls_of_any_kind,
            ..LoadSettings::default()
        }))
    }

    fn request(path: &str) -> Request<String> {
        let request = Request::builder().uri(path);
        request.body("never read".to_owned()).unwrap()
    }

    /// A call to a service that answers at once.
    async fn call(load: &Arc<Load>, path: &str) -> Response<String> {
        let behind = service_fn(|_: Request<Body>| {
            ready(Ok::<_, Infallible>(Response::new("answered".to_owned())))
        });
        let service = AdmissionLayer::new(Arc::clone(load)).layer(behind);
        let Ok(answer) = service.oneshot(request(path)).await;
        answer
    }

    /// A call to a service that does not answer.
    fn stuck(load: &Arc<Load>, path: &str) -> impl Future {
        let never = || pending::<Result<Response<String>, Infallible>>();
        let behind = service_fn(move |_: Request<Body>| never());
        let mut service = AdmissionLayer::new(Arc::clone(load)).layer(behind);
        service.call(request(path))
    }

    #[tokio::test]
    async fn a_call_that_is_too_much_is_refused_in_the_head_with_a_hint() {
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

        let let_in = call(&load, REPORT).await;
        assert!(!let_in.headers().contains_key("grpc-status"));
        assert_eq!(let_in.body(), "answered");
    }

    #[tokio::test]
    async fn a_connection_that_there_is_no_memory_for_gets_the_hint_alone() {
        let load = load(1, 1);
        let behind = service_fn(|_: Request<Body>| {
            ready(Ok::<_, Infallible>(Response::new("answered".to_owned())))
        });
        let service = AdmissionLayer::new(Arc::clone(&load)).layer(behind);
        let mut request = request(REPORT);
        request.extensions_mut().insert(TurnedAway);
        let Ok(refused) = service.oneshot(request).await;
        assert_eq!(refused.headers()["grpc-status"], "14");
        assert!(refused.headers().contains_key(PUSHBACK));
        assert_eq!(refused.body(), "", "there is no body");
        let another = call(&load, REPORT).await;
        assert_eq!(another.body(), "answered");
    }

    #[tokio::test]
    async fn whatever_is_in_the_way_is_answered_with_a_hint() {
        let load = load(1, 1);
        let answers = [
            (Status::unavailable("the database is away"), true),
            (Status::not_found("no such host"), false),
        ];
        for (status, is_hinted) in answers {
            let behind = service_fn(|_: Request<Body>| {
                ready(Ok::<_, Infallible>(status.clone().into_http::<String>()))
            });
            let service = AdmissionLayer::new(Arc::clone(&load)).layer(behind);
            let Ok(answer) = service.oneshot(request(POLL)).await;
            let hint = answer.headers().get("grpc-retry-pushback-ms");
            assert_eq!(hint.is_some(), is_hinted, "{status:?}");
        }
    }

    #[tokio::test]
    async fn a_call_counts_until_it_is_answered_or_given_up() {
        let load = load(1, 1);
        for _ in 0..10 {
            let answered = call(&load, POLL).await;
            assert!(!answered.headers().contains_key("grpc-status"));
        }
        let given_up = stuck(&load, POLL);
        let refused = call(&load, POLL).await;
        assert!(refused.headers().contains_key("grpc-status"));
        drop(given_up);
        let answered = call(&load, POLL).await;
        assert!(!answered.headers().contains_key("grpc-status"));
    }

    #[tokio::test]
    async fn a_call_that_is_held_makes_room_for_others() {
        let load = load(1, 1);
        let _held = stuck(&load, POLL);
        let _aside = load.aside();
        let answered = call(&load, POLL).await;
        assert!(!answered.headers().contains_key("grpc-status"));
    }
}
