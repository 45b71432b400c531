//! Serves HTTP/1.1 on a listener until the process stops.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
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
                let Connection { stream, peer, slot, .. } = connection;
                conversation.serve_connection(stream, peer, &stopping, None).await;
                drop(slot);
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
}

impl HttpConnectionHandler {
    /// Creates a handler with a router and a maximum time to receive the header of a request.
    ///
    /// Only HTTP/1: detection of the HTTP version would wait for the first bytes before the header
    /// time-out starts, so a silent client could hold a connection for ever.
    pub(crate) fn new(router: Router, header_timeout: Duration) -> Self {
        let mut builder = Builder::new(TokioExecutor::new()).http1_only();
        builder.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout);
        Self { builder: Arc::new(builder), router }
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
        let service = TowerToHyperService::new(Extension(peer).layer(router));
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
