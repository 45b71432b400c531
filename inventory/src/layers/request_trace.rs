//! The span of a request, in the trace of its client if the request names one.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method};
use axum::response::Response;
use chrono::{DateTime, Utc};
use evenkeel_kit::spans::{self, Span, SpanContext};
use evenkeel_kit::{Clock, SystemClock};

/// Header of W3C Trace Context, in requests and responses.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The span of a request that is being served.
#[derive(Debug)]
pub(super) struct RequestTrace {
    context: SpanContext,
    parent: Option<[u8; 8]>,
    start: DateTime<Utc>,
    is_sampled: bool,
}

impl RequestTrace {
    /// Begins the span of a request, and adds its context to the extensions of the request. None if
    /// this process sends no spans.
    pub(super) fn begin(request: &mut Request) -> Option<Self> {
        if !spans::are_enabled() {
            return None;
        }
        let sent = request.headers().get(TRACEPARENT).and_then(|sent| sent.to_str().ok());
        let parent = sent.and_then(SpanContext::parse_traceparent);
        let context = match &parent {
            Some((parent, _)) => parent.random_child(),
            None => SpanContext::random(),
        };
        request.extensions_mut().insert(context);
        // A client may forbid to record its trace, but cannot enforce it.
        let may_record = parent.as_ref().is_none_or(|(_, is_sampled)| *is_sampled);
        Some(Self {
            context,
            parent: parent.map(|(parent, _)| parent.span_id),
            start: SystemClock.now(),
            is_sampled: may_record && spans::is_sampled(&context),
        })
    }

    /// Ends the span, and adds its context to the response.
    pub(super) fn end(
        self,
        method: &Method,
        route: &str,
        project: Option<&str>,
        response: &mut Response,
    ) {
        let header = self.context.to_traceparent(self.is_sampled);
        if let Ok(header) = HeaderValue::try_from(header) {
            response.headers_mut().insert(TRACEPARENT, header);
        }
        if !self.is_sampled {
            return;
        }
        let mut attributes =
            vec![("http.request.method", method.to_string()), ("http.route", route.to_owned())];
        attributes.extend(project.map(|project| ("evenkeel.project", project.to_owned())));
        spans::send(Span {
            context: self.context,
            parent: self.parent,
            name: format!("{method} {route}"),
            start: self.start,
            end: SystemClock.now(),
            attributes,
            link: None,
            is_error: response.status().is_server_error(),
            http_status: Some(response.status().as_u16()),
        });
    }
}
