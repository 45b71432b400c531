//! Serves gRPC over TLS on a listener until the process stops.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_kit::Lifecycle;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::config::Southbound;
use crate::house::House;
use crate::listen::{Connection, Listener};

/// How many connections may have shaken hands without being taken up.
const IN_HAND: usize = 64;

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
    shake_hands(listener, acceptor, config.handshake_within, give, life);
    let stopping = life.stopping();
    let server = Server::builder()
        .max_concurrent_streams(config.calls_per_connection)
        .timeout(config.answer_within)
        .http2_max_pending_accept_reset_streams(Some(64))
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
fn shake_hands(
    listener: Listener,
    acceptor: TlsAcceptor,
    within: Duration,
    give: mpsc::Sender<io::Result<Secured>>,
    life: &Lifecycle,
) {
    let (own, stopping) = (life.clone(), life.stopping());
    life.spawn("southbound handshakes", async move {
        while let Some(connection) = listener.accept(&stopping).await {
            let Connection { stream, permit, .. } = connection;
            let (acceptor, give, stopping) = (acceptor.clone(), give.clone(), stopping.clone());
            own.spawn_brief("southbound handshake", async move {
                let shaken = tokio::select! {
                    () = stopping.cancelled() => return,
                    shaken = tokio::time::timeout(within, shake(&acceptor, stream)) => shaken,
                };
                match shaken {
                    // Nobody takes it when the process stops.
                    Ok(Ok(stream)) => {
                        let secured = Secured {
                            stream,
                            _permit: permit,
                        };
                        give.send(Ok(secured)).await.ok();
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            });
        }
        Ok(())
    });
}

/// Waits for the first word as well: a client that says nothing could not be told that the process stops.
async fn shake(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let mut stream = acceptor.accept(stream).await?;
    if stream.fill_buf().await?.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(stream)
}

/// A connection under TLS that counts until it is closed.
#[derive(Debug)]
struct Secured {
    stream: TlsStream<TcpStream>,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Secured {
    type ConnectInfo = <TlsStream<TcpStream> as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
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
