//! Clients outside of the fleet that misbehave: they fall silent in the middle of a call, or do not
//! read the answers. They have the credentials of registered nodes that do not poll.

use std::io;
use std::time::Duration;

use evenkeel_proto::agent::PollRequest;
use prost::Message as _;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest, Ready};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;

use super::super::connect::TlsDialer;
use super::super::node_list::SEEDED_FACTS_DIGEST;
use super::frames::{
    FRAME_HEADER_BYTES, FrameEncoder, FrameHeader, FrameMeaning, PollFrames,
    SETTINGS_ACKNOWLEDGEMENT,
};
use crate::histogram::Histogram;
use crate::report::{print_status, round_figure};

/// How long a client may take to reach its final state.
const SETUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Receive buffer of clients that do not read, in bytes; room for some answers. The system may
/// round it up.
const RECEIVE_BUFFER_BYTES: u32 = 8_192;

/// Number of polls that are sent at once, so that the answers exceed the receive buffer.
const INITIAL_POLLS: u32 = 30;

/// Interval at which clients poll, and read a byte, after the first polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Longest frame that is read, in bytes.
const MAX_FRAME_BYTES: usize = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientBehaviour {
    /// Connects, and is silent.
    ConnectOnly,
    /// Completes the TLS handshake, and is silent.
    HandshakeOnly,
    /// Polls once, then sends half of the headers of a poll.
    HalfHeaders,
    /// Polls once, then sends the headers and half of the message of a poll.
    HalfMessage,
    /// Continues to poll, and reads only the first answer.
    NeverReads,
    /// Continues to poll, and reads one byte at a time.
    ReadsSlowly,
}

impl ClientBehaviour {
    /// Behaviours that fall silent.
    pub const SILENT: &[Self] =
        &[Self::ConnectOnly, Self::HandshakeOnly, Self::HalfHeaders, Self::HalfMessage];

    /// Behaviours that do not read the answers properly.
    pub const SLOW: &[Self] = &[Self::NeverReads, Self::ReadsSlowly];

    /// Description for tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConnectOnly => "silent after connecting",
            Self::HandshakeOnly => "silent after the handshake",
            Self::HalfHeaders => "silent in the headers of a call",
            Self::HalfMessage => "silent in the message of a call",
            Self::NeverReads => "reading no answer",
            Self::ReadsSlowly => "reading one byte per second",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClientConnections {
    pub behaviour: ClientBehaviour,
    /// Clients that reached their final state.
    pub established: u64,
    /// Clients that failed before.
    pub failed: u64,
    /// Established connections that the server closed.
    pub closed: u64,
    /// Median time until the server closed a connection, in seconds.
    pub closed_p50_s: Option<f64>,
    /// Time until the server closed the last connection, in seconds.
    pub closed_last_s: Option<f64>,
}

#[derive(Debug)]
enum ClientEvent {
    /// The client reached its final state.
    Established(ClientBehaviour),
    /// The client failed before, with this error.
    Failed(ClientBehaviour, String),
    /// The server closed the connection after this time.
    Closed(ClientBehaviour, Duration),
}

/// Running clients. Their connections are closed when this value is dropped.
#[derive(Debug)]
pub struct UnknownClients {
    behaviours: &'static [ClientBehaviour],
    events: mpsc::UnboundedReceiver<ClientEvent>,
    _tasks: JoinSet<()>,
}

impl UnknownClients {
    /// Starts one client for each credential, with all behaviours by turns. Their connections are
    /// numbered from `first` on.
    pub fn start(
        behaviours: &'static [ClientBehaviour],
        tls_dialer: &TlsDialer,
        first: u32,
        credentials: Vec<String>,
    ) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let ones = behaviours.iter().cycle().zip((first..).zip(credentials));
        for (behaviour, (number, authorization)) in ones {
            let client = UnknownClient {
                behaviour: *behaviour,
                tls_dialer: tls_dialer.clone(),
                number,
                authorization,
                events: sender.clone(),
            };
            tasks.spawn(client.run());
        }
        Self { behaviours, events, _tasks: tasks }
    }

    /// Summarizes the events so far, by behaviour.
    pub fn summarize(&mut self) -> Vec<ClientConnections> {
        let events: Vec<_> = std::iter::from_fn(|| self.events.try_recv().ok()).collect();
        let why = events.iter().find_map(|event| match event {
            ClientEvent::Failed(behaviour, why) => Some((behaviour.name(), why)),
            _ => None,
        });
        if let Some((what, why)) = why {
            print_status(&format!("a client that should be \"{what}\" failed: {why}"));
        }
        let behaviours = self.behaviours.iter();
        behaviours.map(|behaviour| summarize_behaviour(*behaviour, &events)).collect()
    }
}

fn summarize_behaviour(behaviour: ClientBehaviour, events: &[ClientEvent]) -> ClientConnections {
    let (mut established, mut failed, mut closed) = (0, 0, Histogram::default());
    for event in events {
        match event {
            ClientEvent::Established(of) if *of == behaviour => established += 1,
            ClientEvent::Failed(of, _) if *of == behaviour => failed += 1,
            ClientEvent::Closed(of, after) if *of == behaviour => closed.record(*after),
            _ => {}
        }
    }
    let seconds = |share| closed.percentile(share).map(|after| round_figure(after.as_secs_f64()));
    ClientConnections {
        behaviour,
        established,
        failed,
        closed: closed.count(),
        closed_p50_s: seconds(0.5),
        closed_last_s: seconds(1.0),
    }
}

#[derive(Debug)]
struct UnknownClient {
    behaviour: ClientBehaviour,
    tls_dialer: TlsDialer,
    number: u32,
    authorization: String,
    events: mpsc::UnboundedSender<ClientEvent>,
}

/// Final state of a client.
enum ClientState {
    /// The client sends nothing more.
    Silent(TcpStream),
    /// The client polls, and does not read properly.
    Polling(Box<RawPollClient>),
}

impl UnknownClient {
    async fn run(self) {
        let state = timeout(SETUP_TIMEOUT, self.establish()).await;
        let state = match state.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(state) => state,
            Err(error) => {
                self.send_event(ClientEvent::Failed(self.behaviour, error.to_string()));
                return;
            }
        };
        let since = Instant::now();
        self.send_event(ClientEvent::Established(self.behaviour));
        match state {
            ClientState::Silent(stream) => until_closed(stream).await,
            ClientState::Polling(client) => {
                client.poll_until_closed(self.behaviour == ClientBehaviour::ReadsSlowly).await;
            }
        }
        self.send_event(ClientEvent::Closed(self.behaviour, since.elapsed()));
    }

    /// Brings the client to its final state.
    async fn establish(&self) -> io::Result<ClientState> {
        let tls_dialer = &self.tls_dialer;
        let receive_buffer =
            ClientBehaviour::SLOW.contains(&self.behaviour).then_some(RECEIVE_BUFFER_BYTES);
        let stream = tls_dialer.connect_tcp(self.number, receive_buffer).await?;
        if self.behaviour == ClientBehaviour::ConnectOnly {
            return Ok(ClientState::Silent(stream));
        }
        let stream = tls_dialer.handshake(stream).await?;
        if self.behaviour == ClientBehaviour::HandshakeOnly {
            return Ok(ClientState::Silent(stream.into_inner().0));
        }
        let mut client = RawPollClient::start(stream, &self.authorization).await?;
        let stream = client.send_poll().await?;
        client.wait_for_answer(stream).await?;
        let next = client.next_poll_frames()?;
        let half = match self.behaviour {
            ClientBehaviour::HalfHeaders => next.headers[..next.headers.len() / 2].to_vec(),
            ClientBehaviour::HalfMessage => {
                let end = FRAME_HEADER_BYTES + (next.data.len() - FRAME_HEADER_BYTES) / 2;
                [&next.headers[..], &next.data[..end]].concat()
            }
            _ => {
                client.write(&[next.headers, next.data].concat()).await?;
                for _ in 1..INITIAL_POLLS {
                    client.send_poll().await?;
                }
                return Ok(ClientState::Polling(Box::new(client)));
            }
        };
        client.write(&half).await?;
        Ok(ClientState::Silent(client.stream.into_inner().0))
    }

    fn send_event(&self, event: ClientEvent) {
        // The receiver is dropped before the clients.
        self.events.send(event).ok();
    }
}

/// A client that polls like an own node, and decides itself which bytes are sent and read.
struct RawPollClient {
    stream: TlsStream<TcpStream>,
    encoder: FrameEncoder,
    authorization: String,
}

impl RawPollClient {
    async fn start(stream: TlsStream<TcpStream>, authorization: &str) -> io::Result<Self> {
        let (encoder, preface) = FrameEncoder::start().await?;
        let mut client = Self { stream, encoder, authorization: authorization.to_owned() };
        client.write(&preface).await?;
        Ok(client)
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Creates the frames of the next poll.
    fn next_poll_frames(&mut self) -> io::Result<PollFrames> {
        let message =
            PollRequest { facts_digest: SEEDED_FACTS_DIGEST.to_vec(), ..PollRequest::default() };
        self.encoder.encode_poll(&self.authorization, &message.encode_to_vec())
    }

    /// Polls. Returns the stream of the poll.
    async fn send_poll(&mut self) -> io::Result<u32> {
        let poll = self.next_poll_frames()?;
        self.write(&[poll.headers, poll.data].concat()).await?;
        Ok(poll.stream)
    }

    async fn wait_for_answer(&mut self, stream: u32) -> io::Result<()> {
        loop {
            let mut header = [0; FRAME_HEADER_BYTES];
            self.stream.read_exact(&mut header).await?;
            let header = FrameHeader::parse(header);
            if MAX_FRAME_BYTES < header.length {
                return Err(io::Error::other("the server sent a frame that is too long"));
            }
            self.stream.read_exact(&mut vec![0; header.length]).await?;
            match header.meaning_for(stream) {
                FrameMeaning::Answer => return Ok(()),
                FrameMeaning::Refusal => {
                    return Err(io::Error::other("the server refused the poll"));
                }
                FrameMeaning::Settings => self.write(&SETTINGS_ACKNOWLEDGEMENT).await?,
                FrameMeaning::Other => {}
            }
        }
    }

    /// Polls until the connection is closed. If `reads`, reads one byte after each poll.
    async fn poll_until_closed(mut self: Box<Self>, reads: bool) {
        let mut is_writable = true;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if is_writable {
                match timeout(POLL_INTERVAL, self.send_poll()).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(_)) => return,
                    // The server reads no more, and a partly sent poll cannot be taken back.
                    Err(_) => is_writable = false,
                }
            }
            if reads && self.read_byte_or_end().await || self.is_closed().await {
                return;
            }
        }
    }

    /// Reads one byte below TLS, if there is one. Returns whether the connection has ended.
    async fn read_byte_or_end(&mut self) -> bool {
        let mut byte = [0];
        let (below, _) = self.stream.get_mut();
        let read = timeout(Duration::from_millis(1), below.read(&mut byte)).await;
        matches!(read, Ok(Ok(0) | Err(_)))
    }

    /// Whether the peer closed the connection, as far as that can be seen without reading.
    async fn is_closed(&self) -> bool {
        let (below, _) = self.stream.get_ref();
        let ready = below.ready(Interest::READABLE);
        match timeout(Duration::from_millis(1), ready).await {
            Ok(ready) => ready.map_or(true, Ready::is_read_closed),
            Err(_) => false,
        }
    }
}

/// Discards incoming data until the peer closes the connection.
async fn until_closed(mut stream: TcpStream) {
    let mut bytes = [0; 1_024];
    while matches!(stream.read(&mut bytes).await, Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn client_events_are_summarized_by_behaviour() {
        let (silent, other) = (ClientBehaviour::ConnectOnly, ClientBehaviour::NeverReads);
        let events = [
            ClientEvent::Established(silent),
            ClientEvent::Established(silent),
            ClientEvent::Failed(silent, "no free port".to_owned()),
            ClientEvent::Closed(silent, Duration::from_secs(10)),
            ClientEvent::Established(other),
        ];
        let summary = summarize_behaviour(silent, &events);
        assert_eq!((summary.established, summary.failed, summary.closed), (2, 1, 1));
        let is_ten = |seconds: Option<f64>| seconds.is_some_and(|s| (10.0..10.5).contains(&s));
        assert!(is_ten(summary.closed_p50_s) && is_ten(summary.closed_last_s));
        let summary = summarize_behaviour(other, &events);
        assert_eq!((summary.established, summary.closed, summary.closed_last_s), (1, 0, None));
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_seen_behind_unread_data() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).await.expect("a connection");
        let (mut server, _) = listener.accept().await.expect("a connection");
        server.write_all(&[7; 5_000]).await.expect("the data is sent");
        drop(server);
        until_closed(stream).await;
    }
}
