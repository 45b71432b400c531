//! TLS connections as separate machines open them: sessions are not resumed, and there may be more
//! connections than one source address has ports.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper_util::rt::TokioIo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_mins(1);

/// Connections to the servers per source address. There may be as many to the echo, and an address
/// has 28,000 ports.
const CONNECTIONS_PER_ADDRESS: u32 = 14_000;

/// Opens gRPC channels to a server.
#[derive(Clone, Debug)]
pub struct Dialer {
    endpoint: Endpoint,
    tls_dialer: TlsDialer,
}

/// Opens TCP and TLS connections to a server.
#[derive(Clone)]
pub struct TlsDialer {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
}

impl std::fmt::Debug for TlsDialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("TlsDialer");
        f.field("address", &self.address).finish_non_exhaustive()
    }
}

impl TlsDialer {
    /// Opens TCP connection `number`. `receive_buffer` is its size in bytes, which the system may
    /// round up; `None` for the default.
    pub async fn connect_tcp(
        &self,
        number: u32,
        receive_buffer: Option<u32>,
    ) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if let Some(receive_buffer) = receive_buffer {
            socket.set_recv_buffer_size(receive_buffer)?;
        }
        if let Some(source) = source_address(number) {
            socket.bind((source, 0).into())?;
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Performs the TLS handshake over a TCP connection.
    pub async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await
    }
}

impl Dialer {
    /// Dials a server whose certificate is issued by `authority` (PEM).
    pub fn new(address: SocketAddr, authority: &str) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(certificate.context("the CA certificate is not valid PEM")?)?;
        }
        let mut config =
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = Resumption::disabled();
        // The connector performs TLS itself, so the endpoint uses plain `http`.
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .origin(Uri::from_static("https://localhost"))
            .connect_timeout(CONNECT_TIMEOUT);
        Ok(Self { endpoint, tls_dialer: TlsDialer { address, tls: Arc::new(config) } })
    }

    /// The same dialer, whose connections show the client certificate of a node.
    #[must_use]
    pub fn with_certificate(&self, certificate: CertifiedKey) -> Self {
        let mut config = ClientConfig::clone(&self.tls_dialer.tls);
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certificate));
        let tls_dialer = TlsDialer { tls: Arc::new(config), ..self.tls_dialer.clone() };
        Self { endpoint: self.endpoint.clone(), tls_dialer }
    }

    /// Opens connection `number`, including its TLS handshake. A lost connection is opened again
    /// when it is used.
    pub async fn dial(&self, number: u32) -> Result<Channel, tonic::transport::Error> {
        let tls_dialer = self.tls_dialer.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let tls_dialer = tls_dialer.clone();
            async move {
                let stream = tls_dialer.connect_tcp(number, None).await?;
                Ok::<_, io::Error>(TokioIo::new(tls_dialer.handshake(stream).await?))
            }
        });
        self.endpoint.connect_with_connector(connector).await
    }

    /// The dialer for raw TCP and TLS connections.
    pub const fn tls_dialer(&self) -> &TlsDialer {
        &self.tls_dialer
    }
}

/// The source address of connection `number`; `None` for the default address.
fn source_address(number: u32) -> Option<IpAddr> {
    let more = u8::try_from(number / CONNECTIONS_PER_ADDRESS).unwrap_or(u8::MAX);
    (0 < more).then(|| Ipv4Addr::new(127, 0, 1, more).into())
}

/// Raises the limit on open files of this process and its children to at least `needed`.
pub fn raise_open_file_limit(needed: u64) -> anyhow::Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|maximum| needed <= maximum) {
        return Ok(());
    }
    let maximum = now.maximum.unwrap_or(u64::MAX).max(needed);
    let raised = Rlimit { current: Some(maximum), maximum: now.maximum.map(|_| maximum) };
    // Only a privileged process may raise the hard limit.
    let within = Rlimit { current: now.maximum, maximum: now.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() {
        setrlimit(Resource::Nofile, within)?;
    }
    let allowed = getrlimit(Resource::Nofile).current;
    ensure!(
        allowed.is_none_or(|maximum| needed <= maximum),
        "the server needs {needed} open files for this many connections, but the limit is {}: raise it with \
         `ulimit -n {needed}`, or reduce --connections",
        allowed.unwrap_or_default()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_address_is_used_when_one_has_no_ports_left() {
        assert_eq!(source_address(0), None);
        assert_eq!(source_address(CONNECTIONS_PER_ADDRESS - 1), None);
        assert_eq!(source_address(CONNECTIONS_PER_ADDRESS), Some([127, 0, 1, 1].into()));
        assert_eq!(source_address(3 * CONNECTIONS_PER_ADDRESS), Some([127, 0, 1, 3].into()));
    }

    #[test]
    fn a_sufficient_limit_is_not_raised() {
        raise_open_file_limit(1).expect("the limit allows one file");
    }
}
