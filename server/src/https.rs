//! Serves HTTP/1.1 over TLS on a listener until the process stops: what is large, and goes on elsewhere where it stopped.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use evenkeel_kit::Lifecycle;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use crate::http::Conversation;
use crate::listen::{Connection, Listener};

/// How long a stop waits for what was begun. Whoever reads a large file takes it up again where it broke off.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For the handshake.
    pub(crate) handshake: Duration,
    /// For the head of a request.
    pub(crate) head: Duration,
    /// For all that it asks for on one connection: one that takes a byte a minute would keep the place of others for ever.
    pub(crate) all: Duration,
}

/// Takes connections as a task of the process. A slow handshake holds nobody up.
pub(crate) fn serve(
    name: &'static str,
    listener: Listener,
    router: Router,
    (certificates, patience): (Arc<ServerConfig>, Patience),
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    let acceptor = TlsAcceptor::from(certificates);
    let conversation = Conversation::new(router, patience.head);
    life.spawn(name, async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let (acceptor, conversation) = (acceptor.clone(), conversation.clone());
            let stopping = stopping.clone();
            own.spawn_brief(name, async move {
                let Connection {
                    stream,
                    peer,
                    place,
                } = connection;
                let shaken = tokio::time::timeout(patience.handshake, acceptor.accept(stream));
                let shaken = tokio::select! {
                    () = stopping.cancelled() => return,
                    shaken = shaken => shaken,
                };
                match shaken {
                    Ok(Ok(stream)) => {
                        let held = conversation.hold(stream, peer, &stopping, Some(LAST_WORDS));
                        if tokio::time::timeout(patience.all, held).await.is_err() {
                            tracing::debug!(?peer, "a connection lasted too long");
                        }
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
                drop(place);
            });
        }
        Ok(())
    });
}
