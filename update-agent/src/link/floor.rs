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
    /// By what the server proved itself last: its certificates were good, and it has their key.
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
    inner: Arc<WebPkiServerVerifier>,
    floor: Arc<Floor>,
    is_own_server: bool,
    /// What was shown last and found good. Anybody can show it: it proves nothing before its key has signed.
    shown: Mutex<Option<Proof>>,
}

impl AboveFloor {
    /// Looks with `inner`; `is_own_server` if it is the node's server that is looked at, whose words make the floor.
    pub(super) fn new(
        inner: Arc<WebPkiServerVerifier>,
        floor: Arc<Floor>,
        is_own_server: bool,
    ) -> Self {
        Self {
            inner,
            floor,
            is_own_server,
            shown: Mutex::default(),
        }
    }

    /// The key of a certificate has signed the handshake, or has not.
    fn signed(
        &self,
        end_entity: &CertificateDer<'_>,
        verified: Result<HandshakeSignatureValid, Error>,
    ) -> Result<HandshakeSignatureValid, Error> {
        let shown = self
            .shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take_if(|proof| proof.end_entity.as_ref() == end_entity.as_ref());
        if let Some(proof) = shown.filter(|_| verified.is_ok()) {
            self.floor.prove(proof);
        }
        verified
    }
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
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(proof);
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(cert, self.inner.verify_tls12_signature(message, cert, dss))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(cert, self.inner.verify_tls13_signature(message, cert, dss))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
