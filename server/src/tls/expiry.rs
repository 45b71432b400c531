//! When the certificates that the server uses expire, as a metric.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, ValidityPeriod};
use evenkeel_kit::Lifecycle;
use evenkeel_store::find_tls_file;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Interval at which the certificates of the connection to the database are read.
const DATABASE_FILES_INTERVAL: Duration = Duration::from_mins(1);

/// The certificates of the connection to the database: label, and parameter of the URL.
const DATABASE_FILES: [(&str, &str); 2] =
    [("database_ca", "sslrootcert"), ("database_client", "sslcert")];

/// Records when a certificate expires.
pub(super) fn record_expiry(certificate: &'static str, expires_at: DateTime<Utc>) {
    #[expect(clippy::cast_precision_loss, reason = "the seconds of thousands of years fit")]
    let seconds = expires_at.timestamp() as f64;
    metrics::gauge!(
        "evenkeel_certificate_expiry_timestamp_seconds",
        "certificate" => certificate
    )
    .set(seconds);
}

/// Records when the certificate of the server's own authority expires, and at an interval those of
/// the connection to the database.
pub(crate) fn spawn_expiry_watch(
    ca: &CertificateAuthority,
    database_url: Option<&str>,
    life: &Lifecycle,
) {
    record_expiry("ca", ca.expires_at());
    let files = database_url.map(find_database_files).unwrap_or_default();
    if files.is_empty() {
        return;
    }
    let stopping = life.stopping();
    life.spawn("certificate expiry", async move {
        loop {
            for &(certificate, ref path) in &files {
                // An unreadable file keeps its last value; the next connection to the database
                // reports the error.
                if let Some(expires_at) = read_first_expiry(path) {
                    record_expiry(certificate, expires_at);
                }
            }
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = tokio::time::sleep(DATABASE_FILES_INTERVAL) => {}
            }
        }
    });
}

fn find_database_files(url: &str) -> Vec<(&'static str, PathBuf)> {
    let files = DATABASE_FILES.into_iter();
    files
        .filter_map(|(certificate, parameter)| Some((certificate, find_tls_file(url, parameter)?)))
        .collect()
}

/// Returns when the first certificate of a PEM file expires. `None` if it has no certificate.
fn read_first_expiry(path: &Path) -> Option<DateTime<Utc>> {
    let text = fs::read(path).ok()?;
    let certificates = CertificateDer::pem_slice_iter(&text).filter_map(Result::ok);
    let validity = certificates.filter_map(|certificate| ValidityPeriod::parse(&certificate));
    validity.map(|validity| validity.not_after).min()
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    const NOW: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    #[test]
    fn the_first_certificate_of_a_file_that_expires_counts() {
        let folder = tempfile::tempdir().unwrap();
        let ca = CertificateAuthority::open(folder.path(), NOW).unwrap();
        let issued = ca.issue_server(&["localhost".to_owned()], NOW).unwrap();
        let path = folder.path().join("chain.pem");
        fs::write(&path, &issued.chain_pem).unwrap();
        assert_eq!(read_first_expiry(&path), Some(NOW + TimeDelta::days(90)));
        assert_eq!(read_first_expiry(&folder.path().join("ca.pem")), Some(ca.expires_at()));
        fs::write(&path, "no certificate").unwrap();
        assert_eq!(read_first_expiry(&path), None);
        assert_eq!(read_first_expiry(Path::new("/no/such/file")), None);
    }

    #[test]
    fn the_files_of_the_database_are_those_of_its_url() {
        let url =
            "postgres://db.example/x?sslmode=verify-full&sslrootcert=/ca&sslcert=/cert&sslkey=/key";
        let expected = [("database_ca", "/ca"), ("database_client", "/cert")];
        assert_eq!(
            find_database_files(url),
            expected.map(|(name, path)| (name, PathBuf::from(path)))
        );
        assert!(find_database_files("postgres://db.example/x?sslmode=require").is_empty());
    }
}
