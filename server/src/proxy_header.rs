//! The PROXY protocol, version 2: a proxy in front of a listener names the address of the client.
//!
//! Specification: <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Maximum size of addresses and extensions in bytes. Proxies send at most some hundred bytes.
const MAX_BODY_BYTES: u16 = 2_048;

/// Version 2 with the commands LOCAL and PROXY.
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;

/// TCP over IPv4 and over IPv6, and their sizes: two addresses and two ports.
const TCP_OVER_IPV4: u8 = 0x11;
const IPV4_BYTES: usize = 12;
const TCP_OVER_IPV6: u8 = 0x21;
const IPV6_BYTES: usize = 36;

/// The proxies in front of a listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedProxies(Vec<IpAddr>);

impl TrustedProxies {
    pub(crate) fn new(addresses: &[IpAddr]) -> Self {
        Self(addresses.iter().map(IpAddr::to_canonical).collect())
    }

    /// The address of the client. A connection from a proxy begins with a header, which is read
    /// completely; one from another address is not read.
    ///
    /// # Errors
    /// The header is missing, incomplete or invalid.
    pub(crate) async fn read_client_address(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        peer: SocketAddr,
    ) -> io::Result<SocketAddr> {
        if !self.0.contains(&peer.ip().to_canonical()) {
            return Ok(peer);
        }
        // The proxy itself opens connections to check whether the server is alive.
        Ok(read_header(stream).await?.unwrap_or(peer))
    }
}

/// Reads a header and nothing after it. None for a connection of the proxy itself.
async fn read_header(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut start = [0; 16];
    // In two steps, so that a shorter header of version 1 is refused at once.
    let (signature, rest) = start.split_at_mut(SIGNATURE.len());
    stream.read_exact(signature).await?;
    if *signature != SIGNATURE {
        return Err(invalid("no header of version 2"));
    }
    stream.read_exact(rest).await?;
    let [command, family, high, low] = *rest else {
        return Err(invalid("no command"));
    };
    let length = u16::from_be_bytes([high, low]);
    if length > MAX_BODY_BYTES {
        return Err(invalid("the header is too long"));
    }
    let mut body = vec![0; usize::from(length)];
    stream.read_exact(&mut body).await?;
    match (command, family) {
        (LOCAL, _) => Ok(None),
        (PROXY, TCP_OVER_IPV4) => parse_ipv4(&body).map(Some),
        (PROXY, TCP_OVER_IPV6) => parse_ipv6(&body).map(Some),
        (PROXY, _) => Err(invalid("the client does not use TCP over IPv4 or IPv6")),
        _ => Err(invalid("unknown version or command")),
    }
}

fn parse_ipv4(body: &[u8]) -> io::Result<SocketAddr> {
    match body.first_chunk::<IPV4_BYTES>() {
        Some(&[a, b, c, d, _, _, _, _, high, low, _, _]) => {
            let port = u16::from_be_bytes([high, low]);
            Ok((Ipv4Addr::new(a, b, c, d), port).into())
        }
        None => Err(invalid("the addresses are incomplete")),
    }
}

fn parse_ipv6(body: &[u8]) -> io::Result<SocketAddr> {
    let addresses = body.first_chunk::<IPV6_BYTES>();
    let source = addresses.and_then(|addresses| addresses.first_chunk::<16>());
    match (source, addresses) {
        (Some(source), Some(&[.., high, low, _, _])) => {
            let port = u16::from_be_bytes([high, low]);
            Ok((Ipv6Addr::from(*source), port).into())
        }
        _ => Err(invalid("the addresses are incomplete")),
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the PROXY header is invalid: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPV4: &[u8] = &[192, 0, 2, 7, 198, 51, 100, 1, 0x1f, 0x90, 0xc3, 0x52];

    fn header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, body].concat()
    }

    fn ipv6() -> Vec<u8> {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let ports = [0x1f, 0x90, 0xc3, 0x52];
        [&address("2001:db8::7")[..], &address("2001:db8::1"), &ports].concat()
    }

    /// The client of a connection from a peer that sends these bytes, and what follows the header.
    async fn read(peer: &str, bytes: &[u8]) -> io::Result<(String, Vec<u8>)> {
        let proxies = TrustedProxies::new(&["192.0.2.1".parse().unwrap()]);
        let mut stream = bytes;
        let client = proxies.read_client_address(&mut stream, peer.parse().unwrap()).await?;
        Ok((client.to_string(), stream.to_vec()))
    }

    #[tokio::test]
    async fn a_proxy_names_the_client() {
        let with_extension = [IPV4, &[0x04, 0, 1, 0]].concat();
        for (header, client) in [
            (header(PROXY, TCP_OVER_IPV4, IPV4), "192.0.2.7:8080"),
            (header(PROXY, TCP_OVER_IPV4, &with_extension), "192.0.2.7:8080"),
            (header(PROXY, TCP_OVER_IPV6, &ipv6()), "[2001:db8::7]:8080"),
            (header(LOCAL, 0, &[]), "192.0.2.1:99"),
            (header(LOCAL, TCP_OVER_IPV4, IPV4), "192.0.2.1:99"),
        ] {
            let hello = [&header[..], b"hello"].concat();
            let read = read("192.0.2.1:99", &hello).await.unwrap();
            assert_eq!(read, (client.to_owned(), b"hello".to_vec()));
        }
    }

    #[tokio::test]
    async fn a_proxy_counts_as_itself_also_with_a_mapped_address() {
        let header = header(PROXY, TCP_OVER_IPV4, IPV4);
        let (client, _) = read("[::ffff:192.0.2.1]:99", &header).await.unwrap();
        assert_eq!(client, "192.0.2.7:8080");
    }

    #[tokio::test]
    async fn a_header_of_another_address_is_not_read() {
        let header = header(PROXY, TCP_OVER_IPV4, IPV4);
        let read = read("192.0.2.9:99", &header).await.unwrap();
        assert_eq!(read, ("192.0.2.9:99".to_owned(), header));
    }

    #[tokio::test]
    async fn an_invalid_header_of_a_proxy_is_refused() {
        let valid = header(PROXY, TCP_OVER_IPV4, IPV4);
        let too_long = vec![0; usize::from(MAX_BODY_BYTES) + 1];
        for (bytes, kind) in [
            (b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2\r\n".to_vec(), io::ErrorKind::InvalidData),
            (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00".to_vec(),
                io::ErrorKind::InvalidData,
            ),
            (header(0x11, TCP_OVER_IPV4, IPV4), io::ErrorKind::InvalidData),
            (header(0x22, TCP_OVER_IPV4, IPV4), io::ErrorKind::InvalidData),
            (header(PROXY, 0x00, &[]), io::ErrorKind::InvalidData),
            (header(PROXY, 0x12, IPV4), io::ErrorKind::InvalidData),
            (header(PROXY, 0x31, &[0; 216]), io::ErrorKind::InvalidData),
            (header(PROXY, TCP_OVER_IPV4, &IPV4[1..]), io::ErrorKind::InvalidData),
            (header(PROXY, TCP_OVER_IPV6, &ipv6()[1..]), io::ErrorKind::InvalidData),
            (header(PROXY, TCP_OVER_IPV4, &too_long), io::ErrorKind::InvalidData),
            (Vec::new(), io::ErrorKind::UnexpectedEof),
            (SIGNATURE.to_vec(), io::ErrorKind::UnexpectedEof),
            (valid[..valid.len() - 1].to_vec(), io::ErrorKind::UnexpectedEof),
        ] {
            let error = read("192.0.2.1:99", &bytes).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{bytes:x?}: {error}");
        }
    }
}
