use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;

use rcgen::{
    BasicConstraints, CertificateSigningRequestParams, CertifiedIssuer, IsCa, date_time_ymd,
};
use rustls::pki_types::CertificateSigningRequestDer;

use super::*;

/// A state directory with a key for decryption. All tests share that key, because creating one is slow.
fn prepared_state() -> (tempfile::TempDir, AgentPaths) {
    static KEY: OnceLock<String> = OnceLock::new();
    let key = KEY.get_or_init(|| generate_decryption_key().unwrap().serialize_pem());
    let (folder, paths) = empty_state();
    fs::write(paths.decryption_key(), key).unwrap();
    (folder, paths)
}

fn empty_state() -> (tempfile::TempDir, AgentPaths) {
    let folder = tempfile::tempdir().unwrap();
    let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
    (folder, paths)
}

/// The certificate of a new authority for a request; nothing for no request.
fn issue(request: &[u8]) -> Vec<u8> {
    issue_with(request, |_| ())
}

fn issue_with(request: &[u8], change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    if request.is_empty() {
        return Vec::new();
    }
    let request = CertificateSigningRequestDer::from(request);
    let mut request = CertificateSigningRequestParams::from_der(&request).unwrap();
    change(&mut request.params);
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    request.signed_by(&ca).unwrap().der().to_vec()
}

async fn request_and_store(certificates: &NodeCertificates) -> IssuedCertificates {
    let requests = certificates.requests().await.unwrap();
    let issued = IssuedCertificates {
        client: issue(&requests.client),
        decryption: issue(&requests.decryption),
    };
    certificates.store(&issued).unwrap();
    issued
}

/// The client certificate that a TLS connection shows.
fn shown(certificates: &NodeCertificates) -> Option<Vec<u8>> {
    let certified = certificates.resolve(&[], &[])?;
    Some(certified.cert[0].to_vec())
}

/// A power cut at the write of a file: its temporary file cannot be written.
fn cut_at(file: &Path) {
    let name = format!("{}.new", file.file_name().unwrap().to_str().unwrap());
    fs::create_dir(file.with_file_name(name)).unwrap();
}

fn repair(file: &Path) {
    let name = format!("{}.new", file.file_name().unwrap().to_str().unwrap());
    fs::remove_dir(file.with_file_name(name)).unwrap();
}

#[tokio::test]
async fn keys_are_created_once_and_only_their_owner_can_read_them() {
    let (_folder, paths) = empty_state();
    let certificates = NodeCertificates::none(&paths);
    let first = request_and_store(&certificates).await;
    let keys = || [paths.key(), paths.decryption_key()].map(|file| fs::read(file).unwrap());
    let created = keys();
    let second = request_and_store(&NodeCertificates::none(&paths)).await;
    assert_eq!(keys(), created);
    assert_ne!(first, second);
    for file in
        [paths.key(), paths.certificate(), paths.decryption_key(), paths.decryption_certificate()]
    {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    assert!(!format!("{certificates:?}").contains("PRIVATE"));
}

#[tokio::test]
async fn the_certificate_is_used_at_once_and_after_a_restart() {
    let (_folder, paths) = prepared_state();
    let certificates = NodeCertificates::none(&paths);
    assert!(!certificates.has_client() && certificates.tls_identity().is_none());
    let issued = request_and_store(&certificates).await;
    assert_eq!(shown(&certificates).as_ref(), Some(&issued.client));
    assert!(certificates.tls_identity().is_some());

    let restarted = NodeCertificates::load(&paths).unwrap();
    assert_eq!(shown(&restarted).as_ref(), Some(&issued.client));
    let renewed = request_and_store(&restarted).await;
    assert_eq!(shown(&restarted).as_ref(), Some(&renewed.client));
    let key = read_key(&paths, KeyFile::Decryption).unwrap().unwrap();
    let stored = fs::read(paths.decryption_certificate()).unwrap();
    assert_eq!(check_pair(&stored, &key).unwrap().cert[0].as_ref(), renewed.decryption);
}

#[tokio::test]
async fn the_clock_does_not_decide_about_a_certificate() {
    let (_folder, paths) = prepared_state();
    let certificates = NodeCertificates::none(&paths);
    let requests = certificates.requests().await.unwrap();
    for (from, until) in [(2001, 2002), (2101, 2102)] {
        let client = issue_with(&requests.client, |params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(until, 1, 1);
        });
        let issued = IssuedCertificates { client, decryption: Vec::new() };
        certificates.store(&issued).unwrap();
        let loaded = NodeCertificates::load(&paths).unwrap();
        assert_eq!(shown(&loaded), Some(issued.client));
        let expected = format!("{until}-01-01T00:00:00+00:00");
        assert_eq!(loaded.client_expires().unwrap().to_rfc3339(), expected);
    }
}

#[tokio::test]
async fn a_certificate_for_another_key_is_not_stored() {
    let (_folder, paths) = prepared_state();
    let (_other_folder, other) = prepared_state();
    let certificates = NodeCertificates::none(&paths);
    let issued = request_and_store(&certificates).await;
    let foreign = NodeCertificates::none(&other).requests().await.unwrap();
    for client in [issue(&foreign.client), b"not a certificate".to_vec()] {
        let wrong = IssuedCertificates { client, decryption: Vec::new() };
        let error = certificates.store(&wrong).unwrap_err();
        assert!(matches!(error, NodeError::Certificate(_)), "{error}");
    }
    // The certificate for decryption is less important than the identity of the node.
    let decryption = issue(&foreign.client);
    let client = issue(&certificates.requests().await.unwrap().client);
    certificates.store(&IssuedCertificates { client: client.clone(), decryption }).unwrap();

    let loaded = NodeCertificates::load(&paths).unwrap();
    assert_eq!(shown(&loaded), Some(client));
    let stored = fs::read_to_string(paths.decryption_certificate()).unwrap();
    assert_eq!(stored, encode_pem(CERTIFICATE, &issued.decryption));
}

#[tokio::test]
async fn a_power_cut_between_the_certificates_leaves_a_node_that_renews_again() {
    let (_folder, paths) = prepared_state();
    let first = request_and_store(&NodeCertificates::none(&paths)).await;
    let running = NodeCertificates::load(&paths).unwrap();
    let requests = running.requests().await.unwrap();
    let second = IssuedCertificates {
        client: issue(&requests.client),
        decryption: issue(&requests.decryption),
    };
    cut_at(&paths.certificate());
    running.store(&second).unwrap_err();
    assert_eq!(shown(&running).as_ref(), Some(&first.client), "only a stored one is used");

    let restarted = NodeCertificates::load(&paths).unwrap();
    assert_eq!(shown(&restarted).as_ref(), Some(&first.client));
    repair(&paths.certificate());
    let third = request_and_store(&restarted).await;
    assert_eq!(shown(&NodeCertificates::load(&paths).unwrap()), Some(third.client));
}

#[tokio::test]
async fn a_power_cut_during_enrolment_leaves_keys_that_the_next_enrolment_uses() {
    let (_folder, paths) = prepared_state();
    let certificates = NodeCertificates::none(&paths);
    cut_at(&paths.enrolment_key());
    certificates.requests().await.unwrap_err();
    repair(&paths.enrolment_key());
    // The next cut comes before the answer of the server.
    certificates.requests().await.unwrap();
    let key = fs::read(paths.enrolment_key()).unwrap();
    // And another one before the accepted key is stored.
    cut_at(&paths.key());
    let client = issue(&certificates.requests().await.unwrap().client);
    let issued = IssuedCertificates { client, decryption: Vec::new() };
    certificates.store(&issued).unwrap_err();
    repair(&paths.key());
    assert!(!NodeCertificates::load(&paths).unwrap().has_client());
    let issued = request_and_store(&NodeCertificates::none(&paths)).await;
    assert_eq!(fs::read(paths.key()).unwrap(), key);
    assert!(!paths.enrolment_key().exists());
    assert_eq!(shown(&NodeCertificates::load(&paths).unwrap()), Some(issued.client));
}

#[tokio::test]
async fn enrolment_succeeds_without_a_key_for_decryption_and_renewal_adds_it() {
    let (_folder, paths) = empty_state();
    let certificates = NodeCertificates::none(&paths);
    cut_at(&paths.decryption_key());
    let issued = request_and_store(&certificates).await;
    assert!(!issued.client.is_empty() && issued.decryption.is_empty());
    assert!(!paths.decryption_certificate().exists());
    repair(&paths.decryption_key());
    let renewed = request_and_store(&certificates).await;
    assert!(!renewed.decryption.is_empty());
    assert!(paths.decryption_certificate().exists());
}

#[tokio::test]
async fn a_damaged_certificate_is_an_error_until_the_machine_enrols_again() {
    let (_folder, paths) = prepared_state();
    request_and_store(&NodeCertificates::none(&paths)).await;
    let whole = fs::read(paths.certificate()).unwrap();
    for damaged in [&b""[..], b"garbage", &whole[..whole.len() / 2]] {
        fs::write(paths.certificate(), damaged).unwrap();
        let error = NodeCertificates::load(&paths).unwrap_err();
        assert_eq!(error.to_string(), "certificate.pem is invalid; enrol again");
    }
    let issued = request_and_store(&NodeCertificates::none(&paths)).await;
    assert_eq!(shown(&NodeCertificates::load(&paths).unwrap()), Some(issued.client));
}

#[tokio::test]
async fn a_damaged_key_is_replaced_at_enrolment_only() {
    let (_folder, paths) = prepared_state();
    let certificates = NodeCertificates::none(&paths);
    request_and_store(&certificates).await;
    for damaged in ["not a key", ""] {
        fs::write(paths.key(), damaged).unwrap();
        let error = certificates.requests().await.unwrap_err();
        assert_eq!(error.to_string(), "key.pem is invalid; enrol again");
        let error = NodeCertificates::load(&paths).unwrap_err();
        assert_eq!(error.to_string(), "key.pem is invalid; enrol again");
    }
    fs::remove_file(paths.key()).unwrap();
    let error = certificates.requests().await.unwrap_err();
    assert!(matches!(error, NodeError::NotEnrolled), "{error}");
    assert!(!paths.key().exists());

    fs::write(paths.key(), "not a key").unwrap();
    // The server may refuse the request.
    let certificate = fs::read(paths.certificate()).unwrap();
    NodeCertificates::none(&paths).requests().await.unwrap();
    assert_eq!(fs::read(paths.key()).unwrap(), b"not a key");
    assert_eq!(fs::read(paths.certificate()).unwrap(), certificate);
    let issued = request_and_store(&NodeCertificates::none(&paths)).await;
    assert_eq!(shown(&NodeCertificates::load(&paths).unwrap()), Some(issued.client));
}

/// A backup may return while an enrolment is refused.
#[tokio::test]
async fn a_restored_key_takes_precedence_over_a_new_one() {
    let (_folder, paths) = prepared_state();
    let first = request_and_store(&NodeCertificates::none(&paths)).await;
    let key = fs::read(paths.key()).unwrap();
    fs::remove_file(paths.key()).unwrap();
    NodeCertificates::none(&paths).requests().await.unwrap();
    fs::write(paths.key(), &key).unwrap();
    assert_eq!(shown(&NodeCertificates::load(&paths).unwrap()), Some(first.client));
    request_and_store(&NodeCertificates::load(&paths).unwrap()).await;
    assert_eq!(fs::read(paths.key()).unwrap(), key);
    assert!(!paths.enrolment_key().exists());
}

#[tokio::test]
async fn without_a_certificate_from_the_server_the_stored_one_is_removed() {
    let (_folder, paths) = prepared_state();
    let certificates = NodeCertificates::none(&paths);
    request_and_store(&certificates).await;
    certificates.store(&IssuedCertificates::default()).unwrap();
    assert!(!certificates.has_client());
    assert!(!NodeCertificates::load(&paths).unwrap().has_client());
}
