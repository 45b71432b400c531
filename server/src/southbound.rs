//! Serves gRPC over TLS on a listener until the process stops.

mod share;

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum::http::Request;
use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::Carried;
use metrics::Counter;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tower::util::MapRequestLayer;

use crate::config::Southbound;
use crate::house::House;
use crate::listen::{Connection, Listener};

use share::{Share, Shares};

/// How many connections may have shaken hands without being taken up.
const IN_HAND: usize = 64;

/// How many handshakes go on at once for each processor: those who are connected already must get their turn as well.
const AT_ONCE: usize = 64;

/// How long a handshake counts among those that go on at once. A client that takes longer for its part costs nothing
/// meanwhile, and keeps nobody else waiting.
const TURN: Duration = Duration::from_millis(20);

/// How much of a message may be under way before it is read, in bytes.
const STREAM_WINDOW: u32 = 64 << 10;

/// The largest head of a request, in bytes.
const MAX_HEAD: u32 = 16 << 10;

/// Takes connections as tasks of the process. A stop lets calls finish that have begun.
pub(crate) fn serve(
    listener: Listener,
    routes: Routes,
    house: &House,
    config: &Southbound,
    life: &Lifecycle,
) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(house.certificates.listener()?);
    let (give, take) = mpsc::channel(IN_HAND);
    let shares = Shares::new(config.connections_per_address);
    let reception = Reception::new(acceptor, config.handshake_within, give);
    receive(listener, shares, reception, life);
    let stopping = life.stopping();
    let server = Server::builder()
        .max_concurrent_streams(config.calls_per_connection)
        .timeout(config.answer_within)
        .initial_stream_window_size(STREAM_WINDOW)
        .http2_max_header_list_size(MAX_HEAD)
        .http2_max_pending_accept_reset_streams(Some(64))
        .layer(MapRequestLayer::new(introduce))
        .add_routes(routes);
    life.spawn("southbound", async move {
        let connections = ReceiverStream::new(take);
        let stop = stopping.cancelled_owned();
        let ended = server.serve_with_incoming_shutdown(connections, stop).await;
        ended.context("cannot serve agents")
    });
    Ok(())
}

/// Handshakes go on beside each other: a slow one holds nobody up.
fn receive(listener: Listener, shares: Shares, reception: Reception, life: &Lifecycle) {
    let (own, stopping) = (life.clone(), life.stopping());
    let reception = Arc::new(reception);
    life.spawn("southbound handshakes", async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let address = connection.peer.0.ip();
            let Some(share) = shares.take(address) else {
                reception.failed.increment(1);
                tracing::debug!(%address, "an address has too many connections");
                continue;
            };
            let (reception, stopping) = (Arc::clone(&reception), stopping.clone());
            own.spawn_brief("southbound handshake", async move {
                tokio::select! {
                    () = stopping.cancelled() => {}
                    () = reception.welcome(connection, share) => {}
                }
            });
        }
        Ok(())
    });
}

/// Where connections become secure.
struct Reception {
    acceptor: TlsAcceptor,
    within: Duration,
    places: Semaphore,
    give: mpsc::Sender<io::Result<Secured>>,
    ok: Counter,
    failed: Counter,
    slow: Counter,
}

impl Reception {
    fn new(
        acceptor: TlsAcceptor,
        within: Duration,
        give: mpsc::Sender<io::Result<Secured>>,
    ) -> Self {
        const SHAKEN: &str = "evenkeel_handshakes_total";
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            acceptor,
            within,
            places: Semaphore::new(processors.saturating_mul(AT_ONCE)),
            give,
            ok: metrics::counter!(SHAKEN, "outcome" => "ok"),
            failed: metrics::counter!(SHAKEN, "outcome" => "failed"),
            slow: metrics::counter!(SHAKEN, "outcome" => "slow"),
        }
    }

    async fn welcome(&self, connection: Connection, share: Share) {
        let Connection { stream, permit, .. } = connection;
        match tokio::time::timeout(self.within, self.shake(stream)).await {
            Ok(Ok(stream)) => {
                self.ok.increment(1);
                let secured = Secured {
                    stream,
                    carried: Carried::default(),
                    _permit: permit,
                    _share: share,
                };
                // Nobody takes it when the process stops.
                self.give.send(Ok(secured)).await.ok();
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

    /// Waits for the first word as well: a client that says nothing could not be told that the process stops.
    async fn shake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        // Until it says something it takes no place.
        stream.readable().await?;
        let mut stream = in_turn(&self.places, self.acceptor.accept(stream)).await?;
        if stream.fill_buf().await?.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(stream)
    }
}

/// Waits for a place and does something there; who takes longer than a turn goes on without one.
async fn in_turn<T>(places: &Semaphore, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let place = places.acquire().await;
    let done = tokio::time::timeout(TURN, work.as_mut()).await;
    drop(place);
    match done {
        Ok(done) => done,
        Err(_) => work.await,
    }
}

/// A connection under TLS that counts until it is closed.
#[derive(Debug)]
struct Secured {
    stream: TlsStream<TcpStream>,
    carried: Carried,
    _permit: OwnedSemaphorePermit,
    _share: Share,
}

/// What each request is told of its connection.
#[derive(Clone, Debug)]
struct Known {
    /// Who is at the other end, in the form in which tonic looks for it.
    peer: <TlsStream<TcpStream> as Connected>::ConnectInfo,
    carried: Carried,
}

impl Connected for Secured {
    type ConnectInfo = Known;

    fn connect_info(&self) -> Self::ConnectInfo {
        Known {
            peer: self.stream.connect_info(),
            carried: self.carried.clone(),
        }
    }
}

/// tonic hands down what is known of a connection as one thing; those who ask look for its parts.
fn introduce(mut request: Request<Body>) -> Request<Body> {
    let extensions = request.extensions_mut();
    if let Some(Known { peer, carried }) = extensions.remove() {
        extensions.insert(peer);
        extensions.insert(carried);
    }
    request
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use super::*;

    /// Whether something is done when it is looked at.
    async fn is_done(work: &mut Pin<&mut impl Future>) -> bool {
        poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn who_waits_for_a_place_gets_it_when_another_has_taken_its_turn() {
        let places = Semaphore::new(1);
        let mut slow = pin!(in_turn(&places, pending::<()>()));
        assert!(!is_done(&mut slow).await, "it has the only place");
        let mut quick = pin!(in_turn(&places, async {}));
        assert!(!is_done(&mut quick).await, "it waits");
        tokio::select! {
            () = slow => panic!("it never ends"),
            () = quick => {}
        }
    }
}
