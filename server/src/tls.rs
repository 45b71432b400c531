//! TLS certificate of the listeners for nodes, replaced at run time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, ca};
use evenkeel_kit::{Clock, Lifecycle};
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::client_certificates::NodeCertificateVerifier;
use crate::config::SouthboundConfig;

/// Interval of the checks for a new certificate.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_mins(10);

/// Source of the certificates, and the current one.
#[derive(Debug)]
pub(crate) struct Certificates {
    source: CertificateSource,
    current: RwLock<CurrentCertificate>,
    digest: Option<String>,
}

#[derive(Debug)]
enum CertificateSource {
    Authority { ca: Arc<CertificateAuthority>, names: Vec<String> },
    Files { certificate: PathBuf, key: PathBuf, ca: Option<PathBuf> },
}

#[derive(Clone, Debug)]
struct CurrentCertificate {
    key: Arc<CertifiedKey>,
    renew_at: Option<DateTime<Utc>>,
}

impl Certificates {
    /// Uses certificates of the server's own authority.
    pub(crate) fn from_authority(
        ca: Arc<CertificateAuthority>,
        config: &SouthboundConfig,
        now: DateTime<Utc>,
    ) -> anyhow::Result<Self> {
        let digest = Some(ca.digest());
        let names = server_names(config);
        tracing::info!(?names, authority_expires_at = %ca.expires_at(), "the listeners for nodes use a certificate of the server's own authority");
        let source = CertificateSource::Authority { ca, names };
        Self::new(source, digest, now)
    }

    /// Uses certificate files, which may be replaced at any time.
    pub(crate) fn from_files(
        certificate: &Path,
        key: &Path,
        ca: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let digest = ca.map(ca::chain_digest).transpose()?;
        let source = CertificateSource::Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            ca: ca.map(Path::to_owned),
        };
        Self::new(source, digest, DateTime::<Utc>::MIN_UTC)
    }

    fn new(
        source: CertificateSource,
        digest: Option<String>,
        now: DateTime<Utc>,
    ) -> anyhow::Result<Self> {
        let current = RwLock::new(source.load(now)?);
        Ok(Self { source, current, digest })
    }

    /// Returns the digest of the authority's certificate, for join tokens. `None` if agents use the
    /// root certificates of their system.
    pub(crate) fn digest(&self) -> Option<String> {
        self.digest.clone()
    }

    /// Returns the names that the current certificate is not valid for. Leaves out invalid names.
    pub(crate) fn find_uncovered_names<'a>(
        &self,
        names: &'a [String],
    ) -> anyhow::Result<Vec<&'a str>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let leaf = current.key.end_entity_cert().context("the chain contains no certificate")?;
        let leaf = ParsedCertificate::try_from(leaf).context("the certificate cannot be parsed")?;
        let mut uncovered = Vec::new();
        for name in names {
            let parsed = parse_certificate_name(name);
            if parsed.is_some_and(|parsed| verify_server_name(&leaf, &parsed).is_err()) {
                uncovered.push(name.as_str());
            }
        }
        Ok(uncovered)
    }

    /// Returns the TLS configuration of an HTTP/2 listener that accepts client certificates of an
    /// authority.
    pub(crate) fn grpc_config(
        self: &Arc<Self>,
        clients: &CertificateAuthority,
    ) -> anyhow::Result<Arc<ServerConfig>> {
        self.server_config(b"h2", clients)
    }

    /// Returns the TLS configuration of an HTTP/1.1 listener that accepts client certificates of an
    /// authority.
    pub(crate) fn http_config(
        self: &Arc<Self>,
        clients: &CertificateAuthority,
    ) -> anyhow::Result<Arc<ServerConfig>> {
        self.server_config(b"http/1.1", clients)
    }

    fn server_config(
        self: &Arc<Self>,
        protocol: &[u8],
        clients: &CertificateAuthority,
    ) -> anyhow::Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("cannot configure TLS")?
            .with_client_cert_verifier(Arc::new(NodeCertificateVerifier::new(clients)?))
            .with_cert_resolver(Arc::<Self>::clone(self));
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Arc::new(config))
    }

    /// Renews the certificate when it is due, or when its file has changed.
    pub(crate) fn spawn_renewal(self: &Arc<Self>, clock: &Arc<dyn Clock>, life: &Lifecycle) {
        let (own, clock, stopping) = (Arc::clone(self), Arc::clone(clock), life.stopping());
        life.spawn("certificates", async move {
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    () = tokio::time::sleep(RENEWAL_CHECK_INTERVAL) => own.renew(clock.now()),
                }
            }
        });
    }

    fn renew(&self, now: DateTime<Utc>) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        if current.renew_at.is_some_and(|due| now < due) {
            return;
        }
        match self.source.load(now) {
            Ok(fresh) if fresh.key.cert == current.key.cert => {}
            Ok(fresh) => {
                tracing::info!("the listeners for nodes use a new certificate");
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
            }
            // The old certificate is still better than none.
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "cannot renew the certificate");
            }
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&current.key))
    }
}

impl CertificateSource {
    fn load(&self, now: DateTime<Utc>) -> anyhow::Result<CurrentCertificate> {
        match self {
            Self::Authority { ca, names } => {
                let issued = ca.issue_server(names, now).context("cannot issue a certificate")?;
                let key = issued.key_pem.reveal().as_bytes();
                Ok(CurrentCertificate {
                    key: certified_key(issued.chain_pem.as_bytes(), key)?,
                    renew_at: Some(issued.renew_at),
                })
            }
            Self::Files { certificate, key, ca } => {
                let read = |path: &Path| {
                    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
                };
                let mut chain = read(certificate)?;
                if let Some(ca) = ca {
                    // An agent that knows only the digest needs the certificate of the authority in
                    // the chain.
                    chain.push(b'\n');
                    chain.extend(read(ca)?);
                }
                let certified = certified_key(&chain, &read(key)?);
                Ok(CurrentCertificate {
                    key: certified.with_context(|| {
                        format!("{} and {} are not usable", certificate.display(), key.display())
                    })?,
                    renew_at: None,
                })
            }
        }
    }
}

fn certified_key(chain: &[u8], key: &[u8]) -> anyhow::Result<Arc<CertifiedKey>> {
    let mut certificates: Vec<CertificateDer<'static>> = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(chain) {
        let certificate = certificate.context("the certificates are not PEM")?;
        if !certificates.contains(&certificate) {
            certificates.push(certificate);
        }
    }
    let key = PrivateKeyDer::from_pem_slice(key).context("the key is not PEM")?;
    let provider: CryptoProvider = ring::default_provider();
    let certified = CertifiedKey::from_der(certificates, key, &provider);
    Ok(Arc::new(certified.context("the key does not fit the certificate")?))
}

/// The names that are neither DNS names nor IP addresses, so that no agent can connect to them.
pub(crate) fn find_invalid_names(names: &[String]) -> Vec<&str> {
    let names = names.iter().map(String::as_str);
    names.filter(|name| parse_certificate_name(name).is_none()).collect()
}

/// Parses a name of a certificate: a DNS name or an IP address. A wildcard in the first label is
/// replaced by a label that it matches.
fn parse_certificate_name(name: &str) -> Option<ServerName<'static>> {
    // Agents compare names without a dot at the end.
    if name.ends_with('.') {
        return None;
    }
    let name = match name.strip_prefix("*.") {
        Some(domain) => format!("wildcard.{domain}"),
        None => name.to_owned(),
    };
    ServerName::try_from(name).ok()
}

/// Names and addresses by which agents may reach this machine.
fn server_names(config: &SouthboundConfig) -> Vec<String> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy().into_owned();
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let is_dns_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        !name.is_empty() && name.bytes().all(plain)
    };
    names.extend(Some(host).filter(|name| is_dns_name(name)));
    if !config.listen.ip().is_unspecified() {
        names.push(config.listen.ip().to_string());
    }
    names.extend(config.server_names.iter().cloned());
    let mut unique = std::collections::HashSet::new();
    names.retain(|name| unique.insert(name.clone()));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    fn authority(folder: &Path) -> CertificateAuthority {
        CertificateAuthority::open(folder, NOW).unwrap()
    }

    fn current_chain(certificates: &Certificates) -> Vec<CertificateDer<'static>> {
        certificates.current.read().unwrap().key.cert.clone()
    }

    #[test]
    fn an_issued_certificate_is_renewed_when_due() {
        let folder = tempfile::tempdir().unwrap();
        let ca = Arc::new(authority(folder.path()));
        let digest = ca.digest();
        let certificates =
            Certificates::from_authority(ca, &SouthboundConfig::default(), NOW).unwrap();
        assert_eq!(certificates.digest(), Some(digest));
        let first = current_chain(&certificates);

        certificates.renew(NOW + chrono::TimeDelta::days(59));
        assert_eq!(current_chain(&certificates), first);

        certificates.renew(NOW + chrono::TimeDelta::days(60));
        let second = current_chain(&certificates);
        assert_ne!(second[0], first[0]);
        assert_eq!(second[1], first[1], "the authority is the same");
    }

    #[test]
    fn a_replaced_certificate_file_is_used_and_a_corrupt_one_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let path = |name: &str| folder.path().join(name);
        let replace = || {
            let fresh = ca.issue_server(&["localhost".to_owned()], NOW).unwrap();
            fs::write(path("chain.pem"), &fresh.chain_pem).unwrap();
            fs::write(path("key.pem"), fresh.key_pem.reveal()).unwrap();
        };
        replace();
        let certificates = Certificates::from_files(&path("chain.pem"), &path("key.pem"), None);
        let certificates = certificates.unwrap();
        assert_eq!(certificates.digest(), None, "agents use the root certificates of their system");
        let first = current_chain(&certificates);

        replace();
        certificates.renew(NOW);
        let second = current_chain(&certificates);
        assert_ne!(second, first);

        fs::write(path("key.pem"), "spoilt").unwrap();
        certificates.renew(NOW);
        assert_eq!(current_chain(&certificates), second);
    }

    #[test]
    fn a_named_authority_is_part_of_the_chain_once() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let path = |name: &str| folder.path().join(name);
        let issued = ca.issue_server(&["localhost".to_owned()], NOW).unwrap();
        let end = "-----END CERTIFICATE-----";
        let leaf = issued.chain_pem.split_inclusive(end).next().unwrap();
        fs::write(path("key.pem"), issued.key_pem.reveal()).unwrap();
        for chain in [leaf, &issued.chain_pem] {
            fs::write(path("chain.pem"), chain).unwrap();
            let certificates = Certificates::from_files(
                &path("chain.pem"),
                &path("key.pem"),
                Some(&path("ca.pem")),
            );
            let certificates = certificates.unwrap();
            assert_eq!(certificates.digest(), Some(ca.digest()));
            assert_eq!(current_chain(&certificates).len(), 2);
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let path = |name: &str| folder.path().join(name);
        let issue = || ca.issue_server(&["localhost".to_owned()], NOW).unwrap();
        fs::write(path("chain.pem"), issue().chain_pem).unwrap();
        fs::write(path("key.pem"), issue().key_pem.reveal()).unwrap();
        let error = Certificates::from_files(&path("chain.pem"), &path("key.pem"), None);
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("chain.pem") && error.contains("the key does not fit"), "{error}");
    }

    #[test]
    fn the_names_of_a_certificate_are_dns_names_and_addresses() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let valid = names(&["updates.example", "*.updates.example", "node_1", "192.0.2.7", "::1"]);
        assert_eq!(find_invalid_names(&valid), Vec::<&str>::new());
        let invalid = names(&[
            "",
            "https://updates.example",
            "updates.example:50051",
            "updates.example.",
            "up dates.example",
            "a.*.example",
            "[::1]",
            "192.0.2.777",
            "b\u{fc}ro.example",
        ]);
        assert_eq!(find_invalid_names(&invalid), invalid);
    }

    #[test]
    fn names_that_a_certificate_does_not_cover_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let path = |name: &str| folder.path().join(name);
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let issued =
            ca.issue_server(&names(&["updates.example", "*.lab.example", "192.0.2.7"]), NOW);
        let issued = issued.unwrap();
        fs::write(path("chain.pem"), issued.chain_pem).unwrap();
        fs::write(path("key.pem"), issued.key_pem.reveal()).unwrap();
        let certificates = Certificates::from_files(&path("chain.pem"), &path("key.pem"), None);
        let certificates = certificates.unwrap();
        let covered = names(&["updates.example", "*.lab.example", "one.lab.example", "192.0.2.7"]);
        assert_eq!(certificates.find_uncovered_names(&covered).unwrap(), Vec::<&str>::new());
        let uncovered = names(&["example", "*.example", "one.two.lab.example", "192.0.2.8"]);
        assert_eq!(certificates.find_uncovered_names(&uncovered).unwrap(), uncovered);
    }

    #[test]
    fn a_certificate_covers_the_names_of_this_machine_and_of_the_configuration() {
        let config = SouthboundConfig {
            listen: ([192, 0, 2, 7], 0).into(),
            server_names: vec!["updates.example".to_owned(), "localhost".to_owned()],
            ..SouthboundConfig::default()
        };
        let names = server_names(&config);
        for name in ["localhost", "127.0.0.1", "::1", "192.0.2.7", "updates.example"] {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }
}
