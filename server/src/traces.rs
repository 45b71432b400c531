//! Sends the spans of this process to an OpenTelemetry collector. The queue is bounded, and nothing
//! waits for the collector: spans that cannot be sent are dropped and counted.

use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use evenkeel_kit::spans::{self, Span};
use evenkeel_kit::{Lifecycle, chain};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{self as otlp, ResourceSpans, ScopeSpans};
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, AsciiMetadataValue, MetadataKey, MetadataMap};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use crate::config::TracingConfig;

/// Maximum number of spans that wait to be sent, and maximum number in a message.
const MAX_QUEUED_SPANS: usize = 8_192;
const MAX_SPANS_PER_MESSAGE: usize = 512;

/// Pause between two messages while few spans arrive.
const SEND_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum duration of a message. A collector that takes longer is overloaded or away.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time after a stop in which the queued spans are still sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts to send spans, if a collector is configured.
pub(crate) fn start(config: &TracingConfig, life: &Lifecycle) -> anyhow::Result<()> {
    let Some(exporter) = SpanExporter::open(config)? else {
        return Ok(());
    };
    let on_drop = || count("queue_full", 1);
    let queue = spans::install(MAX_QUEUED_SPANS, config.sample_percentage, on_drop);
    let queue = queue.context("this process sends spans already")?;
    let stopping = life.stopping();
    life.spawn("traces", async move {
        exporter.run(queue, stopping).await;
        Ok(())
    });
    Ok(())
}

/// The fault of the settings or of a file that they name.
pub(crate) fn find_fault(config: &TracingConfig) -> Option<String> {
    SpanExporter::open(config).err().map(|error| format!("{error:#}"))
}

fn count(result: &'static str, spans: u64) {
    metrics::counter!("evenkeel_trace_spans_total", "result" => result).increment(spans);
}

/// The connection to the collector.
struct SpanExporter {
    endpoint: Endpoint,
    client: TraceServiceClient<Channel>,
    headers: MetadataMap,
    /// Whether the last message failed. Only the first failure of several is logged, and the first
    /// success after them.
    has_failed: bool,
}

impl SpanExporter {
    /// Reads the files of the settings. The connection is made when the first span is sent.
    fn open(config: &TracingConfig) -> anyhow::Result<Option<Self>> {
        let Some(address) = &config.otlp_endpoint else {
            return Ok(None);
        };
        let mut endpoint = Endpoint::from_shared(address.clone())
            .context("tracing.otlp_endpoint is invalid")?
            .connect_timeout(CONNECT_TIMEOUT);
        if address.starts_with("https:") {
            let tls = ClientTlsConfig::new();
            let tls = match &config.ca {
                Some(path) => tls.ca_certificate(read_certificate(path)?),
                None => tls.with_enabled_roots(),
            };
            endpoint =
                endpoint.tls_config(tls).context("cannot set up TLS for tracing.otlp_endpoint")?;
        }
        let headers = match &config.headers_file {
            Some(path) => parse_headers(&read(path, "tracing.headers_file")?)
                .with_context(|| format!("tracing.headers_file: {}", path.display()))?,
            None => MetadataMap::new(),
        };
        let client = TraceServiceClient::new(endpoint.connect_lazy());
        Ok(Some(Self { endpoint, client, headers, has_failed: false }))
    }

    /// Sends spans until the process stops and the queue is empty, or the time for that has passed.
    async fn run(mut self, queue: Receiver<Span>, stopping: CancellationToken) {
        let deadline = async {
            stopping.cancelled().await;
            sleep(FLUSH_TIMEOUT).await;
        };
        tokio::select! {
            () = self.send_all(queue, &stopping) => {}
            () = deadline => tracing::warn!("stopping without having sent all spans"),
        }
    }

    async fn send_all(&mut self, mut queue: Receiver<Span>, stopping: &CancellationToken) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                biased;
                _ = queue.recv_many(&mut batch, MAX_SPANS_PER_MESSAGE) => {}
                () = stopping.cancelled() => return,
            }
            let is_full = batch.len() == MAX_SPANS_PER_MESSAGE;
            self.send(std::mem::take(&mut batch)).await;
            if !is_full || self.has_failed {
                // Spans that end in the meantime are sent together, and a collector that restarts
                // does not get the whole queue at once. An error is the timeout.
                timeout(SEND_INTERVAL, stopping.cancelled()).await.ok();
            }
        }
    }

    async fn send(&mut self, batch: Vec<Span>) {
        let size = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let mut request = Request::new(to_request(batch));
        *request.metadata_mut() = self.headers.clone();
        let outcome = timeout(SEND_TIMEOUT, self.client.export(request)).await;
        let (failed, error) = match outcome {
            Ok(Ok(response)) => read_rejection(response.into_inner(), size),
            Ok(Err(status)) => (size, describe(&status)),
            Err(_) => {
                // If the machine of the collector is gone, the old connection would hang for minutes.
                self.client = TraceServiceClient::new(self.endpoint.connect_lazy());
                (size, "the collector does not answer".to_owned())
            }
        };
        count("sent", size - failed);
        count("failed", failed);
        if failed > 0 && !self.has_failed {
            tracing::warn!(failed, %error, "cannot send spans to tracing.otlp_endpoint");
        } else if failed == 0 && self.has_failed {
            tracing::info!("sending spans to tracing.otlp_endpoint works again");
        }
        self.has_failed = failed > 0;
    }
}

/// Why a message failed. The text of a status itself has its cause as a dump of the program.
fn describe(status: &Status) -> String {
    match status.source() {
        Some(cause) => chain(cause).to_string(),
        None => {
            format!("the collector answers with {:?}: {:?}", status.code(), status.message())
        }
    }
}

/// The number of the spans of a message that the collector rejects, and its reason.
fn read_rejection(response: ExportTraceServiceResponse, size: u64) -> (u64, String) {
    let partial = response.partial_success.unwrap_or_default();
    let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0).min(size);
    (rejected, format!("the collector rejects spans: {}", partial.error_message))
}

fn read_certificate(path: &Path) -> anyhow::Result<Certificate> {
    let text = read(path, "tracing.ca")?;
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        bail!("tracing.ca: {} contains no certificate in PEM", path.display());
    }
    Ok(Certificate::from_pem(text))
}

fn read(path: &Path, setting: &str) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("{setting}: cannot read {}", path.display()))
}

/// Parses headers, one `name: value` per line. A message does not contain a value.
fn parse_headers(text: &str) -> anyhow::Result<MetadataMap> {
    let mut headers = MetadataMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = index + 1;
        let Some((name, value)) = line.split_once(':') else {
            bail!("line {number} is not `name: value`");
        };
        let name = MetadataKey::<Ascii>::from_bytes(name.trim().to_ascii_lowercase().as_bytes());
        let name = name.ok().with_context(|| format!("line {number} has an invalid name"))?;
        let value = AsciiMetadataValue::try_from(value.trim());
        let mut value =
            value.ok().with_context(|| format!("line {number} has an invalid value"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn to_request(batch: Vec<Span>) -> ExportTraceServiceRequest {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [("service.name", "evenkeeld"), ("service.version", version)];
    let attributes = resource.map(|(name, value)| text_attribute(name, value.to_owned())).to_vec();
    let scope = InstrumentationScope { name: "evenkeel".to_owned(), ..Default::default() };
    let spans = batch.into_iter().map(to_wire_span).collect();
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes, ..Default::default() }),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans, ..Default::default() }],
            ..Default::default()
        }],
    }
}

fn to_wire_span(span: Span) -> otlp::Span {
    let link = span.link.map(|context| Link {
        trace_id: context.trace_id.to_vec(),
        span_id: context.span_id.to_vec(),
        ..Default::default()
    });
    let code = if span.is_error { StatusCode::Error } else { StatusCode::Unset };
    let kind = if span.http_status.is_some() { SpanKind::Server } else { SpanKind::Internal };
    let texts = span.attributes.into_iter().map(|(name, value)| text_attribute(name, value));
    // A number, so that a query can compare it.
    let status = span.http_status.map(|status| Value::IntValue(status.into()));
    let status = status.map(|status| attribute("http.response.status_code", status));
    otlp::Span {
        trace_id: span.context.trace_id.to_vec(),
        span_id: span.context.span_id.to_vec(),
        parent_span_id: span.parent.map(|id| id.to_vec()).unwrap_or_default(),
        name: span.name,
        kind: kind.into(),
        start_time_unix_nano: to_nanos(span.start),
        end_time_unix_nano: to_nanos(span.end),
        attributes: texts.chain(status).collect(),
        links: link.into_iter().collect(),
        status: Some(otlp::Status { code: code.into(), ..Default::default() }),
        ..Default::default()
    }
}

fn text_attribute(name: &str, value: String) -> KeyValue {
    attribute(name, Value::StringValue(value))
}

fn attribute(name: &str, value: Value) -> KeyValue {
    let value = AnyValue { value: Some(value) };
    KeyValue { key: name.to_owned(), value: Some(value), ..Default::default() }
}

/// Nanoseconds since 1970; 0 for a time that the protocol cannot represent.
fn to_nanos(time: DateTime<Utc>) -> u64 {
    time.timestamp_nanos_opt().and_then(|nanos| u64::try_from(nanos).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use evenkeel_kit::spans::SpanContext;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    #[test]
    fn a_request_has_its_times_its_parent_and_the_number_of_its_status() {
        let start = DateTime::UNIX_EPOCH + TimeDelta::nanoseconds(1_700_000_000_123_456_789);
        let context = SpanContext { trace_id: [1; 16], span_id: [2; 8] };
        let wire = to_wire_span(Span {
            context,
            parent: Some([3; 8]),
            name: "GET /".to_owned(),
            start,
            end: start + TimeDelta::nanoseconds(5),
            attributes: vec![("a", "b".to_owned())],
            link: None,
            is_error: true,
            http_status: Some(503),
        });
        assert_eq!(
            (wire.trace_id.as_slice(), wire.span_id.as_slice()),
            (&[1; 16][..], &[2; 8][..])
        );
        assert_eq!(wire.parent_span_id, [3; 8]);
        assert_eq!(wire.start_time_unix_nano, 1_700_000_000_123_456_789);
        assert_eq!(wire.end_time_unix_nano, 1_700_000_000_123_456_794);
        assert_eq!(wire.kind, i32::from(SpanKind::Server));
        assert_eq!(wire.status.unwrap().code, i32::from(StatusCode::Error));
        let status = attribute("http.response.status_code", Value::IntValue(503));
        assert_eq!(wire.attributes, [text_attribute("a", "b".to_owned()), status]);
    }

    #[test]
    fn a_failure_is_described_by_its_causes() {
        let refused = std::io::Error::other("connection refused");
        let away = Status::from_error(Box::new(tonic::ConnectError(Box::new(refused))));
        assert_eq!(describe(&away), "connection refused");
        let answer = describe(&Status::unauthenticated("no token"));
        assert_eq!(answer, "the collector answers with Unauthenticated: \"no token\"");
    }

    #[test]
    fn spans_that_a_collector_rejects_are_counted() {
        let partial = |rejected_spans| ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans,
                error_message: "too old".to_owned(),
            }),
        };
        assert_eq!(read_rejection(ExportTraceServiceResponse::default(), 5).0, 0);
        for (rejected, expected) in [(0, 0), (2, 2), (9, 5), (-1, 0)] {
            let (failed, reason) = read_rejection(partial(rejected), 5);
            assert_eq!(failed, expected);
            assert!(reason.ends_with("too old"), "{reason}");
        }
    }

    #[test]
    fn headers_are_parsed_and_hidden() {
        let headers = parse_headers("Authorization: Bearer HUSH\n\nx-tenant: a:b\n").unwrap();
        assert_eq!(headers.get("authorization").unwrap(), "Bearer HUSH");
        assert_eq!(headers.get("x-tenant").unwrap(), "a:b");
        assert!(!format!("{headers:?}").contains("HUSH"));
    }

    #[test]
    fn an_error_names_the_line_and_not_the_value() {
        for text in ["ok: 1\nHUSH", "ok: 1\nbad name: HUSH", "ok: 1\nname: HUSH\u{7f}"] {
            let error = format!("{:#}", parse_headers(text).unwrap_err());
            assert!(error.contains("line 2") && !error.contains("HUSH"), "{error}");
        }
    }
}
