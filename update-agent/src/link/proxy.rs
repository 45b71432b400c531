//! The way to the server through an HTTP proxy: a tunnel that it opens on `CONNECT`. What goes through is TLS from end to
//! end, so the proxy reads nothing and need not be trusted.

use std::fmt;
use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_kit::Secret;
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Uri;

/// After how long without a word it is asked whether the other end is there, how often then, and how many times.
pub(super) const KEEP_ALIVE_AFTER: Duration = Duration::from_mins(1);
pub(super) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
pub(super) const KEEP_ALIVE_TIMES: u32 = 4;

/// A proxy that answers with more than this is none.
const MOST_ANSWER: usize = 8 << 10;

/// The port of a proxy that names none.
const PORT: u16 = 3128;

/// The address of a proxy is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxy must look like http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")]
pub struct BadProxy;

/// An HTTP proxy, and what is reached without it.
#[derive(Clone)]
pub struct Proxy {
    host: String,
    port: u16,
    /// What the proxy wants to see, if the address names a user.
    authorization: Option<Secret>,
    direct: Vec<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// The address, without the password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", authority(&self.host, self.port))
    }
}

impl Proxy {
    /// Reads `http://[USER:PASSWORD@]HOST[:PORT]`. What `direct` names is reached without the proxy: a host or an address
    /// as it is, everything below `.example` or `example`, or all with `*`.
    pub fn parse(address: &str, direct: &[String]) -> Result<Self, BadProxy> {
        let uri: Uri = address.parse().map_err(|_| BadProxy)?;
        let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let (Some("http"), Some(host), true) = (uri.scheme_str(), uri.host(), bare) else {
            return Err(BadProxy);
        };
        let whole = uri.authority().map(ToString::to_string).unwrap_or_default();
        let authorization = match whole.rsplit_once('@') {
            None => None,
            Some((user, _)) => Some(basic(user).ok_or(BadProxy)?),
        };
        Ok(Self {
            host: unbracketed(host).to_owned(),
            port: uri.port_u16().unwrap_or(PORT),
            authorization,
            direct: direct.to_vec(),
        })
    }

    /// Whether a host is reached through the proxy.
    fn leads_to(&self, host: &str) -> bool {
        !self.direct.iter().any(|direct| is_named(direct, host))
    }

    /// Opens a tunnel.
    async fn tunnel(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("the proxy {self}: {error}"));
        let mut stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(named)?;
        let to = authority(host, port);
        let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        if let Some(authorization) = &self.authorization {
            request.push_str("Proxy-Authorization: Basic ");
            request.push_str(authorization.reveal());
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.map_err(named)?;
        let head = head(&mut stream).await.map_err(named)?;
        accepted(&head).map_err(named)?;
        Ok(stream)
    }
}

/// Connects to a host, through the proxy if there is one that leads there.
pub async fn connect(proxy: Option<&Proxy>, host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = match proxy.filter(|proxy| proxy.leads_to(host)) {
        Some(proxy) => proxy.tunnel(host, port).await?,
        None => TcpStream::connect((host, port)).await?,
    };
    stream.set_nodelay(true)?;
    look_after(&stream)?;
    Ok(stream)
}

/// A poll that is held is silent: what lies on the way must not forget the connection, and its end must be noticed.
fn look_after(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_TIMES)?;
    // The kernel gives up a connection on which nothing arrives any more for as long.
    let in_all = KEEP_ALIVE_AFTER + KEEP_ALIVE_EVERY * KEEP_ALIVE_TIMES;
    let millis = u32::try_from(in_all.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, millis)?;
    Ok(())
}

/// A host as it stands in an address: an IPv6 address has brackets there and nowhere else.
pub fn unbracketed(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Whether an entry of the list of direct hosts means a host.
fn is_named(entry: &str, host: &str) -> bool {
    let entry = unbracketed(entry.trim()).to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    let domain = entry.trim_start_matches('.');
    if domain.is_empty() {
        return false;
    }
    let below = host
        .strip_suffix(domain)
        .is_some_and(|rest| rest.ends_with('.'));
    entry == "*" || host == domain || below
}

/// `USER:PASSWORD` of an address as the proxy wants to see it; `None` if it is not written as an address wants it.
fn basic(user: &str) -> Option<Secret> {
    let plain = percent_decoded(user)?;
    let both = if plain.contains(&b':') {
        plain
    } else {
        [plain, b":".to_vec()].concat()
    };
    Some(Secret::new(STANDARD.encode(both)))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = others;
            continue;
        }
        let (digits, others) = others.split_at_checked(2)?;
        // `from_str_radix` takes a sign.
        let digits = str::from_utf8(digits)
            .ok()
            .filter(|d| !d.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = others;
    }
    Some(bytes)
}

/// The head of the proxy's answer. Behind it nothing may come: the server says nothing before it is spoken to.
async fn head(stream: &mut TcpStream) -> io::Result<String> {
    const END: &[u8] = b"\r\n\r\n";
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut bytes = Vec::new();
    let mut buffer = [0; 512];
    while !bytes.windows(END.len()).any(|part| part == END) {
        if bytes.len() > MOST_ANSWER {
            return Err(wrong("its answer makes no sense"));
        }
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Err(wrong("it closed the connection without an answer"));
        }
        bytes.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    if !bytes.ends_with(END) {
        return Err(wrong("it says more than an answer"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the head of an answer says that the tunnel is open.
fn accepted(head: &str) -> io::Result<()> {
    let line = head.lines().next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let (version, status) = (words.next().unwrap_or_default(), words.next());
    let refused = |text: String| Err(io::Error::new(io::ErrorKind::ConnectionRefused, text));
    if !version.starts_with("HTTP/1.") {
        return refused("it does not speak HTTP/1".to_owned());
    }
    match status {
        Some(status) if status.len() == 3 && status.starts_with('2') => Ok(()),
        Some("407") => refused("it wants another user or password".to_owned()),
        _ => refused(format!("it opens no way to the server: {line}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str) -> Proxy {
        Proxy::parse(address, &[]).unwrap()
    }

    #[test]
    fn a_proxy_is_plain_http_with_a_host() {
        let proxy = parse("http://proxy.example:8080");
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example", 8080));
        assert_eq!(
            parse("http://[fd00::1]/").to_string(),
            "http://[fd00::1]:3128"
        );
        for bad in [
            "",
            "proxy:8080",
            "https://proxy:1",
            "socks5://proxy:1",
            "http://proxy:1/path",
            "http://a:%4@proxy:1",
        ] {
            assert!(Proxy::parse(bad, &[]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_user_is_told_to_the_proxy_and_to_nobody_else() {
        let proxy = parse("http://keel:p%40ss@proxy:1");
        let told = proxy.authorization.as_ref().unwrap().reveal();
        assert_eq!(STANDARD.decode(told).unwrap(), b"keel:p@ss");
        assert!(!format!("{proxy:?} {proxy}").contains("keel"));
        let nameless = parse("http://keel@proxy:1");
        let told = nameless.authorization.unwrap();
        assert_eq!(STANDARD.decode(told.reveal()).unwrap(), b"keel:");
    }

    #[test]
    fn what_is_direct_is_not_reached_through_the_proxy() {
        let direct = |entries: &[&str], host: &str| {
            let entries: Vec<_> = entries.iter().map(|&entry| entry.to_owned()).collect();
            !Proxy::parse("http://proxy:1", &entries)
                .unwrap()
                .leads_to(host)
        };
        assert!(direct(&["keel.example"], "KEEL.example"));
        assert!(direct(&[".example"], "keel.example"));
        assert!(direct(&["example"], "keel.example"));
        assert!(direct(&["10.0.0.1"], "10.0.0.1"));
        assert!(direct(&["[fd00::1]"], "fd00::1"));
        assert!(direct(&["other", "*"], "keel.example"));
        assert!(!direct(&["el.example", "", "."], "keel.example"));
        assert!(!direct(&[], "keel.example"));
    }

    #[test]
    fn only_a_yes_opens_the_tunnel() {
        accepted("HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        accepted("HTTP/1.0 200\r\n\r\n").unwrap();
        for (head, word) in [
            (
                "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
                "password",
            ),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", "403 Forbidden"),
            ("SSH-2.0-x\r\n\r\n", "HTTP/1"),
            ("HTTP/1.1\r\n\r\n", "HTTP/1.1"),
            ("\r\n\r\n", "HTTP/1"),
        ] {
            let error = accepted(head).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
