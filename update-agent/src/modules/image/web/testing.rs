//! A small HTTP server whose answers a test writes down to the byte. It has threads of its own, so that it answers
//! whatever the test's runtime is busy with.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What was asked.
#[derive(Clone, Debug)]
pub struct Request {
    head: String,
}

impl Request {
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1);
        let mut headers = headers.filter_map(|line| line.split_once(": "));
        headers
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The first byte of the range that was asked for.
    pub fn from(&self) -> Option<usize> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        range.strip_suffix('-')?.parse().ok()
    }
}

/// What follows an answer.
pub enum Then {
    /// The connection is closed.
    Close,
    /// Nothing, for ever.
    Stall,
    /// These bytes, again and again.
    Endless(Vec<u8>),
    /// What the test says, when it says it.
    More(Receiver<Vec<u8>>),
}

/// An answer.
pub struct Reply {
    pub head: String,
    pub body: Vec<u8>,
    pub then: Then,
}

impl Reply {
    /// A status with headers, each `name: value`, and no body.
    pub fn status(status: &str, headers: &[&str]) -> Self {
        let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n");
        for header in headers {
            write!(head, "{header}\r\n").expect("text");
        }
        Self {
            head,
            body: Vec::new(),
            then: Then::Close,
        }
    }

    /// A part of a file, from a byte to the end.
    pub fn part(content: &[u8], from: usize, etag: &str) -> Self {
        let (total, body) = (content.len(), &content[from..]);
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {from}-{}/{total}\r\n\
             etag: {etag}\r\n",
            body.len(),
            total - 1
        );
        Self {
            head,
            body: body.to_vec(),
            then: Then::Close,
        }
    }

    /// A whole file.
    pub fn whole(content: &[u8], etag: &str) -> Self {
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\netag: {etag}\r\n",
            content.len()
        );
        Self {
            head,
            body: content.to_vec(),
            then: Then::Close,
        }
    }

    /// What a good server says of a file to a request.
    pub fn file(content: &[u8], etag: &str, request: &Request) -> Self {
        let is_same = request.header("if-range").is_none_or(|tag| tag == etag);
        match request.from().filter(|_| is_same) {
            Some(from) if from >= content.len() => {
                let range = format!("content-range: bytes */{}", content.len());
                Self::status("416 Range Not Satisfiable", &[&range])
            }
            Some(from) => Self::part(content, from, etag),
            None => Self::whole(content, etag),
        }
    }

    /// The body breaks off after so many bytes.
    pub fn cut(mut self, bytes: usize) -> Self {
        self.body.truncate(bytes);
        self
    }

    pub fn then(mut self, then: Then) -> Self {
        self.then = then;
        self
    }

    fn send(self, with_body: bool, stream: &mut impl ReadWrite) -> std::io::Result<()> {
        // A test that gives no head wants nothing to be said.
        if !self.head.is_empty() {
            let mut bytes = self.head.into_bytes();
            bytes.extend_from_slice(b"connection: close\r\n\r\n");
            if with_body {
                bytes.extend_from_slice(&self.body);
            }
            stream.write_all(&bytes)?;
            stream.flush()?;
        }
        match self.then {
            Then::Close => Ok(()),
            // Until the other end has enough.
            Then::Stall => stream.read(&mut [0]).map(|_| ()),
            Then::Endless(bytes) => loop {
                stream.write_all(&bytes)?;
            },
            Then::More(parts) => {
                for part in parts {
                    stream.write_all(&part)?;
                    stream.flush()?;
                }
                Ok(())
            }
        }
    }
}

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

type Answer = Box<dyn FnMut(usize, &Request) -> Reply + Send>;

struct Shared {
    answer: Mutex<Answer>,
    requests: Mutex<Vec<Request>>,
    stop: AtomicBool,
}

/// The server, on an address of its own.
pub struct TestServer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl TestServer {
    /// Without TLS. The closure makes the answer to each request, which are counted from 0.
    pub fn start(answer: impl FnMut(usize, &Request) -> Reply + Send + 'static) -> Self {
        Self::listen(None, Box::new(answer))
    }

    pub fn start_with_tls(
        tls: ServerConfig,
        answer: impl FnMut(usize, &Request) -> Reply + Send + 'static,
    ) -> Self {
        Self::listen(Some(Arc::new(tls)), Box::new(answer))
    }

    fn listen(tls: Option<Arc<ServerConfig>>, answer: Answer) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            answer: Mutex::new(answer),
            requests: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stop.load(Ordering::SeqCst) {
                    break;
                }
                let stream = stream.expect("a connection");
                let (tls, shared) = (tls.clone(), Arc::clone(&accepting));
                thread::spawn(move || serve(stream, tls, &shared));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        let requests = self.shared.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // So that the listener looks.
        TcpStream::connect(self.address).ok();
    }
}

fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>, shared: &Shared) {
    // A client that goes away ends the answer: that is what some tests are about.
    let ended = match tls {
        None => answer(stream, shared),
        Some(tls) => {
            let connection = ServerConnection::new(tls).expect("TLS");
            answer(StreamOwned::new(connection, stream), shared)
        }
    };
    ended.ok();
}

fn answer(mut stream: impl ReadWrite, shared: &Shared) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    let request = Request {
        head: String::from_utf8_lossy(&head).into_owned(),
    };
    let before = {
        let requests = shared.requests.lock();
        let mut requests = requests.unwrap_or_else(PoisonError::into_inner);
        requests.push(request.clone());
        requests.len() - 1
    };
    let reply = {
        let answer = shared.answer.lock();
        let mut answer = answer.unwrap_or_else(PoisonError::into_inner);
        answer(before, &request)
    };
    reply.send(request.method() != "HEAD", &mut stream)
}
