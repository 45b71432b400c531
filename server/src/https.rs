//! Serves HTTP/1.1 over TLS on a listener until the process stops. For large files, whose download
//! can be resumed.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use evenkeel_kit::Lifecycle;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::client_certificates::peer_certificate;
use crate::http::HttpConnectionHandler;
use crate::listen::{Connection, Listener, Peer, UnauthenticatedSlot};
use crate::proxy_header::TrustedProxies;

/// Maximum wait for open requests on shutdown. Clients resume interrupted downloads.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Time-outs of an HTTPS connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpsTimeouts {
    /// Maximum duration of the TLS handshake.
    pub(crate) handshake: Duration,
    /// Maximum time to receive the header of a request.
    pub(crate) header: Duration,
    /// Maximum lifetime of the connection. Without it, a client that reads very slowly could hold a
    /// connection for ever.
    pub(crate) max_connection_age: Duration,
}

/// TLS and the rules for the connections of a listener.
pub(crate) struct HttpsSettings {
    pub(crate) certificates: Arc<ServerConfig>,
    pub(crate) timeouts: HttpsTimeouts,
    pub(crate) proxies: TrustedProxies,
}

/// Slot of a connection among the unauthenticated ones, until a request was served.
type SharedSlot = Arc<Mutex<Option<UnauthenticatedSlot>>>;

/// Accepts connections in a task of the process. A slow handshake does not delay other connections.
pub(crate) fn serve(
    name: &'static str,
    listener: Listener,
    router: Router,
    settings: HttpsSettings,
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    let router = router.layer(middleware::from_fn(return_slot_after_success));
    let server = Arc::new(HttpsServer {
        acceptor: TlsAcceptor::from(settings.certificates),
        conversation: HttpConnectionHandler::new(router, settings.timeouts.header),
        timeouts: settings.timeouts,
        proxies: settings.proxies,
    });
    life.spawn(name, async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let (server, stopping) = (Arc::clone(&server), stopping.clone());
            own.spawn_brief(
                name,
                async move { server.serve_connection(connection, &stopping).await },
            );
        }
        Ok(())
    });
}

/// A caller whose request was served has authenticated itself, if the service demands it.
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

struct HttpsServer {
    acceptor: TlsAcceptor,
    conversation: HttpConnectionHandler,
    timeouts: HttpsTimeouts,
    proxies: TrustedProxies,
}

impl HttpsServer {
    /// Serves a connection until it ends, or must be closed because it is not authenticated and a
    /// newer one needs its slot.
    async fn serve_connection(&self, connection: Connection, stopping: &CancellationToken) {
        let Connection { stream, peer, slot, unauthenticated, client: _ } = connection;
        let closed = unauthenticated.as_ref().map(UnauthenticatedSlot::closed);
        let closed = async {
            match closed {
                Some(closed) => closed.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.serve_stream(stream, peer, unauthenticated, stopping) => {}
            () = closed => tracing::debug!(?peer, "a newer connection needs the slot"),
        }
        drop(slot);
    }

    async fn serve_stream(
        &self,
        stream: TcpStream,
        peer: Peer,
        unauthenticated: Option<UnauthenticatedSlot>,
        stopping: &CancellationToken,
    ) {
        let shaken = self.handshake(stream, peer, unauthenticated.as_ref());
        let shaken = tokio::time::timeout(self.timeouts.handshake, shaken);
        let shaken = tokio::select! {
            () = stopping.cancelled() => return,
            shaken = shaken => shaken,
        };
        match shaken {
            Ok(Ok((stream, peer))) => {
                let slot: SharedSlot = Arc::new(Mutex::new(unauthenticated));
                let mut conversation = self.conversation.clone().with_extension(slot);
                if let Some(certificate) = peer_certificate(stream.get_ref().1) {
                    conversation = conversation.with_extension(certificate);
                }
                let served =
                    conversation.serve_connection(stream, peer, stopping, Some(DRAIN_TIMEOUT));
                if tokio::time::timeout(self.timeouts.max_connection_age, served).await.is_err() {
                    tracing::debug!(?peer, "a connection lasted too long");
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    /// Returns the connection and its client.
    async fn handshake(
        &self,
        mut stream: TcpStream,
        peer: Peer,
        unauthenticated: Option<&UnauthenticatedSlot>,
    ) -> io::Result<(TlsStream<TcpStream>, Peer)> {
        let client = self.proxies.read_client_address(&mut stream, peer.0).await?;
        if unauthenticated.is_some_and(|slot| !slot.set_address(client.ip())) {
            return Err(io::Error::other("too many unauthenticated connections of one address"));
        }
        Ok((self.acceptor.accept(stream).await?, Peer(client)))
    }
}
