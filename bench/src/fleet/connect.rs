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
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

/// How long a connection may take to come about.
const PATIENCE: Duration = Duration::from_mins(1);

/// How many connections have one address of this machine: it has 28,000 ports for them.
const EACH_ADDRESS: u32 = 20_000;

/// Opens connections to a server.
#[derive(Clone, Debug)]
pub struct Dialer {
    endpoint: Endpoint,
    address: SocketAddr,
    tls: TlsSettings,
}

#[derive(Clone)]
struct TlsSettings(TlsConnector);

impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSettings").finish_non_exhaustive()
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
            address,
            tls: TlsSettings(TlsConnector::from(Arc::new(config))),
        })
    }

    /// Opens the connection with a number, with its handshake done. It is opened again when it was lost and is used.
    pub async fn dial(&self, number: u32) -> Result<Channel, tonic::transport::Error> {
        let (tls, address, source) = (self.tls.clone(), self.address, source(number));
        let connector = tower::service_fn(move |_: Uri| {
            let tls = tls.clone();
            async move {
                let socket = TcpSocket::new_v4()?;
                if let Some(source) = source {
                    socket.bind((source, 0).into())?;
                }
                let stream = socket.connect(address).await?;
                stream.set_nodelay(true)?;
                let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
                let stream = tls.0.connect(name, stream).await?;
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        self.endpoint.connect_with_connector(connector).await
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
