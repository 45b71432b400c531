//! Serves HTTP/1.1 on a listener until the process stops.

use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use evenkeel_kit::Lifecycle;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use crate::listen::{Connection, Listener};

/// Takes connections as a task of the process. A stop lets requests finish that have begun.
pub(crate) fn serve(
    name: &'static str,
    listener: Listener,
    router: Router,
    head_within: Duration,
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    let builder = Arc::new(builder(head_within));
    life.spawn(name, async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let (builder, router) = (Arc::clone(&builder), router.clone());
            let task = converse(connection, builder, router, stopping.clone());
            own.spawn_brief(name, task);
        }
        Ok(())
    });
}

/// Only HTTP/1: to find out the version, the first bytes would be awaited before the time for the head begins to run,
/// and a client that says nothing would be kept for ever.
fn builder(head_within: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_within);
    builder
}

async fn converse(
    connection: Connection,
    builder: Arc<Builder<TokioExecutor>>,
    router: Router,
    stopping: CancellationToken,
) {
    let Connection {
        stream,
        peer,
        permit,
    } = connection;
    // Each request knows who is at the other end.
    let service = TowerToHyperService::new(Extension(peer).layer(router));
    let conversation = builder.serve_connection(TokioIo::new(stream), service);
    let mut conversation = std::pin::pin!(conversation);
    let ended = tokio::select! {
        ended = conversation.as_mut() => ended,
        () = stopping.cancelled() => {
            conversation.as_mut().graceful_shutdown();
            conversation.await
        }
    };
    if let Err(error) = ended {
        // Clients go away; that is no news.
        tracing::debug!(error, "a connection ended early");
    }
    drop(permit);
}
