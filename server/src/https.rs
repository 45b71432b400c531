//! Serves HTTP/1.1 over TLS on a listener until the process stops. For large files, whose download
//! can be resumed.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use evenkeel_kit::Lifecycle;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use crate::client_certificates::peer_certificate;
use crate::http::HttpConnectionHandler;
use crate::listen::{Connection, Listener};

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

/// Accepts connections in a task of the process. A slow handshake does not delay other connections.
pub(crate) fn serve(
    name: &'static str,
    listener: Listener,
    router: Router,
    (certificates, timeouts): (Arc<ServerConfig>, HttpsTimeouts),
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    let acceptor = TlsAcceptor::from(certificates);
    let conversation = HttpConnectionHandler::new(router, timeouts.header);
    life.spawn(name, async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let (acceptor, conversation) = (acceptor.clone(), conversation.clone());
            let stopping = stopping.clone();
            own.spawn_brief(name, async move {
                let Connection { stream, peer, slot } = connection;
                let shaken = tokio::time::timeout(timeouts.handshake, acceptor.accept(stream));
                let shaken = tokio::select! {
                    () = stopping.cancelled() => return,
                    shaken = shaken => shaken,
                };
                match shaken {
                    Ok(Ok(stream)) => {
                        let conversation = match peer_certificate(stream.get_ref().1) {
                            Some(certificate) => conversation.with_extension(certificate),
                            None => conversation,
                        };
                        let served = conversation.serve_connection(
                            stream,
                            peer,
                            &stopping,
                            Some(DRAIN_TIMEOUT),
                        );
                        if tokio::time::timeout(timeouts.max_connection_age, served).await.is_err()
                        {
                            tracing::debug!(?peer, "a connection lasted too long");
                        }
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
                drop(slot);
            });
        }
        Ok(())
    });
}
