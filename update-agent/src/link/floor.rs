//! The time floor: a trusted lower bound of the current time.
//!
//! A machine whose clock battery is dead starts in the past, where no certificate is valid. It could not reach the server
//! that would tell it the time, and a healthy image on trial would look like one without a network. So the agent stores
//! the server's time of the last contact on disk and verifies certificates at no earlier time.
//!
//! A wrong server time must neither lock the node out nor make an expired certificate valid again. So the agent rejects a
//! server time that the server's own certificate contradicts, unless about that much time has passed since the last
//! contact. Every stored time therefore lies within the validity of a certificate that was shown, or follows from such a
//! time. A replacement certificate ends later. It may also begin later than the floor; that is accepted if the clock is
//! behind the floor, because the real time is later than the floor by an unknown amount. The agent uses the clock's own
//! time instead of the floor only if the clock is at most 30 days behind it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use crate::durable;
use crate::paths::AgentPaths;

/// The file is written again when its time differs by this much. It need not be exact, and disks wear.
const FILE_TOLERANCE: TimeDelta = TimeDelta::minutes(15);

/// A clock that is further behind the floor than this, in seconds, is not trusted for certificates that are invalid at the
/// floor. 30 days.
const MAX_SECONDS_BEHIND: u64 = 30 * 24 * 60 * 60;

/// The time of the last contact with the server, by the server's clock.
#[derive(Debug)]
pub struct TimeFloor {
    /// `None` if nothing is stored on disk.
    file: Option<PathBuf>,
    contact: Mutex<LastContact>,
    /// The certificates of the last handshake: they were valid, and the server has their key.
    proof: Mutex<Option<CertificateProof>>,
}

/// Certificates that were verified successfully.
#[derive(Debug)]
struct CertificateProof {
    verifier: Arc<WebPkiServerVerifier>,
    end_entity: CertificateDer<'static>,
    intermediates: Vec<CertificateDer<'static>>,
    name: ServerName<'static>,
}

impl CertificateProof {
    /// Whether the certificates are valid at another time.
    fn is_valid_at(&self, time: DateTime<Utc>) -> bool {
        let Some(time) = to_unix_time(time) else {
            return false;
        };
        let (end_entity, intermediates) = (&self.end_entity, &self.intermediates);
        let verified =
            self.verifier.verify_server_cert(end_entity, intermediates, &self.name, &[], time);
        verified.is_ok()
    }
}

/// The start of the validity, if a certificate is not valid yet.
fn not_before(error: &Error) -> Option<UnixTime> {
    let Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) = error
    else {
        return None;
    };
    Some(*not_before)
}

/// `None` before 1970.
fn to_unix_time(time: DateTime<Utc>) -> Option<UnixTime> {
    let seconds = u64::try_from(time.timestamp()).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

#[derive(Clone, Copy, Debug, Default)]
struct LastContact {
    server_time: Option<DateTime<Utc>>,
    /// When the server time was received. `None` if that was before this start of the agent.
    received_at: Option<Instant>,
    /// The time in the file.
    stored: Option<DateTime<Utc>>,
}

impl LastContact {
    /// Whether a server time that is received `at` an instant matches the time that has passed since the last contact.
    fn is_followed_by(&self, now: DateTime<Utc>, at: Instant) -> bool {
        let (Some(last), Some(before)) = (self.server_time, self.received_at) else {
            return false;
        };
        let elapsed = TimeDelta::from_std(at.saturating_duration_since(before)).ok();
        let expected = elapsed.and_then(|elapsed| last.checked_add_signed(elapsed));
        expected.is_some_and(|expected| (now - expected).abs() < FILE_TOLERANCE)
    }
}

impl TimeFloor {
    /// The floor of a machine that was never in contact with the server. It stores nothing.
    pub fn unset() -> Self {
        Self { file: None, contact: Mutex::default(), proof: Mutex::default() }
    }

    /// The floor of a machine that enrols. A stored time may be that of another server, so it does not count; the time of
    /// this server replaces it.
    pub fn for_enrolment(paths: &AgentPaths) -> Self {
        Self { file: Some(paths.last_contact()), ..Self::unset() }
    }

    /// Loads the floor of a node. A missing or invalid file means no floor: then only the clock counts.
    pub fn load(paths: &AgentPaths) -> Self {
        let file = paths.last_contact();
        let content = durable::read_file(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the time of the last contact");
            None
        });
        let stored = content.and_then(|content| {
            let text = String::from_utf8_lossy(&content);
            match DateTime::parse_from_rfc3339(text.trim()) {
                Ok(time) => Some(time.with_timezone(&Utc)),
                Err(error) => {
                    tracing::warn!(%error, "the stored time of the last contact is invalid");
                    None
                }
            }
        });
        Self {
            file: Some(file),
            contact: Mutex::new(LastContact { server_time: stored, received_at: None, stored }),
            proof: Mutex::default(),
        }
    }

    /// When the server was last contacted, by the server's clock; to within 15 minutes for a contact before this start of
    /// the agent. `None` if there was no contact.
    pub fn last_contact(&self) -> Option<DateTime<Utc>> {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner).server_time
    }

    /// Records the server's time `now`. The last time counts, even if it is earlier than a previous one. A time at which the
    /// server's own certificate is invalid is rejected, unless that much time has passed since the last contact: a
    /// connection may outlive its certificate. A failure to store the time is only logged.
    pub(super) fn record_server_time(&self, now: DateTime<Utc>) {
        self.record_server_time_at(now, Instant::now());
    }

    fn record_server_time_at(&self, now: DateTime<Utc>, at: Instant) {
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        if !contact.is_followed_by(now, at) && self.contradicts_certificate(now) {
            tracing::warn!(%now, "the server's clock is wrong: its own certificate is not valid at that time");
            return;
        }
        contact.server_time = Some(now);
        contact.received_at = Some(at);
        let is_stored = contact.stored.is_some_and(|stored| (now - stored).abs() < FILE_TOLERANCE);
        let Some(file) = self.file.as_ref().filter(|_| !is_stored) else {
            return;
        };
        let line = format!("{}\n", now.to_rfc3339_opts(SecondsFormat::Secs, true));
        match durable::replace_file(file, line.as_bytes(), 0o644) {
            Ok(()) => contact.stored = Some(now),
            Err(error) => {
                tracing::debug!(%error, "cannot store the time of the last contact");
            }
        }
    }

    /// Whether the certificates that were shown last are invalid at a time.
    fn contradicts_certificate(&self, time: DateTime<Utc>) -> bool {
        let proof = self.proof.lock().unwrap_or_else(PoisonError::into_inner);
        proof.as_ref().is_some_and(|proof| !proof.is_valid_at(time))
    }

    fn set_proof(&self, proof: CertificateProof) {
        let mut current = self.proof.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(proof);
    }

    /// The later of a time and the floor.
    fn raise_to_floor(&self, now: UnixTime) -> UnixTime {
        let floor = self.last_contact().and_then(to_unix_time);
        floor.map_or(now, |floor| floor.max(now))
    }
}

/// Verifies a server's certificates at the floor if the clock shows an earlier time.
///
/// If a certificate begins later than the floor, it is verified at its own beginning: a machine that was off while the
/// server's certificate was replaced knows only that the time is later than the floor. If the certificates are invalid for
/// another reason, the clock's own time decides, unless it is far behind: a server whose clock was once some days ahead
/// must not lock out every node that it answered.
#[derive(Debug)]
pub(super) struct FloorVerifier {
    inner: Arc<WebPkiServerVerifier>,
    floor: Arc<TimeFloor>,
    is_own_server: bool,
    /// Certificates that were shown last and are valid. They prove nothing before the server has signed with their key.
    pending_proof: Mutex<Option<CertificateProof>>,
}

impl FloorVerifier {
    /// Verifies with `inner`. `is_own_server` is true for the node's own server, whose time sets the floor.
    pub(super) fn new(
        inner: Arc<WebPkiServerVerifier>,
        floor: Arc<TimeFloor>,
        is_own_server: bool,
    ) -> Self {
        Self { inner, floor, is_own_server, pending_proof: Mutex::default() }
    }

    /// Accepts the pending proof if the key of its certificate has signed the handshake.
    fn finish_handshake(
        &self,
        end_entity: &CertificateDer<'_>,
        verified: Result<HandshakeSignatureValid, Error>,
    ) -> Result<HandshakeSignatureValid, Error> {
        let pending = self
            .pending_proof
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take_if(|proof| proof.end_entity.as_ref() == end_entity.as_ref());
        if let Some(proof) = pending.filter(|_| verified.is_ok()) {
            self.floor.set_proof(proof);
        }
        verified
    }
}

impl ServerCertVerifier for FloorVerifier {
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
        let lifted = self.floor.raise_to_floor(now);
        let behind = lifted.as_secs().saturating_sub(now.as_secs());
        let mut verified = at(lifted);
        if behind > 0 {
            // Each certificate of the chain may begin later than the one before.
            for _ in 0..=intermediates.len() {
                let Some(begins) = verified.as_ref().err().and_then(not_before) else {
                    break;
                };
                verified = at(begins);
            }
        }
        if verified.is_err() && (1..=MAX_SECONDS_BEHIND).contains(&behind) {
            verified = at(now);
        }
        if verified.is_ok() && self.is_own_server {
            let intermediates = intermediates.iter().cloned();
            let proof = CertificateProof {
                verifier: Arc::clone(&self.inner),
                end_entity: end_entity.clone().into_owned(),
                intermediates: intermediates.map(CertificateDer::into_owned).collect(),
                name: server_name.to_owned(),
            };
            *self.pending_proof.lock().unwrap_or_else(PoisonError::into_inner) = Some(proof);
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.finish_handshake(cert, self.inner.verify_tls12_signature(message, cert, dss))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.finish_handshake(cert, self.inner.verify_tls13_signature(message, cert, dss))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
