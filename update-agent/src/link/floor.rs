//! The earliest time that it can be.
//!
//! A machine whose clock lost its battery starts in the past, and no certificate is valid there: it would not reach the
//! server that could tell it the time, and a healthy image on trial would look like one without a network. What the
//! server said of the time at the last contact is kept on disk, and certificates are looked at no earlier than that.
//!
//! A word that is wrong must neither shut the node out nor make an expired certificate good again. So one that the
//! server's own certificate contradicts is not kept, unless just so much time has passed since the last one: whatever
//! is kept lies within the life of a certificate that was shown, or follows from what does. The certificate that takes
//! its place ends later. If it begins later, too, that is no fault where the clock is behind: it is later than the
//! floor, and nobody knows by how much. And a clock is believed in place of the floor only if it is behind it by a
//! month at the most.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use crate::durable;
use crate::place::Place;

/// The name of its file in the state directory: one line, RFC 3339.
const FILE: &str = "last-contact";

/// The file is written again when what it says is off by this much: it need not be exact, and disks wear.
const GRAIN: TimeDelta = TimeDelta::minutes(15);

/// A clock that is further behind the floor than this, in seconds, says nothing of certificates that are not valid there.
/// 30 days.
const MOST_BEHIND: u64 = 30 * 24 * 60 * 60;

/// The time of the last contact with the server, by the server's clock.
#[derive(Debug)]
pub struct Floor {
    /// `None` if nothing is kept.
    file: Option<PathBuf>,
    contact: Mutex<Contact>,
    /// By what the server proved itself last.
    proof: Mutex<Option<Proof>>,
}

/// Certificates that were found good.
#[derive(Debug)]
struct Proof {
    verifier: Arc<WebPkiServerVerifier>,
    end_entity: CertificateDer<'static>,
    intermediates: Vec<CertificateDer<'static>>,
    name: ServerName<'static>,
}

impl Proof {
    /// Whether they would be at another time.
    fn holds_at(&self, time: DateTime<Utc>) -> bool {
        let Some(time) = unix(time) else {
            return false;
        };
        let (end_entity, intermediates) = (&self.end_entity, &self.intermediates);
        let verified =
            self.verifier
                .verify_server_cert(end_entity, intermediates, &self.name, &[], time);
        verified.is_ok()
    }
}

/// When the certificate begins that was not valid yet, if that is what is wrong.
fn beginning(error: &Error) -> Option<UnixTime> {
    let Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) = error
    else {
        return None;
    };
    Some(*not_before)
}

/// None before 1970.
fn unix(time: DateTime<Utc>) -> Option<UnixTime> {
    let seconds = u64::try_from(time.timestamp()).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

#[derive(Clone, Copy, Debug, Default)]
struct Contact {
    last: Option<DateTime<Utc>>,
    /// When that was heard. `None` if it was before this start.
    at: Option<Instant>,
    /// What the file says.
    kept: Option<DateTime<Utc>>,
}

impl Contact {
    /// Whether a word that is heard `at` an instant says that as much time has passed since the last one as really has.
    fn leads_to(&self, now: DateTime<Utc>, at: Instant) -> bool {
        let (Some(last), Some(before)) = (self.last, self.at) else {
            return false;
        };
        let passed = TimeDelta::from_std(at.saturating_duration_since(before)).ok();
        let expected = passed.and_then(|passed| last.checked_add_signed(passed));
        expected.is_some_and(|expected| (now - expected).abs() < GRAIN)
    }
}

impl Floor {
    /// That of a machine that never was in contact with the server. It keeps nothing.
    pub fn none() -> Self {
        Self {
            file: None,
            contact: Mutex::default(),
            proof: Mutex::default(),
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
            contact: Mutex::new(Contact {
                last: kept,
                at: None,
                kept,
            }),
            proof: Mutex::default(),
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

    /// The server was heard, and says that it is `now`. Its last word counts, also if it is an earlier time; but not
    /// one at which its own certificate is not valid, unless the time went on to there: a connection may outlive the
    /// certificate that it began with. That it cannot be kept hinders nothing.
    pub(super) fn heard(&self, now: DateTime<Utc>) {
        self.heard_at(now, Instant::now());
    }

    fn heard_at(&self, now: DateTime<Utc>, at: Instant) {
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        if !contact.leads_to(now, at) && self.is_contradicted(now) {
            tracing::warn!(%now, "the server's clock is wrong: its own certificate is not valid then");
            return;
        }
        contact.last = Some(now);
        contact.at = Some(at);
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

    /// Whether the certificates that were shown last are not valid at a time.
    fn is_contradicted(&self, time: DateTime<Utc>) -> bool {
        let proof = self.proof.lock().unwrap_or_else(PoisonError::into_inner);
        proof.as_ref().is_some_and(|proof| !proof.holds_at(time))
    }

    fn prove(&self, proof: Proof) {
        let mut known = self.proof.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(proof);
    }

    /// The later of a time and the floor.
    fn lift(&self, now: UnixTime) -> UnixTime {
        let floor = self.last_contact().and_then(unix);
        floor.map_or(now, |floor| floor.max(now))
    }
}

/// Looks at a server's certificates at the floor's time if the clock shows an earlier one.
///
/// If they begin later than that, they are looked at when they do: a machine that was off while the server's
/// certificate was replaced knows only that it is later than the floor. If they are not valid otherwise, the clock's
/// own time decides, unless it is far behind: a server whose clock was once some days ahead must not shut out every
/// node that it spoke to.
#[derive(Debug)]
pub(super) struct AboveFloor {
    pub(super) inner: Arc<WebPkiServerVerifier>,
    pub(super) floor: Arc<Floor>,
    /// Whether it is the node's server whose words make the floor.
    pub(super) is_own_server: bool,
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
        let behind = lifted.as_secs().saturating_sub(now.as_secs());
        let mut verified = at(lifted);
        if behind > 0 {
            // Each of them may begin later than the one before.
            for _ in 0..=intermediates.len() {
                let Some(begins) = verified.as_ref().err().and_then(beginning) else {
                    break;
                };
                verified = at(begins);
            }
        }
        if verified.is_err() && (1..=MOST_BEHIND).contains(&behind) {
            verified = at(now);
        }
        if verified.is_ok() && self.is_own_server {
            let intermediates = intermediates.iter().cloned();
            let proof = Proof {
                verifier: Arc::clone(&self.inner),
                end_entity: end_entity.clone().into_owned(),
                intermediates: intermediates.map(CertificateDer::into_owned).collect(),
                name: server_name.to_owned(),
            };
            self.floor.prove(proof);
        }
        verified
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
    fn a_time_at_which_the_servers_own_certificate_is_not_valid_is_not_believed() {
        let floor = Arc::new(Floor::none());
        assert!(is_taken(&floor, "2026-06-01T00:00:00Z"));
        for wrong in [
            "2045-01-01T00:00:00Z",
            "2025-12-31T00:00:00Z",
            "1969-07-20T00:00:00Z",
        ] {
            floor.heard(time(wrong));
            assert_eq!(floor.last_contact(), None, "{wrong}");
        }
        assert!(is_taken(&floor, "2026-06-01T00:00:00Z"));
        assert!(!is_taken(&floor, "2001-01-01T00:00:00Z"));

        floor.heard(time("2026-12-01T00:00:00Z"));
        floor.heard(time("2026-06-01T00:00:01Z"));
        let last = floor.last_contact();
        assert_eq!(last, Some(time("2026-06-01T00:00:01Z")), "its last word");
        assert!(is_taken(&floor, "2001-01-01T00:00:00Z"));
    }

    #[test]
    fn a_server_that_was_once_some_days_ahead_is_not_shut_out_for_it() {
        let floor = Arc::new(Floor::none());
        floor.heard(time("2027-01-10T00:00:00Z"));
        assert!(is_taken(&floor, "2026-12-20T00:00:00Z"));
    }

    #[test]
    fn a_clock_in_the_past_makes_no_expired_certificate_good_again() {
        let floor = Arc::new(Floor::none());
        floor.heard(time("2027-06-01T00:00:00Z"));
        for clock in ["2026-06-01T00:00:00Z", "2026-12-31T00:00:00Z"] {
            assert!(!is_taken(&floor, clock), "{clock}");
        }
    }

    #[test]
    fn a_certificate_that_was_replaced_meanwhile_shuts_out_no_machine_with_a_dead_clock() {
        let floor = Arc::new(Floor::none());
        floor.heard(time("2025-12-20T00:00:00Z"));
        assert!(is_taken(&floor, "2001-01-01T00:00:00Z"));
        assert!(
            !is_taken(&floor, "2025-12-31T00:00:00Z"),
            "a clock that is not behind is believed"
        );
    }

    #[test]
    fn a_connection_may_outlive_its_certificate() {
        let floor = Arc::new(Floor::none());
        let begun = Instant::now();
        let hours = |hours| begun + Duration::from_hours(hours);
        assert!(is_taken(&floor, "2026-12-31T23:00:00Z"));
        floor.heard_at(time("2026-12-31T23:00:00Z"), begun);
        let later = time("2027-01-01T01:00:00Z");
        floor.heard_at(later, hours(2));
        assert_eq!(floor.last_contact(), Some(later));
        floor.heard_at(time("2027-06-01T00:00:00Z"), hours(3));
        assert_eq!(
            floor.last_contact(),
            Some(later),
            "so much time did not pass"
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
