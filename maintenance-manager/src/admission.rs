//! The door before all services: a call that is too much is refused before it is read.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::load::{CallKind, Inside, Load};

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
    S: Service<Request<Asked>, Response = Response<Answered>>,
    S::Future: Unpin,
    Answered: Default,
{
    type Response = Response<Answered>;
    type Error = S::Error;
    type Future = Call<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.behind.poll_ready(context)
    }

    fn call(&mut self, request: Request<Asked>) -> Self::Future {
        match self.load.enter(CallKind::of(request.uri().path())) {
            Ok(inside) => Call::Admitted {
                answer: self.behind.call(request),
                _inside: inside,
            },
            Err(busy) => Call::Refused(ready(Ok(busy.status().into_http()))),
        }
    }
}

/// A call on its way through the door.
#[derive(Debug)]
pub enum Call<F: Future> {
    /// It was let in, and counts until it is answered or given up.
    Admitted {
        /// What will be answered.
        answer: F,
        /// Counts it.
        _inside: Inside,
    },
    /// It was not.
    Refused(Ready<F::Output>),
}

impl<F: Future + Unpin> Future for Call<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Admitted { answer, .. } => Pin::new(answer).poll(context),
            Self::Refused(answer) => Pin::new(answer).poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

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
        let behind = service_fn(|request: Request<String>| {
            ready(Ok::<_, Infallible>(Response::new(request.into_body())))
        });
        let service = AdmissionLayer::new(Arc::clone(load)).layer(behind);
        let Ok(answer) = service.oneshot(request(path)).await;
        answer
    }

    /// A call to a service that does not answer.
    fn stuck(load: &Arc<Load>, path: &str) -> impl Future {
        let never = || pending::<Result<Response<String>, Infallible>>();
        let behind = service_fn(move |_: Request<String>| never());
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
        assert_eq!(let_in.body(), "never read");
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
