//! Serves HTTP/1.1 on a listener until the process stops.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use evenkeel_inventory::AuthenticationHook;
use evenkeel_kit::Lifecycle;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::Layer;

use crate::listen::{Connection, Listener, Peer};

/// Accepts connections in a task of the process. On shutdown, requests that have begun are
/// completed.
pub(crate) fn serve(
    name: &'static str,
    listener: Listener,
    router: Router,
    header_timeout: Duration,
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    let conversation = HttpConnectionHandler::new(router, header_timeout);
    life.spawn(name, async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let (conversation, stopping) = (conversation.clone(), stopping.clone());
            own.spawn_brief(name, async move {
                conversation.serve_accepted(connection, &stopping).await;
            });
        }
        Ok(())
    });
}

/// Serves the requests of a connection with a router.
#[derive(Clone)]
pub(crate) struct HttpConnectionHandler {
    builder: Arc<Builder<TokioExecutor>>,
    router: Router,
    hook: AuthenticationHook,
}

impl HttpConnectionHandler {
    /// Creates a handler with a router and a maximum time to receive the header of a request.
    ///
    /// Only HTTP/1: detection of the HTTP version would wait for the first bytes before the header
    /// time-out starts, so a silent client could hold a connection for ever.
    pub(crate) fn new(router: Router, header_timeout: Duration) -> Self {
        let mut builder = Builder::new(TokioExecutor::new()).http1_only();
        builder.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout);
        Self { builder: Arc::new(builder), router, hook: AuthenticationHook::default() }
    }

    /// Serves a connection until it ends. If it counts as unauthenticated, it does so until the
    /// first request with a valid token, and ends earlier if a newer one needs its slot.
    async fn serve_accepted(self, connection: Connection, stopping: &CancellationToken) {
        let Connection { stream, peer, slot, unauthenticated } = connection;
        let Some(unauthenticated) = unauthenticated else {
            self.serve_connection(stream, peer, stopping, None).await;
            drop(slot);
            return;
        };
        if !unauthenticated.set_address(peer.0.ip()) {
            tracing::debug!(?peer, "too many unauthenticated connections of one address");
            return;
        }
        let closed = unauthenticated.closed();
        let unauthenticated = Mutex::new(Some(unauthenticated));
        let hook = AuthenticationHook::new(move || {
            unauthenticated.lock().unwrap_or_else(PoisonError::into_inner).take();
        });
        let conversation = Self { hook, ..self };
        tokio::select! {
            () = conversation.serve_connection(stream, peer, stopping, None) => {}
            () = closed => tracing::debug!(?peer, "a newer connection needs the slot"),
        }
        drop(slot);
    }

    /// The same handler, whose requests carry an extension of their connection.
    pub(crate) fn with_extension(self, extension: impl Clone + Send + Sync + 'static) -> Self {
        Self { router: self.router.layer(Extension(extension)), ..self }
    }

    /// Serves requests on a connection until it closes or the process stops. On shutdown, requests
    /// that have begun are completed, within `drain_timeout` if it is given.
    pub(crate) async fn serve_connection(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        stopping: &CancellationToken,
        drain_timeout: Option<Duration>,
    ) {
        // Each request carries the address of its peer.
        let router = Extension(ConnectInfo(peer.0)).layer(self.router);
        let router = Extension(peer).layer(router);
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

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;

    use super::*;
    use crate::listen::UnauthenticatedLimits;

    /// A server that allows one unauthenticated connection per address.
    struct LimitedServer {
        listener: Listener,
        conversation: HttpConnectionHandler,
        served: JoinSet<()>,
    }

    impl LimitedServer {
        fn new() -> Self {
            let minute = Duration::from_mins(1);
            let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
            let listener = Listener::bind("rest.listen", anywhere, 20, minute).unwrap();
            let limits = UnauthenticatedLimits { total: 10, per_address: 1 };
            let authenticate = |Extension(hook): Extension<AuthenticationHook>| async move {
                hook.call();
            };
            let router = Router::new()
                .route("/public", get(|| async {}))
                .route("/private", get(authenticate));
            Self {
                listener: listener.limit_unauthenticated(limits),
                conversation: HttpConnectionHandler::new(router, minute),
                served: JoinSet::new(),
            }
        }

        async fn connect(&mut self) -> TcpStream {
            let client = TcpStream::connect(self.listener.address).await.unwrap();
            let stopping = CancellationToken::new();
            let connection = self.listener.accept(&stopping).await.unwrap();
            let conversation = self.conversation.clone();
            self.served.spawn(async move {
                conversation.serve_accepted(connection, &stopping).await;
            });
            client
        }
    }

    async fn request(client: &mut TcpStream, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\n") {
            assert_ne!(client.read_buf(&mut response).await.unwrap(), 0, "it was closed");
        }
        assert!(response.starts_with(b"HTTP/1.1 200"), "{}", response.escape_ascii());
    }

    /// Waits until the server closes a connection.
    async fn wait_for_end(client: &mut TcpStream) {
        while client.read_u8().await.is_ok() {}
    }

    #[tokio::test]
    async fn a_connection_counts_as_unauthenticated_until_a_token_is_valid() {
        let mut server = LimitedServer::new();
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
}
