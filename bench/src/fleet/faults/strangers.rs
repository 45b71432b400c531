//! Clients beside the fleet that do harm: they fall silent in the middle of something, or do not read what they asked
//! for.

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

use super::super::connect::Wire;
use super::super::drive::FILLED;
use super::super::histogram::Histogram;
use super::frames::{self, HEAD, Head, Meaning, Poll};
use crate::report::{remark, tidy};

/// How long a stranger may take until it has come as far as it means to.
const PATIENCE: Duration = Duration::from_secs(20);

/// How much those take in that do not read, in bytes, as far as the system lets it be so little: some answers.
const ROOM: u32 = 8_192;

/// How often they ask at once, so that there is more than they take in.
const AT_ONCE: u32 = 30;

/// How often they ask, and read a byte, from then on.
const EVERY: Duration = Duration::from_secs(1);

/// The longest frame that is read.
const LONGEST: usize = 1 << 14;

/// How far a stranger goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    /// Connects, and says nothing.
    Connects,
    /// Shakes hands, and says nothing.
    ShakesHands,
    /// Asks and is answered, and then says half of who asks for what.
    HalfAHead,
    /// Asks and is answered, and then says who asks for what, and half of the message.
    HalfAMessage,
    /// Goes on asking, and reads no answer but the first.
    NeverReads,
    /// Goes on asking, and reads a byte at a time.
    ReadsBytes,
}

impl Manner {
    /// Those that fall silent.
    pub const SILENT: &[Self] = &[
        Self::Connects,
        Self::ShakesHands,
        Self::HalfAHead,
        Self::HalfAMessage,
    ];

    /// Those that do not take what they asked for.
    pub const SLOW: &[Self] = &[Self::NeverReads, Self::ReadsBytes];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connects => "connected, then silent",
            Self::ShakesHands => "shook hands, then silent",
            Self::HalfAHead => "silent in the head of a call",
            Self::HalfAMessage => "silent in the message of a call",
            Self::NeverReads => "never read an answer",
            Self::ReadsBytes => "read a byte a second",
        }
    }
}

/// What became of the connections of strangers of one manner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Strays {
    /// Their manner.
    pub manner: Manner,
    /// Those that came as far as they meant to.
    pub stood: u64,
    /// Those that did not.
    pub failed: u64,
    /// Those that the server closed afterwards.
    pub closed: u64,
    /// Half of those were closed within this time, in seconds.
    pub closed_p50_s: Option<f64>,
    /// The last of them was closed after this time, in seconds.
    pub closed_last_s: Option<f64>,
}

/// What a stranger tells.
#[derive(Debug)]
enum Word {
    Stands(Manner),
    Failed(Manner, String),
    Closed(Manner, Duration),
}

/// Strangers that live. Their connections end with this.
#[derive(Debug)]
pub struct Strangers {
    manners: &'static [Manner],
    words: mpsc::UnboundedReceiver<Word>,
    _tasks: JoinSet<()>,
}

impl Strangers {
    /// Lets one come for each credential, in all of these manners by turns. Their connections have the numbers from
    /// `first` on.
    pub fn come(
        manners: &'static [Manner],
        wire: &Wire,
        first: u32,
        credentials: Vec<String>,
    ) -> Self {
        let (give, words) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let ones = manners.iter().cycle().zip((first..).zip(credentials));
        for (manner, (number, authorization)) in ones {
            let stranger = Stranger {
                manner: *manner,
                wire: wire.clone(),
                number,
                authorization,
                words: give.clone(),
            };
            tasks.spawn(stranger.live());
        }
        Self {
            manners,
            words,
            _tasks: tasks,
        }
    }

    /// What became of them so far.
    pub fn seen(&mut self) -> Vec<Strays> {
        let words: Vec<_> = std::iter::from_fn(|| self.words.try_recv().ok()).collect();
        let why = words.iter().find_map(|word| match word {
            Word::Failed(manner, why) => Some((manner.name(), why)),
            _ => None,
        });
        if let Some((what, why)) = why {
            remark(&format!("one was to be \"{what}\", and failed: {why}"));
        }
        let manners = self.manners.iter();
        manners.map(|manner| strays(*manner, &words)).collect()
    }
}

/// What became of those with one manner.
fn strays(manner: Manner, words: &[Word]) -> Strays {
    let (mut stood, mut failed, mut closed) = (0, 0, Histogram::default());
    for word in words {
        match word {
            Word::Stands(whose) if *whose == manner => stood += 1,
            Word::Failed(whose, _) if *whose == manner => failed += 1,
            Word::Closed(whose, after) if *whose == manner => closed.record(*after),
            _ => {}
        }
    }
    let seconds = |share| {
        closed
            .percentile(share)
            .map(|after| tidy(after.as_secs_f64()))
    };
    Strays {
        manner,
        stood,
        failed,
        closed: closed.count(),
        closed_p50_s: seconds(0.5),
        closed_last_s: seconds(1.0),
    }
}

/// One of them.
#[derive(Debug)]
struct Stranger {
    manner: Manner,
    wire: Wire,
    number: u32,
    authorization: String,
    words: mpsc::UnboundedSender<Word>,
}

/// Where one of them stands.
enum Stand {
    /// It says nothing any more.
    Silent(TcpStream),
    /// It asks, and does not read as it should.
    Asking(Box<Asker>),
}

impl Stranger {
    async fn live(self) {
        let stand = timeout(PATIENCE, self.begin()).await;
        let stand = match stand.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stand) => stand,
            Err(error) => {
                self.tell(Word::Failed(self.manner, error.to_string()));
                return;
            }
        };
        let since = Instant::now();
        self.tell(Word::Stands(self.manner));
        match stand {
            Stand::Silent(stream) => until_closed(stream).await,
            Stand::Asking(asker) => asker.go_on(self.manner == Manner::ReadsBytes).await,
        }
        self.tell(Word::Closed(self.manner, since.elapsed()));
    }

    /// Goes as far as it means to.
    async fn begin(&self) -> io::Result<Stand> {
        let wire = &self.wire;
        let room = Manner::SLOW.contains(&self.manner).then_some(ROOM);
        let stream = wire.connect(self.number, room).await?;
        if self.manner == Manner::Connects {
            return Ok(Stand::Silent(stream));
        }
        let stream = wire.secure(stream).await?;
        if self.manner == Manner::ShakesHands {
            return Ok(Stand::Silent(stream.into_inner().0));
        }
        let mut asker = Asker::greet(stream, &self.authorization).await?;
        asker.ask().await?;
        asker.hear().await?;
        let next = asker.next_poll();
        let half = match self.manner {
            Manner::HalfAHead => next.head[..next.head.len() / 2].to_vec(),
            Manner::HalfAMessage => {
                let end = HEAD + (next.message.len() - HEAD) / 2;
                [&next.head[..], &next.message[..end]].concat()
            }
            _ => {
                asker.say(&next.whole()).await?;
                for _ in 1..AT_ONCE {
                    asker.ask().await?;
                }
                return Ok(Stand::Asking(Box::new(asker)));
            }
        };
        asker.say(&half).await?;
        Ok(Stand::Silent(asker.stream.into_inner().0))
    }

    fn tell(&self, word: Word) {
        // Nobody listens any more when the strangers are sent away.
        self.words.send(word).ok();
    }
}

/// A client that asks what a node of ours asks, by hand.
struct Asker {
    stream: TlsStream<TcpStream>,
    authorization: String,
    /// The stream of its last call.
    last: u32,
}

impl Asker {
    async fn greet(stream: TlsStream<TcpStream>, authorization: &str) -> io::Result<Self> {
        let mut asker = Self {
            stream,
            authorization: authorization.to_owned(),
            last: 0,
        };
        asker.say(&frames::greeting()).await?;
        Ok(asker)
    }

    async fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Its next call.
    fn next_poll(&mut self) -> Poll {
        self.last = if self.last == 0 { 1 } else { self.last + 2 };
        let message = PollRequest {
            facts_digest: FILLED.to_vec(),
            ..PollRequest::default()
        };
        Poll::new(self.last, &self.authorization, &message.encode_to_vec())
    }

    async fn ask(&mut self) -> io::Result<()> {
        let poll = self.next_poll();
        self.say(&poll.whole()).await
    }

    /// Waits until the last call is answered.
    async fn hear(&mut self) -> io::Result<()> {
        loop {
            let mut head = [0; HEAD];
            self.stream.read_exact(&mut head).await?;
            let head = Head::read(head);
            if LONGEST < head.length {
                return Err(io::Error::other("a frame is too long"));
            }
            self.stream.read_exact(&mut vec![0; head.length]).await?;
            match head.means(self.last) {
                Meaning::Answer => return Ok(()),
                Meaning::Refusal => return Err(io::Error::other("the server refused")),
                Meaning::Settings => self.say(&frames::acknowledgement()).await?,
                Meaning::Nothing => {}
            }
        }
    }

    /// Asks again and again until the connection is closed, and reads a byte now and then or nothing at all.
    async fn go_on(mut self: Box<Self>, reads: bool) {
        let mut is_heard = true;
        loop {
            tokio::time::sleep(EVERY).await;
            if is_heard {
                match timeout(EVERY, self.ask()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return,
                    // The server takes nothing any more, and what was begun cannot be taken back.
                    Err(_) => is_heard = false,
                }
            }
            if reads && self.reads_end().await || self.is_closed().await {
                return;
            }
        }
    }

    /// Reads a byte if there is one, below TLS. Whether it was the end.
    async fn reads_end(&mut self) -> bool {
        let mut byte = [0];
        let (below, _) = self.stream.get_mut();
        let read = timeout(Duration::from_millis(1), below.read(&mut byte)).await;
        matches!(read, Ok(Ok(0) | Err(_)))
    }

    /// Whether the other end closed the connection, as far as that can be seen without reading.
    async fn is_closed(&self) -> bool {
        let (below, _) = self.stream.get_ref();
        let ready = below.ready(Interest::READABLE);
        match timeout(Duration::from_millis(1), ready).await {
            Ok(ready) => ready.map_or(true, Ready::is_read_closed),
            Err(_) => false,
        }
    }
}

/// Waits until the other end closes a connection. What it says is thrown away.
async fn until_closed(mut stream: TcpStream) {
    let mut bytes = [0; 1_024];
    while matches!(stream.read(&mut bytes).await, Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn what_became_of_strangers_is_told_by_their_manner() {
        let (silent, other) = (Manner::Connects, Manner::NeverReads);
        let words = [
            Word::Stands(silent),
            Word::Stands(silent),
            Word::Failed(silent, "no port".to_owned()),
            Word::Closed(silent, Duration::from_secs(10)),
            Word::Stands(other),
        ];
        let found = strays(silent, &words);
        assert_eq!((found.stood, found.failed, found.closed), (2, 1, 1));
        let is_ten = |seconds: Option<f64>| seconds.is_some_and(|s| (10.0..10.5).contains(&s));
        assert!(is_ten(found.closed_p50_s) && is_ten(found.closed_last_s));
        let found = strays(other, &words);
        assert_eq!(
            (found.stood, found.closed, found.closed_last_s),
            (1, 0, None)
        );
    }

    #[tokio::test]
    async fn an_end_is_seen_behind_what_was_not_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).await.expect("a connection");
        let (mut server, _) = listener.accept().await.expect("a connection");
        server.write_all(&[7; 5_000]).await.expect("room for it");
        drop(server);
        until_closed(stream).await;
    }
}
