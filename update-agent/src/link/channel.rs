//! Connections to the server for gRPC, directly or through a proxy.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain;
use hyper_util::rt::TokioIo;
use rustls::client::danger::ServerCertVerifier;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint, Identity, Uri};

use super::LinkError;
use super::proxy::{self, KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_PROBES, Proxy};

/// Time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens connections to one server.
pub(super) struct ChannelFactory {
    server: String,
    verifier: Arc<dyn ServerCertVerifier>,
    proxy: Option<Proxy>,
}

impl fmt::Debug for ChannelFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelFactory").field("server", &self.server).finish_non_exhaustive()
    }
}

impl ChannelFactory {
    pub(super) fn new(
        server: &str,
        verifier: Arc<dyn ServerCertVerifier>,
        proxy: Option<&Proxy>,
    ) -> Self {
        Self { server: server.to_owned(), verifier, proxy: proxy.cloned() }
    }

    /// A channel that connects at the first call. It shows this client certificate to the server only: TLS begins inside
    /// the tunnel of a proxy.
    pub(super) fn open(&self, identity: Option<Identity>) -> Result<Channel, LinkError> {
        let setup = |error: tonic::transport::Error| LinkError::Setup(chain(&error).to_string());
        let tls = ClientTlsConfig::new();
        let tls = match identity {
            Some(identity) => tls.identity(identity),
            None => tls,
        };
        let endpoint = Endpoint::from_shared(self.server.clone())
            .map_err(setup)?
            .tls_config_with_verifier(tls, Arc::clone(&self.verifier))
            .map_err(setup)?
            .connect_timeout(CONNECT_TIMEOUT)
            // A long poll is silent: TCP keep-alive detects a dead connection within two minutes.
            .tcp_keepalive(Some(KEEP_ALIVE_IDLE))
            .tcp_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
            .tcp_keepalive_retries(Some(KEEP_ALIVE_PROBES));
        Ok(match &self.proxy {
            None => endpoint.connect_lazy(),
            Some(proxy) => connect_through_proxy(&endpoint, proxy),
        })
    }
}

/// A channel through the tunnel of a proxy. TLS begins inside the tunnel.
fn connect_through_proxy(endpoint: &Endpoint, proxy: &Proxy) -> Channel {
    let proxy = Arc::new(proxy.clone());
    endpoint.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| {
        let proxy = Arc::clone(&proxy);
        async move {
            let host = proxy::unbracketed(uri.host().unwrap_or_default());
            let port = uri.port_u16().unwrap_or(443);
            let stream = proxy::connect(Some(&*proxy), host, port).await?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    }))
}
