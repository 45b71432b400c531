//! An HTTP proxy that opens tunnels to whom it is told to, or does not.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A running proxy.
pub struct TestProxy {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TestProxy {
    /// Answers each `CONNECT` with this line, and opens the tunnel if that says yes.
    #[expect(clippy::disallowed_methods, reason = "a test has no lifecycle")]
    pub async fn that_says(answer: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer, Arc::clone(&heard)));
            }
        });
        Self { address, asked }
    }

    /// What it was asked, each request as a whole.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(mut client: TcpStream, answer: &str, asked: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8(request).unwrap();
    let target = request.split(' ').nth(1).unwrap().to_owned();
    asked.lock().unwrap().push(request);
    let head = format!("HTTP/1.1 {answer}\r\nProxy-Agent: test\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    if answer.starts_with("200") {
        let mut server = TcpStream::connect(target).await.unwrap();
        // Either end may just go.
        tokio::io::copy_bidirectional(&mut client, &mut server)
            .await
            .ok();
    }
}
