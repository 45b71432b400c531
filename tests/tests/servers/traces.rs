//! The spans that a server sends to an OpenTelemetry collector. The collector is a gRPC server with
//! the protocol's own types.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_test_support::{RestClient, resource_id};
use evenkeel_tests::history::Replicas;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use super::machine::Machine;

/// Longest time until the spans of a call arrive, on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Trace and span of the client that sends the order.
const CLIENT_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

/// A collector, which keeps all spans.
#[derive(Clone, Debug, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    /// Whether it never answers.
    hangs: bool,
    /// Whether it refuses everything for now.
    is_away: Arc<AtomicBool>,
    /// Value of the header `authorization` that it requires.
    authorization: Option<&'static str>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        if self.is_away.load(Ordering::Relaxed) {
            return Err(Status::unavailable("restarting"));
        }
        let sent = request.metadata().get("authorization").and_then(|sent| sent.to_str().ok());
        if self.authorization.is_some() && sent != self.authorization {
            return Err(Status::unauthenticated("no token"));
        }
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let spans = scopes.flat_map(|scope| scope.spans);
        self.spans.lock().expect("the spans").extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves without TLS. Returns the settings of a server that uses it.
    async fn serve(&self) -> String {
        let address = self.serve_with(Server::builder()).await;
        format!("[tracing]\notlp_endpoint = \"http://{address}\"\n")
    }

    /// Serves until the runtime of the test ends.
    async fn serve_with(&self, mut server: Server) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serve = server
            .add_service(TraceServiceServer::new(self.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve);
        tasks.detach_all();
        address
    }

    fn spans(&self) -> Vec<Span> {
        self.spans.lock().expect("the spans").clone()
    }

    /// Waits until this number of spans with a name has arrived, and returns them.
    async fn wait_for(&self, name: &str, count: usize) -> Vec<Span> {
        let begun = Instant::now();
        loop {
            let mut found = self.spans();
            found.retain(|span| span.name == name);
            if found.len() >= count {
                return found;
            }
            let names: Vec<String> = self.spans().into_iter().map(|span| span.name).collect();
            assert!(begun.elapsed() < WAIT_TIMEOUT, "{name} is missing among {names:?}");
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

fn find_attribute<'a>(span: &'a Span, name: &str) -> Option<&'a Value> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref())
}

/// The text of an attribute.
fn attribute<'a>(span: &'a Span, name: &str) -> &'a str {
    match find_attribute(span, name) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{name} of {} is {other:?}", span.name),
    }
}

/// The hexadecimal digits of an ID of 8 or 16 bytes.
fn hex(bytes: &[u8]) -> String {
    let number = bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    format!("{number:0width$x}", width = 2 * bytes.len())
}

/// The only link of a span: the trace and the span that caused it.
fn link(span: &Span) -> (Vec<u8>, Vec<u8>) {
    assert_eq!(span.links.len(), 1, "{span:?}");
    (span.links[0].trace_id.clone(), span.links[0].span_id.clone())
}

fn identity(span: &Span) -> (Vec<u8>, Vec<u8>) {
    (span.trace_id.clone(), span.span_id.clone())
}

fn rest_client(replicas: &Replicas) -> RestClient {
    let address = &replicas.rest_addresses()[0];
    RestClient::connect(address, "default", &replicas.operator_token())
}

/// A machine joins and gets a policy. Returns it and its instance.
async fn join_machine(replicas: &Replicas, client: &RestClient) -> (Machine, String) {
    let created = client.post("join-tokens", json!({})).await;
    let token = created["token"].as_str().expect("a token");
    let southbound = &replicas.southbound_addresses()[0];
    let mut machine = Machine::join(southbound, &replicas.ca_certificate(), 1, token).await;
    machine.poll(false).await;
    let policy = json!({
        "name": "tools", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl",
    });
    let policy = client.post("os-update-policies", policy).await;
    let assignment = json!({ "osUpdatePolicyId": resource_id(&policy) });
    client.put("assignments/project", assignment).await;
    let list = client.get("compute/instances").await;
    (machine, resource_id(&list["instances"][0]))
}

/// Orders an update as the client of a trace. Checks that the response continues the trace.
async fn order_update(client: &RestClient, instance: &str) {
    let parent = format!("00-{CLIENT_TRACE}-{CLIENT_SPAN}-01");
    let client = client.clone().with_header("traceparent", &parent);
    let what = format!("PUT compute/instances/{instance}/order");
    let answer = client.call(&what, Some(json!({ "kind": "now" }))).await;
    assert!(answer.status.is_success(), "{}", answer.text);
    let sent = answer.headers["traceparent"].to_str().expect("a text");
    assert!(sent.starts_with(&format!("00-{CLIENT_TRACE}-")), "{sent}");
    assert!(!sent.contains(CLIENT_SPAN), "{sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_an_update_leads_from_the_order_to_the_last_report() {
    let collector = Collector::default();
    let replicas = Replicas::start(1, &collector.serve().await).await;
    let client = rest_client(&replicas);
    let (mut machine, instance) = join_machine(&replicas, &client).await;
    order_update(&client, &instance).await;
    let target = machine.wait_for_window().await;
    machine.update(&target).await;

    let update = collector.wait_for("update", 1).await.remove(0);
    let reports = collector.wait_for("report", 4).await;
    let order = collector.wait_for("order", 1).await.remove(0);
    assert_eq!(link(&update), identity(&order));
    assert_request_of_order(&collector, &order).await;

    let mut spans = collector.spans();
    spans.retain(|span| span.trace_id == update.trace_id && span.span_id != update.span_id);
    assert!(spans.iter().all(|span| span.parent_span_id == update.span_id), "{spans:?}");
    let mut names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    names.sort_unstable();
    let steps = ["apply", "begin", "decision", "download"];
    let reported = ["report", "report", "report", "report", "wait for permit"];
    assert_eq!(names, [&steps[..], &reported].concat());

    let find = |name: &str| spans.iter().find(|span| span.name == name).expect("a span");
    let (download, wait, apply) = (find("download"), find("wait for permit"), find("apply"));
    assert_eq!(download.end_time_unix_nano, wait.start_time_unix_nano);
    assert_eq!(wait.end_time_unix_nano, apply.start_time_unix_nano);
    assert_eq!(attribute(apply, "evenkeel.next_event"), "finished");
    assert_eq!(attribute(find("begin"), "evenkeel.permit"), "granted");
    let events: Vec<&str> = reports.iter().map(|span| attribute(span, "evenkeel.event")).collect();
    assert_eq!(events, ["downloading", "downloaded", "began", "finished"]);
    assert_eq!(attribute(&update, "evenkeel.state"), "succeeded");
    assert_eq!(attribute(&update, "evenkeel.instance"), instance);
    assert_eq!(attribute(&update, "evenkeel.host"), attribute(find("begin"), "evenkeel.host"));
    assert!(!format!("{:?}", collector.spans()).contains("curl"), "a package is in an attribute");
    replicas.stop().await;
}

/// Checks that the order is linked to its request, which is a child of the span of the client.
async fn assert_request_of_order(collector: &Collector, order: &Span) {
    let route = "PUT /v1/projects/{projectName}/compute/instances/{resourceId}/order";
    let request = collector.wait_for(route, 1).await.remove(0);
    assert_eq!(hex(&request.trace_id), CLIENT_TRACE);
    assert_eq!(hex(&request.parent_span_id), CLIENT_SPAN);
    assert_eq!(link(order), identity(&request));
    let status = find_attribute(&request, "http.response.status_code");
    assert_eq!(status, Some(&Value::IntValue(200)));
    assert_eq!(request.kind, i32::from(SpanKind::Server));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_delays_nothing_and_its_spans_are_counted() {
    let collector = Collector { hangs: true, ..Collector::default() };
    let mut replicas = Replicas::start(1, &collector.serve().await).await;
    let client = rest_client(&replicas);
    let (mut machine, instance) = join_machine(&replicas, &client).await;
    order_update(&client, &instance).await;
    let target = machine.wait_for_window().await;
    machine.update(&target).await;
    let begun = Instant::now();
    while count_spans(&replicas, "failed").await == 0 {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "no span is counted\n{}", replicas.logs());
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    assert_eq!(count_spans(&replicas, "sent").await, 0);
    assert!(replicas.logs().contains("the collector does not answer"), "{}", replicas.logs());
    replicas.servers()[0].stop();
    let logs = replicas.logs();
    assert!(logs.contains("stopping without having sent all spans"), "{logs}");
    assert!(!logs.contains("panicked"), "{logs}");
    replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_logged_once_and_gets_the_spans_after_its_return() {
    const REQUEST: &str = "GET /v1/projects/{projectName}/compute/hosts";
    let collector = Collector::default();
    collector.is_away.store(true, Ordering::Relaxed);
    let replicas = Replicas::start(1, &collector.serve().await).await;
    let client = rest_client(&replicas);
    let failure = "cannot send spans to tracing.otlp_endpoint";
    let begun = Instant::now();
    while !replicas.logs().contains(failure) {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "{}", replicas.logs());
        client.get("compute/hosts").await;
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    client.get("compute/hosts").await;
    collector.is_away.store(false, Ordering::Relaxed);
    client.get("compute/hosts").await;
    collector.wait_for(REQUEST, 1).await;
    let logs = replicas.logs();
    assert_eq!(logs.matches(failure).count(), 1, "{logs}");
    assert!(logs.contains("the collector answers with Unavailable"), "{logs}");
    replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_sent_over_tls_with_the_headers_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let now = SystemClock.now();
    let ca = CertificateAuthority::open(&folder.path().join("ca"), now).expect("an authority");
    let issued = ca.issue_server(&["localhost".to_owned()], now).expect("a certificate");
    let identity = Identity::from_pem(issued.chain_pem, issued.key_pem.reveal());
    let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity));
    let collector = Collector { authorization: Some("Bearer hush"), ..Collector::default() };
    let address = collector.serve_with(server.expect("a configuration")).await;
    let headers = folder.path().join("headers");
    fs::write(&headers, "Authorization: Bearer hush\n").expect("written");
    let settings = format!(
        "[tracing]\notlp_endpoint = \"https://localhost:{}\"\nca = {:?}\nheaders_file = {headers:?}\n",
        address.port(),
        folder.path().join("ca/ca.pem"),
    );
    let replicas = Replicas::start(1, &settings).await;
    rest_client(&replicas).get("compute/hosts").await;
    collector.wait_for("GET /v1/projects/{projectName}/compute/hosts", 1).await;
    assert!(!replicas.logs().contains("hush"), "{}", replicas.logs());
    replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_nothing_is_recorded() {
    let replicas = Replicas::start(1, "").await;
    let client = rest_client(&replicas);
    let parent = format!("00-{CLIENT_TRACE}-{CLIENT_SPAN}-01");
    let answer = client.with_header("traceparent", &parent).call("GET compute/hosts", None).await;
    assert!(answer.status.is_success(), "{}", answer.text);
    assert!(!answer.headers.contains_key("traceparent"), "{:?}", answer.headers);
    for result in ["sent", "failed", "queue_full"] {
        assert_eq!(count_spans(&replicas, result).await, 0, "{result}");
    }
    replicas.stop().await;
}

/// Number of spans with a result, by the metric of the server.
async fn count_spans(replicas: &Replicas, result: &str) -> u64 {
    let lines = replicas.metric_lines("evenkeel_trace_spans_total").await;
    let label = format!("result=\"{result}\"");
    let line = lines.iter().find(|line| line.contains(&label)).expect("a series");
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}
