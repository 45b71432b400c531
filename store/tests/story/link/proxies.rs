//! Proxies between a store and its Postgres: TCP towards the store, the socket of a Postgres behind.

use std::collections::VecDeque;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, copy_bidirectional, sink,
};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The code of a request for TLS instead of a startup packet.
const TLS_REQUEST: i32 = 80_877_103;

/// How many answers each of the next connections gets. A connection without a limit gets all.
pub type AnswerLimits = Arc<Mutex<VecDeque<usize>>>;

/// A running proxy. It stops when the value is dropped.
pub struct Proxy {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

/// A pooler in transaction mode.
#[derive(Clone)]
struct Pooler {
    socket: PathBuf,
    idle: Arc<Mutex<Vec<UnixStream>>>,
    reuses_sessions: bool,
}

impl Proxy {
    /// The URL of the same database through the proxy.
    pub fn url(&self, direct: &str) -> String {
        proxied_url(direct, self.address)
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// A proxy that drops settings of the startup packet, as poolers can be configured to do.
    pub async fn dropping_startup_options(direct: &str) -> Self {
        let socket = socket_of(direct);
        Self::start(move |client| forward_without_options(client, socket.clone())).await
    }

    /// A proxy that forwards each answer after a delay.
    pub async fn delaying_answers(direct: &str, delay: Duration) -> Self {
        let socket = socket_of(direct);
        let wait = move || async move {
            tokio::time::sleep(delay).await;
            Some(())
        };
        Self::start(move |client| forward_answers_after(client, socket.clone(), wait)).await
    }

    /// A proxy that withholds the answers to its first connections. The sender sets their number; a
    /// smaller number lets the proxy forward the answers.
    pub async fn withholding_answers(direct: &str) -> (Self, watch::Sender<usize>) {
        let socket = socket_of(direct);
        let (sender, silent) = watch::channel(0);
        let connections = AtomicUsize::default();
        let proxy = Self::start(move |client| {
            let number = connections.fetch_add(1, Ordering::Relaxed);
            let silent = silent.clone();
            let wait = move || {
                let mut silent = silent.clone();
                async move { silent.wait_for(|silent| *silent <= number).await.ok().map(drop) }
            };
            forward_answers_after(client, socket.clone(), wait)
        });
        (proxy.await, sender)
    }

    /// A proxy that withholds the later answers of connections with a limit.
    pub async fn limiting_answers(direct: &str) -> (Self, AnswerLimits) {
        let socket = socket_of(direct);
        let limits = AnswerLimits::default();
        let next_limits = Arc::clone(&limits);
        let proxy = Self::start(move |client| {
            let limit = next_limits.lock().expect("a lock").pop_front();
            forward_first_answers(client, socket.clone(), limit.unwrap_or(usize::MAX))
        });
        (proxy.await, limits)
    }

    /// A pooler in transaction mode. A transaction gets the session that was used last, as from
    /// `PgBouncer`.
    pub async fn pooling_transactions(direct: &str) -> Self {
        Self::pooling(direct, true).await
    }

    /// A pooler that gives each transaction a new session.
    pub async fn opening_sessions(direct: &str) -> Self {
        Self::pooling(direct, false).await
    }

    async fn pooling(direct: &str, reuses_sessions: bool) -> Self {
        let pooler = Pooler { socket: socket_of(direct), idle: Arc::default(), reuses_sessions };
        Self::start(move |client| pool_transactions(client, pooler.clone())).await
    }

    async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<()>> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let served = serve(client);
                clients.spawn(async move { served.await.unwrap_or_default() });
            }
        });
        Self { address, _tasks: tasks }
    }
}

/// The URL of the same database behind another address.
pub fn proxied_url(direct: &str, address: SocketAddr) -> String {
    let (base, _) = direct.split_once('?').expect("a URL with parameters");
    let name = base.rsplit('/').next().expect("a database");
    format!("postgres://evenkeel@{address}/{name}")
}

/// The socket that a URL of a private Postgres names.
pub fn socket_of(url: &str) -> PathBuf {
    let (_, host) = url.split_once("host=").expect("a URL with a folder");
    Path::new(host.split('&').next().unwrap_or_default()).join(".s.PGSQL.5432")
}

async fn forward_without_options(mut client: TcpStream, socket: PathBuf) -> Option<()> {
    let startup = read_startup(&mut client).await?;
    let mut database = UnixStream::connect(socket).await.ok()?;
    database.write_all(&startup).await.ok()?;
    copy_bidirectional(&mut client, &mut database).await.ok().map(drop)
}

/// Forwards each answer of the database after a wait; none after the wait has failed.
async fn forward_answers_after<W: Future<Output = Option<()>>>(
    mut client: TcpStream,
    socket: PathBuf,
    wait: impl Fn() -> W,
) -> Option<()> {
    let startup = read_startup(&mut client).await?;
    let mut database = UnixStream::connect(socket).await.ok()?;
    database.write_all(&startup).await.ok()?;
    let (mut answers, mut requests) = database.split();
    let (mut received, mut sent) = client.split();
    let forward_answers = async {
        let mut answer = vec![0; 64 << 10];
        loop {
            let count = answers.read(&mut answer).await.ok().filter(|count| *count > 0)?;
            wait().await?;
            sent.write_all(&answer[..count]).await.ok()?;
        }
    };
    tokio::select! {
        ended = forward_answers => ended,
        ended = copy(&mut received, &mut requests) => ended.ok().map(drop),
    }
}

/// Forwards this number of answers of the database. The first one is that to the login.
async fn forward_first_answers(mut client: TcpStream, socket: PathBuf, limit: usize) -> Option<()> {
    let startup = read_startup(&mut client).await?;
    let mut database = UnixStream::connect(socket).await.ok()?;
    database.write_all(&startup).await.ok()?;
    let (mut answers, mut requests) = database.split();
    let (mut received, mut sent) = client.split();
    let forward_answers = async {
        for _ in 0..limit {
            forward_answer(&mut answers, &mut sent).await?;
        }
        pending::<Option<()>>().await
    };
    tokio::select! {
        ended = forward_answers => ended,
        ended = copy(&mut received, &mut requests) => ended.ok().map(drop),
    }
}

/// Reads the startup packet, and returns it without settings of the session.
async fn read_startup(client: &mut TcpStream) -> Option<Vec<u8>> {
    loop {
        let length = usize::try_from(client.read_i32().await.ok()?).ok()?;
        let mut body = vec![0; length.checked_sub(4)?];
        client.read_exact(&mut body).await.ok()?;
        let (code, parameters) = body.split_first_chunk::<4>()?;
        if i32::from_be_bytes(*code) == TLS_REQUEST {
            client.write_all(b"N").await.ok()?;
            continue;
        }
        let texts: Vec<&[u8]> = parameters.split(|byte| *byte == 0).collect();
        let mut kept = code.to_vec();
        for pair in texts.chunks_exact(2).filter(|pair| !pair[0].is_empty()) {
            if pair[0] != b"options" {
                kept.extend([pair[0], b"\0", pair[1], b"\0"].concat());
            }
        }
        kept.push(0);
        let length = i32::try_from(kept.len() + 4).ok()?;
        return Some([length.to_be_bytes().as_slice(), &kept].concat());
    }
}

impl Pooler {
    /// Opens a session and forwards the answer to the startup packet.
    async fn open_session(
        &self,
        startup: &[u8],
        client: &mut (impl AsyncWrite + Unpin),
    ) -> Option<UnixStream> {
        let mut session = UnixStream::connect(&self.socket).await.ok()?;
        session.write_all(startup).await.ok()?;
        while forward_answer(&mut session, client).await? != b'I' {}
        Some(session)
    }

    /// The session for the next transaction of a client.
    async fn acquire(&self, startup: &[u8]) -> Option<UnixStream> {
        if self.reuses_sessions {
            return self.idle.lock().expect("a lock").pop();
        }
        self.open_session(startup, &mut sink()).await
    }

    fn release(&self, session: UnixStream) {
        self.idle.lock().expect("a lock").push(session);
    }
}

async fn pool_transactions(mut client: TcpStream, pooler: Pooler) -> Option<()> {
    let startup = read_startup(&mut client).await?;
    let session = pooler.open_session(&startup, &mut client).await?;
    pooler.release(session);
    let mut request = vec![0; 64 << 10];
    loop {
        let mut count = client.read(&mut request).await.ok()?;
        if count == 0 || request[0] == b'X' {
            return None;
        }
        let mut session = pooler.acquire(&startup).await?;
        loop {
            session.write_all(&request[..count]).await.ok()?;
            if forward_answer(&mut session, &mut client).await? == b'I' {
                break;
            }
            // The transaction is open, so the client keeps the session.
            count = client.read(&mut request).await.ok()?;
        }
        if pooler.reuses_sessions {
            pooler.release(session);
        }
    }
}

/// Forwards messages until the database is ready for the next request, and returns the state of the
/// transaction.
async fn forward_answer(
    session: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
) -> Option<u8> {
    loop {
        let kind = session.read_u8().await.ok()?;
        let length = session.read_i32().await.ok()?;
        let mut body = vec![0; usize::try_from(length).ok()?.checked_sub(4)?];
        session.read_exact(&mut body).await.ok()?;
        client
            .write_all(&[[kind].as_slice(), length.to_be_bytes().as_slice(), &body].concat())
            .await
            .ok()?;
        if kind == b'Z' {
            return body.first().copied();
        }
    }
}
