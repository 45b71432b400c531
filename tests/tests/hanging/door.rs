//! A door between a server and its database: TCP on this side, the socket of a Postgres on the other.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How a transaction ends for good, as it is said to Postgres.
const COMMIT: &[u8] = b"COMMIT\0";

/// How many connections may wait to be let in.
const BACKLOG: u32 = 128;

/// What passes through a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Everything.
    Open,
    /// What is said to the database, and nothing that it answers.
    Mute,
    /// Nothing. Connections stay, and new ones are taken.
    Silent,
    /// Nothing, and there are no connections: who knocks is refused.
    Shut,
}

/// A door. It ends with this value.
#[derive(Debug)]
pub struct Door {
    address: SocketAddr,
    state: watch::Sender<State>,
    /// Whether somebody listens.
    listens: watch::Receiver<bool>,
    /// Never listens: while the door is shut it keeps the port from being anybody else's.
    _place: TcpSocket,
    _keeper: JoinSet<()>,
}

#[derive(Clone, Debug)]
struct State {
    passage: Passage,
    /// The socket of the database.
    database: PathBuf,
    /// Connections of an earlier era lead nowhere.
    era: u32,
    /// What happens at the next commit, just before it passes.
    at_commit: Option<Event>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Passage(Passage),
    Era,
}

/// Which way something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heading {
    Database,
    Server,
}

/// One connection as its door sees it.
#[derive(Clone, Debug)]
struct Line {
    control: watch::Sender<State>,
    state: watch::Receiver<State>,
    era: u32,
}

impl Door {
    /// An open door to the Postgres with this socket.
    pub async fn to(database: &Path) -> Self {
        let place = socket((Ipv4Addr::LOCALHOST, 0).into());
        let address = place.local_addr().expect("an address");
        let state = watch::Sender::new(State {
            passage: Passage::Open,
            database: database.to_owned(),
            era: 0,
            at_commit: None,
        });
        let (tell, listens) = watch::channel(false);
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(address, state.clone(), tell));
        let door = Self {
            address,
            state,
            listens,
            _place: place,
            _keeper: keeper,
        };
        door.until_listens(true).await;
        door
    }

    /// Where the server knocks.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything passes again, what was held up first.
    pub async fn open(&self) {
        self.set(Passage::Open);
        self.until_listens(true).await;
    }

    /// From now on nothing passes, and all connections stay.
    pub fn fall_silent(&self) {
        self.set(Passage::Silent);
    }

    /// All connections end, and nobody is let in.
    pub async fn shut(&self) {
        self.set(Passage::Shut);
        self.until_listens(false).await;
    }

    /// From the next commit on only this passes. The commit itself is the first that does, or does not.
    pub fn at_commit(&self, passage: Passage) {
        self.prepare(Event::Passage(passage));
    }

    /// From the next commit on the connections that there are lead nowhere: not even their end is told. New ones are as
    /// ever.
    pub fn leave_behind_at_commit(&self) {
        self.prepare(Event::Era);
    }

    /// Waits until what was prepared for a commit has happened.
    pub async fn happened(&self) {
        let mut state = self.state.subscribe();
        drop(state.wait_for(|state| state.at_commit.is_none()).await);
    }

    /// Leads to another database from now on. Only a door that is shut may.
    pub fn lead_to(&self, database: &Path) {
        self.state.send_modify(|state| {
            assert_eq!(state.passage, Passage::Shut, "somebody is in the door");
            database.clone_into(&mut state.database);
        });
    }

    fn set(&self, passage: Passage) {
        self.state.send_modify(|state| state.passage = passage);
    }

    fn prepare(&self, event: Event) {
        self.state
            .send_modify(|state| state.at_commit = Some(event));
    }

    async fn until_listens(&self, wanted: bool) {
        let mut listens = self.listens.clone();
        let there = listens.wait_for(|listens| *listens == wanted).await;
        drop(there.expect("the door is kept"));
    }
}

impl State {
    /// Whether something that is said on a connection of this era passes.
    fn lets_pass(&self, heading: Heading, era: u32) -> bool {
        era == self.era
            && match self.passage {
                Passage::Open => true,
                Passage::Mute => heading == Heading::Database,
                Passage::Silent | Passage::Shut => false,
            }
    }
}

impl Line {
    fn new(control: &watch::Sender<State>) -> Self {
        let state = control.subscribe();
        let era = state.borrow().era;
        Self {
            control: control.clone(),
            state,
            era,
        }
    }

    /// Waits until what is said this way passes.
    async fn passes(&mut self, heading: Heading) {
        let era = self.era;
        drop(
            self.state
                .wait_for(|state| state.lets_pass(heading, era))
                .await,
        );
    }

    /// Looks whether something that was prepared happens now.
    fn hears(&self, said: &[u8]) {
        self.control.send_if_modified(|state| {
            let Some(event) = state.at_commit else {
                return false;
            };
            if !said.windows(COMMIT.len()).any(|part| part == COMMIT) {
                return false;
            }
            state.at_commit = None;
            match event {
                Event::Passage(passage) => state.passage = passage,
                Event::Era => state.era += 1,
            }
            true
        });
    }

    /// Carries what is said one way until that side has ended.
    async fn carry(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        heading: Heading,
    ) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let said = &buffer[..count];
            if heading == Heading::Database {
                self.hears(said);
            }
            self.passes(heading).await;
            if to.write_all(said).await.is_err() {
                break;
            }
        }
        // That somebody has hung up is something that is said as well.
        self.passes(heading).await;
        let _ended = to.shutdown().await;
    }
}

/// Lets in whoever knocks while the door is not shut.
async fn keep(address: SocketAddr, control: watch::Sender<State>, tell: watch::Sender<bool>) {
    let mut state = control.subscribe();
    let mut lines = JoinSet::new();
    loop {
        drop(state.wait_for(|state| !is_shut(state)).await);
        let listener = socket(address).listen(BACKLOG).expect("a door");
        tell.send_replace(true);
        loop {
            tokio::select! {
                () = shut(&mut state) => break,
                client = next(&listener) => {
                    lines.spawn(connect(client, Line::new(&control)));
                }
            }
        }
        drop(listener);
        lines.shutdown().await;
        tell.send_replace(false);
    }
}

fn is_shut(state: &State) -> bool {
    state.passage == Passage::Shut
}

async fn shut(state: &mut watch::Receiver<State>) {
    drop(state.wait_for(is_shut).await);
}

/// The next one who knocks and does not go away at once.
async fn next(listener: &TcpListener) -> TcpStream {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
    }
}

/// Carries a connection both ways.
async fn connect(client: TcpStream, mut line: Line) {
    let _slower_without = client.set_nodelay(true);
    line.passes(Heading::Database).await;
    let database = line.state.borrow().database.clone();
    let Ok(database) = UnixStream::connect(database).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_database, to_database) = database.into_split();
    tokio::join!(
        line.clone()
            .carry(from_client, to_database, Heading::Database),
        line.carry(from_database, to_client, Heading::Server),
    );
}

/// A socket with an address that others of this file may have as well.
fn socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of sockets");
    socket.set_reuseport(true).expect("an option of sockets");
    socket.bind(address).expect("the door's own address");
    socket
}
