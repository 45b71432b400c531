//! A small HTTP server whose replies a test defines to the byte. It uses its own threads, so that
//! it replies whatever the runtime of the test does.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A request to the server.
#[derive(Clone, Debug)]
pub struct TestRequest {
    head: String,
    /// The certificate that the client has shown, as DER.
    pub client_certificate: Option<Vec<u8>>,
}

impl TestRequest {
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1);
        let mut headers = headers.filter_map(|line| line.split_once(": "));
        headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// First byte of the requested range.
    pub fn range_start(&self) -> Option<usize> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        range.strip_suffix('-')?.parse().ok()
    }
}

/// What the server does after a reply.
pub enum AfterBody {
    /// Closes the connection.
    Close,
    /// Sends nothing and keeps the connection open.
    Stall,
    /// Repeats these bytes.
    Endless(Vec<u8>),
    /// Sends what the test provides.
    More(Receiver<Vec<u8>>),
}

pub struct TestReply {
    pub head: String,
    pub body: Vec<u8>,
    pub after_body: AfterBody,
}

impl TestReply {
    /// A status with headers, each `name: value`, and no body.
    pub fn status(status: &str, headers: &[&str]) -> Self {
        let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n");
        for header in headers {
            write!(head, "{header}\r\n").expect("text");
        }
        Self { head, body: Vec::new(), after_body: AfterBody::Close }
    }

    /// A file from a byte to the end.
    pub fn part(content: &[u8], from: usize, etag: &str) -> Self {
        let (total, body) = (content.len(), &content[from..]);
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {from}-{}/{total}\r\n\
             etag: {etag}\r\n",
            body.len(),
            total - 1
        );
        Self { head, body: body.to_vec(), after_body: AfterBody::Close }
    }

    pub fn whole_file(content: &[u8], etag: &str) -> Self {
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\netag: {etag}\r\n", content.len());
        Self { head, body: content.to_vec(), after_body: AfterBody::Close }
    }

    /// The reply of a correct server to a request for a file.
    pub fn file(content: &[u8], etag: &str, request: &TestRequest) -> Self {
        let is_same = request.header("if-range").is_none_or(|tag| tag == etag);
        match request.range_start().filter(|_| is_same) {
            Some(from) if from >= content.len() => {
                let range = format!("content-range: bytes */{}", content.len());
                Self::status("416 Range Not Satisfiable", &[&range])
            }
            Some(from) => Self::part(content, from, etag),
            None => Self::whole_file(content, etag),
        }
    }

    /// Cuts the body off after a number of bytes.
    pub fn cut(mut self, bytes: usize) -> Self {
        self.body.truncate(bytes);
        self
    }

    pub fn followed_by(mut self, then: AfterBody) -> Self {
        self.after_body = then;
        self
    }

    fn send(self, with_body: bool, stream: &mut impl ReadWrite) -> std::io::Result<()> {
        // A test without a head sends nothing.
        if !self.head.is_empty() {
            let mut bytes = self.head.into_bytes();
            bytes.extend_from_slice(b"connection: close\r\n\r\n");
            if with_body {
                bytes.extend_from_slice(&self.body);
            }
            stream.write_all(&bytes)?;
            stream.flush()?;
        }
        match self.after_body {
            AfterBody::Close => Ok(()),
            // Until the client closes the connection.
            AfterBody::Stall => stream.read(&mut [0]).map(|_| ()),
            AfterBody::Endless(bytes) => loop {
                stream.write_all(&bytes)?;
            },
            AfterBody::More(parts) => {
                for part in parts {
                    stream.write_all(&part)?;
                    stream.flush()?;
                }
                Ok(())
            }
        }
    }
}

trait ReadWrite: Read + Write {
    /// The certificate that the client has shown.
    fn client_certificate(&self) -> Option<Vec<u8>>;
}

impl ReadWrite for TcpStream {
    fn client_certificate(&self) -> Option<Vec<u8>> {
        None
    }
}

impl ReadWrite for StreamOwned<ServerConnection, TcpStream> {
    fn client_certificate(&self) -> Option<Vec<u8>> {
        Some(self.conn.peer_certificates()?.first()?.to_vec())
    }
}

type ReplyFn = Box<dyn FnMut(usize, &TestRequest) -> TestReply + Send>;

struct TestServerState {
    reply_fn: Mutex<ReplyFn>,
    requests: Mutex<Vec<TestRequest>>,
    stop: AtomicBool,
}

/// The server, on an address of its own.
pub struct TestFileServer {
    pub address: SocketAddr,
    shared: Arc<TestServerState>,
}

impl TestFileServer {
    /// Starts a server without TLS. The closure makes the reply to each request; requests are
    /// counted from 0.
    pub fn start(reply_fn: impl FnMut(usize, &TestRequest) -> TestReply + Send + 'static) -> Self {
        Self::listen(None, Box::new(reply_fn))
    }

    pub fn start_with_tls(
        tls: ServerConfig,
        reply_fn: impl FnMut(usize, &TestRequest) -> TestReply + Send + 'static,
    ) -> Self {
        Self::listen(Some(Arc::new(tls)), Box::new(reply_fn))
    }

    fn listen(tls: Option<Arc<ServerConfig>>, reply_fn: ReplyFn) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(TestServerState {
            reply_fn: Mutex::new(reply_fn),
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
    pub fn requests(&self) -> Vec<TestRequest> {
        let requests = self.shared.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TestFileServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes the listener.
        TcpStream::connect(self.address).ok();
    }
}

fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>, shared: &TestServerState) {
    // A client that disconnects ends the reply, as some tests expect.
    let ended = match tls {
        None => answer_request(stream, shared),
        Some(tls) => {
            let connection = ServerConnection::new(tls).expect("TLS");
            answer_request(StreamOwned::new(connection, stream), shared)
        }
    };
    ended.ok();
}

fn answer_request(mut stream: impl ReadWrite, shared: &TestServerState) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    let request = TestRequest {
        head: String::from_utf8_lossy(&head).into_owned(),
        client_certificate: stream.client_certificate(),
    };
    let before = {
        let requests = shared.requests.lock();
        let mut requests = requests.unwrap_or_else(PoisonError::into_inner);
        requests.push(request.clone());
        requests.len() - 1
    };
    let reply = {
        let reply_fn = shared.reply_fn.lock();
        let mut reply_fn = reply_fn.unwrap_or_else(PoisonError::into_inner);
        reply_fn(before, &request)
    };
    reply.send(request.method() != "HEAD", &mut stream)
}
