//! When the certificates that the server uses expire, as a metric and as notifications.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, ValidityPeriod};
use evenkeel_kit::{Clock, Lifecycle};
use evenkeel_store::notifications::queue::{CERTIFICATE_EXPIRY_NOTICE, queue_certificate_expiry};
use evenkeel_store::{Store, StoreError, find_tls_file};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Interval at which the certificates of the connection to the database are read, and at which
/// notifications are queued.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// When the certificates of this process expire, by their labels: what the metric shows.
type Expiries = BTreeMap<&'static str, DateTime<Utc>>;

static EXPIRIES: Mutex<Expiries> = Mutex::new(Expiries::new());

/// The certificates of the connection to the database: label, and parameter of the URL.
const DATABASE_FILES: [(&str, &str); 2] =
    [("database_ca", "sslrootcert"), ("database_client", "sslcert")];

/// Records when a certificate expires.
pub(super) fn record_expiry(certificate: &'static str, expires_at: DateTime<Utc>) {
    EXPIRIES.lock().unwrap_or_else(PoisonError::into_inner).insert(certificate, expires_at);
    #[expect(clippy::cast_precision_loss, reason = "the seconds of thousands of years fit")]
    let seconds = expires_at.timestamp() as f64;
    metrics::gauge!(
        "evenkeel_certificate_expiry_timestamp_seconds",
        "certificate" => certificate
    )
    .set(seconds);
}

/// Records when the certificate of the server's own authority expires, and at an interval those of
/// the connection to the database. Queues notifications of those that expire soon.
pub(crate) fn spawn_expiry_watch(
    ca: &CertificateAuthority,
    database_url: Option<&str>,
    (store, clock): (Store, Arc<dyn Clock>),
    life: &Lifecycle,
) {
    record_expiry("ca", ca.expires_at());
    let files = database_url.map(find_database_files).unwrap_or_default();
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
            let all = EXPIRIES.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Err(error) = queue_notifications(&store, &all, clock.now()).await {
                tracing::warn!(%error, "cannot queue notifications of certificates that expire");
            }
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    });
}

/// Queues a notification of each certificate that expires soon. Sends no statement if there is none.
/// Returns the number of deliveries.
async fn queue_notifications(
    store: &Store,
    expiries: &Expiries,
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    let soon: Vec<_> = expiries
        .iter()
        .filter(|(_, expires_at)| **expires_at - CERTIFICATE_EXPIRY_NOTICE <= now)
        .collect();
    if soon.is_empty() {
        return Ok(0);
    }
    let tx = store.fleet().await?;
    let mut queued = 0;
    for (certificate, expires_at) in soon {
        let now = tx.database_time();
        queued += queue_certificate_expiry(&tx, certificate, *expires_at, now).await?;
    }
    // A commit would wake the readers of the change log.
    if queued == 0 {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(queued)
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
    use evenkeel_test_support::TestServer;

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

    #[tokio::test]
    async fn the_end_of_a_certificate_is_reported_once_to_each_project_with_a_target() {
        let server = TestServer::new(NOW).await;
        for (number, name, event) in [
            (1, "one", "certificate-expiry"),
            (2, "two", "certificate-expiry"),
            (3, "three", "test"),
        ] {
            let project = server.create_project(name).await;
            let insert = format!(
                "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
                 INSERT INTO notification_targets VALUES ('{project}', {number}, 'chat', \
                 'https://hooks.example/', ARRAY['{event}'], true, sha256(''), now(), now()); END $$"
            );
            server.store.execute_unprepared(&insert).await.expect("inserted");
        }
        let days = |days| NOW + TimeDelta::days(days);
        for (expiries, queued) in [
            (vec![("rest", days(15)), ("ca", days(3_000))], 0),
            (vec![("rest", days(14)), ("ca", days(3_000))], 2),
            (vec![("rest", days(14)), ("southbound", days(-1))], 2),
            (vec![("rest", days(14)), ("southbound", days(-1))], 0),
            (vec![("rest", days(13))], 2),
        ] {
            let expiries = Expiries::from_iter(expiries);
            let result = queue_notifications(&server.store, &expiries, NOW).await;
            assert_eq!(result.expect("a number"), queued, "{expiries:?}");
        }
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
