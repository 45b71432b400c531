//! Counts calls of agents by method. Every poll passes through it, so it is one layer around all
//! services. A layer of the router would be applied to each route, and be cloned and boxed for each
//! call.

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

/// Layer that counts the calls of a gRPC service.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallMetricsLayer(Arc<MethodTable>);

impl<S> Layer<S> for CallMetricsLayer {
    type Service = CallMetrics<S>;

    fn layer(&self, behind: S) -> Self::Service {
        CallMetrics { methods: Arc::clone(&self.0), inner: behind }
    }
}

/// gRPC service whose calls are counted.
#[derive(Clone, Debug)]
pub(crate) struct CallMetrics<S> {
    methods: Arc<MethodTable>,
    inner: S,
}

impl<S, RequestBody, Answered> Service<Request<RequestBody>> for CallMetrics<S>
where
    S: Service<Request<RequestBody>, Response = Response<Answered>>,
    S::Future: Unpin,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = MeteredCall<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        MeteredCall {
            started_at: Instant::now(),
            methods: Arc::clone(&self.methods),
            uri: request.uri().clone(),
            answer: self.inner.call(request),
        }
    }
}

/// Future of a counted call. A call that is dropped before its answer is not counted.
#[derive(Debug)]
pub(crate) struct MeteredCall<F> {
    started_at: Instant,
    methods: Arc<MethodTable>,
    uri: Uri,
    answer: F,
}

impl<F, Answered, Error> Future for MeteredCall<F>
where
    F: Future<Output = Result<Response<Answered>, Error>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(context))?;
        let code = grpc_code(&answer);
        let method = self.methods.find_or_insert(self.uri.path(), code);
        method.record(code, self.started_at);
        Poll::Ready(Ok(answer))
    }
}

/// Returns the gRPC status code. Errors are in the headers; trailers only contain success.
fn grpc_code<Answered>(answer: &Response<Answered>) -> u8 {
    let code = answer.headers().get("grpc-status");
    let code = code.and_then(|code| code.to_str().ok()?.parse().ok());
    code.unwrap_or(0)
}

/// Metrics of the called methods. Only existing methods are added, because the name of an unknown
/// method is chosen by the peer.
#[derive(Debug)]
struct MethodTable {
    by_path: RwLock<HashMap<String, Arc<MethodMetrics>>>,
    unknown: Arc<MethodMetrics>,
}

/// Metrics of one method. The handles for successful calls are created once.
#[derive(Debug)]
struct MethodMetrics {
    name: String,
    ok_calls: Counter,
    seconds: Histogram,
}

impl Default for MethodTable {
    fn default() -> Self {
        Self { by_path: RwLock::default(), unknown: Arc::new(MethodMetrics::new("none")) }
    }
}

impl MethodTable {
    /// Returns the metrics of the method with this path. A method is added on its first answer with
    /// another code than UNIMPLEMENTED or UNAVAILABLE, which unknown methods get as well; until
    /// then its calls are counted as `none`.
    fn find_or_insert(&self, path: &str, code: u8) -> Arc<MethodMetrics> {
        let by_path = self.by_path.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(method) = by_path.get(path) {
            return Arc::clone(method);
        }
        drop(by_path);
        if matches!(code, UNIMPLEMENTED | UNAVAILABLE) {
            return Arc::clone(&self.unknown);
        }
        let mut by_path = self.by_path.write().unwrap_or_else(PoisonError::into_inner);
        let method = by_path.entry(path.to_owned());
        Arc::clone(method.or_insert_with(|| Arc::new(MethodMetrics::new(path))))
    }
}

impl MethodMetrics {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ok_calls: call_counter(name, 0),
            seconds: metrics::histogram!("evenkeel_grpc_call_seconds", "method" => name.to_owned()),
        }
    }

    fn record(&self, code: u8, begun: Instant) {
        match code {
            0 => self.ok_calls.increment(1),
            _ => call_counter(&self.name, code).increment(1),
        }
        self.seconds.record(begun.elapsed().as_secs_f64());
    }
}

fn call_counter(method: &str, code: u8) -> Counter {
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

    /// Answers with the status code in the request.
    fn respond(request: Request<Option<u16>>) -> Ready<Result<Response<()>, Infallible>> {
        let mut answer = Response::new(());
        if let Some(code) = request.into_body() {
            answer.headers_mut().insert("grpc-status", code.into());
        }
        ready(Ok(answer))
    }

    #[test]
    fn a_call_is_counted_by_its_status_code() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let mut context = Context::from_waker(Waker::noop());
        metrics::with_local_recorder(&recorder, || {
            let mut service = CallMetricsLayer::default().layer(service_fn(respond));
            // A dropped call is not counted.
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
    fn an_unimplemented_path_has_no_label_of_its_own() {
        let methods = MethodTable::default();
        let name = |path: &str, code: u8| methods.find_or_insert(path, code).name.clone();
        assert_eq!(name("/a.Service/Made_up", UNIMPLEMENTED), "none");
        assert_eq!(name("/a.Service/Made_up", UNAVAILABLE), "none", "refused unread");
        assert_eq!(name("/a.Service/Poll", UNAVAILABLE), "none", "not yet");
        assert_eq!(name("/a.Service/Poll", 0), "/a.Service/Poll");
        assert_eq!(name("/a.Service/Poll", UNAVAILABLE), "/a.Service/Poll");
        assert_eq!(methods.by_path.read().unwrap().len(), 1);
    }
}
