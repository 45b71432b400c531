//! Counts the calls of agents by method. It is on the way of each poll, so it lies around all services at once: a layer of
//! a router would be put around each of its routes, and copied and boxed with each call.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::http::{Request, Response, Uri};
use metrics::{Counter, Histogram};
use tower::{Layer, Service};

const UNIMPLEMENTED: u8 = 12;
const UNAVAILABLE: u8 = 14;

/// Puts the counting around a gRPC service.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallsLayer(Arc<Methods>);

impl<S> Layer<S> for CallsLayer {
    type Service = Calls<S>;

    fn layer(&self, behind: S) -> Self::Service {
        Calls {
            methods: Arc::clone(&self.0),
            behind,
        }
    }
}

/// A gRPC service whose calls are counted.
#[derive(Clone, Debug)]
pub(crate) struct Calls<S> {
    methods: Arc<Methods>,
    behind: S,
}

impl<S, Asked, Answered> Service<Request<Asked>> for Calls<S>
where
    S: Service<Request<Asked>, Response = Response<Answered>>,
    S::Future: Unpin,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Call<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.behind.poll_ready(context)
    }

    fn call(&mut self, request: Request<Asked>) -> Self::Future {
        Call {
            begun: Instant::now(),
            methods: Arc::clone(&self.methods),
            uri: request.uri().clone(),
            answer: self.behind.call(request),
        }
    }
}

/// A call until it is answered. One that is given up before is not counted.
#[derive(Debug)]
pub(crate) struct Call<F> {
    begun: Instant,
    methods: Arc<Methods>,
    uri: Uri,
    answer: F,
}

impl<F, Answered, Error> Future for Call<F>
where
    F: Future<Output = Result<Response<Answered>, Error>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(context))?;
        let code = code(&answer);
        let method = self.methods.of(self.uri.path(), code);
        method.count(code, self.begun);
        Poll::Ready(Ok(answer))
    }
}

/// How a call ended. An error is told in the head; in the tail there is nothing but success.
fn code<Answered>(answer: &Response<Answered>) -> u8 {
    let code = answer.headers().get("grpc-status");
    let code = code.and_then(|code| code.to_str().ok()?.parse().ok());
    code.unwrap_or(0)
}

/// The methods that were called. There are few: whoever calls what is not there chose the name.
#[derive(Debug)]
struct Methods {
    known: RwLock<HashMap<String, Arc<Method>>>,
    none: Arc<Method>,
}

/// What is counted of a method. The handles of what happens with each call are made once.
#[derive(Debug)]
struct Method {
    name: String,
    ok: Counter,
    seconds: Histogram,
}

impl Default for Methods {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            none: Arc::new(Method::new("none")),
        }
    }
}

impl Methods {
    /// The method with this path, which was answered with this code. Until it was answered with another one than what is
    /// not there, or is refused unread, may have as well, it is none.
    fn of(&self, path: &str, code: u8) -> Arc<Method> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(method) = known.get(path) {
            return Arc::clone(method);
        }
        drop(known);
        if matches!(code, UNIMPLEMENTED | UNAVAILABLE) {
            return Arc::clone(&self.none);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let method = known.entry(path.to_owned());
        Arc::clone(method.or_insert_with(|| Arc::new(Method::new(path))))
    }
}

impl Method {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ok: calls(name, 0),
            seconds: metrics::histogram!("evenkeel_grpc_call_seconds", "method" => name.to_owned()),
        }
    }

    fn count(&self, code: u8, begun: Instant) {
        match code {
            0 => self.ok.increment(1),
            _ => calls(&self.name, code).increment(1),
        }
        self.seconds.record(begun.elapsed().as_secs_f64());
    }
}

fn calls(method: &str, code: u8) -> Counter {
    let labels = [("method", method.to_owned()), ("code", code.to_string())];
    metrics::counter!("evenkeel_grpc_calls_total", &labels)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::task::Waker;

    use metrics_exporter_prometheus::PrometheusBuilder;
    use tower::service_fn;

    use super::*;

    /// Answers as it is asked to.
    fn told(request: Request<Option<u16>>) -> Ready<Result<Response<()>, Infallible>> {
        let mut answer = Response::new(());
        if let Some(code) = request.into_body() {
            answer.headers_mut().insert("grpc-status", code.into());
        }
        ready(Ok(answer))
    }

    #[test]
    fn a_call_is_counted_by_how_it_ended() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let mut context = Context::from_waker(Waker::noop());
        metrics::with_local_recorder(&recorder, || {
            let mut service = CallsLayer::default().layer(service_fn(told));
            // One that nobody waits for any more is not counted.
            drop(service.call(Request::new(Some(13))));
            for code in [None, None, Some(5), Some(0)] {
                let mut request = Request::new(code);
                *request.uri_mut() = Uri::from_static("/a.Service/Poll");
                let answered = Pin::new(&mut service.call(request)).poll(&mut context);
                assert!(answered.is_ready());
            }
        });
        let text = recorder.handle().render();
        for counted in [
            r#"evenkeel_grpc_calls_total{method="/a.Service/Poll",code="0"} 3"#,
            r#"evenkeel_grpc_calls_total{method="/a.Service/Poll",code="5"} 1"#,
            r#"evenkeel_grpc_call_seconds_count{method="/a.Service/Poll"} 4"#,
        ] {
            assert!(text.contains(counted), "{counted} in {text}");
        }
        assert!(!text.contains(r#"code="13""#), "{text}");
    }

    #[test]
    fn what_a_peer_calls_that_is_not_there_gets_no_label_of_its_own() {
        let methods = Methods::default();
        let name = |path: &str, code: u8| methods.of(path, code).name.clone();
        assert_eq!(name("/a.Service/Made_up", UNIMPLEMENTED), "none");
        assert_eq!(
            name("/a.Service/Made_up", UNAVAILABLE),
            "none",
            "refused unread"
        );
        assert_eq!(name("/a.Service/Poll", UNAVAILABLE), "none", "not yet");
        assert_eq!(name("/a.Service/Poll", 0), "/a.Service/Poll");
        assert_eq!(name("/a.Service/Poll", UNAVAILABLE), "/a.Service/Poll");
        assert_eq!(methods.known.read().unwrap().len(), 1);
    }
}
