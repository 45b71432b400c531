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

/// Takes connections as a task of the process. A stop lets requests finish that have begun.
pub(crate) fn serve(
    name: &'static str,
    listener: Listener,
    router: Router,
    head_within: Duration,
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    let conversation = Conversation::new(router, head_within);
    life.spawn(name, async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let (conversation, stopping) = (conversation.clone(), stopping.clone());
            own.spawn_brief(name, async move {
                let Connection {
                    stream,
                    peer,
                    place,
                } = connection;
                conversation.hold(stream, peer, &stopping, None).await;
                drop(place);
            });
        }
        Ok(())
    });
}

/// What is said on each connection of a listener.
#[derive(Clone)]
pub(crate) struct Conversation {
    builder: Arc<Builder<TokioExecutor>>,
    router: Router,
}

impl Conversation {
    /// Requests are answered by a router. The head of one may take so long.
    ///
    /// Only HTTP/1: to find out the version, the first bytes would be awaited before the time for the head begins to run,
    /// and a client that says nothing would be kept for ever.
    pub(crate) fn new(router: Router, head_within: Duration) -> Self {
        let mut builder = Builder::new(TokioExecutor::new()).http1_only();
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(head_within);
        Self {
            builder: Arc::new(builder),
            router,
        }
    }

    /// Answers what comes on a connection, until its end or a stop. That lets what has begun finish, within a time if one is
    /// given.
    pub(crate) async fn hold(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        stopping: &CancellationToken,
        last_words: Option<Duration>,
    ) {
        // Each request knows who is at the other end.
        let router = Extension(ConnectInfo(peer.0)).layer(self.router);
        let service = TowerToHyperService::new(Extension(peer).layer(router));
        let conversation = self.builder.serve_connection(TokioIo::new(stream), service);
        let mut conversation = std::pin::pin!(conversation);
        let ended = tokio::select! {
            ended = conversation.as_mut() => ended,
            () = stopping.cancelled() => {
                conversation.as_mut().graceful_shutdown();
                match last_words {
                    None => conversation.await,
                    Some(within) => {
                        let ended = tokio::time::timeout(within, conversation).await;
                        ended.unwrap_or(Ok(()))
                    }
                }
            }
        };
        if let Err(error) = ended {
            // Clients go away; that is no news.
            tracing::debug!(error, "a connection ended early");
        }
    }
}
