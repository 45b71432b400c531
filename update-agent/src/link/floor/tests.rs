use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use super::super::Trust;
use super::*;

fn time(text: &str) -> DateTime<Utc> {
    text.parse().expect("a time")
}

fn test_paths() -> (tempfile::TempDir, AgentPaths) {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
    (folder, paths)
}

/// A self-signed server certificate that is valid in 2026 only: as DER, as PEM, and its key.
fn certificate() -> (CertificateDer<'static>, String, KeyPair) {
    let pair = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let names = vec!["keel.example".to_owned()];
    let mut parameters = CertificateParams::new(names).expect("parameters");
    parameters.not_before = date_time_ymd(2026, 1, 1);
    parameters.not_after = date_time_ymd(2027, 1, 1);
    let signed = parameters.self_signed(&pair).expect("a certificate");
    (signed.der().clone(), signed.pem(), pair)
}

/// A clock that shows a fixed time.
#[derive(Debug)]
struct FixedTime(UnixTime);

impl TimeProvider for FixedTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

/// Whether the server's certificate is accepted when the clock shows a time.
fn is_accepted(floor: &Arc<TimeFloor>, clock: &str) -> bool {
    let (der, pem, pair) = certificate();
    completes_handshake(floor, clock, (der, &pem), &pair)
}

/// Whether a handshake completes with a server that shows a certificate and signs with a key.
fn completes_handshake(
    floor: &Arc<TimeFloor>,
    clock: &str,
    (der, pem): (CertificateDer<'static>, &str),
    pair: &KeyPair,
) -> bool {
    let provider = Arc::new(ring::default_provider());
    let key = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
    let key = provider.key_provider.load_private_key(key);
    let certified = CertifiedKey::new(vec![der], key.expect("a key"));
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    let trust = Trust::Ca(pem.to_owned());
    let seconds = u64::try_from(time(clock).timestamp()).expect("after 1970");
    let now = FixedTime(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
    let client = ClientConfig::builder_with_details(provider, Arc::new(now))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(trust.verifier(Arc::clone(floor)).expect("trust"))
        .with_no_client_auth();
    let name = ServerName::try_from("keel.example").expect("a name");
    let client = ClientConnection::new(Arc::new(client), name).expect("a client");
    run_handshake(client, ServerConnection::new(Arc::new(server)).expect("a server"))
}

/// Whether a client and a server complete a handshake.
fn run_handshake(mut client: ClientConnection, mut server: ServerConnection) -> bool {
    for _ in 0..8 {
        if !client.is_handshaking() && !server.is_handshaking() {
            return true;
        }
        let mut there = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut there).expect("memory");
        }
        let mut there = there.as_slice();
        while !there.is_empty() {
            server.read_tls(&mut there).expect("memory");
            server.process_new_packets().expect("a client that is well");
        }
        let mut back = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut back).expect("memory");
        }
        let mut back = back.as_slice();
        while !back.is_empty() {
            client.read_tls(&mut back).expect("memory");
            if client.process_new_packets().is_err() {
                return false;
            }
        }
    }
    panic!("the handshake does not end")
}

#[test]
fn a_clock_in_the_past_reaches_the_server_after_a_contact() {
    let floor = Arc::new(TimeFloor::unset());
    assert!(is_accepted(&floor, "2026-06-01T00:00:00Z"));
    assert!(!is_accepted(&floor, "2001-01-01T00:00:00Z"));

    floor.record_server_time(time("2026-05-01T00:00:00Z"));

    assert!(is_accepted(&floor, "2001-01-01T00:00:00Z"));
    assert!(is_accepted(&floor, "2026-06-01T00:00:00Z"));
    assert!(
        !is_accepted(&floor, "2040-01-01T00:00:00Z"),
        "a clock later than the certificates reaches no server"
    );
}

#[test]
fn a_server_time_outside_its_own_certificate_is_rejected() {
    let floor = Arc::new(TimeFloor::unset());
    assert!(is_accepted(&floor, "2026-06-01T00:00:00Z"));
    for wrong in ["2045-01-01T00:00:00Z", "2025-12-31T00:00:00Z", "1969-07-20T00:00:00Z"] {
        floor.record_server_time(time(wrong));
        assert_eq!(floor.last_contact(), None, "{wrong}");
    }
    assert!(is_accepted(&floor, "2026-06-01T00:00:00Z"));
    assert!(!is_accepted(&floor, "2001-01-01T00:00:00Z"));

    floor.record_server_time(time("2026-12-01T00:00:00Z"));
    floor.record_server_time(time("2026-06-01T00:00:01Z"));
    let last = floor.last_contact();
    assert_eq!(last, Some(time("2026-06-01T00:00:01Z")), "the last server time");
    assert!(is_accepted(&floor, "2001-01-01T00:00:00Z"));
}

#[test]
fn a_certificate_without_its_key_proves_nothing() {
    let floor = Arc::new(TimeFloor::unset());
    let (der, pem, pair) = certificate();
    let another = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let summer = "2026-06-01T00:00:00Z";
    assert!(!completes_handshake(&floor, summer, (der.clone(), &pem), &another));
    let later = time("2027-06-01T00:00:00Z");
    floor.record_server_time(later);
    assert_eq!(floor.last_contact(), Some(later), "no certificate contradicts it");

    let floor = Arc::new(TimeFloor::unset());
    assert!(completes_handshake(&floor, summer, (der, &pem), &pair));
    floor.record_server_time(later);
    assert_eq!(floor.last_contact(), None, "its own certificate contradicts it");
}

#[test]
fn a_server_that_was_once_days_ahead_is_still_accepted() {
    let floor = Arc::new(TimeFloor::unset());
    floor.record_server_time(time("2027-01-10T00:00:00Z"));
    assert!(is_accepted(&floor, "2026-12-20T00:00:00Z"));
}

#[test]
fn a_clock_in_the_past_does_not_accept_an_expired_certificate() {
    let floor = Arc::new(TimeFloor::unset());
    floor.record_server_time(time("2027-06-01T00:00:00Z"));
    for clock in ["2026-06-01T00:00:00Z", "2026-12-31T00:00:00Z"] {
        assert!(!is_accepted(&floor, clock), "{clock}");
    }
}

#[test]
fn a_replaced_certificate_is_accepted_with_a_clock_in_the_past() {
    let floor = Arc::new(TimeFloor::unset());
    floor.record_server_time(time("2025-12-20T00:00:00Z"));
    assert!(is_accepted(&floor, "2001-01-01T00:00:00Z"));
    assert!(!is_accepted(&floor, "2025-12-31T00:00:00Z"), "a clock that is not behind is used");
}

#[test]
fn a_connection_may_outlive_its_certificate() {
    let floor = Arc::new(TimeFloor::unset());
    let begun = Instant::now();
    let hours = |hours| begun + Duration::from_hours(hours);
    assert!(is_accepted(&floor, "2026-12-31T23:00:00Z"));
    floor.record_server_time_at(time("2026-12-31T23:00:00Z"), begun);
    let later = time("2027-01-01T01:00:00Z");
    floor.record_server_time_at(later, hours(2));
    assert_eq!(floor.last_contact(), Some(later));
    floor.record_server_time_at(time("2027-06-01T00:00:00Z"), hours(3));
    assert_eq!(floor.last_contact(), Some(later), "less time has passed");
}

#[test]
fn the_last_contact_is_stored_but_not_at_each_poll() {
    let (folder, paths) = test_paths();
    let floor = TimeFloor::load(&paths);
    assert_eq!(floor.last_contact(), None);
    floor.record_server_time(time("2026-05-01T00:00:00Z"));
    floor.record_server_time(time("2026-05-01T00:14:00Z"));
    let file = folder.path().join("last-contact");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, "2026-05-01T00:00:00Z\n");
    assert_eq!(floor.last_contact(), Some(time("2026-05-01T00:14:00Z")));

    floor.record_server_time(time("2026-05-01T00:15:00Z"));

    let again = TimeFloor::load(&paths);
    assert_eq!(again.last_contact(), Some(time("2026-05-01T00:15:00Z")));
}

#[test]
fn an_invalid_file_is_ignored_and_rewritten() {
    let (folder, paths) = test_paths();
    std::fs::write(folder.path().join("last-contact"), b"\xff soon").unwrap();
    let floor = TimeFloor::load(&paths);
    assert_eq!(floor.last_contact(), None);
    floor.record_server_time(time("2026-05-01T00:00:00Z"));
    let again = TimeFloor::load(&paths);
    assert_eq!(again.last_contact(), Some(time("2026-05-01T00:00:00Z")));
}

#[test]
fn a_failed_write_does_not_prevent_a_contact() {
    let paths = AgentPaths::new("/", Some("/proc/nowhere".into()));
    let floor = TimeFloor::load(&paths);
    floor.record_server_time(time("2026-05-01T00:00:00Z"));
    assert_eq!(floor.last_contact(), Some(time("2026-05-01T00:00:00Z")));
}
