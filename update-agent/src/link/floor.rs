//! The earliest time that it can be.
//!
//! A machine whose clock lost its battery starts in the past, and no certificate is valid there: it would not reach the
//! server that could tell it the time, and a healthy image on trial would look like one without a network. What the
//! server said of the time at the last contact is kept on disk, and certificates are looked at no earlier than that.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use crate::durable;
use crate::place::Place;

/// The name of its file in the state directory: one line, RFC 3339.
const FILE: &str = "last-contact";

/// The file is written again when what it says is off by this much: it need not be exact, and disks wear.
const GRAIN: TimeDelta = TimeDelta::minutes(15);

/// The time of the last contact with the server, by the server's clock.
#[derive(Debug)]
pub struct Floor {
    /// `None` if nothing is kept.
    file: Option<PathBuf>,
    contact: Mutex<Contact>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Contact {
    last: Option<DateTime<Utc>>,
    /// What the file says.
    kept: Option<DateTime<Utc>>,
}

impl Floor {
    /// That of a machine that never was in contact with the server. It keeps nothing.
    pub fn none() -> Self {
        Self {
            file: None,
            contact: Mutex::default(),
        }
    }

    /// That of a node. A file that cannot be read or makes no sense is like none: the clock alone counts then, as ever.
    pub fn open(place: &Place) -> Self {
        let file = place.state().join(FILE);
        let content = durable::read(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, "the time of the last contact cannot be read");
            None
        });
        let kept = content.and_then(|content| {
            let text = String::from_utf8_lossy(&content);
            match DateTime::parse_from_rfc3339(text.trim()) {
                Ok(time) => Some(time.with_timezone(&Utc)),
                Err(error) => {
                    tracing::warn!(%error, "the time of the last contact makes no sense");
                    None
                }
            }
        });
        Self {
            file: Some(file),
            contact: Mutex::new(Contact { last: kept, kept }),
        }
    }

    /// When the server was last heard, by its own clock; of a contact before this start to within 15 minutes. `None` if
    /// it never was.
    pub fn last_contact(&self) -> Option<DateTime<Utc>> {
        self.contact
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .last
    }

    /// The server was heard, and says that it is `now`. Its last word counts, also if it is an earlier time. That it
    /// cannot be kept hinders nothing.
    pub(super) fn heard(&self, now: DateTime<Utc>) {
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        contact.last = Some(now);
        let is_kept = contact.kept.is_some_and(|kept| (now - kept).abs() < GRAIN);
        let Some(file) = self.file.as_ref().filter(|_| !is_kept) else {
            return;
        };
        let line = format!("{}\n", now.to_rfc3339_opts(SecondsFormat::Secs, true));
        match durable::replace(file, line.as_bytes(), 0o644) {
            Ok(()) => contact.kept = Some(now),
            Err(error) => {
                tracing::debug!(%error, "the time of the last contact cannot be kept");
            }
        }
    }

    /// The later of a time and the floor.
    fn lift(&self, now: UnixTime) -> UnixTime {
        let floor = self
            .last_contact()
            .and_then(|time| u64::try_from(time.timestamp()).ok());
        let floor = floor.map(|seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
        floor.map_or(now, |floor| floor.max(now))
    }
}

/// Looks at a server's certificates at the floor's time if the clock shows an earlier one.
///
/// If they are not valid then, the clock's own time decides, as it would without a floor: a server whose clock was once
/// years ahead must not shut out every node that it spoke to.
#[derive(Debug)]
pub(super) struct AboveFloor {
    pub(super) inner: Arc<WebPkiServerVerifier>,
    pub(super) floor: Arc<Floor>,
}

impl ServerCertVerifier for AboveFloor {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let at = |time| {
            self.inner.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                time,
            )
        };
        let lifted = self.floor.lift(now);
        let verified = at(lifted);
        if verified.is_ok() || lifted == now {
            return verified;
        }
        at(now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, date_time_ymd};

    use super::super::Trust;
    use super::*;

    fn time(text: &str) -> DateTime<Utc> {
        text.parse().expect("a time")
    }

    fn place() -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::new("/", Some(folder.path().to_owned()));
        (folder, place)
    }

    /// A server's certificate that is valid in 2026 only and vouches for itself.
    fn certificate() -> (CertificateDer<'static>, String) {
        let pair = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let names = vec!["keel.example".to_owned()];
        let mut parameters = CertificateParams::new(names).expect("parameters");
        parameters.not_before = date_time_ymd(2026, 1, 1);
        parameters.not_after = date_time_ymd(2027, 1, 1);
        let made = parameters.self_signed(&pair).expect("a certificate");
        (made.der().clone(), made.pem())
    }

    /// Whether the certificate is taken when the clock shows a time.
    fn is_taken(floor: &Arc<Floor>, clock: &str) -> bool {
        let (der, pem) = certificate();
        let verifier = Trust::Ca(pem).verifier(Arc::clone(floor)).expect("trust");
        let name = ServerName::try_from("keel.example").expect("a name");
        let seconds = u64::try_from(time(clock).timestamp()).expect("after 1970");
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let outcome = verifier.verify_server_cert(&der, &[], &name, &[], now);
        outcome.is_ok()
    }

    #[test]
    fn a_clock_that_starts_in_the_past_shuts_out_no_server_after_a_contact() {
        let floor = Arc::new(Floor::none());
        assert!(is_taken(&floor, "2026-06-01T00:00:00Z"));
        assert!(!is_taken(&floor, "2001-01-01T00:00:00Z"));

        floor.heard(time("2026-05-01T00:00:00Z"));

        assert!(is_taken(&floor, "2001-01-01T00:00:00Z"));
        assert!(is_taken(&floor, "2026-06-01T00:00:00Z"));
        assert!(
            !is_taken(&floor, "2040-01-01T00:00:00Z"),
            "a clock past the certificates reaches no server"
        );
    }

    #[test]
    fn a_server_that_was_once_years_ahead_is_not_shut_out_for_it() {
        let floor = Arc::new(Floor::none());
        floor.heard(time("2045-01-01T00:00:00Z"));
        assert!(is_taken(&floor, "2026-06-01T00:00:00Z"));
        assert!(!is_taken(&floor, "2001-01-01T00:00:00Z"));

        floor.heard(time("2026-06-01T00:00:01Z"));
        assert!(
            is_taken(&floor, "2001-01-01T00:00:00Z"),
            "its last word counts"
        );
    }

    #[test]
    fn the_last_contact_is_kept_and_not_written_at_each_poll() {
        let (folder, place) = place();
        let floor = Floor::open(&place);
        assert_eq!(floor.last_contact(), None);
        floor.heard(time("2026-05-01T00:00:00Z"));
        floor.heard(time("2026-05-01T00:14:00Z"));
        let file = folder.path().join(FILE);
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "2026-05-01T00:00:00Z\n");
        assert_eq!(floor.last_contact(), Some(time("2026-05-01T00:14:00Z")));

        floor.heard(time("2026-05-01T00:15:00Z"));

        let again = Floor::open(&place);
        assert_eq!(again.last_contact(), Some(time("2026-05-01T00:15:00Z")));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_like_none_and_is_written_anew() {
        let (folder, place) = place();
        std::fs::write(folder.path().join(FILE), b"\xff soon").unwrap();
        let floor = Floor::open(&place);
        assert_eq!(floor.last_contact(), None);
        floor.heard(time("2026-05-01T00:00:00Z"));
        let again = Floor::open(&place);
        assert_eq!(again.last_contact(), Some(time("2026-05-01T00:00:00Z")));
    }

    #[test]
    fn a_disk_that_takes_nothing_hinders_no_contact() {
        let place = Place::new("/", Some("/proc/nowhere".into()));
        let floor = Floor::open(&place);
        floor.heard(time("2026-05-01T00:00:00Z"));
        assert_eq!(floor.last_contact(), Some(time("2026-05-01T00:00:00Z")));
    }
}
