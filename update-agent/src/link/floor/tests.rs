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

fn place() -> (tempfile::TempDir, Place) {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place::new("/", Some(folder.path().to_owned()));
    (folder, place)
}

/// A server's certificate that is valid in 2026 only and vouches for itself: as DER, as PEM, and its key.
fn certificate() -> (CertificateDer<'static>, String, KeyPair) {
    let pair = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let names = vec!["keel.example".to_owned()];
    let mut parameters = CertificateParams::new(names).expect("parameters");
    parameters.not_before = date_time_ymd(2026, 1, 1);
    parameters.not_after = date_time_ymd(2027, 1, 1);
    let made = parameters.self_signed(&pair).expect("a certificate");
    (made.der().clone(), made.pem(), pair)
}

/// What the clock shows.
#[derive(Debug)]
struct Shown(UnixTime);

impl TimeProvider for Shown {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

/// Whether the server's certificate is taken when the clock shows a time.
fn is_taken(floor: &Arc<Floor>, clock: &str) -> bool {
    let (der, pem, pair) = certificate();
    is_served(floor, clock, (der, &pem), &pair)
}

/// Whether a handshake comes about with somebody who shows a certificate and signs with a key.
fn is_served(
    floor: &Arc<Floor>,
    clock: &str,
    (der, pem): (CertificateDer<'static>, &str),
    pair: &KeyPair,
) -> bool {
    let provider = Arc::new(ring::default_provider());
    let key = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
    let key = provider.key_provider.load_private_key(key);
    let shown = CertifiedKey::new(vec![der], key.expect("a key"));
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
    let trust = Trust::Ca(pem.to_owned());
    let seconds = u64::try_from(time(clock).timestamp()).expect("after 1970");
    let now = Shown(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
    let client = ClientConfig::builder_with_details(provider, Arc::new(now))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(trust.verifier(Arc::clone(floor)).expect("trust"))
        .with_no_client_auth();
    let name = ServerName::try_from("keel.example").expect("a name");
    let client = ClientConnection::new(Arc::new(client), name).expect("a client");
    shake(
        client,
        ServerConnection::new(Arc::new(server)).expect("a server"),
    )
}

/// Whether two shake hands: a few flights there and back.
fn shake(mut client: ClientConnection, mut server: ServerConnection) -> bool {
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
    panic!("they come to no end")
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
fn a_certificate_that_is_shown_without_its_key_proves_nothing() {
    let floor = Arc::new(Floor::none());
    let (der, pem, pair) = certificate();
    let another = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let summer = "2026-06-01T00:00:00Z";
    assert!(!is_served(&floor, summer, (der.clone(), &pem), &another));
    let later = time("2027-06-01T00:00:00Z");
    floor.heard(later);
    assert_eq!(floor.last_contact(), Some(later), "nothing contradicts it");

    let floor = Arc::new(Floor::none());
    assert!(is_served(&floor, summer, (der, &pem), &pair));
    floor.heard(later);
    assert_eq!(floor.last_contact(), None, "its own certificate does");
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
