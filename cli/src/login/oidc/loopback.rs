//! Receives the response of a login in the browser, on a port of this machine (RFC 8252, section 7.3).

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Path of the redirect URI.
const CALLBACK_PATH: &str = "/callback";

/// Largest header of a request in bytes.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// Maximum duration of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of open connections. Browsers open some ahead.
const MAX_CONNECTIONS: usize = 16;

/// Response of the provider, by way of the browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizationResponse {
    /// The code for the token endpoint; none if the login failed.
    pub code: Option<String>,
    /// Error code; empty if the login succeeded.
    pub error: String,
    /// Explanation of the error.
    pub error_description: String,
    /// Issuer that responds (RFC 9207).
    pub iss: Option<String>,
}

/// Listener on a free port of the loopback interface.
#[derive(Debug)]
pub struct LoopbackListener {
    listener: TcpListener,
    redirect_uri: String,
}

impl LoopbackListener {
    pub async fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, redirect_uri: format!("http://{address}{CALLBACK_PATH}") })
    }

    pub fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    /// Waits for the response with this state. Other requests are refused: every program and page on
    /// this machine can send one, and must not end the login.
    pub async fn receive(&self, state: &str) -> AuthorizationResponse {
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                    // A connection that failed before it was accepted concerns no other.
                    if let Ok((stream, _)) = accepted {
                        connections.push(timeout(REQUEST_TIMEOUT, serve_request(stream, state)));
                    }
                }
                Some(served) = connections.next(), if !connections.is_empty() => {
                    if let Ok(Some(response)) = served {
                        return response;
                    }
                }
            }
        }
    }
}

/// Answers a request. Returns the response of the provider if the request contains it.
async fn serve_request(mut stream: TcpStream, state: &str) -> Option<AuthorizationResponse> {
    let target = read_target(&mut stream).await?;
    let received = target.and_then(|target| parse_target(&target, state));
    let (status, text) = match &received {
        Ok(response) if response.code.is_some() => {
            ("200 OK", "The login continues in the terminal. You may close this window.")
        }
        Ok(_) => ("200 OK", "The login failed. The terminal shows why. You may close this window."),
        Err(answer) => *answer,
    };
    // The response counts, even if the browser does not wait for the page.
    let _ = stream.write_all(page(status, text).as_bytes()).await;
    let _ = stream.shutdown().await;
    received.ok()
}

/// Status and text of the page for a request that is not the response of the provider.
type RefusalPage = (&'static str, &'static str);

const BAD_REQUEST: RefusalPage = ("400 Bad Request", "This request is not valid.");
const NOT_FOUND: RefusalPage = ("404 Not Found", "There is no such page.");
const OTHER_LOGIN: RefusalPage =
    ("400 Bad Request", "This response belongs to another login. Start the login again.");

/// Reads the header of a request. Returns its target; none if the connection ends.
async fn read_target(stream: &mut TcpStream) -> Option<Result<String, RefusalPage>> {
    let mut header = Vec::new();
    while !header.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut chunk = [0; 2_048];
        let size = stream.read(&mut chunk).await.ok().filter(|size| *size > 0)?;
        header.extend_from_slice(&chunk[..size]);
        if header.len() > MAX_HEADER_BYTES {
            return Some(Err(BAD_REQUEST));
        }
    }
    let line = header.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    Some(match (words.next(), words.next(), words.next()) {
        (Some("GET"), Some(target), Some(_)) => Ok(target.to_owned()),
        _ => Err(BAD_REQUEST),
    })
}

/// Reads the response of the provider from the target of a request.
fn parse_target(target: &str, expected_state: &str) -> Result<AuthorizationResponse, RefusalPage> {
    let url = Url::parse("http://127.0.0.1").and_then(|base| base.join(target));
    let url = url.map_err(|_| BAD_REQUEST)?;
    if url.path() != CALLBACK_PATH {
        return Err(NOT_FOUND);
    }
    let mut response = AuthorizationResponse::default();
    let mut received_state = None;
    for (name, value) in url.query_pairs() {
        let value = value.into_owned();
        match name.as_ref() {
            "state" => received_state = Some(value),
            "code" => response.code = Some(value),
            "error" => response.error = value,
            "error_description" => response.error_description = value,
            "iss" => response.iss = Some(value),
            _ => {}
        }
    }
    if received_state.as_deref() != Some(expected_state) {
        return Err(OTHER_LOGIN);
    }
    if response.error.is_empty() && response.code.is_none() {
        return Err(BAD_REQUEST);
    }
    if !response.error.is_empty() {
        response.code = None;
    }
    Ok(response)
}

/// A response with a page. The page loads nothing and runs no script.
fn page(status: &str, text: &str) -> String {
    let body = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Evenkeel</title><p>{text}</p></html>\n"
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
         Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nCache-Control: no-store\r\n\
         Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_response_with_the_state_of_the_login_is_accepted() {
        let parsed = parse_target("/callback?code=a%2Bb&state=s&iss=https%3A%2F%2Fx", "s").unwrap();
        let iss = Some("https://x".to_owned());
        let code = Some("a+b".to_owned());
        assert_eq!(parsed, AuthorizationResponse { code, iss, ..AuthorizationResponse::default() });
        for (target, refusal) in [
            ("/callback?code=a", OTHER_LOGIN),
            ("/callback?code=a&state=t", OTHER_LOGIN),
            ("/callback?error=access_denied", OTHER_LOGIN),
            ("/callback?state=s", BAD_REQUEST),
            ("/favicon.ico", NOT_FOUND),
            ("/?code=a&state=s", NOT_FOUND),
        ] {
            assert_eq!(parse_target(target, "s"), Err(refusal), "{target}");
        }
        let failed = parse_target("/callback?state=s&error=e&code=a", "s").unwrap();
        assert_eq!((failed.error.as_str(), failed.code), ("e", None));
    }

    /// Sends a request, and returns what the listener answers.
    async fn send(listener: &LoopbackListener, request: &str) -> String {
        let address = listener.listener.local_addr().unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn other_requests_and_unused_connections_do_not_end_a_login() {
        let listener = LoopbackListener::bind().await.unwrap();
        let address = listener.listener.local_addr().unwrap();
        let browser = async {
            let _unused = TcpStream::connect(address).await.unwrap();
            drop(TcpStream::connect(address).await.unwrap());
            for (request, status) in [
                ("GET /favicon.ico HTTP/1.1\r\n\r\n", "404"),
                ("GET /callback?code=a&state=t HTTP/1.1\r\n\r\n", "400"),
                ("POST /callback?code=a&state=s HTTP/1.1\r\n\r\n", "400"),
                ("\u{16}\u{3}\u{1}\r\n\r\n", "400"),
                ("GET /callback?code=c&state=s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "200"),
            ] {
                let answer = send(&listener, request).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
            }
        };
        let (received, ()) = tokio::join!(listener.receive("s"), browser);
        assert_eq!(received.code.as_deref(), Some("c"));
    }
}
