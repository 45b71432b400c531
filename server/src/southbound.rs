//! Serves gRPC over TLS on a listener until the process stops.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum::http::Request;
use evenkeel_auth::NodeCertificate;
use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::{ConnectionState, MemoryPressure, OutOfMemory};
use metrics::Counter;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tower::util::MapRequestLayer;

use crate::app_context::AppContext;
use crate::client_certificates::peer_certificate;
use crate::config::SouthboundConfig;
use crate::handshake_slots::HandshakeSlots;
use crate::listen::{
    Connection, ConnectionSlot, Listener, NodeConnections, NodeSlot, UnauthenticatedSlot,
};
use crate::observe::CallMetricsLayer;
use crate::proxy_header::TrustedProxies;

/// Maximum number of connections between handshake and gRPC server.
const ACCEPT_QUEUE_LENGTH: usize = 64;

/// HTTP/2 flow-control window of a stream: bytes of a message that may be sent before they are
/// read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// Maximum number of connections that are refused with a status at the same time. Further ones are
/// closed without a status.
const MAX_REJECTED_CONNECTIONS: usize = 64;

/// Maximum lifetime of a connection that is refused with a status.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum size of the header of a request in bytes.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// Accepts connections in tasks of the process. On shutdown, calls that have begun are completed.
pub(crate) fn serve(
    listener: Listener,
    routes: Routes,
    (context, memory): (&AppContext, MemoryPressure),
    config: &SouthboundConfig,
    life: &Lifecycle,
) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(context.certificates.grpc_config(&context.ca)?);
    let (give, take) = mpsc::channel(ACCEPT_QUEUE_LENGTH);
    let reception = HandshakeHandler::new(acceptor, config, give);
    let admission = ConnectionAdmission::new(memory);
    spawn_acceptor(listener, admission, reception, life);
    let stopping = life.stopping();
    let server = Server::builder()
        .max_concurrent_streams(config.max_calls_per_connection)
        .timeout(config.request_timeout)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(64))
        .layer(CallMetricsLayer::default())
        .layer(MapRequestLayer::new(split_connection_metadata))
        .add_routes(routes);
    life.spawn("southbound", async move {
        let connections = ReceiverStream::new(take);
        let stop = stopping.cancelled_owned();
        let ended = server.serve_with_incoming_shutdown(connections, stop).await;
        ended.context("the gRPC server failed")
    });
    Ok(())
}

/// Handshakes run concurrently: a slow handshake does not delay others.
fn spawn_acceptor(
    listener: Listener,
    admission: ConnectionAdmission,
    reception: HandshakeHandler,
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    let reception = Arc::new(reception);
    life.spawn("southbound handshakes", async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let address = connection.peer.0;
            let admitted = match admission.admit() {
                Ok(admitted) => admitted,
                Err(why) => {
                    reception.failed.increment(1);
                    tracing::debug!(%address, "{why}");
                    continue;
                }
            };
            let (reception, stopping) = (Arc::clone(&reception), stopping.clone());
            own.spawn_brief("southbound handshake", async move {
                tokio::select! {
                    () = stopping.cancelled() => {}
                    () = reception.accept(connection, admitted) => {}
                }
            });
        }
        Ok(())
    });
}

/// Admission control for new connections.
struct ConnectionAdmission {
    memory: MemoryPressure,
    rejection_slots: Arc<Semaphore>,
}

/// Permission for a connection; released on drop.
#[derive(Debug)]
struct AdmissionPermit {
    /// Set if the connection is only accepted to refuse its calls, because memory is short.
    rejection: Option<OwnedSemaphorePermit>,
}

impl ConnectionAdmission {
    fn new(memory: MemoryPressure) -> Self {
        Self { memory, rejection_slots: Arc::new(Semaphore::new(MAX_REJECTED_CONNECTIONS)) }
    }

    fn admit(&self) -> Result<AdmissionPermit, &'static str> {
        let turned_away = if self.memory.is_short() {
            let rejection = Arc::clone(&self.rejection_slots).try_acquire_owned();
            Some(rejection.map_err(|_| "memory is short")?)
        } else {
            None
        };
        Ok(AdmissionPermit { rejection: turned_away })
    }
}

/// Performs TLS handshakes.
struct HandshakeHandler {
    acceptor: TlsAcceptor,
    handshake_timeout: Duration,
    authentication_timeout: Duration,
    handshake_slots: HandshakeSlots,
    proxies: TrustedProxies,
    nodes: NodeConnections,
    sender: mpsc::Sender<io::Result<TlsConnection>>,
    ok: Counter,
    failed: Counter,
    slow: Counter,
}

impl HandshakeHandler {
    fn new(
        acceptor: TlsAcceptor,
        config: &SouthboundConfig,
        give: mpsc::Sender<io::Result<TlsConnection>>,
    ) -> Self {
        const HANDSHAKES_TOTAL: &str = "evenkeel_handshakes_total";
        Self {
            acceptor,
            handshake_timeout: config.handshake_timeout,
            authentication_timeout: config.authentication_timeout,
            handshake_slots: HandshakeSlots::new(),
            proxies: TrustedProxies::new(&config.trusted_proxies),
            nodes: NodeConnections::new(config.max_connections_per_node),
            sender: give,
            ok: metrics::counter!(HANDSHAKES_TOTAL, "outcome" => "ok"),
            failed: metrics::counter!(HANDSHAKES_TOTAL, "outcome" => "failed"),
            slow: metrics::counter!(HANDSHAKES_TOTAL, "outcome" => "slow"),
        }
    }

    async fn accept(&self, connection: Connection, admitted: AdmissionPermit) {
        let Connection { stream, slot, peer, unauthenticated, client: _ } = connection;
        let mut unauthenticated = unauthenticated.map(SlotUntilClosed::new);
        let handshake = self.handshake(stream, peer.0, unauthenticated.as_mut());
        match tokio::time::timeout(self.handshake_timeout, handshake).await {
            Ok(Ok((stream, client))) => {
                self.ok.increment(1);
                let lasts = match admitted.rejection {
                    Some(_) => Some(REJECTION_TIMEOUT),
                    None => Some(self.authentication_timeout).filter(|within| !within.is_zero()),
                };
                let certificate = peer_certificate(stream.get_ref().1);
                // A connection that is only refused must not replace one that is served.
                let counted = certificate.as_deref().filter(|_| admitted.rejection.is_none());
                let secured = TlsConnection {
                    node: counted.and_then(|certificate| self.nodes.enter(certificate)),
                    certificate,
                    stream,
                    client: (client != peer.0).then_some(client),
                    unauthenticated,
                    state: ConnectionState::default(),
                    deadline: lasts.map(|lasts| Box::pin(tokio::time::sleep(lasts))),
                    has_ended: false,
                    _slot: slot,
                    admitted,
                };
                // Fails only when the process stops.
                self.sender.send(Ok(secured)).await.ok();
            }
            Ok(Err(error)) => {
                self.failed.increment(1);
                tracing::debug!(%error, "a TLS handshake failed");
            }
            Err(_) => {
                self.slow.increment(1);
                tracing::debug!("a TLS handshake took too long");
            }
        }
    }

    /// Returns the connection and the address of the client. Ends early if the connection must be
    /// closed for a newer one.
    async fn handshake(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        unauthenticated: Option<&mut SlotUntilClosed>,
    ) -> io::Result<(TlsStream<TcpStream>, SocketAddr)> {
        let Some(SlotUntilClosed { unauthenticated, closed }) = unauthenticated else {
            return self.greet(stream, peer, None).await;
        };
        tokio::select! {
            () = closed.as_mut() => Err(io::Error::other("a newer connection needs the slot")),
            done = self.greet(stream, peer, Some(&*unauthenticated)) => done,
        }
    }

    /// Also waits for the first data of the client, because a silent connection could not be shut
    /// down gracefully.
    async fn greet(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        unauthenticated: Option<&UnauthenticatedSlot>,
    ) -> io::Result<(TlsStream<TcpStream>, SocketAddr)> {
        let client = self.proxies.read_client_address(&mut stream, peer).await?;
        if unauthenticated.is_some_and(|slot| !slot.set_address(client.ip())) {
            return Err(io::Error::other("too many unauthenticated connections of one address"));
        }
        let mut stream = self.handshake_slots.accept(&self.acceptor, stream).await?;
        if stream.fill_buf().await?.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((stream, client))
    }
}

/// The slot of an unauthenticated connection, and its end if another connection needs the slot.
#[derive(Debug)]
struct SlotUntilClosed {
    unauthenticated: UnauthenticatedSlot,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl SlotUntilClosed {
    fn new(unauthenticated: UnauthenticatedSlot) -> Self {
        let closed = Box::pin(unauthenticated.closed());
        Self { unauthenticated, closed }
    }
}

/// TLS connection that counts in the limits until it is closed.
#[derive(Debug)]
struct TlsConnection {
    stream: TlsStream<TcpStream>,
    certificate: Option<Arc<NodeCertificate>>,
    /// None if the node has shown no certificate, or its connections are not limited.
    node: Option<NodeSlot>,
    /// Address of the client, if a proxy named it.
    client: Option<SocketAddr>,
    /// None after the first authenticated call.
    unauthenticated: Option<SlotUntilClosed>,
    state: ConnectionState,
    /// Time at which the connection closes if it is refused, or has no authenticated call until
    /// then.
    deadline: Option<Pin<Box<Sleep>>>,
    has_ended: bool,
    _slot: ConnectionSlot,
    admitted: AdmissionPermit,
}

impl TlsConnection {
    /// Returns the slot among the unauthenticated connections after the first authenticated call.
    /// Ends the connection if another one needs the slot.
    fn update_unauthenticated_slot(&mut self, context: &mut Context<'_>) {
        let Some(unauthenticated) = &mut self.unauthenticated else {
            return;
        };
        if self.state.is_authenticated() {
            self.unauthenticated = None;
        } else if unauthenticated.closed.as_mut().poll(context).is_ready() {
            self.unauthenticated = None;
            self.has_ended = true;
        }
    }

    /// Returns whether the connection is closed for reading.
    fn is_closed_for_reading(&mut self, context: &mut Context<'_>) -> bool {
        self.update_unauthenticated_slot(context);
        self.has_ended |= self.node.as_mut().is_some_and(|node| node.is_replaced(context));
        if self.has_ended {
            return true;
        }
        let Some(ends) = &mut self.deadline else {
            return false;
        };
        if ends.as_mut().poll(context).is_pending() {
            return false;
        }
        self.deadline = None;
        let is_turned_away = self.admitted.rejection.is_some();
        self.has_ended = is_turned_away || !self.state.is_authenticated();
        if self.has_ended && !is_turned_away {
            metrics::counter!("evenkeel_connections_unauthenticated_total").increment(1);
        }
        self.has_ended
    }

    /// Returns whether the connection is closed for writing. A client that reads nothing would keep
    /// the connection open otherwise.
    fn is_closed_for_writing(&mut self, context: &mut Context<'_>) -> bool {
        self.is_closed_for_reading(context) && self.admitted.rejection.is_none()
    }
}

/// Data about its connection that each request gets.
#[derive(Clone, Debug)]
struct ConnectionMetadata {
    /// Address of the peer, in the form that tonic expects.
    peer: <TlsStream<TcpStream> as Connected>::ConnectInfo,
    /// Certificate of the node at the other end.
    certificate: Option<Arc<NodeCertificate>>,
    /// Address of the client, if a proxy named it.
    client: Option<SocketAddr>,
    state: ConnectionState,
    out_of_memory: Option<OutOfMemory>,
}

impl Connected for TlsConnection {
    type ConnectInfo = ConnectionMetadata;

    fn connect_info(&self) -> Self::ConnectInfo {
        ConnectionMetadata {
            peer: self.stream.connect_info(),
            certificate: self.certificate.clone(),
            client: self.client,
            state: self.state.clone(),
            out_of_memory: self.admitted.rejection.is_some().then_some(OutOfMemory),
        }
    }
}

/// tonic passes on the metadata of a connection as one value; the services expect its parts.
fn split_connection_metadata(mut request: Request<Body>) -> Request<Body> {
    let extensions = request.extensions_mut();
    let Some(metadata) = extensions.remove() else {
        return request;
    };
    let ConnectionMetadata { peer, certificate, client, state, out_of_memory } = metadata;
    extensions.insert(peer);
    if let Some(certificate) = certificate {
        extensions.insert(certificate);
    }
    if client.is_some() {
        // tonic prefers it to the address of the TLS connection.
        extensions.insert(TcpConnectInfo { local_addr: None, remote_addr: client });
    }
    extensions.insert(state);
    if let Some(out_of_memory) = out_of_memory {
        extensions.insert(out_of_memory);
    }
    request
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_closed_for_reading(context) {
            // End of stream, as if the client had closed its side.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_closed_for_writing(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_closed_for_writing(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_closed_for_writing(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
