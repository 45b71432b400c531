//! The network between a node and the servers, with its faults.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio_util::task::TaskTracker;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Response, Status};

use crate::rng::Rng;

/// The maximum duration of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest retry hint that a node follows.
const MAX_PUSHBACK: Duration = Duration::from_hours(1);

/// How often each fault happens in a thousand calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The request never arrives.
    pub lose_request: u16,
    /// The request arrives, its answer does not.
    pub lose_answer: u16,
    /// The request arrives twice, at any of the servers, at the same time.
    pub duplicate: u16,
    /// The node gives up the call, and the request arrives after the next messages of the node.
    pub straggle: u16,
    /// The request is slow.
    pub delay: u16,
}

/// Counters of all connections together.
#[derive(Debug, Default)]
pub struct NetworkCounters {
    /// Polls that were answered.
    pub polls: AtomicU64,
    /// Other calls that were answered.
    pub other_calls: AtomicU64,
    /// Calls that failed on the network, by a fault or because a server was gone.
    pub network_errors: AtomicU64,
    /// Calls that a server refused.
    pub refused: AtomicU64,
    /// Requests that arrived more than once.
    pub duplicated: AtomicU64,
    /// Requests that arrived after the node had given them up.
    pub delivered_late: AtomicU64,
    /// Failed requests of which the node saw nothing: late ones, and second ones of a call. A
    /// refusal with a retry hint is no failure.
    pub unseen_failures: AtomicU64,
}

impl NetworkCounters {
    /// Records an answer of which the node sees nothing.
    fn record_unseen<A>(&self, answer: &Result<A, Status>) {
        if answer.as_ref().is_err_and(|status| retry_pushback(status).is_none()) {
            increment(&self.unseen_failures);
        }
    }
}

/// The state that all connections share.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// How often each fault happens.
    pub faults: Faults,
    /// Counts what happened.
    pub counters: Arc<NetworkCounters>,
    faults_stopped: Arc<AtomicBool>,
    late_calls: TaskTracker,
    report_server: Arc<OnceLock<ReportServer>>,
}

/// A server that gets reports only, and no other call.
#[derive(Clone, Debug)]
pub struct ReportServer {
    /// The connection of all nodes.
    pub channel: Channel,
    /// Whether it gets reports now.
    pub is_open: Arc<AtomicBool>,
}

impl Network {
    /// A network with these faults.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// Sends a share of the reports of all nodes to one more server. Only the first call has an
    /// effect.
    pub fn set_report_server(&self, server: ReportServer) {
        self.report_server.get_or_init(|| server);
    }

    /// Ends all faults, and waits until the last late request has arrived.
    pub async fn stop_faults(&self) {
        self.faults_stopped.store(true, Ordering::SeqCst);
        self.late_calls.close();
        self.late_calls.wait().await;
    }

    /// Whether the faults have ended.
    #[must_use]
    pub fn is_fault_free(&self) -> bool {
        self.faults_stopped.load(Ordering::SeqCst)
    }
}

/// The connection of one node. Each call goes to any of the servers.
#[derive(Clone, Debug)]
pub struct NodeConnection {
    servers: Vec<Channel>,
    /// `None` if the connections to the servers show a client certificate.
    authorization: Option<MetadataValue<Ascii>>,
    network: Network,
    faults: Faults,
}

/// A call that can be made now or later.
type Call<A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// There is no fault.
    Arrives,
    /// The request is delayed.
    Slow,
    /// The request never arrives.
    RequestLost,
    /// The server answers the request, but its answer is lost.
    AnswerLost,
    /// The request arrives twice.
    Twice,
    /// The request arrives after the node has given up the call.
    Late,
}

impl NodeConnection {
    /// A connection to these servers with this credential. Returns `None` if the credential is no
    /// valid header.
    #[must_use]
    pub fn new(servers: Vec<Channel>, credential: &str, network: &Network) -> Option<Self> {
        let authorization = format!("Bearer {credential}").parse().ok()?;
        Some(Self::with_authorization(servers, Some(authorization), network))
    }

    /// A connection to these servers with this value of the `authorization` header. `None` if each
    /// of the channels shows the client certificate of the node.
    #[must_use]
    pub fn with_authorization(
        servers: Vec<Channel>,
        authorization: Option<MetadataValue<Ascii>>,
        network: &Network,
    ) -> Self {
        Self { servers, authorization, faults: network.faults, network: network.clone() }
    }

    /// The same connection with other faults.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// The state that is shared with the other connections.
    #[must_use]
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// The same connection for a report.
    #[must_use]
    pub fn for_reports(&self) -> Self {
        let mut connection = self.clone();
        let more = self.network.report_server.get();
        let more = more.filter(|server| server.is_open.load(Ordering::SeqCst));
        connection.servers.extend(more.map(|server| server.channel.clone()));
        connection
    }

    /// Replaces the credential by a new one of the server.
    pub fn set_credential(&mut self, credential: &str) {
        if let Ok(value) = format!("Bearer {credential}").parse() {
            self.authorization = Some(value);
        }
    }

    /// Makes a call.
    ///
    /// # Errors
    /// The server refused the call, or the call failed on the network.
    pub async fn call<Q, A, S, F>(&self, rng: &mut Rng, message: Q, send: S) -> Result<A, Status>
    where
        Q: Clone + Send + 'static,
        A: Send + 'static,
        S: Fn(Channel, Request<Q>) -> F + Send + 'static,
        F: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        self.call_with_fate(rng, message, send).await.0
    }

    /// Makes a call. Returns the answer, and what happened to the call.
    pub async fn call_with_fate<Q, A, S, F>(
        &self,
        rng: &mut Rng,
        message: Q,
        send: S,
    ) -> (Result<A, Status>, Fate)
    where
        Q: Clone + Send + 'static,
        A: Send + 'static,
        S: Fn(Channel, Request<Q>) -> F + Send + 'static,
        F: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        let mut fate = self.draw_fate(rng);
        let send = |rng: &mut Rng| -> Call<A> {
            let mut request = node_request(message.clone(), self.authorization.as_ref());
            request.set_timeout(CALL_TIMEOUT);
            Box::pin(with_deadline(send(rng.pick(&self.servers).clone(), request)))
        };
        let counters = &self.network.counters;
        let answer = match fate {
            Fate::Arrives => send(rng).await,
            Fate::Slow => {
                tokio::time::sleep(Duration::from_millis(rng.between(5, 250))).await;
                send(rng).await
            }
            Fate::RequestLost => Err(network_error()),
            Fate::AnswerLost => {
                let answer = send(rng).await;
                if answer.is_err() {
                    fate = Fate::Arrives;
                }
                answer.and_then(|_| Err(network_error()))
            }
            Fate::Twice => {
                increment(&counters.duplicated);
                let (left, right) = tokio::join!(send(rng), send(rng));
                let (seen, unseen) = if rng.happens(500) { (left, right) } else { (right, left) };
                counters.record_unseen(&unseen);
                seen
            }
            Fate::Late => {
                increment(&counters.delivered_late);
                let wait = Duration::from_millis(rng.between(10, 2_000));
                let (call, counters) = (send(rng), Arc::clone(counters));
                self.network.late_calls.spawn(async move {
                    tokio::time::sleep(wait).await;
                    counters.record_unseen(&call.await);
                });
                Err(network_error())
            }
        };
        if let Err(status) = &answer {
            increment(if is_network_error(status) && retry_pushback(status).is_none() {
                &counters.network_errors
            } else {
                &counters.refused
            });
        }
        (answer.map(Response::into_inner), fate)
    }

    fn draw_fate(&self, rng: &mut Rng) -> Fate {
        if self.network.is_fault_free() {
            return Fate::Arrives;
        }
        let faults = self.faults;
        let all = [
            (faults.lose_request, Fate::RequestLost),
            (faults.lose_answer, Fate::AnswerLost),
            (faults.duplicate, Fate::Twice),
            (faults.straggle, Fate::Late),
            (faults.delay, Fate::Slow),
        ];
        let mut drawn = rng.between(0, 999);
        for (often, fate) in all {
            if drawn < u64::from(often) {
                return fate;
            }
            drawn -= u64::from(often);
        }
        Fate::Arrives
    }
}

/// Adds a value of the `authorization` header to a message.
pub fn authorize<Q>(message: Q, authorization: &MetadataValue<Ascii>) -> Request<Q> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", authorization.clone());
    request
}

/// A request of a node. `authorization` is the value of that header; `None` if the connection shows
/// the client certificate of the node.
pub fn node_request<Q>(message: Q, authorization: Option<&MetadataValue<Ascii>>) -> Request<Q> {
    match authorization {
        Some(authorization) => authorize(message, authorization),
        None => Request::new(message),
    }
}

/// Opens a connection to a server over TLS, lazily: each call tries again to reach a server that is
/// away.
///
/// # Errors
/// The address or the certificate is invalid.
pub fn connect_lazily(address: &str, ca: &str) -> Result<Channel, tonic::transport::Error> {
    Ok(tls_endpoint(address, ca)?.connect_lazy())
}

/// Opens a connection to a server as [`connect_lazily`] does. It shows this client certificate (DER)
/// with its key (PKCS #8, PEM).
///
/// # Errors
/// The address, a certificate or the key is invalid.
pub fn connect_with_certificate(
    address: &str,
    ca: &str,
    (certificate, key_pem): (&[u8], &str),
) -> Result<Channel, tonic::transport::Error> {
    let identity = Identity::from_pem(encode_certificate(certificate), key_pem);
    Ok(endpoint(address, tls_config(ca).identity(identity))?.connect_lazy())
}

/// A server that is reached over TLS.
///
/// # Errors
/// The address or the certificate is invalid.
pub fn tls_endpoint(address: &str, ca: &str) -> Result<Endpoint, tonic::transport::Error> {
    endpoint(address, tls_config(ca))
}

fn tls_config(ca: &str) -> ClientTlsConfig {
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("localhost")
}

fn endpoint(address: &str, tls: ClientTlsConfig) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?;
    Ok(endpoint.connect_timeout(Duration::from_secs(5)).tcp_nodelay(true))
}

/// A certificate as PEM.
fn encode_certificate(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// The retry hint of an overloaded server; `None` if the call failed for another reason.
#[must_use]
pub fn retry_pushback(status: &Status) -> Option<Duration> {
    use tonic::Code;
    if !matches!(status.code(), Code::Unavailable | Code::ResourceExhausted) {
        return None;
    }
    let value = status.metadata().get("grpc-retry-pushback-ms")?;
    let millis = value.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(millis).min(MAX_PUSHBACK))
}

/// Whether a call failed on the network and was not refused by the server.
#[must_use]
pub fn is_network_error(status: &Status) -> bool {
    use tonic::Code;
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
    )
}

fn network_error() -> Status {
    Status::unavailable("lost on the network")
}

async fn with_deadline<A>(
    call: impl Future<Output = Result<Response<A>, Status>>,
) -> Result<Response<A>, Status> {
    let done = tokio::time::timeout(CALL_TIMEOUT, call).await;
    done.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))
}

pub(crate) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
