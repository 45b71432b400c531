//! Connection through an HTTP proxy: a tunnel that the proxy opens on `CONNECT`. The tunnel carries TLS from end to end,
//! so the proxy reads nothing and need not be trusted.

mod no_proxy;

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

use self::no_proxy::NoProxyEntry;

/// TCP keep-alive: idle time before the first probe, interval between probes, and number of probes.
pub(super) const KEEP_ALIVE_IDLE: Duration = Duration::from_mins(1);
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
pub(super) const KEEP_ALIVE_PROBES: u32 = 4;

/// Longest accepted head of a proxy's answer.
const MAX_ANSWER_BYTES: usize = 8 << 10;

/// Port of a proxy whose address has none.
const DEFAULT_PORT: u16 = 3128;

/// The settings of a proxy are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProxy {
    #[error("the proxy must look like http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")]
    Address,
    /// The entry can match no host.
    #[error(
        "the entry {0:?} of `no_proxy` matches no host: write HOST, .DOMAIN, ADDRESS, NETWORK/BITS or *, each as an entry \
         of its own; a host or an address may have a port (HOST:PORT, [ADDRESS]:PORT)"
    )]
    Exception(String),
}

/// An HTTP proxy, and the hosts that are reached without it.
#[derive(Clone)]
pub struct Proxy {
    host: String,
    port: u16,
    /// Value of the Proxy-Authorization header, if the address contains a user.
    authorization: Option<Secret>,
    exceptions: Vec<NoProxyEntry>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// The address, without user and password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", authority(&self.host, self.port))
    }
}

impl Proxy {
    /// Parses `http://[USER:PASSWORD@]HOST[:PORT]`. The entries of `direct` are reached without the proxy: a host and the
    /// hosts below it, an address, a network, or everything with `*`. Entries that can match no host are ignored: the
    /// settings of an enrolled node may have some since before they were checked, and without its server the node could not
    /// be repaired. See [`Proxy::check_exceptions`].
    pub fn parse(address: &str, direct: &[String]) -> Result<Self, BadProxy> {
        let uri: Uri = address.parse().map_err(|_| BadProxy::Address)?;
        let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let (Some("http"), Some(host), true) = (uri.scheme_str(), uri.host(), bare) else {
            return Err(BadProxy::Address);
        };
        let uri_authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let authorization = match uri_authority.rsplit_once('@') {
            None => None,
            Some((user, _)) => Some(basic_credentials(user).ok_or(BadProxy::Address)?),
        };
        Ok(Self {
            host: unbracketed(host).to_owned(),
            port: uri.port_u16().unwrap_or(DEFAULT_PORT),
            authorization,
            exceptions: direct.iter().filter_map(|entry| NoProxyEntry::parse(entry)).collect(),
        })
    }

    /// Fails at the first entry of `no_proxy` that can match no host.
    pub fn check_exceptions(entries: &[String]) -> Result<(), BadProxy> {
        match entries.iter().find(|entry| NoProxyEntry::parse(entry).is_none()) {
            Some(entry) => Err(BadProxy::Exception(entry.clone())),
            None => Ok(()),
        }
    }

    /// Whether a host is reached through the proxy.
    fn applies_to(&self, host: &str, port: u16) -> bool {
        !self.exceptions.iter().any(|direct| direct.matches(host, port))
    }

    async fn open_tunnel(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let with_proxy_name =
            |error: io::Error| io::Error::new(error.kind(), format!("the proxy {self}: {error}"));
        let mut stream =
            TcpStream::connect((self.host.as_str(), self.port)).await.map_err(with_proxy_name)?;
        let to = authority(host, port);
        let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        if let Some(authorization) = &self.authorization {
            request.push_str("Proxy-Authorization: Basic ");
            request.push_str(authorization.reveal());
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.map_err(with_proxy_name)?;
        let head = read_response_head(&mut stream).await.map_err(with_proxy_name)?;
        check_connect_response(&head).map_err(with_proxy_name)?;
        Ok(stream)
    }
}

/// Connects to a host, through the proxy if it applies to that host.
pub async fn connect(proxy: Option<&Proxy>, host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = match proxy.filter(|proxy| proxy.applies_to(host, port)) {
        Some(proxy) => proxy.open_tunnel(host, port).await?,
        None => TcpStream::connect((host, port)).await?,
    };
    stream.set_nodelay(true)?;
    enable_keep_alive(&stream)?;
    Ok(stream)
}

/// A long poll is silent: keep-alive keeps the connection known to middleboxes and detects its end.
fn enable_keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_PROBES)?;
    // The kernel then also aborts a connection whose data is not acknowledged for that time.
    let in_all = KEEP_ALIVE_IDLE + KEEP_ALIVE_INTERVAL * KEEP_ALIVE_PROBES;
    let millis = u32::try_from(in_all.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, millis)?;
    Ok(())
}

/// Removes the brackets that an IPv6 address has inside a URI and nowhere else.
pub fn unbracketed(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// `USER:PASSWORD` of an address, encoded for Basic authentication; `None` if the percent-encoding is invalid.
fn basic_credentials(user: &str) -> Option<Secret> {
    let plain = percent_decode(user)?;
    let both = if plain.contains(&b':') { plain } else { [plain, b":".to_vec()].concat() };
    Some(Secret::new(STANDARD.encode(both)))
}

fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = others;
            continue;
        }
        let (digits, others) = others.split_at_checked(2)?;
        // `from_str_radix` also accepts a sign.
        let digits = str::from_utf8(digits).ok().filter(|d| !d.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = others;
    }
    Some(bytes)
}

/// Reads the head of the proxy's answer. Nothing may follow it: the server sends nothing before the client does.
async fn read_response_head(stream: &mut TcpStream) -> io::Result<String> {
    const END: &[u8] = b"\r\n\r\n";
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut bytes = Vec::new();
    let mut buffer = [0; 512];
    while !bytes.windows(END.len()).any(|part| part == END) {
        if bytes.len() > MAX_ANSWER_BYTES {
            return Err(wrong("its answer is too long"));
        }
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Err(wrong("it closed the connection without an answer"));
        }
        bytes.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    if !bytes.ends_with(END) {
        return Err(wrong("it sends data after its answer"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Checks that the proxy's answer opens the tunnel.
fn check_connect_response(head: &str) -> io::Result<()> {
    let line = head.lines().next().unwrap_or_default();
    let mut parts = line.split_whitespace();
    let (version, status) = (parts.next().unwrap_or_default(), parts.next());
    let refused = |text: String| Err(io::Error::new(io::ErrorKind::ConnectionRefused, text));
    if !version.starts_with("HTTP/1.") {
        return refused("it does not speak HTTP/1".to_owned());
    }
    match status {
        Some(status) if status.len() == 3 && status.starts_with('2') => Ok(()),
        Some("407") => refused("it does not accept the user or the password".to_owned()),
        _ => refused(format!("it does not open a tunnel to the server: {line}")),
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
        assert_eq!(parse("http://[fd00::1]/").to_string(), "http://[fd00::1]:3128");
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
    fn credentials_are_sent_to_the_proxy_only() {
        let proxy = parse("http://keel:p%40ss@proxy:1");
        let credentials = proxy.authorization.as_ref().unwrap().reveal();
        assert_eq!(STANDARD.decode(credentials).unwrap(), b"keel:p@ss");
        assert!(!format!("{proxy:?} {proxy}").contains("keel"));
        let nameless = parse("http://keel@proxy:1");
        let credentials = nameless.authorization.unwrap();
        assert_eq!(STANDARD.decode(credentials.reveal()).unwrap(), b"keel:");
    }

    #[test]
    fn a_direct_host_bypasses_the_proxy() {
        let entries = |entries: &[&str]| -> Vec<String> {
            entries.iter().map(|&entry| entry.to_owned()).collect()
        };
        let parse = |texts: &[&str]| Proxy::parse("http://proxy:1", &entries(texts)).unwrap();
        let proxy = parse(&["other", "keel.example:50002"]);
        assert!(!proxy.applies_to("keel.example", 50002));
        assert!(proxy.applies_to("keel.example", 443));
        assert!(parse(&[]).applies_to("keel.example", 50002));
        Proxy::check_exceptions(&entries(&["other", "keel.example:50002"])).unwrap();
        let mixed = ["10.0.0.0/33", "", "keel.example"];
        let error = Proxy::check_exceptions(&entries(&mixed)).unwrap_err();
        assert_eq!(error, BadProxy::Exception("10.0.0.0/33".into()));
        assert!(error.to_string().contains("\"10.0.0.0/33\" of `no_proxy`"), "{error}");
        // A running agent ignores them.
        let proxy = parse(&mixed);
        assert!(!proxy.applies_to("keel.example", 443));
        assert!(proxy.applies_to("10.0.0.1", 443));
    }

    #[test]
    fn only_a_2xx_status_opens_the_tunnel() {
        check_connect_response("HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        check_connect_response("HTTP/1.0 200\r\n\r\n").unwrap();
        for (head, expected) in [
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "password"),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", "403 Forbidden"),
            ("SSH-2.0-x\r\n\r\n", "HTTP/1"),
            ("HTTP/1.1\r\n\r\n", "HTTP/1.1"),
            ("\r\n\r\n", "HTTP/1"),
        ] {
            let error = check_connect_response(head).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
