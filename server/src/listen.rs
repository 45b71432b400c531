//! Sockets: bound before anything is reported ready, limited in number, looked after while they are silent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use metrics::Gauge;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// How long nothing is accepted after the system had no file or memory left for a connection.
const BREATH: Duration = Duration::from_millis(100);

/// How many connections may wait to be accepted, as far as the system lets them (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;

/// How often a silent peer is asked whether it is there, and how many times.
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// A socket that takes connections.
#[derive(Debug)]
pub(crate) struct Listener {
    name: &'static str,
    socket: TcpListener,
    pub(crate) address: SocketAddr,
    room: Arc<Semaphore>,
    /// Whether it was said that there is none left.
    is_full: AtomicBool,
    keep_alive: Duration,
}

/// Who is at the other end of a connection: a client, or the last proxy before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// A connection. Its place is given back with it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) peer: Peer,
    pub(crate) place: Place,
}

/// One of the connections that a listener may have, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl Place {
    fn new(permit: OwnedSemaphorePermit, listener: &'static str) -> Self {
        let open = metrics::gauge!("evenkeel_connections", "listener" => listener);
        open.increment(1.0);
        Self {
            _permit: permit,
            open,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}

/// Each connection is a file of this process: lets it have as many as the system allows, and says if those are too few.
pub(crate) fn allow_files(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let files = match setrlimit(Resource::Nofile, most) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    if files.is_some_and(|files| files < connections as u64) {
        tracing::warn!(
            files,
            connections,
            "this process may have fewer files than connections; raise its limit (LimitNOFILE)"
        );
    }
}

impl Listener {
    /// Binds a socket. `setting` is the one that says where, for the error.
    pub(crate) fn bind(
        setting: &'static str,
        address: SocketAddr,
        max_connections: usize,
        keep_alive: Duration,
    ) -> anyhow::Result<Self> {
        let socket = open(address).with_context(|| {
            let variable = setting.to_uppercase().replace('.', "__");
            format!("cannot listen on {address} (choose another address with {setting} or EVENKEELD_{variable})")
        })?;
        let address = socket
            .local_addr()
            .context("cannot tell the address of a socket")?;
        let name = setting.split('.').next().unwrap_or(setting);
        Ok(Self {
            name,
            socket,
            address,
            room: Arc::new(Semaphore::new(
                max_connections.clamp(1, Semaphore::MAX_PERMITS),
            )),
            is_full: AtomicBool::new(false),
            keep_alive,
        })
    }

    /// The next connection; None when the process stops. When there are too many, new ones wait in the kernel's queue.
    pub(crate) async fn accept(&self, stopping: &CancellationToken) -> Option<Connection> {
        loop {
            let accepted = tokio::select! {
                () = stopping.cancelled() => return None,
                accepted = self.accept_one() => accepted,
            };
            match accepted {
                Ok(connection) => return Some(connection),
                Err(error) => {
                    tracing::warn!(%error, address = %self.address, "cannot accept a connection");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }

    async fn accept_one(&self) -> std::io::Result<Connection> {
        let permit = self.permit().await?;
        let (stream, peer) = self.socket.accept().await?;
        if let Err(error) = look_after(&stream, self.keep_alive) {
            tracing::debug!(%error, "cannot look after a connection");
        }
        Ok(Connection {
            stream,
            peer: Peer(peer),
            place: Place::new(permit, self.name),
        })
    }

    /// Leave for one more. Says when there is none: new connections wait in the kernel's queue then.
    async fn permit(&self) -> std::io::Result<OwnedSemaphorePermit> {
        let room = || Arc::clone(&self.room);
        if let Ok(permit) = room().try_acquire_owned() {
            self.is_full.store(false, Ordering::Relaxed);
            return Ok(permit);
        }
        metrics::counter!("evenkeel_connections_full_total", "listener" => self.name).increment(1);
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                address = %self.address,
                "there are as many connections as there may be ({}.max_connections): for each other one must end",
                self.name
            );
        }
        room().acquire_owned().await.map_err(std::io::Error::other)
    }
}

fn open(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Or a restart would have to wait until the connections of the last process are forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Finds peers that are gone without a word, or read no more of what they asked for; costs nothing while they talk.
fn look_after(stream: &TcpStream, after: Duration) -> std::io::Result<()> {
    use rustix::net::sockopt;

    let after = after.max(Duration::from_secs(1));
    let in_all = (after + PROBE_EVERY * PROBES).as_millis();
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, after)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    // The kernel ends a connection whose other end takes nothing for so long, whatever else it answers.
    sockopt::set_tcp_user_timeout(stream, u32::try_from(in_all).unwrap_or(u32::MAX))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(room: usize) -> Listener {
        let anywhere = ([127, 0, 0, 1], 0).into();
        Listener::bind("rest.listen", anywhere, room, Duration::from_mins(1)).unwrap()
    }

    #[tokio::test]
    async fn there_are_never_more_connections_than_there_is_room_for() {
        let listener = listener(1);
        let stopping = CancellationToken::new();
        let _first = TcpStream::connect(listener.address).await.unwrap();
        let _second = TcpStream::connect(listener.address).await.unwrap();
        let taken = listener.accept(&stopping).await.unwrap();

        let mut next = std::pin::pin!(listener.accept(&stopping));
        tokio::select! {
            biased;
            _ = &mut next => panic!("one too many"),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        drop(taken);
        assert!(next.await.is_some());
    }

    #[tokio::test]
    async fn nothing_is_accepted_when_the_process_stops() {
        let listener = listener(1);
        let stopping = CancellationToken::new();
        stopping.cancel();
        assert!(listener.accept(&stopping).await.is_none());
    }

    #[tokio::test]
    async fn a_connection_is_looked_after() {
        let listener = listener(1);
        let _client = TcpStream::connect(listener.address).await.unwrap();
        let taken = listener.accept(&CancellationToken::new()).await.unwrap();
        assert!(rustix::net::sockopt::socket_keepalive(&taken.stream).unwrap());
        let idle = rustix::net::sockopt::tcp_keepidle(&taken.stream).unwrap();
        assert_eq!(idle, Duration::from_mins(1));
        let stalled = rustix::net::sockopt::tcp_user_timeout(&taken.stream).unwrap();
        assert_eq!(stalled, 120_000);
    }
}
