//! A web server for a repository: plain HTTP, one folder, with support for range requests.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use chrono::{DateTime, Utc};

/// Serves a folder until the program ends.
#[derive(Debug)]
pub struct Web {
    address: SocketAddr,
    state: Arc<WebState>,
}

#[derive(Debug)]
struct WebState {
    folder: PathBuf,
    requests: Mutex<Vec<WebRequest>>,
}

/// A request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebRequest {
    /// Path in the folder.
    pub path: String,
    /// First byte of the range.
    pub from: u64,
}

impl Web {
    /// Serves `folder`, which need not exist yet.
    pub fn serve(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(WebState { folder: folder.to_owned(), requests: Mutex::default() });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // An error here means that the client has disconnected, which is not the server's problem.
                thread::spawn(move || drop(answer_all(&client, &shared)));
            }
        });
        Self { address, state }
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<WebRequest> {
        let requests = self.state.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers the requests of a connection.
fn answer_all(client: &TcpStream, state: &WebState) -> io::Result<()> {
    let mut requests = BufReader::new(client.try_clone()?);
    while let Some(request) = read(&mut requests)? {
        let mut all = state.requests.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(request.clone());
        drop(all);
        answer(client, &state.folder, &request)?;
    }
    Ok(())
}

/// Reads a request. `None` at the end of the connection.
fn read(requests: &mut BufReader<TcpStream>) -> io::Result<Option<WebRequest>> {
    let mut line = String::new();
    if requests.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default();
    let mut request = WebRequest { path: path.trim_start_matches('/').to_owned(), from: 0 };
    loop {
        let mut field = String::new();
        if requests.read_line(&mut field)? == 0 || field.trim().is_empty() {
            return Ok(Some(request));
        }
        let (name, value) = field.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("range") {
            let from = value.trim().strip_prefix("bytes=");
            let from = from.and_then(|range| range.trim_end().strip_suffix('-'));
            request.from = from.and_then(|from| from.parse().ok()).unwrap_or(0);
        }
    }
}

fn answer(mut client: &TcpStream, folder: &Path, request: &WebRequest) -> io::Result<()> {
    let path = folder.join(&request.path);
    let file = File::open(&path).and_then(|file| Ok((fs::metadata(&path)?, file)));
    let Ok((about, mut file)) = file else {
        return client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    };
    let length = about.len();
    let changed = DateTime::<Utc>::from(about.modified()?);
    let changed = changed.format("%a, %d %b %Y %H:%M:%S GMT");
    let left = length.saturating_sub(request.from);
    let (status, range) = if request.from > 0 {
        let range = format!(
            "Content-Range: bytes {}-{}/{length}\r\n",
            request.from,
            length.saturating_sub(1)
        );
        ("206 Partial Content", range)
    } else {
        ("200 OK", String::new())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {left}\r\n{range}Last-Modified: {changed}\r\nAccept-Ranges: bytes\r\n\r\n"
    );
    client.write_all(head.as_bytes())?;
    file.seek(SeekFrom::Start(request.from))?;
    io::copy(&mut file.take(left), &mut client)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(web: &Web, request: &str) -> String {
        let mut server = TcpStream::connect(web.address()).expect("a connection");
        server.write_all(request.as_bytes()).expect("a request");
        server.shutdown(std::net::Shutdown::Write).expect("the end of the request");
        let mut answer = String::new();
        server.read_to_string(&mut answer).expect("an answer");
        answer
    }

    #[test]
    fn a_file_is_served_completely_and_from_its_middle() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), "0123456789").expect("a file");
        let web = Web::serve(folder.path());
        let both = "GET /file HTTP/1.1\r\n\r\nGET /file HTTP/1.1\r\nRange: bytes=4-\r\n\r\n";
        let answer = send(&web, both);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("\r\n\r\n0123456789HTTP/1.1 206 "), "{answer}");
        assert!(answer.contains("Content-Range: bytes 4-9/10\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n456789"), "{answer}");
        assert!(send(&web, "GET /none HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        let offsets: Vec<_> = web.requests().into_iter().map(|request| request.from).collect();
        assert_eq!(offsets, [0, 4, 0]);
    }
}
