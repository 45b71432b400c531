//! Serves gRPC over TLS on a listener until the process stops.

mod share;

use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum::http::Request;
use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::{Carried, Memory, TurnedAway};
use metrics::Counter;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
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
use crate::listen::{Connection, Listener, Place};
use crate::observe::CallsLayer;

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

/// How many connections are told at once that there is no memory for them. More are closed without a word.
const TURNED_AWAY: usize = 64;

/// How long one may take to be told.
const TELL_WITHIN: Duration = Duration::from_secs(2);

/// The largest head of a request, in bytes.
const MAX_HEAD: u32 = 16 << 10;

/// Takes connections as tasks of the process. A stop lets calls finish that have begun.
pub(crate) fn serve(
    listener: Listener,
    routes: Routes,
    (house, memory): (&House, Memory),
    config: &Southbound,
    life: &Lifecycle,
) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(house.certificates.listener()?);
    let (give, take) = mpsc::channel(IN_HAND);
    let shares = Shares::new(config.connections_per_address);
    let reception = Reception::new(acceptor, config, give);
    let door = Door::new(shares, memory);
    receive(listener, door, reception, life);
    let stopping = life.stopping();
    let server = Server::builder()
        .max_concurrent_streams(config.calls_per_connection)
        .timeout(config.answer_within)
        .initial_stream_window_size(STREAM_WINDOW)
        .http2_max_header_list_size(MAX_HEAD)
        .http2_max_pending_accept_reset_streams(Some(64))
        .layer(CallsLayer::default())
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
fn receive(listener: Listener, door: Door, reception: Reception, life: &Lifecycle) {
    let (own, stopping) = (life.clone(), life.stopping());
    let reception = Arc::new(reception);
    life.spawn("southbound handshakes", async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let address = connection.peer.0.ip();
            let admitted = match door.admit(address) {
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
                    () = reception.welcome(connection, admitted) => {}
                }
            });
        }
        Ok(())
    });
}

/// Who may come in at all.
struct Door {
    shares: Shares,
    memory: Memory,
    turned_away: Arc<Semaphore>,
}

/// Leave to come in, until it is dropped.
#[derive(Debug)]
struct Admitted {
    _share: Share,
    /// It may only be told that there is no memory for it.
    turned_away: Option<OwnedSemaphorePermit>,
}

impl Door {
    fn new(shares: Shares, memory: Memory) -> Self {
        Self {
            shares,
            memory,
            turned_away: Arc::new(Semaphore::new(TURNED_AWAY)),
        }
    }

    fn admit(&self, address: IpAddr) -> Result<Admitted, &'static str> {
        let share = self.shares.take(address);
        let share = share.ok_or("an address has too many connections")?;
        let turned_away = if self.memory.is_short() {
            let place = Arc::clone(&self.turned_away).try_acquire_owned();
            Some(place.map_err(|_| "there is no memory for a connection")?)
        } else {
            None
        };
        Ok(Admitted {
            _share: share,
            turned_away,
        })
    }
}

/// Where connections become secure.
struct Reception {
    acceptor: TlsAcceptor,
    shaken_within: Duration,
    known_within: Duration,
    places: Semaphore,
    give: mpsc::Sender<io::Result<Secured>>,
    ok: Counter,
    failed: Counter,
    slow: Counter,
}

impl Reception {
    fn new(
        acceptor: TlsAcceptor,
        config: &Southbound,
        give: mpsc::Sender<io::Result<Secured>>,
    ) -> Self {
        const SHAKEN: &str = "evenkeel_handshakes_total";
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            acceptor,
            shaken_within: config.handshake_within,
            known_within: config.known_within,
            places: Semaphore::new(processors.saturating_mul(AT_ONCE)),
            give,
            ok: metrics::counter!(SHAKEN, "outcome" => "ok"),
            failed: metrics::counter!(SHAKEN, "outcome" => "failed"),
            slow: metrics::counter!(SHAKEN, "outcome" => "slow"),
        }
    }

    async fn welcome(&self, connection: Connection, admitted: Admitted) {
        let Connection { stream, place, .. } = connection;
        match tokio::time::timeout(self.shaken_within, self.shake(stream)).await {
            Ok(Ok(stream)) => {
                self.ok.increment(1);
                let lasts = match admitted.turned_away {
                    Some(_) => Some(TELL_WITHIN),
                    None => Some(self.known_within).filter(|within| !within.is_zero()),
                };
                let secured = Secured {
                    stream,
                    carried: Carried::default(),
                    ends: lasts.map(|lasts| Box::pin(tokio::time::sleep(lasts))),
                    has_ended: false,
                    _place: place,
                    admitted,
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
    /// When it ends, if there is no memory for it or nothing is known of it until then.
    ends: Option<Pin<Box<Sleep>>>,
    has_ended: bool,
    _place: Place,
    admitted: Admitted,
}

impl Secured {
    /// Whether nothing more is to be read.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let Some(ends) = &mut self.ends else {
            return self.has_ended;
        };
        if ends.as_mut().poll(context).is_pending() {
            return false;
        }
        self.ends = None;
        let is_turned_away = self.admitted.turned_away.is_some();
        self.has_ended = is_turned_away || !self.carried.is_known();
        if self.has_ended && !is_turned_away {
            metrics::counter!("evenkeel_connections_unknown_total").increment(1);
        }
        self.has_ended
    }

    /// Whether nothing more is to be written: who takes nothing keeps the connection from being read.
    fn is_given_up(&mut self, context: &mut Context<'_>) -> bool {
        self.is_over(context) && self.admitted.turned_away.is_none()
    }
}

/// What each request is told of its connection.
#[derive(Clone, Debug)]
struct Known {
    /// Who is at the other end, in the form in which tonic looks for it.
    peer: <TlsStream<TcpStream> as Connected>::ConnectInfo,
    carried: Carried,
    turned_away: Option<TurnedAway>,
}

impl Connected for Secured {
    type ConnectInfo = Known;

    fn connect_info(&self) -> Self::ConnectInfo {
        Known {
            peer: self.stream.connect_info(),
            carried: self.carried.clone(),
            turned_away: self.admitted.turned_away.is_some().then_some(TurnedAway),
        }
    }
}

/// tonic hands down what is known of a connection as one thing; those who ask look for its parts.
fn introduce(mut request: Request<Body>) -> Request<Body> {
    let extensions = request.extensions_mut();
    let Some(known) = extensions.remove() else {
        return request;
    };
    let Known {
        peer,
        carried,
        turned_away,
    } = known;
    extensions.insert(peer);
    extensions.insert(carried);
    if let Some(turned_away) = turned_away {
        extensions.insert(turned_away);
    }
    request
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_over(context) {
            // Nothing more is read, as if the client had said its last word.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_given_up(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_given_up(context) {
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
        if self.is_given_up(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
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
