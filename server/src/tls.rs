//! TLS certificates of the listeners, replaced at run time.

mod expiry;
mod source;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, ca};
use evenkeel_kit::{Clock, Lifecycle};
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::client_certificates::NodeCertificateVerifier;
use crate::file_state::{FileStamp, ReloadedFile, is_readable_by_others};

use expiry::record_expiry;
pub(crate) use expiry::spawn_expiry_watch;
use source::{CertificateSource, CurrentCertificate};

/// Interval of the checks for a new certificate.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Warning of a key file that other users of this machine can read.
const KEY_READABLE_BY_OTHERS: &str =
    "all users of this machine can read the private key; remove their permission (chmod o=)";

/// Source of the certificates of a listener, and the current one.
#[derive(Debug)]
pub(crate) struct Certificates {
    source: CertificateSource,
    current: RwLock<CurrentCertificate>,
    last_check: Mutex<FileCheck>,
    digest: Option<String>,
}

/// The files of a certificate at the last check.
#[derive(Debug)]
struct FileCheck {
    stamps: Vec<Option<FileStamp>>,
    /// Start of the validity of a new certificate that was not valid yet.
    valid_from: Option<DateTime<Utc>>,
}

impl Certificates {
    /// Uses certificates of the server's own authority for these names.
    pub(crate) fn from_authority(
        ca: Arc<CertificateAuthority>,
        names: Vec<String>,
        now: DateTime<Utc>,
    ) -> anyhow::Result<Self> {
        let digest = Some(ca.digest());
        Self::new(CertificateSource::Authority { ca, names }, digest, now)
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
        // Before the files are read: a change meanwhile is noticed by the first check.
        let last_check = FileCheck { stamps: source.file_stamps(), valid_from: None };
        let current = RwLock::new(source.load(now)?);
        Ok(Self { source, current, last_check: Mutex::new(last_check), digest })
    }

    /// Returns the digest of the authority's certificate, for join tokens. `None` if agents use the
    /// root certificates of their system.
    pub(crate) fn digest(&self) -> Option<String> {
        self.digest.clone()
    }

    /// Returns why the current certificate is not valid at a time; `None` if it is valid.
    pub(crate) fn fault_at(&self, now: DateTime<Utc>) -> Option<String> {
        self.current().validity.fault_at(now)
    }

    /// Returns the names that the current certificate is not valid for. Leaves out invalid names.
    pub(crate) fn find_uncovered_names<'a>(
        &self,
        names: &'a [String],
    ) -> anyhow::Result<Vec<&'a str>> {
        let current = self.current();
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
        self.server_config(b"h2", Some(clients))
    }

    /// Returns the TLS configuration of an HTTP/1.1 listener. It requests client certificates only
    /// if an authority is given, and accepts those of this authority.
    pub(crate) fn http_config(
        self: &Arc<Self>,
        clients: Option<&CertificateAuthority>,
    ) -> anyhow::Result<Arc<ServerConfig>> {
        self.server_config(b"http/1.1", clients)
    }

    fn server_config(
        self: &Arc<Self>,
        protocol: &[u8],
        clients: Option<&CertificateAuthority>,
    ) -> anyhow::Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("cannot configure TLS")?;
        let config = match clients {
            Some(ca) => {
                config.with_client_cert_verifier(Arc::new(NodeCertificateVerifier::new(ca)?))
            }
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_cert_resolver(Arc::<Self>::clone(self));
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Arc::new(config))
    }

    /// Renews the certificate of a listener when it is due, or when its files have changed.
    pub(crate) fn spawn_renewal(
        self: &Arc<Self>,
        listener: &'static str,
        clock: &Arc<dyn Clock>,
        life: &Lifecycle,
    ) {
        record_expiry(listener, self.current().validity.not_after);
        match &self.source {
            CertificateSource::Authority { names, .. } => tracing::info!(
                listener,
                ?names,
                "the listener uses a certificate of the server's own authority"
            ),
            CertificateSource::Files { key, .. } if is_readable_by_others(key) => {
                tracing::warn!(listener, path = %key.display(), "{KEY_READABLE_BY_OTHERS}");
            }
            CertificateSource::Files { .. } => {}
        }
        if let Some(fault) = self.fault_at(clock.now()) {
            tracing::error!(
                listener,
                "the certificate of the listener is not valid, so clients refuse it: {fault}; replace its file"
            );
        }
        let (own, clock, stopping) = (Arc::clone(self), Arc::clone(clock), life.stopping());
        life.spawn("certificates", async move {
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    () = tokio::time::sleep(RENEWAL_CHECK_INTERVAL) => {
                        own.renew(listener, clock.now());
                    }
                }
            }
        });
    }

    /// Loads the certificate again if it is due, or if its files have changed. A certificate that is
    /// not usable or not valid changes nothing. One that is not valid yet is used once it is valid:
    /// the clock of its issuer may be ahead.
    fn renew(&self, listener: &'static str, now: DateTime<Utc>) {
        let current = self.current();
        let is_due = current.renew_at.is_some_and(|due| now >= due);
        // Unusable files are not read again before they change.
        if !self.must_read_files(now) && !is_due {
            return;
        }
        let file = ReloadedFile::Certificate(listener);
        let loaded = self.source.load(now);
        if let Ok(fresh) = &loaded
            && now < fresh.validity.not_before
        {
            self.last_check().valid_from = Some(fresh.validity.not_before);
        }
        match loaded.and_then(|fresh| fresh.require_valid(now)) {
            Ok(fresh) if fresh.key.cert == current.key.cert => {}
            Ok(fresh) => {
                let expires_at = fresh.validity.not_after;
                tracing::info!(listener, %expires_at, "the listener uses a new certificate");
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                record_expiry(listener, expires_at);
                file.count(true);
            }
            // The old certificate is still better than none.
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    listener,
                    error,
                    "cannot use the new certificate; the listener keeps the old one"
                );
                file.count(false);
            }
        }
    }

    fn current(&self) -> CurrentCertificate {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether a file has changed since the last call, or has become valid.
    fn must_read_files(&self, now: DateTime<Utc>) -> bool {
        let stamps = self.source.file_stamps();
        let mut last = self.last_check();
        let must_read =
            last.stamps != stamps || last.valid_from.is_some_and(|valid_from| now >= valid_from);
        if must_read {
            *last = FileCheck { stamps, valid_from: None };
        }
        must_read
    }

    fn last_check(&self) -> MutexGuard<'_, FileCheck> {
        self.last_check.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&current.key))
    }
}

/// The names that are neither DNS names nor IP addresses, so that no client can connect to them.
pub(crate) fn find_invalid_names(names: &[String]) -> Vec<&str> {
    let names = names.iter().map(String::as_str);
    names.filter(|name| parse_certificate_name(name).is_none()).collect()
}

/// Parses a name of a certificate: a DNS name or an IP address. A wildcard in the first label is
/// replaced by a label that it matches.
fn parse_certificate_name(name: &str) -> Option<ServerName<'static>> {
    // Clients compare names without a dot at the end.
    if name.ends_with('.') {
        return None;
    }
    let name = match name.strip_prefix("*.") {
        Some(domain) => format!("wildcard.{domain}"),
        None => name.to_owned(),
    };
    ServerName::try_from(name).ok()
}

/// Names and addresses by which clients may reach a listener of this machine: the names of the
/// machine, the address of the listener, and those of the configuration.
pub(crate) fn certificate_names(listen: SocketAddr, configured: &[&[String]]) -> Vec<String> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy().into_owned();
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let is_dns_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        !name.is_empty() && name.bytes().all(plain)
    };
    names.extend(Some(host).filter(|name| is_dns_name(name)));
    if !listen.ip().is_unspecified() {
        names.push(listen.ip().to_string());
    }
    names.extend(configured.iter().copied().flatten().cloned());
    let mut unique = HashSet::new();
    names.retain(|name| unique.insert(name.clone()));
    names
}

#[cfg(test)]
mod tests {
    use std::fs;

    use chrono::TimeDelta;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use rustls::pki_types::CertificateDer;

    use super::*;

    const NOW: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    fn authority(folder: &Path) -> CertificateAuthority {
        CertificateAuthority::open(folder, NOW).unwrap()
    }

    /// Replaces a file at once, so that it is another file also if its time and size are the same.
    fn replace_file(path: &Path, text: &str) {
        let temporary = path.with_extension("new");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, path).unwrap();
    }

    fn current_chain(certificates: &Certificates) -> Vec<CertificateDer<'static>> {
        certificates.current.read().unwrap().key.cert.clone()
    }

    #[test]
    fn an_issued_certificate_is_renewed_when_due() {
        let folder = tempfile::tempdir().unwrap();
        let ca = Arc::new(authority(folder.path()));
        let digest = ca.digest();
        let names = vec!["localhost".to_owned()];
        let certificates = Certificates::from_authority(ca, names, NOW).unwrap();
        assert_eq!(certificates.digest(), Some(digest));
        let first = current_chain(&certificates);

        certificates.renew("rest", NOW + TimeDelta::days(59));
        assert_eq!(current_chain(&certificates), first);

        certificates.renew("rest", NOW + TimeDelta::days(60));
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
            replace_file(&path("chain.pem"), &fresh.chain_pem);
            replace_file(&path("key.pem"), fresh.key_pem.reveal());
        };
        replace();
        let certificates = Certificates::from_files(&path("chain.pem"), &path("key.pem"), None);
        let certificates = certificates.unwrap();
        assert_eq!(certificates.digest(), None, "agents use the root certificates of their system");
        let first = current_chain(&certificates);

        replace();
        certificates.renew("rest", NOW);
        let second = current_chain(&certificates);
        assert_ne!(second, first);

        fs::write(path("key.pem"), "spoilt").unwrap();
        certificates.renew("rest", NOW);
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
        let nodes = ["updates.example".to_owned(), "localhost".to_owned()];
        let users = ["api.example".to_owned()];
        let names = certificate_names(([192, 0, 2, 7], 0).into(), &[&nodes, &users]);
        for name in ["localhost", "127.0.0.1", "::1", "192.0.2.7", "updates.example", "api.example"]
        {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_new_file_that_is_not_valid_now_changes_nothing_and_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let path = |name: &str| folder.path().join(name);
        let replace = |at: DateTime<Utc>| {
            let fresh = ca.issue_server(&["localhost".to_owned()], at).unwrap();
            replace_file(&path("key.pem"), fresh.key_pem.reveal());
            replace_file(&path("chain.pem"), &fresh.chain_pem);
        };
        replace(NOW);
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let certificates = Certificates::from_files(&path("chain.pem"), &path("key.pem"), None);
        let certificates = certificates.unwrap();
        let first = current_chain(&certificates);
        let renew = || {
            metrics::with_local_recorder(&recorder, || certificates.renew("rest", NOW));
            handle.render()
        };
        for bad in [NOW - TimeDelta::days(100), NOW + TimeDelta::days(2)] {
            replace(bad);
            renew();
            assert_eq!(current_chain(&certificates), first);
        }
        let text = renew();
        let failed = "evenkeel_file_reloads_total{file=\"rest\",outcome=\"failed\"} 2";
        assert!(text.contains(failed), "an unchanged file is not counted again: {text}");

        replace(NOW + TimeDelta::hours(1));
        let text = renew();
        assert_ne!(current_chain(&certificates), first);
        assert!(text.contains("{file=\"rest\",outcome=\"ok\"} 1"), "{text}");
        let expiry = (NOW + TimeDelta::hours(1) + TimeDelta::days(90)).timestamp();
        let gauge = "evenkeel_certificate_expiry_timestamp_seconds{certificate=\"rest\"}";
        assert!(text.contains(&format!("{gauge} {expiry}")), "{text}");
    }

    #[test]
    fn a_new_file_that_is_not_valid_yet_is_used_once_it_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let path = |name: &str| folder.path().join(name);
        let replace = |at: DateTime<Utc>| {
            let fresh = ca.issue_server(&["localhost".to_owned()], at).unwrap();
            replace_file(&path("key.pem"), fresh.key_pem.reveal());
            replace_file(&path("chain.pem"), &fresh.chain_pem);
        };
        replace(NOW);
        let certificates = Certificates::from_files(&path("chain.pem"), &path("key.pem"), None);
        let certificates = certificates.unwrap();
        let first = current_chain(&certificates);
        // Valid a day before it is issued.
        replace(NOW + TimeDelta::days(2));
        for (hours, is_used) in [(0, false), (23, false), (24, true)] {
            certificates.renew("rest", NOW + TimeDelta::hours(hours));
            assert_eq!(current_chain(&certificates) != first, is_used, "after {hours} hours");
        }
    }

    #[test]
    fn an_expired_certificate_is_used_at_the_start_and_has_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        let path = |name: &str| folder.path().join(name);
        let old = ca.issue_server(&["localhost".to_owned()], NOW).unwrap();
        fs::write(path("key.pem"), old.key_pem.reveal()).unwrap();
        fs::write(path("chain.pem"), &old.chain_pem).unwrap();
        let certificates = Certificates::from_files(&path("chain.pem"), &path("key.pem"), None);
        let certificates = certificates.unwrap();
        assert_eq!(certificates.fault_at(NOW), None);
        let fault = certificates.fault_at(NOW + TimeDelta::days(91)).unwrap();
        assert!(fault.contains("expired at"), "{fault}");
    }
}
