//! Sockets: bound before the process reports that it is ready, limited in number, with TCP
//! keepalive.

mod authenticated;
mod node_connections;
mod unauthenticated;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use metrics::Gauge;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

pub(crate) use authenticated::{
    AuthenticatedConnections, AuthenticatedLimits, ClientConnection, ConnectionActivity,
    RunningRequest,
};
pub(crate) use node_connections::{NodeConnections, NodeSlot};
pub(crate) use unauthenticated::{
    UnauthenticatedConnections, UnauthenticatedLimits, UnauthenticatedSlot,
};

/// Delay of the next accept after the system had no file descriptor or memory for a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of connections in the accept queue; the system may lower it
/// (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;

/// Interval and number of TCP keepalive probes.
const KEEPALIVE_PROBE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Listening socket with a limit on its connections.
#[derive(Debug)]
pub(crate) struct Listener {
    name: &'static str,
    socket: TcpListener,
    pub(crate) address: SocketAddr,
    slots: Arc<Semaphore>,
    /// None if the connections do not authenticate themselves, or are all treated alike.
    unauthenticated: Option<UnauthenticatedConnections>,
    /// None if authenticated connections are not limited here.
    authenticated: Option<AuthenticatedConnections>,
    /// Proxies that share few connections among all clients; loopback addresses belong to them. None
    /// if there is no such proxy.
    exempt_proxies: Option<Vec<IpAddr>>,
    /// Proxies that name the address of each client, so their connections are not exempt.
    naming_proxies: Vec<IpAddr>,
    /// Whether the log already states that the limit is reached.
    is_full: AtomicBool,
    keepalive_idle: Duration,
}

/// Address of the peer of a connection: a client, or the last proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Accepted connection. Its slot is released when it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) peer: Peer,
    pub(crate) slot: ConnectionSlot,
    /// Dropped when the connection is authenticated.
    pub(crate) unauthenticated: Option<UnauthenticatedSlot>,
    /// None if the listener does not limit authenticated connections.
    pub(crate) client: Option<ClientConnection>,
}

/// Slot of a connection in the limit of its listener; released on drop.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl ConnectionSlot {
    fn new(permit: OwnedSemaphorePermit, listener: &'static str) -> Self {
        let open = metrics::gauge!("evenkeel_connections", "listener" => listener);
        open.increment(1.0);
        Self { _permit: permit, open }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}

/// Raises the limit on open files to the hard limit, because each connection uses a file. Logs a
/// warning if the limit is still too low.
pub(crate) fn raise_file_limit(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = match setrlimit(Resource::Nofile, most) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    if files.is_some_and(|files| files < connections as u64) {
        tracing::warn!(
            files,
            connections,
            "the limit on open files is lower than the number of connections; raise it (LimitNOFILE)"
        );
    }
}

impl Listener {
    /// Binds a socket. `setting` is the configuration key of the address, for the error message.
    pub(crate) fn bind(
        setting: &'static str,
        address: SocketAddr,
        max_connections: usize,
        keep_alive: Duration,
    ) -> anyhow::Result<Self> {
        let socket = bind_socket(address).with_context(|| {
            let variable = setting.to_uppercase().replace('.', "__");
            format!("cannot listen on {address} (choose another address with {setting} or EVENKEELD_{variable})")
        })?;
        let address = socket.local_addr().context("cannot read the address of a socket")?;
        Ok(Self {
            name: listener_name(setting),
            socket,
            address,
            slots: Arc::new(Semaphore::new(max_connections.clamp(1, Semaphore::MAX_PERMITS))),
            unauthenticated: None,
            authenticated: None,
            exempt_proxies: None,
            naming_proxies: Vec::new(),
            is_full: AtomicBool::new(false),
            keepalive_idle: keep_alive,
        })
    }

    /// Limits the connections that are not authenticated, at most to half of all.
    pub(crate) fn limit_unauthenticated(self, limits: UnauthenticatedLimits) -> Self {
        let half = self.slots.available_permits() / 2;
        let limits = UnauthenticatedLimits { total: limits.total.min(half), ..limits };
        Self { unauthenticated: Some(UnauthenticatedConnections::new(limits)), ..self }
    }

    /// Limits the connections of each user, project and address that has authenticated itself.
    pub(crate) fn limit_authenticated(self, limits: AuthenticatedLimits) -> Self {
        Self { authenticated: Some(AuthenticatedConnections::new(limits)), ..self }
    }

    /// Exempts the connections of proxies, and of this machine, from the limits of unauthenticated
    /// connections and of addresses: all clients of a proxy have its address.
    pub(crate) fn exempt_proxies(self, proxies: &[IpAddr]) -> Self {
        let proxies = proxies.iter().map(IpAddr::to_canonical).collect();
        Self { exempt_proxies: Some(proxies), ..self }
    }

    /// Does not exempt the connections of these proxies, also on this machine: each begins with a header
    /// that names the address of its client.
    pub(crate) fn with_naming_proxies(self, proxies: &[IpAddr]) -> Self {
        Self { naming_proxies: proxies.iter().map(IpAddr::to_canonical).collect(), ..self }
    }

    fn is_exempt(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        let proxies = self.exempt_proxies.as_ref().filter(|_| !self.naming_proxies.contains(&peer));
        proxies.is_some_and(|proxies| peer.is_loopback() || proxies.contains(&peer))
    }

    /// Returns the next connection; `None` when the process stops. If the limit is reached, new
    /// connections wait in the accept queue of the kernel.
    pub(crate) async fn accept(&self, stopping: &CancellationToken) -> Option<Connection> {
        loop {
            let accepted = tokio::select! {
                () = stopping.cancelled() => return None,
                accepted = self.accept_one(stopping) => accepted,
            };
            match accepted {
                Ok(connection) => return Some(connection),
                Err(error) => {
                    tracing::warn!(%error, address = %self.address, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    async fn accept_one(&self, stopping: &CancellationToken) -> std::io::Result<Connection> {
        // Accepted before it has a slot: only for a new connection is another one closed.
        let (stream, peer) = self.socket.accept().await?;
        let permit = self.acquire_slot().await?;
        let is_exempt = self.is_exempt(peer.ip());
        let limited = self.unauthenticated.as_ref().filter(|_| !is_exempt);
        let unauthenticated = match limited {
            None => None,
            Some(connections) => Some(connections.enter().await),
        };
        if let Err(error) = enable_keepalive(&stream, self.keepalive_idle) {
            tracing::debug!(%error, "cannot set the options of a connection");
        }
        let slot = ConnectionSlot::new(permit, self.name);
        let client = self.authenticated.as_ref().map(|connections| {
            let address = (!is_exempt).then_some(peer.ip());
            connections.connect(address, stopping.child_token())
        });
        Ok(Connection { stream, peer: Peer(peer), slot, unauthenticated, client })
    }

    /// Acquires a slot for one more connection. If the limit is reached, logs it once, closes the
    /// oldest unauthenticated connection and waits; new connections then wait in the accept queue
    /// of the kernel.
    async fn acquire_slot(&self) -> std::io::Result<OwnedSemaphorePermit> {
        let room = || Arc::clone(&self.slots);
        if let Ok(permit) = room().try_acquire_owned() {
            self.is_full.store(false, Ordering::Relaxed);
            return Ok(permit);
        }
        metrics::counter!("evenkeel_connections_full_total", "listener" => self.name).increment(1);
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                address = %self.address,
                "the connection limit is reached ({}.max_connections); new connections wait until another one closes",
                self.name
            );
        }
        let mut permit = pin!(room().acquire_owned());
        loop {
            let retry_at =
                self.unauthenticated.as_ref().and_then(UnauthenticatedConnections::close_oldest);
            let retry = async {
                match retry_at {
                    Some(retry_at) => tokio::time::sleep_until(retry_at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                permit = &mut permit => return permit.map_err(std::io::Error::other),
                () = retry => {}
            }
        }
    }
}

/// The name of a listener in metrics and messages: the section of its configuration key.
pub(crate) fn listener_name(setting: &'static str) -> &'static str {
    setting.split_once('.').map_or(setting, |(section, _)| section)
}

fn bind_socket(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Without this, a restart fails while connections of the previous process are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Enables TCP keepalive and a user time-out, to detect peers that have disappeared or have stopped
/// reading.
fn enable_keepalive(stream: &TcpStream, after: Duration) -> std::io::Result<()> {
    use rustix::net::sockopt;

    let after = after.max(Duration::from_secs(1));
    let in_all = (after + KEEPALIVE_PROBE_INTERVAL * KEEPALIVE_PROBES).as_millis();
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, after)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    // The kernel closes a connection whose peer acknowledges no data for this time, even if it
    // answers keepalive probes.
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
    async fn a_listener_never_exceeds_its_connection_limit() {
        let listener = listener(1);
        let stopping = CancellationToken::new();
        let _first = TcpStream::connect(listener.address).await.unwrap();
        let _second = TcpStream::connect(listener.address).await.unwrap();
        let connection = listener.accept(&stopping).await.unwrap();

        let mut next = std::pin::pin!(listener.accept(&stopping));
        tokio::select! {
            biased;
            _ = &mut next => panic!("the limit was exceeded"),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        drop(connection);
        assert!(next.await.is_some());
    }

    #[tokio::test]
    async fn connections_of_proxies_and_of_this_machine_may_be_exempt() {
        let limited = || {
            listener(2).limit_unauthenticated(UnauthenticatedLimits { total: 1, per_address: 1 })
        };
        let proxy: IpAddr = "192.0.2.1".parse().unwrap();
        for (listener, has_slot) in [(limited(), true), (limited().exempt_proxies(&[proxy]), false)]
        {
            let _client = TcpStream::connect(listener.address).await.unwrap();
            let connection = listener.accept(&CancellationToken::new()).await.unwrap();
            assert_eq!(connection.unauthenticated.is_some(), has_slot);
        }
        let listener = limited().exempt_proxies(&[proxy]);
        let is_exempt = |address: &str| listener.is_exempt(address.parse().unwrap());
        assert!(is_exempt("192.0.2.1") && is_exempt("::ffff:192.0.2.1") && is_exempt("::1"));
        assert!(!is_exempt("192.0.2.2") && !limited().is_exempt(proxy));
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        let listener = limited().exempt_proxies(&[proxy]).with_naming_proxies(&[proxy, local]);
        assert!(!listener.is_exempt(proxy) && !listener.is_exempt(local));
        assert!(listener.is_exempt("::1".parse().unwrap()));
    }

    #[tokio::test]
    async fn nothing_is_accepted_when_the_process_stops() {
        let listener = listener(1);
        let stopping = CancellationToken::new();
        stopping.cancel();
        assert!(listener.accept(&stopping).await.is_none());
    }

    #[tokio::test]
    async fn an_accepted_connection_has_keepalive_and_a_user_timeout() {
        let listener = listener(1);
        let _client = TcpStream::connect(listener.address).await.unwrap();
        let connection = listener.accept(&CancellationToken::new()).await.unwrap();
        assert!(rustix::net::sockopt::socket_keepalive(&connection.stream).unwrap());
        let idle = rustix::net::sockopt::tcp_keepidle(&connection.stream).unwrap();
        assert_eq!(idle, Duration::from_mins(1));
        let stalled = rustix::net::sockopt::tcp_user_timeout(&connection.stream).unwrap();
        assert_eq!(stalled, 120_000);
    }
}
