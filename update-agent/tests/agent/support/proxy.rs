//! An HTTP proxy that opens or refuses tunnels.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A running proxy.
pub struct TestProxy {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl TestProxy {
    /// Answers each `CONNECT` with this status line, and opens the tunnel if it is a 200.
    #[expect(clippy::disallowed_methods, reason = "a test has no lifecycle")]
    pub async fn answering(answer: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let requests_seen = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer, Arc::clone(&requests_seen)));
            }
        });
        Self { address, requests }
    }

    /// The received requests, with their headers.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(mut client: TcpStream, answer: &str, requests: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8(request).unwrap();
    let target = request.split(' ').nth(1).unwrap().to_owned();
    requests.lock().unwrap().push(request);
    let head = format!("HTTP/1.1 {answer}\r\nProxy-Agent: test\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    if answer.starts_with("200") {
        let mut server = TcpStream::connect(target).await.unwrap();
        // Either end may close the connection.
        tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
    }
}
