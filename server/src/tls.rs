//! The certificate that the listeners for nodes show, replaced while they run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, ca};
use evenkeel_kit::{Clock, Lifecycle};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::config::Southbound;

/// How often it is looked whether a newer certificate should be shown.
const LOOK_EVERY: Duration = Duration::from_mins(10);

/// Where certificates come from, and the one that is shown.
#[derive(Debug)]
pub(crate) struct Certificates {
    source: Source,
    shown: RwLock<Shown>,
    digest: Option<String>,
}

#[derive(Debug)]
enum Source {
    Authority {
        ca: Box<CertificateAuthority>,
        names: Vec<String>,
    },
    Files {
        certificate: PathBuf,
        key: PathBuf,
        ca: Option<PathBuf>,
    },
}

#[derive(Clone, Debug)]
struct Shown {
    key: Arc<CertifiedKey>,
    renew_at: Option<DateTime<Utc>>,
}

impl Certificates {
    /// Certificates of our own authority.
    pub(crate) fn from_authority(
        ca: CertificateAuthority,
        config: &Southbound,
        now: DateTime<Utc>,
    ) -> anyhow::Result<Self> {
        let digest = Some(ca.digest());
        let names = names(config);
        tracing::info!(?names, expires_at = %ca.expires_at(), "the listeners for nodes show a certificate of our own authority");
        let source = Source::Authority {
            ca: Box::new(ca),
            names,
        };
        Self::new(source, digest, now)
    }

    /// A certificate that somebody else made and replaces in place.
    pub(crate) fn from_files(
        certificate: &Path,
        key: &Path,
        ca: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let digest = ca.map(ca::chain_digest).transpose()?;
        let source = Source::Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            ca: ca.map(Path::to_owned),
        };
        Self::new(source, digest, DateTime::<Utc>::MIN_UTC)
    }

    fn new(source: Source, digest: Option<String>, now: DateTime<Utc>) -> anyhow::Result<Self> {
        let shown = RwLock::new(source.load(now)?);
        Ok(Self {
            source,
            shown,
            digest,
        })
    }

    /// The digest of the authority's certificate, for join tokens. None when agents ask the roots of their system.
    pub(crate) fn digest(&self) -> Option<String> {
        self.digest.clone()
    }

    /// Settings for a listener that shows these certificates and speaks HTTP/2.
    pub(crate) fn listener(self: &Arc<Self>) -> anyhow::Result<Arc<ServerConfig>> {
        self.speaking(b"h2")
    }

    /// Settings for a listener that shows these certificates and speaks HTTP/1.1.
    pub(crate) fn web(self: &Arc<Self>) -> anyhow::Result<Arc<ServerConfig>> {
        self.speaking(b"http/1.1")
    }

    fn speaking(self: &Arc<Self>, protocol: &[u8]) -> anyhow::Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("TLS cannot be set up")?
            .with_no_client_auth()
            .with_cert_resolver(Arc::<Self>::clone(self));
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Arc::new(config))
    }

    /// Replaces the certificate when its time has come, or when its file was replaced.
    pub(crate) fn keep_fresh(self: &Arc<Self>, clock: &Arc<dyn Clock>, life: &Lifecycle) {
        let (own, clock, stopping) = (Arc::clone(self), Arc::clone(clock), life.stopping());
        life.spawn("certificates", async move {
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    () = tokio::time::sleep(LOOK_EVERY) => own.renew(clock.now()),
                }
            }
        });
    }

    fn renew(&self, now: DateTime<Utc>) {
        let shown = self
            .shown
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if shown.renew_at.is_some_and(|due| now < due) {
            return;
        }
        match self.source.load(now) {
            Ok(fresh) if fresh.key.cert == shown.key.cert => {}
            Ok(fresh) => {
                tracing::info!("the listeners for nodes show a new certificate");
                *self.shown.write().unwrap_or_else(PoisonError::into_inner) = fresh;
            }
            // The old one is still better than none.
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "cannot renew the certificate");
            }
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&shown.key))
    }
}

impl Source {
    fn load(&self, now: DateTime<Utc>) -> anyhow::Result<Shown> {
        match self {
            Self::Authority { ca, names } => {
                let issued = ca
                    .issue_server(names, now)
                    .context("cannot make a certificate")?;
                let key = issued.key_pem.reveal().as_bytes();
                Ok(Shown {
                    key: certified(issued.chain_pem.as_bytes(), key)?,
                    renew_at: Some(issued.renew_at),
                })
            }
            Self::Files {
                certificate,
                key,
                ca,
            } => {
                let read = |path: &Path| {
                    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
                };
                let mut chain = read(certificate)?;
                if let Some(ca) = ca {
                    // An agent that knows only the digest must see the certificate itself.
                    chain.push(b'\n');
                    chain.extend(read(ca)?);
                }
                let certified = certified(&chain, &read(key)?);
                Ok(Shown {
                    key: certified.with_context(|| {
                        format!(
                            "{} and {} are not usable",
                            certificate.display(),
                            key.display()
                        )
                    })?,
                    renew_at: None,
                })
            }
        }
    }
}

fn certified(chain: &[u8], key: &[u8]) -> anyhow::Result<Arc<CertifiedKey>> {
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
    Ok(Arc::new(
        certified.context("the key does not fit the certificate")?,
    ))
}

/// By what names agents may reach this machine.
fn names(config: &Southbound) -> Vec<String> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy().into_owned();
    let mut names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    let is_dns_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        !name.is_empty() && name.bytes().all(plain)
    };
    names.extend(Some(host).filter(|name| is_dns_name(name)));
    if !config.listen.ip().is_unspecified() {
        names.push(config.listen.ip().to_string());
    }
    names.extend(config.names.iter().cloned());
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    fn authority(folder: &Path) -> CertificateAuthority {
        CertificateAuthority::open(folder, NOW).unwrap()
    }

    fn shown(certificates: &Certificates) -> Vec<CertificateDer<'static>> {
        certificates.shown.read().unwrap().key.cert.clone()
    }

    #[test]
    fn an_issued_certificate_is_replaced_when_its_time_has_come() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let digest = ca.digest();
        let certificates = Certificates::from_authority(ca, &Southbound::default(), NOW).unwrap();
        assert_eq!(certificates.digest(), Some(digest));
        let first = shown(&certificates);

        certificates.renew(NOW + chrono::TimeDelta::days(59));
        assert_eq!(shown(&certificates), first);

        certificates.renew(NOW + chrono::TimeDelta::days(60));
        let second = shown(&certificates);
        assert_ne!(second[0], first[0]);
        assert_eq!(second[1], first[1], "the authority is the same");
    }

    #[test]
    fn a_certificate_file_that_was_replaced_is_shown_and_a_spoilt_one_is_not() {
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
        assert_eq!(
            certificates.digest(),
            None,
            "agents ask the roots of their system"
        );
        let first = shown(&certificates);

        replace();
        certificates.renew(NOW);
        let second = shown(&certificates);
        assert_ne!(second, first);

        fs::write(path("key.pem"), "spoilt").unwrap();
        certificates.renew(NOW);
        assert_eq!(shown(&certificates), second);
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
            assert_eq!(shown(&certificates).len(), 2);
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let path = |name: &str| folder.path().join(name);
        let issue = || ca.issue_server(&["localhost".to_owned()], NOW).unwrap();
        fs::write(path("chain.pem"), issue().chain_pem).unwrap();
        fs::write(path("key.pem"), issue().key_pem.reveal()).unwrap();
        let error = Certificates::from_files(&path("chain.pem"), &path("key.pem"), None);
        let error = format!("{:#}", error.unwrap_err());
        assert!(
            error.contains("chain.pem") && error.contains("the key does not fit"),
            "{error}"
        );
    }

    #[test]
    fn a_certificate_is_for_all_names_of_this_machine_and_those_of_the_configuration() {
        let config = Southbound {
            listen: ([192, 0, 2, 7], 0).into(),
            names: vec!["updates.example".to_owned(), "localhost".to_owned()],
            ..Southbound::default()
        };
        let names = names(&config);
        for name in [
            "localhost",
            "127.0.0.1",
            "::1",
            "192.0.2.7",
            "updates.example",
        ] {
            assert_eq!(
                names.iter().filter(|other| *other == name).count(),
                1,
                "{name}"
            );
        }
    }
}
