//! Connections over TLS as separate machines make them: no session is resumed, and there may be more than one address has
//! ports for.

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
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// How long a connection may take to come about.
const PATIENCE: Duration = Duration::from_mins(1);

/// How many connections to the servers have one address of this machine, and as many to the echo: it has 28,000 ports for
/// them.
const EACH_ADDRESS: u32 = 14_000;

/// Opens connections to a server.
#[derive(Clone, Debug)]
pub struct Dialer {
    endpoint: Endpoint,
    wire: Wire,
}

/// What lies below: bare connections, and TLS over them.
#[derive(Clone)]
pub struct Wire {
    address: SocketAddr,
    tls: TlsConnector,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Wire");
        f.field("address", &self.address).finish_non_exhaustive()
    }
}

impl Wire {
    /// Opens the bare connection with a number. `room` is how many bytes it takes in that nobody reads, as far as the
    /// system lets it be so few; none is what is usual.
    pub async fn connect(&self, number: u32, room: Option<u32>) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if let Some(room) = room {
            socket.set_recv_buffer_size(room)?;
        }
        if let Some(source) = source(number) {
            socket.bind((source, 0).into())?;
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Shakes hands over a bare connection.
    pub async fn secure(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        self.tls.connect(name, stream).await
    }
}

impl Dialer {
    /// To a server at an address that an authority, in PEM, vouches for.
    pub fn new(address: SocketAddr, authority: &str) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(certificate.context("the authority is not PEM")?)?;
        }
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = Resumption::disabled();
        // The connector speaks TLS itself, so that the endpoint need not.
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .origin(Uri::from_static("https://localhost"))
            .connect_timeout(PATIENCE);
        Ok(Self {
            endpoint,
            wire: Wire {
                address,
                tls: TlsConnector::from(Arc::new(config)),
            },
        })
    }

    /// Opens the connection with a number, with its handshake done. It is opened again when it was lost and is used.
    pub async fn dial(&self, number: u32) -> Result<Channel, tonic::transport::Error> {
        let wire = self.wire.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let wire = wire.clone();
            async move {
                let stream = wire.connect(number, None).await?;
                Ok::<_, io::Error>(TokioIo::new(wire.secure(stream).await?))
            }
        });
        self.endpoint.connect_with_connector(connector).await
    }

    /// What lies below its connections.
    pub const fn wire(&self) -> &Wire {
        &self.wire
    }
}

/// The address of this machine from which a connection comes; none is the usual one.
fn source(number: u32) -> Option<IpAddr> {
    let more = u8::try_from(number / EACH_ADDRESS).unwrap_or(u8::MAX);
    (0 < more).then(|| Ipv4Addr::new(127, 0, 1, more).into())
}

/// Lets this process, and those that it starts, have so many open files at once.
pub fn allow_files(needed: u64) -> anyhow::Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|most| needed <= most) {
        return Ok(());
    }
    let most = now.maximum.unwrap_or(u64::MAX).max(needed);
    let raised = Rlimit {
        current: Some(most),
        maximum: now.maximum.map(|_| most),
    };
    // More than the present maximum only a privileged process may ask for.
    let within = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        setrlimit(Resource::Nofile, within)?;
    }
    let allowed = getrlimit(Resource::Nofile).current;
    ensure!(
        allowed.is_none_or(|most| needed <= most),
        "the server needs {needed} open files for so many connections, and a process may have {} here: raise the limit \
         (`ulimit -n {needed}`), or ask for fewer connections with --kept",
        allowed.unwrap_or_default()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_address_is_used_when_one_has_no_ports_left() {
        assert_eq!(source(0), None);
        assert_eq!(source(EACH_ADDRESS - 1), None);
        assert_eq!(source(EACH_ADDRESS), Some([127, 0, 1, 1].into()));
        assert_eq!(source(3 * EACH_ADDRESS), Some([127, 0, 1, 3].into()));
    }

    #[test]
    fn what_is_allowed_already_is_not_asked_for() {
        allow_files(1).expect("one file");
    }
}
