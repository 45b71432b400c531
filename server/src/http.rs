//! Serves HTTP/1.1, plain or over TLS, on a listener until the process stops.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Extension, Router};
use evenkeel_inventory::AuthenticationHook;
use evenkeel_kit::Lifecycle;
use http_body::{Frame, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use crate::client_certificates::peer_certificate;
use crate::handshake_slots::HandshakeSlots;
use crate::listen::{
    ClientConnection, Connection, ConnectionActivity, Listener, Peer, RunningRequest,
    UnauthenticatedSlot,
};
use crate::proxy_header::TrustedProxies;

/// How a listener for HTTP treats its connections.
pub(crate) struct HttpSettings {
    /// None for plain HTTP.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) timeouts: HttpTimeouts,
    /// Proxies whose connections begin with a header of the PROXY protocol.
    pub(crate) proxies: TrustedProxies,
}

/// Time-outs of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpTimeouts {
    /// Maximum duration of the header of the PROXY protocol and of the TLS handshake.
    pub(crate) handshake: Duration,
    /// Maximum time to receive the header of a request.
    pub(crate) header: Duration,
    /// Maximum lifetime of the connection; none for no limit.
    pub(crate) max_connection_age: Option<Duration>,
    /// Maximum wait for open requests on shutdown; none to wait until they are completed.
    pub(crate) drain: Option<Duration>,
}

impl HttpSettings {
    /// Settings of a listener without proxies and without a limit on the duration of requests. The
    /// time-out applies to the handshake, and then to the header of each request.
    pub(crate) fn new(tls: Option<Arc<ServerConfig>>, timeout: Duration) -> Self {
        let timeouts = HttpTimeouts {
            handshake: timeout,
            header: timeout,
            max_connection_age: None,
            drain: None,
        };
        Self { tls, timeouts, proxies: TrustedProxies::default() }
    }
}

/// Accepts connections in a task of the process. A slow handshake does not delay other connections.
pub(crate) fn serve(
    name: &'static str,
    listener: Listener,
    router: Router,
    settings: HttpSettings,
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    let server = Arc::new(HttpServer::new(router, settings));
    life.spawn(name, async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let (server, stopping) = (Arc::clone(&server), stopping.clone());
            own.spawn_brief(name, async move {
                server.serve_connection(connection, &stopping).await;
            });
        }
        Ok(())
    });
}

/// Slot of a connection among the unauthenticated ones, until its client has authenticated itself.
type SharedSlot = Arc<Mutex<Option<UnauthenticatedSlot>>>;

/// Counts a client as authenticated when a request was served. For services that demand
/// authentication for every request and do not call the [`AuthenticationHook`].
pub(crate) fn authenticate_by_success(router: Router) -> Router {
    router.layer(middleware::from_fn(return_slot_after_success))
}

async fn return_slot_after_success(request: Request, next: Next) -> Response {
    let unauthenticated: Option<SharedSlot> = request.extensions().get().cloned();
    let response = next.run(request).await;
    if let Some(slot) = unauthenticated
        && !response.status().is_client_error()
        && !response.status().is_server_error()
    {
        slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
    response
}

/// Counts a request as running until its response was sent. Tells the client if the connection
/// closes after it.
async fn track_request(request: Request, next: Next) -> Response {
    let activity = request.extensions().get().cloned();
    let activity: ConnectionActivity = activity.unwrap_or_default();
    let running = activity.clone().begin();
    let mut response = next.run(request).await;
    if activity.is_closing() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| Body::new(TrackedBody { body, _running: running }))
}

/// Body of a response whose request counts as running.
struct TrackedBody {
    body: Body,
    _running: RunningRequest,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves the connections of a listener.
struct HttpServer {
    tls: Option<TlsAcceptor>,
    handshake_slots: HandshakeSlots,
    handler: HttpConnectionHandler,
    timeouts: HttpTimeouts,
    proxies: TrustedProxies,
}

/// A connection after its handshake, and its client.
type OpenedConnection = (Either<TlsStream<TcpStream>, TcpStream>, Peer);

impl HttpServer {
    fn new(router: Router, settings: HttpSettings) -> Self {
        let router = router.layer(middleware::from_fn(track_request));
        Self {
            tls: settings.tls.map(TlsAcceptor::from),
            handshake_slots: HandshakeSlots::new(),
            handler: HttpConnectionHandler::new(router, settings.timeouts.header),
            timeouts: settings.timeouts,
            proxies: settings.proxies,
        }
    }

    /// Serves a connection until it ends. If it counts as unauthenticated, it does so until its
    /// client has authenticated itself, and ends earlier if a newer one needs its slot. Then it
    /// counts for its caller, and ends earlier if that one opens too many.
    async fn serve_connection(&self, connection: Connection, stopping: &CancellationToken) {
        let Connection { stream, peer, slot, unauthenticated, client } = connection;
        let closed = unauthenticated.as_ref().map(UnauthenticatedSlot::closed);
        let closed = async {
            match closed {
                Some(closed) => closed.await,
                None => std::future::pending().await,
            }
        };
        let activity = client.as_ref().map(ClientConnection::activity);
        let closing = activity.map_or(stopping, ConnectionActivity::closing).clone();
        let served = async {
            let opened = self.open(stream, peer, unauthenticated.as_ref());
            let opened = tokio::time::timeout(self.timeouts.handshake, opened);
            let opened = tokio::select! {
                () = closing.cancelled() => return,
                opened = opened => opened,
            };
            match opened {
                Ok(Ok(opened)) => {
                    let (mut client, named) = (client, opened.1);
                    if let Some(client) = client.as_mut().filter(|_| named != peer) {
                        client.set_address(named.0.ip());
                    }
                    let served = self.serve_opened(opened, unauthenticated, client, &closing);
                    Box::pin(served).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, ?peer, "a connection was not opened"),
                Err(_) => tracing::debug!(?peer, "a TLS handshake took too long"),
            }
        };
        tokio::select! {
            () = served => {}
            () = closed => tracing::debug!(?peer, "a newer connection needs the slot"),
        }
        drop(slot);
    }

    /// Reads the header of a proxy, and performs the TLS handshake.
    async fn open(
        &self,
        mut stream: TcpStream,
        peer: Peer,
        unauthenticated: Option<&UnauthenticatedSlot>,
    ) -> io::Result<OpenedConnection> {
        let client = self.proxies.read_client_address(&mut stream, peer.0).await?;
        if unauthenticated.is_some_and(|slot| !slot.set_address(client.ip())) {
            return Err(io::Error::other("too many unauthenticated connections of one address"));
        }
        let stream = match &self.tls {
            Some(acceptor) => Either::Left(self.handshake_slots.accept(acceptor, stream).await?),
            None => Either::Right(stream),
        };
        Ok((stream, Peer(client)))
    }

    async fn serve_opened(
        &self,
        (stream, peer): OpenedConnection,
        unauthenticated: Option<UnauthenticatedSlot>,
        client: Option<ClientConnection>,
        closing: &CancellationToken,
    ) {
        let mut handler = self.handler.clone();
        if let Either::Left(secured) = &stream
            && let Some(certificate) = peer_certificate(secured.get_ref().1)
        {
            handler = handler.with_extension(certificate);
        }
        let activity = client.as_ref().map(ClientConnection::activity).cloned();
        handler.activity = activity.unwrap_or_default();
        handler.slot = Arc::new(Mutex::new(unauthenticated));
        let slot = Arc::clone(&handler.slot);
        handler.hook = AuthenticationHook::new(move |caller| {
            if let Some(client) = &client {
                client.authenticate(caller)?;
            }
            slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(())
        });
        let served = handler.serve_requests(stream, peer, closing, self.timeouts.drain);
        match self.timeouts.max_connection_age {
            None => served.await,
            Some(age) => {
                if tokio::time::timeout(age, served).await.is_err() {
                    tracing::debug!(?peer, "a connection lasted too long");
                }
            }
        }
    }
}

/// Serves the requests of a connection with a router.
#[derive(Clone)]
struct HttpConnectionHandler {
    builder: Arc<Builder<TokioExecutor>>,
    router: Router,
    hook: AuthenticationHook,
    activity: ConnectionActivity,
    slot: SharedSlot,
}

impl HttpConnectionHandler {
    /// Creates a handler with a router and a maximum time to receive the header of a request.
    ///
    /// Only HTTP/1: detection of the HTTP version would wait for the first bytes before the header
    /// time-out starts, so a silent client could hold a connection for ever.
    fn new(router: Router, header_timeout: Duration) -> Self {
        let mut builder = Builder::new(TokioExecutor::new()).http1_only();
        builder.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout);
        Self {
            builder: Arc::new(builder),
            router,
            hook: AuthenticationHook::default(),
            activity: ConnectionActivity::default(),
            slot: SharedSlot::default(),
        }
    }

    /// The same handler, whose requests carry an extension of their connection.
    fn with_extension(self, extension: impl Clone + Send + Sync + 'static) -> Self {
        Self { router: self.router.layer(Extension(extension)), ..self }
    }

    /// Serves requests on a connection until it closes or the process stops. On shutdown, requests
    /// that have begun are completed, within `drain_timeout` if it is given.
    async fn serve_requests(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        stopping: &CancellationToken,
        drain_timeout: Option<Duration>,
    ) {
        // Each request carries the address of its peer.
        let router = Extension(ConnectInfo(peer.0)).layer(self.router);
        let router = Extension(peer).layer(router);
        let router = Extension(self.activity).layer(router);
        let router = Extension(self.slot).layer(router);
        let service = TowerToHyperService::new(Extension(self.hook).layer(router));
        let conversation = self.builder.serve_connection(TokioIo::new(stream), service);
        let mut conversation = std::pin::pin!(conversation);
        let ended = tokio::select! {
            ended = conversation.as_mut() => ended,
            () = stopping.cancelled() => {
                conversation.as_mut().graceful_shutdown();
                match drain_timeout {
                    None => conversation.await,
                    Some(within) => {
                        let ended = tokio::time::timeout(within, conversation).await;
                        ended.unwrap_or(Ok(()))
                    }
                }
            }
        };
        if let Err(error) = ended {
            // Clients may disconnect at any time; this is not an error of the server.
            tracing::debug!(error, "a connection ended early");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use axum::http::StatusCode;
    use axum::routing::get;
    use chrono::DateTime;
    use evenkeel_auth::{Caller, CertificateAuthority};
    use evenkeel_kit::{Clock, SystemClock};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinSet;
    use tokio_rustls::TlsConnector;
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::listen::{AuthenticatedLimits, UnauthenticatedLimits};
    use crate::tls::Certificates;

    /// A user without a role.
    fn user() -> Caller {
        Caller::new("user", &[], DateTime::UNIX_EPOCH)
    }

    /// A server that allows one unauthenticated connection per address, and two per user.
    struct LimitedServer {
        listener: Listener,
        server: Arc<HttpServer>,
        served: JoinSet<()>,
    }

    impl LimitedServer {
        fn new(tls: Option<Arc<ServerConfig>>) -> Self {
            let minute = Duration::from_mins(1);
            let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
            let listener = Listener::bind("rest.listen", anywhere, 20, minute).unwrap();
            let limits = UnauthenticatedLimits { total: 10, per_address: 1 };
            let authenticate = |Extension(hook): Extension<AuthenticationHook>| async move {
                hook.call(&user()).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
            };
            // Its response never ends.
            let authenticate_endless = |Extension(hook): Extension<AuthenticationHook>| async move {
                hook.call(&user()).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
                let first = std::iter::once(Ok::<_, std::io::Error>("first"));
                let chunks = tokio_stream::iter(first).chain(tokio_stream::pending());
                Ok::<_, StatusCode>(Body::from_stream(chunks))
            };
            let per_user = AuthenticatedLimits { user: 2, project: 0, address: 0 };
            let router = Router::new()
                .route("/public", get(|| async {}))
                .route("/private", get(authenticate))
                .route("/endless", get(authenticate_endless));
            Self {
                listener: listener.limit_unauthenticated(limits).limit_authenticated(per_user),
                server: Arc::new(HttpServer::new(router, HttpSettings::new(tls, minute))),
                served: JoinSet::new(),
            }
        }

        async fn connect(&mut self) -> TcpStream {
            let client = TcpStream::connect(self.listener.address).await.unwrap();
            let stopping = CancellationToken::new();
            let connection = self.listener.accept(&stopping).await.unwrap();
            let server = Arc::clone(&self.server);
            self.served.spawn(async move {
                server.serve_connection(connection, &stopping).await;
            });
            client
        }
    }

    /// TLS of a server, and a connector of clients that trust its authority.
    fn secure() -> (Arc<ServerConfig>, TlsConnector) {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemClock.now();
        let ca = CertificateAuthority::open(folder.path(), now).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(ca.certificate_der().to_vec().into()).unwrap();
        let names = vec!["localhost".to_owned()];
        let certificates = Certificates::from_authority(Arc::new(ca), names, now).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = Arc::new(certificates).http_config(None).unwrap();
        (server, TlsConnector::from(Arc::new(client)))
    }

    async fn request(client: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) {
        let response = send(client, path).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }

    /// Sends a request and returns the header of the response, as far as it was received.
    async fn send(client: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\n") {
            // Not beyond the header.
            let Ok(byte) = client.read_u8().await else { break };
            response.push(byte);
        }
        String::from_utf8(response).unwrap()
    }

    /// Waits until the server closes a connection.
    async fn wait_for_end(client: &mut (impl AsyncRead + Unpin)) {
        while client.read_u8().await.is_ok() {}
    }

    #[tokio::test]
    async fn a_connection_counts_as_unauthenticated_until_a_token_is_valid() {
        let mut server = LimitedServer::new(None);
        let mut authenticated = server.connect().await;
        request(&mut authenticated, "/private").await;
        let mut public = server.connect().await;
        request(&mut public, "/public").await;
        let mut silent = server.connect().await;
        // The older one if it is old enough, otherwise the newer one.
        tokio::select! {
            () = wait_for_end(&mut public) => {}
            () = wait_for_end(&mut silent) => {}
        }
        request(&mut authenticated, "/public").await;
    }

    #[tokio::test]
    async fn a_connection_with_tls_counts_as_unauthenticated_from_its_first_byte_on() {
        let (config, connector) = secure();
        let mut server = LimitedServer::new(Some(config));
        let name = ServerName::try_from("localhost").unwrap();
        let stream = server.connect().await;
        let mut authenticated = connector.connect(name.clone(), stream).await.unwrap();
        request(&mut authenticated, "/private").await;
        let stream = server.connect().await;
        let mut public = connector.connect(name, stream).await.unwrap();
        request(&mut public, "/public").await;
        // Before its handshake.
        let mut silent = server.connect().await;
        tokio::select! {
            () = wait_for_end(&mut public) => {}
            () = wait_for_end(&mut silent) => {}
        }
        request(&mut authenticated, "/public").await;
    }

    #[tokio::test]
    async fn a_user_with_too_many_connections_loses_an_idle_one_and_is_then_refused() {
        let mut server = LimitedServer::new(None);
        let mut idle = server.connect().await;
        request(&mut idle, "/private").await;
        let mut busy = server.connect().await;
        request(&mut busy, "/endless").await;
        let mut second_busy = server.connect().await;
        request(&mut second_busy, "/endless").await;
        wait_for_end(&mut idle).await;
        let mut refused = server.connect().await;
        let response = send(&mut refused, "/private").await;
        assert!(response.starts_with("HTTP/1.1 503"), "{response}");
        assert!(response.contains("connection: close"), "{response}");
        wait_for_end(&mut refused).await;
        // A connection whose client leaves in the middle of a response is free.
        drop(busy);
        let status = async {
            loop {
                let mut next = server.connect().await;
                let response = send(&mut next, "/private").await;
                if response.starts_with("HTTP/1.1 200") {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_mins(1), status).await.expect("a free connection");
    }
}
