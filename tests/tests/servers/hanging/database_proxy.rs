//! A proxy between a server and its database: TCP towards the server, the socket of a Postgres
//! behind it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// End of a transaction, as the server sends it to Postgres.
const COMMIT_MESSAGE: &[u8] = b"COMMIT\0";

/// Number of connections that may wait until they are accepted.
const LISTEN_BACKLOG: u32 = 128;

/// Traffic that the proxy forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficMode {
    Forward,
    /// Requests to the database. Replies are held.
    HoldReplies,
    /// Nothing. Connections stay open, and new ones are accepted.
    HoldAll,
    /// Nothing. Connections are closed, and new ones are refused.
    Refuse,
}

/// A running proxy. It stops when the value is dropped.
#[derive(Debug)]
pub struct DatabaseProxy {
    address: SocketAddr,
    state: watch::Sender<ProxyState>,
    is_listening: watch::Receiver<bool>,
    /// Never listens. It reserves the port while the proxy refuses connections.
    _reserved_port: TcpSocket,
    _accept_task: JoinSet<()>,
}

#[derive(Clone, Debug)]
struct ProxyState {
    mode: TrafficMode,
    /// The socket of the database.
    database: PathBuf,
    /// Connections of an earlier generation are dead ends.
    generation: u32,
    /// Action at the next commit, just before it is forwarded.
    at_commit: Option<CommitAction>,
}

#[derive(Clone, Copy, Debug)]
enum CommitAction {
    SetMode(TrafficMode),
    NewGeneration,
}

/// Direction of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToDatabase,
    ToServer,
}

/// One connection through the proxy.
#[derive(Clone, Debug)]
struct ProxiedConnection {
    control: watch::Sender<ProxyState>,
    state: watch::Receiver<ProxyState>,
    generation: u32,
}

impl DatabaseProxy {
    /// Starts a proxy that forwards everything to the Postgres with this socket.
    pub async fn start(database: &Path) -> Self {
        let reserved = bind_socket((Ipv4Addr::LOCALHOST, 0).into());
        let address = reserved.local_addr().expect("an address");
        let state = watch::Sender::new(ProxyState {
            mode: TrafficMode::Forward,
            database: database.to_owned(),
            generation: 0,
            at_commit: None,
        });
        let (listening, is_listening) = watch::channel(false);
        let mut accept_task = JoinSet::new();
        accept_task.spawn(accept_connections(address, state.clone(), listening));
        let proxy = Self {
            address,
            state,
            is_listening,
            _reserved_port: reserved,
            _accept_task: accept_task,
        };
        proxy.wait_until_listening(true).await;
        proxy
    }

    /// Address to which the server connects.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forwards all traffic again; held traffic comes first.
    pub async fn forward_all(&self) {
        self.set_mode(TrafficMode::Forward);
        self.wait_until_listening(true).await;
    }

    /// Holds all traffic; connections stay open.
    pub fn hold_all(&self) {
        self.set_mode(TrafficMode::HoldAll);
    }

    /// Closes all connections and refuses new ones.
    pub async fn refuse_all(&self) {
        self.set_mode(TrafficMode::Refuse);
        self.wait_until_listening(false).await;
    }

    /// Switches to this mode at the next commit. The mode applies to the commit itself as well.
    pub fn set_mode_at_commit(&self, mode: TrafficMode) {
        self.set_commit_action(CommitAction::SetMode(mode));
    }

    /// Turns the existing connections into dead ends at the next commit: even their end is not
    /// forwarded. New connections work.
    pub fn abandon_connections_at_commit(&self) {
        self.set_commit_action(CommitAction::NewGeneration);
    }

    /// Waits until the action for the next commit has happened.
    pub async fn wait_for_commit_action(&self) {
        let mut state = self.state.subscribe();
        drop(state.wait_for(|state| state.at_commit.is_none()).await);
    }

    /// Connects to another database from now on. The proxy must refuse connections meanwhile.
    pub fn set_database(&self, database: &Path) {
        self.state.send_modify(|state| {
            assert_eq!(state.mode, TrafficMode::Refuse, "the proxy has connections");
            database.clone_into(&mut state.database);
        });
    }

    fn set_mode(&self, mode: TrafficMode) {
        self.state.send_modify(|state| state.mode = mode);
    }

    fn set_commit_action(&self, event: CommitAction) {
        self.state.send_modify(|state| state.at_commit = Some(event));
    }

    async fn wait_until_listening(&self, expected: bool) {
        let mut is_listening = self.is_listening.clone();
        let there = is_listening.wait_for(|is_listening| *is_listening == expected).await;
        drop(there.expect("the proxy is running"));
    }
}

impl ProxyState {
    /// Whether traffic of a connection of this generation is forwarded.
    fn forwards(&self, direction: Direction, generation: u32) -> bool {
        generation == self.generation
            && match self.mode {
                TrafficMode::Forward => true,
                TrafficMode::HoldReplies => direction == Direction::ToDatabase,
                TrafficMode::HoldAll | TrafficMode::Refuse => false,
            }
    }
}

impl ProxiedConnection {
    fn new(control: &watch::Sender<ProxyState>) -> Self {
        let state = control.subscribe();
        let generation = state.borrow().generation;
        Self { control: control.clone(), state, generation }
    }

    /// Waits until traffic in this direction is forwarded.
    async fn wait_until_forwarding(&mut self, direction: Direction) {
        let generation = self.generation;
        drop(self.state.wait_for(|state| state.forwards(direction, generation)).await);
    }

    /// Applies the prepared action if the data contains a commit.
    fn apply_commit_action(&self, data: &[u8]) {
        self.control.send_if_modified(|state| {
            let Some(event) = state.at_commit else {
                return false;
            };
            if !data.windows(COMMIT_MESSAGE.len()).any(|part| part == COMMIT_MESSAGE) {
                return false;
            }
            state.at_commit = None;
            match event {
                CommitAction::SetMode(mode) => state.mode = mode,
                CommitAction::NewGeneration => state.generation += 1,
            }
            true
        });
    }

    /// Copies data in one direction until that side ends.
    async fn copy_data(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        direction: Direction,
    ) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let data = &buffer[..count];
            if direction == Direction::ToDatabase {
                self.apply_commit_action(data);
            }
            self.wait_until_forwarding(direction).await;
            if to.write_all(data).await.is_err() {
                break;
            }
        }
        // The end of a connection is traffic as well.
        self.wait_until_forwarding(direction).await;
        let _ended = to.shutdown().await;
    }
}

/// Accepts connections unless the proxy refuses them.
async fn accept_connections(
    address: SocketAddr,
    control: watch::Sender<ProxyState>,
    listening: watch::Sender<bool>,
) {
    let mut state = control.subscribe();
    let mut connections = JoinSet::new();
    loop {
        drop(state.wait_for(|state| !is_refusing(state)).await);
        let listener = bind_socket(address).listen(LISTEN_BACKLOG).expect("a listener");
        listening.send_replace(true);
        loop {
            tokio::select! {
                () = wait_until_refusing(&mut state) => break,
                client = accept_next(&listener) => {
                    connections.spawn(forward_connection(client, ProxiedConnection::new(&control)));
                }
            }
        }
        drop(listener);
        connections.shutdown().await;
        listening.send_replace(false);
    }
}

fn is_refusing(state: &ProxyState) -> bool {
    state.mode == TrafficMode::Refuse
}

async fn wait_until_refusing(state: &mut watch::Receiver<ProxyState>) {
    drop(state.wait_for(is_refusing).await);
}

/// Next client that does not disconnect at once.
async fn accept_next(listener: &TcpListener) -> TcpStream {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
    }
}

/// Copies the data of a connection in both directions.
async fn forward_connection(client: TcpStream, mut connection: ProxiedConnection) {
    let _slower_without = client.set_nodelay(true);
    connection.wait_until_forwarding(Direction::ToDatabase).await;
    let database = connection.state.borrow().database.clone();
    let Ok(database) = UnixStream::connect(database).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_database, to_database) = database.into_split();
    tokio::join!(
        connection.clone().copy_data(from_client, to_database, Direction::ToDatabase),
        connection.copy_data(from_database, to_client, Direction::ToServer),
    );
}

/// Binds a socket whose address other sockets of this file may use as well.
fn bind_socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of sockets");
    socket.set_reuseport(true).expect("an option of sockets");
    socket.bind(address).expect("the address of the proxy");
    socket
}
